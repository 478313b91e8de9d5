package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// onMachine declares storage that is in the data directory, so that a copy of the directory
// has it too.
const onMachine = `
storage:
  - {name: raw, directive: 'loop,16M', kind: block}
  - {name: data, directive: 'loop,32M', kind: filesystem, mount: MNT/data, filesystem: ext4}
  - {name: logs, directive: 'rootfs,16M', kind: filesystem, mount: MNT/logs}
`

var onMachineNames = []string{"raw", "data", "logs"}

// wantStartRefused checks that an agent ends at once with an error that names the remedy, and
// changes no devices and mounts.
func (m *machine) wantStartRefused(remedy string) {
	m.Helper()
	before := m.kernelObjects()
	agent, err := m.stowage().Start(m.log)
	if err != nil {
		m.Fatal(err)
	}
	select {
	case <-agent.Ended:
	case <-time.After(waitTimeout):
		m.agent = agent
		m.Fatalf("the agent does not refuse to start in %s", m.data)
	}
	log, err := os.ReadFile(m.log)
	if err != nil || agent.Err() == nil || !strings.Contains(string(log), remedy) {
		m.Errorf("the agent ended with %v and does not name %q (%v):\n%s", agent.Err(), remedy, err, log)
	}
	if after := m.kernelObjects(); !slices.Equal(after, before) {
		m.Errorf("a refused start changed devices and mounts from %q to %q", before, after)
	}
}

// kernelObjects returns a line for each loop device and mount below the machine's directory.
func (m *machine) kernelObjects() []string {
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

// Fault F24.
func TestCopiedDirectoryLeavesOriginalAlone(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.writeContents(onMachineNames...)
	m.runTool("fsfreeze", "--freeze", m.mount("data"))
	second := *m
	second.data, second.log, second.agent = filepath.Join(m.dir, "copy"), filepath.Join(m.dir, "second.log"), nil
	m.runTool("cp", "-a", m.data, second.data)
	m.runTool("fsfreeze", "--unfreeze", m.mount("data"))
	had := m.kernelObjects()

	second.wantStartRefused("stowage adopt-dir")
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
		if here, there := m.dataPath(name), second.dataPath(name); here == there {
			t.Errorf("%s has the same path in the copy and the original: %s", name, here)
		}
		second.wantContents(name, name)
	}
	for _, line := range had {
		if !slices.Contains(m.kernelObjects(), line) {
			t.Errorf("the original has lost: %s", line)
		}
	}
	second.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	second.stop()
	if has := m.kernelObjects(); !slices.Equal(has, had) {
		t.Errorf("devices and mounts of the original changed from %q to %q", had, has)
	}
	for _, name := range onMachineNames {
		m.wantContents(name, name)
	}
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// Fault F25.
func TestAdoptMovedDirectory(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.writeContents(onMachineNames...)
	m.stop()
	unmountAndDetach(t, m.dir)
	former := m.data + ".former"
	if err := os.Rename(m.data, former); err != nil {
		t.Fatal(err)
	}
	m.runTool("cp", "-a", former, m.data)
	if err := os.RemoveAll(former); err != nil {
		t.Fatal(err)
	}

	m.wantStartRefused("stowage adopt-dir")
	m.must("adopt-dir", "--moved")
	m.start()
	m.apply()
	for _, name := range onMachineNames {
		m.wantContents(name, name)
	}
	m.must(append([]string{"detach", "--wait"}, onMachineNames...)...)
	m.must(append([]string{"attach", "--wait"}, onMachineNames...)...)
	for _, name := range onMachineNames {
		m.wantContents(name, name)
	}
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

func TestRecoverLostState(t *testing.T) {
	for _, test := range []struct {
		name  string
		lost  string // pattern of the files that are removed
		empty bool   // an empty state.db takes their place
	}{
		{"state and copies missing", "state.*", false},
		{"state missing", "state.db", false},
		{"state empty", "state.db", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t)
			m.writeSpec(onMachine)
			m.start()
			m.apply()
			m.writeContents(onMachineNames...)
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
			m.wantStartRefused("stowage recover")
			plan := m.must("recover").Stdout
			for _, name := range onMachineNames {
				if !strings.Contains(plan, name) {
					t.Errorf("the plan does not list %s:\n%s", name, plan)
				}
			}
			m.wantStartRefused("stowage recover")
			m.must("recover", "--yes")
			m.start()
			all := m.status()
			if len(all) != len(onMachineNames) {
				t.Errorf("recovered %+v, want %q", all, onMachineNames)
			}
			for _, name := range onMachineNames {
				if s := all[name]; s.Life != "alive" || len(s.Attachments) != 0 {
					t.Errorf("%s is not detached: %+v", name, s)
				}
			}
			m.must(append([]string{"attach", "--wait"}, onMachineNames...)...)
			for _, name := range onMachineNames {
				m.wantContents(name, name)
			}
			m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
			m.wantNoStorage()
			m.stop()
		})
	}
}
