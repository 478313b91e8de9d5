package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// Servers keep the state together: a server that was alone begins, others join, one fails, one is
// lost and replaced, and most are lost.
// Promise S30.
// Fault F40.
func TestServersKeepTheStateTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	names := []string{"server", "second", "third"}
	addresses, peers := map[string]string{"server": s.address}, map[string]string{}
	for _, name := range names {
		if addresses[name] == "" {
			addresses[name] = freeAddress(t)
		}
		peers[name] = freeAddress(t)
	}
	args := func(name string, more ...string) []string {
		return append([]string{"--listen", addresses[name], "--peer-address", peers[name], "--unreachable-after", "2s"}, more...)
	}
	start := func(name string, more ...string) *process {
		t.Helper()
		return s.launch(name, "server", "listening on ", args(name, more...)...)
	}
	refused := func(why, name string, more ...string) {
		t.Helper()
		s.begin(name, "server", "listening on ", args(name, more...)...).says(why)
	}
	try := func(name string, args ...string) command.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		r, err := command.Stowage{Binary: stowage, DataDir: s.dataOf(name)}.Run(ctx, args...)
		if err != nil {
			t.Fatalf("on %s: %v", name, err)
		}
		return r
	}
	on := func(name string, args ...string) string {
		t.Helper()
		r := try(name, args...)
		if r.Code != 0 {
			t.Fatalf("on %s: %s\n%s", name, args, r.All())
		}
		return strings.TrimSpace(r.Stdout)
	}
	join := func(name, other string) *process {
		t.Helper()
		return start(name, "--join", "https://"+addresses[other], "--token", on(other, "token", "create", "--role", "server"))
	}
	// servers returns the status of each server by its address, as another one sees it.
	servers := func(name string) map[string]string {
		t.Helper()
		found := map[string]string{}
		for line := range strings.Lines(on(name, "servers")) {
			if fields := strings.Fields(line); len(fields) > 3 && fields[0] != "NAME" {
				found[fields[1]] = strings.TrimSuffix(fields[2], ",")
			}
		}
		return found
	}
	has := func(name, storage string) {
		t.Helper()
		if got := on(name, "status", storage); !strings.Contains(got, storage) {
			t.Errorf("%s shows\n%s", name, got)
		}
	}
	apply := func(name string, storage ...string) {
		t.Helper()
		file := "storage:\n"
		for _, n := range storage {
			file += fmt.Sprintf("- {name: %s, directive: \"rootfs,1M\", kind: filesystem, mount: MNT/%[1]s, machine: web}\n", n)
		}
		s.writeSpec(file)
		on(name, "apply", "-f", s.spec, "--wait")
	}

	// A server with a state of its own becomes the first of several.
	alone := s.launch("server", "server", "listening on ", "--listen", s.address)
	if got := try("server", "servers"); !strings.Contains(got.Stderr, "does not keep the state together with others") {
		t.Errorf("a server that is alone lists its servers:\n%s", got.All())
	}
	refused("they began without --cluster-init", "second", "--join", "https://"+s.address, "--token", on("server", "token", "create", "--role", "server"))
	s.launch("web", "agent", "connected to ", "--server", "https://"+s.address+",https://"+addresses["second"]+",https://"+addresses["third"], "--token", s.token(), "--machine", "web")
	apply("server", "a")
	s.write("a", "precious")
	alone.stop()
	first := start("server", "--cluster-init")
	if got := servers("server"); len(got) != 1 || got[peers["server"]] != "up" {
		t.Errorf("the first server shows %v", got)
	}
	has("server", "a")
	if _, err := os.Stat(filepath.Join(s.dataOf("server"), "state.db.before-cluster")); err != nil {
		t.Error(err)
	}

	// Others join.
	refused("has not joined the others yet: make a token with", "second", "--join", "https://"+s.address)
	second := join("second", "server")
	third := join("third", "second")
	for _, name := range names {
		if got := servers(name); len(got) != 3 || got[peers["server"]] != "up" || got[peers["second"]] != "up" || got[peers["third"]] != "up" {
			t.Errorf("%s shows %v", name, got)
		}
	}
	apply("third", "a", "b")
	has("server", "b")

	// What cannot work is refused.
	third.stop()
	refused("keeps the state together with others: start it without --etcd-endpoints", "third", "--etcd-endpoints", "http://127.0.0.1:1")
	s.begin("third", "server", "listening on ", "--listen", addresses["third"], "--peer-address", "127.0.0.1:1").says("the other servers reach this one at " + peers["third"])
	if out, err := exec.Command("cp", "-a", s.dataOf("third"), s.dataOf("copy")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.begin("copy", "server", "listening on ", args("third")...).says("is not the directory in which the server joined the others")
	if got := try("copy", "adopt-dir", "--copy"); !strings.Contains(got.Stderr, "let a server with an empty directory join with a token") {
		t.Errorf("adopting a copy:\n%s", got.All())
	}
	on("third", "adopt-dir", "--moved")
	third = start("third")

	// One fails.
	began := time.Now()
	first.kill()
	apply("second", "a", "b", "c")
	t.Logf("a change was made %.1f s after a server had failed", time.Since(began).Seconds())
	first = start("server")
	has("server", "c")

	// One is lost, and replaced.
	second.kill()
	s.poll("the lost server is not shown", func() bool { return servers("third")[peers["second"]] == "unreachable" })
	name := ""
	for line := range strings.Lines(on("third", "servers")) {
		if strings.Contains(line, peers["second"]) {
			name = strings.Fields(line)[0]
		}
	}
	if got := try("third", "server", "remove", "other"); got.Code == 0 || !strings.Contains(got.Stderr, `there is no server "other"`) {
		t.Errorf("removing a server that does not exist:\n%s", got.All())
	}
	on("third", "server", "remove", name)
	refused("does not list it any more, delete", "second")
	if err := os.RemoveAll(s.dataOf("second")); err != nil {
		t.Fatal(err)
	}
	second = join("second", "third")
	has("second", "c")

	// Most are lost for good: the state of a backup, on one of them.
	backup := filepath.Join(s.dir, "backup.db")
	on("third", "backup", backup)
	on("third", "machine", "label", "web", "zone=a")
	for _, p := range []*process{first, second, third} {
		p.kill()
	}
	if got := try("server", "restore", backup); !strings.Contains(got.Stderr, "see --cluster-reset") {
		t.Errorf("restoring the state of one of several servers:\n%s", got.All())
	}
	if got := on("server", "server", "--cluster-reset", "--restore", backup); !strings.Contains(got, "is the only one now: start it without --cluster-reset") {
		t.Errorf("got\n%s", got)
	}
	first = start("server", "--accept-restored")
	has("server", "c")
	if got := on("server", "machines"); strings.Contains(got, "zone=a") {
		t.Errorf("the restored state has what was changed after the backup:\n%s", got)
	}
	for _, name := range []string{"second", "third"} {
		if err := os.RemoveAll(s.dataOf(name)); err != nil {
			t.Fatal(err)
		}
		join(name, "server")
	}
	s.poll("the agent is not back", func() bool { return s.machines()["web"] == "up" })
	if got := s.read("a"); got != "precious" {
		t.Errorf("the storage has %q", got)
	}
	on("second", "remove", "a", "b", "c", "--wait")

	// A server without its certificates, its record or its database does not begin another one.
	first.stop()
	ca := filepath.Join(s.dataOf("server"), "server", "ca.crt")
	if err := os.Rename(ca, ca+".away"); err != nil {
		t.Fatal(err)
	}
	refused(ca+" is missing: put it back", "server", "--cluster-init")
	if err := os.Rename(ca+".away", ca); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(s.dataOf("server"), "server", "cluster.json")
	if err := os.Rename(record, record+".away"); err != nil {
		t.Fatal(err)
	}
	refused("put the file back, or choose another --data-dir", "server", "--cluster-init")
	if err := os.Rename(record+".away", record); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dataOf("server"), "server", "database")); err != nil {
		t.Fatal(err)
	}
	refused("the database of this server, is missing", "server")
	if got := try("server", "server", "--cluster-reset"); got.Code == 0 || !strings.Contains(got.Stderr, "the database of this server, is missing") {
		t.Errorf("resetting a server without a database:\n%s", got.All())
	}
	authority := filepath.Join(s.dataOf("server"), "server", "members-ca.crt")
	if err := os.Remove(authority); err != nil {
		t.Fatal(err)
	}
	refused(authority+" is missing: put it back", "server", "--cluster-init")
}
