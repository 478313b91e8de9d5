package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// onMachine is storage that a copied directory has too, and its names.
const onMachine = `
storage:
  - {name: raw, directive: 'loop,16M', kind: block}
  - {name: data, directive: 'loop,32M', kind: filesystem, mount: MNT/data, filesystem: ext4}
  - {name: logs, directive: 'rootfs,16M', kind: filesystem, mount: MNT/logs}
`

var onMachineNames = []string{"raw", "data", "logs"}

// refusesToStart checks that an agent ends at once, with a word of what is to be done, and
// touches nothing.
func (m *machine) refusesToStart(remedy string) {
	m.Helper()
	before := m.inKernel()
	agent, err := m.stowage().Start(m.log)
	if err != nil {
		m.Fatal(err)
	}
	select {
	case <-agent.Ended:
	case <-time.After(patience):
		m.agent = agent
		m.Fatalf("an agent starts in %s", m.data)
	}
	said, err := os.ReadFile(m.log)
	if err != nil || agent.Err() == nil || !strings.Contains(string(said), remedy) {
		m.Errorf("the agent ended with %v and does not name %q (%v):\n%s", agent.Err(), remedy, err, said)
	}
	if after := m.inKernel(); !slices.Equal(after, before) {
		m.Errorf("an agent that refused to start had %q, and left %q", before, after)
	}
}

// inKernel tells what there is of devices and mounts.
func (m *machine) inKernel() []string {
	m.Helper()
	var all []string
	for _, loop := range loopsBelow(m, m.dir) {
		all = append(all, loop.Path+" of "+loop.File)
	}
	for _, mount := range mountsBelow(m, m.dir) {
		all = append(all, mount.Source+" on "+mount.Mountpoint)
	}
	slices.Sort(all)
	return all
}

func TestCopiedDirectoryLeavesTheOriginalAlone(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	m.tool("fsfreeze", "--freeze", m.mount("data"))
	second := *m
	second.data, second.log, second.agent = filepath.Join(m.dir, "copy"), filepath.Join(m.dir, "second.log"), nil
	m.tool("cp", "-a", m.data, second.data)
	m.tool("fsfreeze", "--unfreeze", m.mount("data"))
	had := m.inKernel()

	second.refusesToStart("stowage adopt-dir")
	second.must("adopt-dir", "--copy")
	second.start()
	t.Cleanup(func() {
		if second.agent != nil {
			second.kill()
		}
	})
	second.poll("the copy's storage is not attached", func() bool {
		all := second.status()
		return len(all) == len(onMachineNames) && !slices.ContainsFunc(onMachineNames, func(name string) bool {
			return all[name].Status != "attached"
		})
	})
	for _, name := range onMachineNames {
		if here, there := m.place(name), second.place(name); here == there {
			t.Errorf("%s of the copy is where that of the original is: %s", name, here)
		}
		second.wantKept(name, name)
	}
	for _, line := range had {
		if !slices.Contains(m.inKernel(), line) {
			t.Errorf("the copy has taken from the original: %s", line)
		}
	}
	second.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	second.stop()
	if has := m.inKernel(); !slices.Equal(has, had) {
		t.Errorf("the original had %q, and has %q", had, has)
	}
	for _, name := range onMachineNames {
		m.wantKept(name, name)
	}
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

func TestMovedDirectoryGoesOn(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	m.stop()
	unmountAndDetach(t, m.dir)
	former := m.data + ".former"
	if err := os.Rename(m.data, former); err != nil {
		t.Fatal(err)
	}
	m.tool("cp", "-a", former, m.data)
	if err := os.RemoveAll(former); err != nil {
		t.Fatal(err)
	}

	m.refusesToStart("stowage adopt-dir")
	m.must("adopt-dir", "--moved")
	m.start()
	m.apply()
	for _, name := range onMachineNames {
		m.wantKept(name, name)
	}
	m.must(append([]string{"detach", "--wait"}, onMachineNames...)...)
	m.must(append([]string{"attach", "--wait"}, onMachineNames...)...)
	for _, name := range onMachineNames {
		m.wantKept(name, name)
	}
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

func TestLostStateIsRecovered(t *testing.T) {
	for _, test := range []struct {
		name  string
		lost  string // the files that are
		empty bool   // one is there, without anything in it
	}{
		{"all of it", "state.*", false},
		{"but for its copies", "state.db", false},
		{"an empty file", "state.db", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t)
			m.writeSpec(onMachine)
			m.start()
			m.apply()
			m.keep(onMachineNames...)
			m.stop()
			lost, err := filepath.Glob(filepath.Join(m.data, test.lost))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range lost {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if test.empty {
				if err := os.WriteFile(filepath.Join(m.data, "state.db"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m.refusesToStart("stowage recover")
			plan := m.must("recover").Stdout
			for _, name := range onMachineNames {
				if !strings.Contains(plan, name) {
					t.Errorf("no word of %s in\n%s", name, plan)
				}
			}
			m.refusesToStart("stowage recover")
			m.must("recover", "--yes")
			m.start()
			all := m.status()
			if len(all) != len(onMachineNames) {
				t.Errorf("recovered %+v", all)
			}
			for _, name := range onMachineNames {
				if s := all[name]; s.Life != "alive" || len(s.Attachments) != 0 {
					t.Errorf("%s is not detached: %+v", name, s)
				}
			}
			m.must(append([]string{"attach", "--wait"}, onMachineNames...)...)
			for _, name := range onMachineNames {
				m.wantKept(name, name)
			}
			m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
			m.wantNoStorage()
			m.stop()
		})
	}
}
