package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	use("with the older version")
	s.binary = stowage
	for _, name := range s.servers {
		s.running[name].stop()
		s.startServerOf(name)
		use("when " + name + " was replaced")
		t.Logf("when %s was replaced, storage can be labelled there: %t", name, label(name))
	}
	s.poll("storage cannot be labelled after the upgrade", func() bool { return label("server") })
	for _, name := range []string{"web", "db"} {
		s.running[name].stop()
		s.startAgentOf(name, "")
		use("when the agent of " + name + " was replaced")
	}
	s.must("remove", "moving", "staying", "--wait")
	s.stopAll("web", "db")
}
