package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/e2e/internal/command"
)

// What is on a machine is imported through the server, and what belongs to no storage is found there,
// adopted and deleted, while agents are killed. It uses rootfs only.
func TestTasksOfMachines(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startServer("--unreachable-after", "1s")
	web := s.startAgent("web", s.token())
	s.startAgent("db", s.token())
	up := func() bool { now := s.machines(); return len(now) == 2 && now["web"] == "up" && now["db"] == "up" }
	s.poll("not both machines are up", up)
	tree := func(name string) string {
		t.Helper()
		dir := filepath.Join(s.dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if r := s.run(args...); r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%q: exit status %d, want %q\n%s", args, r.Code, want, r.All())
		}
	}

	old := tree("old")
	take := func(name, path string) []string {
		return []string{"import", name, path, "--pool", "rootfs", "--machine", "web", "--mount", s.mount(name), "--wait", "--timeout", "60s"}
	}
	if out := s.must(take("old", old)...).Stdout; !strings.Contains(out, "+ old  import  filesystem, pool rootfs, ") {
		t.Errorf("import says\n%s", out)
	}
	if got := s.read("old"); got != "old" {
		t.Errorf("the imported directory has %q", got)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", old, err)
	}
	if found := lookIn(t, s.must("describe", "old", "-o", "json")); found.NotAsked != "" || found.Machine != "web" || !slices.ContainsFunc(found.Files, func(f user.StorageFile) bool {
		return f.Kind == "directory" && strings.HasPrefix(f.Path, s.dataOf("web"))
	}) {
		t.Errorf("web has of the imported directory: %+v", found)
	}
	fails("no machine is named: name the one that has it with --machine", "import", "x", old, "--pool", "rootfs")
	fails("machine web: ", take("x", filepath.Join(s.dir, "none"))...)

	web.kill()
	s.poll("web counts as connected", func() bool { return s.machines()["web"] == "unreachable" })
	if r := s.must("describe", "old"); !strings.Contains(r.Stdout, "machine web is not connected") || !strings.Contains(r.Stdout, "Events:") {
		t.Errorf("without its machine, storage is described as\n%s", r.All())
	}
	next := tree("next")
	fails("machine web is not connected: start its agent", take("next", next)...)
	if r := s.must("orphans"); r.Stdout != "no orphans\n" || !strings.Contains(r.Stderr, "not asked: machine web is not connected") {
		t.Errorf("orphans:\n%s", r.All())
	}
	s.startAgent("web", "")
	s.poll("not both machines are up again", up)
	s.must(take("next", next)...)

	// An older state does not have what was made since.
	backup := filepath.Join(s.dir, "backup")
	s.must("backup", backup)
	for _, name := range []string{"lost", "junk"} {
		s.writeSpec(fmt.Sprintf("storage: [{name: %s, directive: \"rootfs,8M\", kind: filesystem, mount: MNT/%[1]s, machine: db}]\n", name))
		s.apply()
		s.write(name, name)
		s.must("detach", name, "--wait", "--timeout", "60s")
	}
	server.stop()
	s.must("restore", backup)
	s.startServer() // in the backup, both machines are up
	s.poll("not both machines are up after the restore", up)
	list := s.must("orphans", "--machine", "db").Stdout
	junk := regexp.MustCompile(`(?m)^junk +orphan +filesystem +8M +rootfs +db +(\S+) `).FindStringSubmatch(list)
	if junk == nil || !strings.Contains(list, "\nlost ") {
		t.Fatalf("orphans of db:\n%s", list)
	}
	if list := s.must("orphans", "--machine", "web").Stdout; list != "no orphans\n" {
		t.Errorf("orphans of web:\n%s", list)
	}
	if out := s.must("adopt", "lost").Stdout; !strings.Contains(out, "+ lost  adopt  filesystem, provider rootfs, 8M, detached") {
		t.Errorf("adopt says\n%s", out)
	}
	s.must("attach", "lost", "--wait", "--timeout", "60s")
	if got := s.read("lost"); got != "lost" {
		t.Errorf("the adopted filesystem has %q", got)
	}
	if out := s.must("delete", junk[1]).Stdout; !strings.Contains(out, "deleted: its data is in the trash until ") {
		t.Errorf("delete says\n%s", out)
	}
	if list := s.must("orphans"); list.Stdout != "no orphans\n" || list.Stderr != "" {
		t.Errorf("afterwards:\n%s", list.All())
	}
	s.must("detach", "old", "next", "lost", "--wait", "--timeout", "60s")
}

// One of several servers has a task carried out by an agent that is connected to another one, and can go
// on when that one has failed.
func TestTaskThroughAnotherServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	etcd := s.startEtcd()
	secondAddress := freeAddress(t)
	first := s.startServer("--etcd-endpoints", etcd, "--unreachable-after", "5s")
	join := strings.TrimSpace(s.must("token", "create", "--role", "server").Stdout)
	s.launch("second", "server", "listening on ", "--listen", secondAddress, "--etcd-endpoints", etcd, "--unreachable-after", "5s",
		"--join", "https://"+s.address, "--token", join)
	on := func(args ...string) command.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		r, err := command.Stowage{Binary: stowage, DataDir: s.dataOf("second")}.Run(ctx, args...)
		if err != nil || r.Code != 0 {
			t.Fatalf("%q on the second server: %v\n%s", args, err, r.All())
		}
		return r
	}
	take := func(name string) {
		t.Helper()
		dir := filepath.Join(s.dir, "old-"+name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		on("import", name, dir, "--pool", "rootfs", "--machine", "web", "--mount", s.mount(name), "--wait", "--timeout", "60s")
		if got := s.read(name); got != name {
			t.Errorf("the imported directory has %q", got)
		}
	}
	s.launch("web", "agent", "connected to https://"+s.address, "--server", "https://"+s.address+",https://"+secondAddress, "--token", s.token(), "--machine", "web")
	isUp := func() bool { return strings.Contains(on("machines").Stdout, " up ") }
	s.poll("the machine is not up", isUp)
	take("a")
	first.kill()
	s.poll("the agent is not connected to the second server", func() bool {
		r, err := command.Stowage{Binary: stowage, DataDir: s.dataOf("second")}.Run(t.Context(), "orphans", "--machine", "web")
		return err == nil && r.Code == 0 && r.Stdout == "no orphans\n"
	})
	take("b")
	on("detach", "a", "b", "--wait", "--timeout", "60s")
}
