package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
)

var older = flag.String("older", "", "the `path` of an older version of the command, for TestUpgrade")

// Servers, and then agents, are replaced by this version one after the other, while storage is in use and
// users change it, at servers of both versions.
func TestUpgrade(t *testing.T) {
	if *older == "" {
		t.Skip("it needs an older version: use `make upgrade`")
	}
	s := newSeveral(t, *older, "web", "db")
	s.writeSpec(`storage:
- {name: moving, directive: "shared,16M", kind: filesystem, mount: MNT/moving, machine: web}
- {name: staying, directive: "loop,16M", kind: filesystem, mount: MNT/staying, machine: db}
`)
	s.apply()
	s.write("moving", "precious")
	s.write("staying", "valuable")

	on, round := "web", 0
	// use changes storage at each server, and looks whether what was written is there.
	use := func(after string) {
		t.Helper()
		round++
		on = map[string]string{"web": "db", "db": "web"}[on]
		s.must("move", "moving", "--to", on, "--wait")
		for _, name := range s.servers {
			file := filepath.Join(s.dir, "more.yaml")
			storage := fmt.Sprintf("more-%s-%d", name, round)
			text := fmt.Sprintf("storage: [{name: %s, directive: \"rootfs,1M\", kind: filesystem, mount: %s, machine: db}]\n", storage, s.mount(storage))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"apply", "-f", file, "--wait"}, {"remove", storage, "--wait"}} {
				if r := s.at(name, args...); r.Code != 0 {
					t.Fatalf("%s, %s at %s:\n%s", after, args[0], name, r.All())
				}
			}
		}
		for name, want := range map[string]string{"moving": "precious", "staying": "valuable"} {
			if got := s.read(name); got != want {
				t.Errorf("%s, %s has %q", after, name, got)
			}
		}
	}
	// label labels storage at a server of this version. If that is refused, it says why; otherwise, the
	// servers of the older version can read it.
	label := func(at string) (labelled bool) {
		t.Helper()
		file := filepath.Join(s.dir, "labelled.yaml")
		text := fmt.Sprintf("storage: [{name: moving, directive: \"shared,16M\", kind: filesystem, mount: %s, machine: %s, labels: {round: r%d}}]\n", s.mount("moving"), on, round)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := s.at(at, "apply", "-f", file)
		if r.Code != 0 && !strings.Contains(r.Stderr, "labels and claims can be used once all servers run a version that has them") {
			t.Fatalf("labelling at %s:\n%s", at, r.All())
		}
		for _, name := range s.servers {
			if r := s.at(name, "status"); r.Code != 0 {
				t.Fatalf("when storage was labelled at %s, %s cannot read it:\n%s", at, name, r.All())
			}
		}
		return r.Code == 0
	}
	nameOf := make(map[string]string) // as the servers call each other
	for _, at := range s.servers {
		var all []user.Server
		if err := json.Unmarshal([]byte(s.at(at, "servers", "-o", "json").Stdout), &all); err != nil {
			t.Fatal(err)
		}
		nameOf[at] = all[slices.IndexFunc(all, func(one user.Server) bool { return one.Asked })].Name
	}
	// snapshot requests a snapshot at a server of this version. If that is refused, it returns what is to be
	// done first.
	snapshot := func(at string) (first string) {
		t.Helper()
		r := s.at(at, "snapshot", "create", "kept", "staying")
		if r.Code == 0 {
			return ""
		}
		_, first, ok := strings.Cut(r.Stderr, "snapshots can be used once all servers run a version that has them: ")
		if !ok {
			t.Fatalf("a snapshot at %s:\n%s", at, r.All())
		}
		return strings.TrimSpace(first)
	}
	use("with the older version")
	s.binary = stowage
	for at, name := range s.servers {
		s.running[name].stop()
		s.startServerOf(name)
		use("when " + name + " was replaced")
		t.Logf("when %s was replaced, storage can be labelled there: %t", name, label(name))
		var older []string
		for _, other := range s.servers[at+1:] {
			older = append(older, nameOf[other])
		}
		if slices.Sort(older); len(older) > 0 {
			want := "replace or start these, or remove them: " + strings.Join(older, ", ")
			s.poll("the error of a snapshot does not name the servers to replace", func() bool { return snapshot(name) == want })
		}
	}
	s.poll("storage cannot be labelled after the upgrade", func() bool { return label("server") })
	s.poll("a snapshot cannot be requested after the upgrade", func() bool { return snapshot("server") == "" })
	s.poll("the list does not say that the snapshot waits for its agent", func() bool {
		got := s.snapshots()["kept"]
		return got.Status == user.SnapshotCreating && got.Message != ""
	})
	t.Logf("with an agent of the older version: %+v", s.snapshots()["kept"])
	for _, name := range []string{"web", "db"} {
		s.running[name].stop()
		s.startAgentOf(name, "")
		use("when the agent of " + name + " was replaced")
	}
	s.must("snapshot", "create", "kept", "staying", "--wait")
	s.write("staying", "changed")
	s.writeSpec(`storage: [{name: restored, directive: "loop,16M", kind: filesystem, mount: MNT/restored, from: kept}]`)
	s.apply()
	if got := s.read("restored"); got != "valuable" {
		t.Errorf("storage from the snapshot has %q", got)
	}
	s.must("snapshot", "delete", "kept", "--wait")
	s.must("remove", "moving", "staying", "restored", "--wait")
	s.stopAll("web", "db")
}
