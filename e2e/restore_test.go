package e2e

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// secrets declares storage of every kind whose data outlives a reboot.
const secrets = `
storage:
  - {name: raw-secrets, directive: 'loop,16M', kind: block}
  - {name: data-secrets, directive: 'loop,32M', kind: filesystem, mount: MNT/data-secrets, filesystem: ext4}
  - {name: logs-secrets, directive: 'rootfs,16M', kind: filesystem, mount: MNT/logs-secrets}
  - {name: disk-secrets, directive: 'disks,16M', kind: block}
`

var (
	secretNames = []string{"raw-secrets", "data-secrets", "logs-secrets", "disk-secrets"}
	otherNames  = []string{"raw-other", "data-other", "logs-other", "disk-other"}
)

// dataPath returns the file or device that writeContents writes to for attached storage.
func (m *machine) dataPath(name string) string {
	m.Helper()
	s := m.status()[name]
	if s.Status != "attached" || s.Location == "" {
		m.Fatalf("%s is not attached: %+v", name, s)
	}
	if s.Kind == "block" {
		return s.Location
	}
	return filepath.Join(s.Location, "secret")
}

// writeContents writes to attached storage, and syncs.
func (m *machine) writeContents(names ...string) {
	m.Helper()
	for _, name := range names {
		f, err := os.OpenFile(m.dataPath(name), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			m.Fatal(err)
		}
		_, err = f.Write(dataOf(name))
		if err == nil {
			err = f.Sync()
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			m.Fatal(err)
		}
	}
}

// contents returns the data at the path that writeContents writes to, or nil if there is no
// such file.
func (m *machine) contents(name string) []byte {
	m.Helper()
	f, err := os.Open(m.dataPath(name))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		m.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 1<<20)
	n, err := io.ReadFull(f, got)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		m.Fatal(err)
	}
	return got[:n]
}

// wantContents checks that storage has the data that was written to storage of the name
// writtenAs.
func (m *machine) wantContents(name, writtenAs string) {
	m.Helper()
	if !bytes.HasPrefix(m.contents(name), dataOf(writtenAs)) {
		m.Errorf("%s does not have the data of %s", name, writtenAs)
	}
}

func (m *machine) copyFile(from, to string) {
	m.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		m.Fatal(err)
	}
}

// runAll runs commands at the same time, because each command on an orphan takes ten
// seconds. Each command has to end with the exit status code.
func (m *machine) runAll(code int, commands ...[]string) {
	m.Helper()
	var running sync.WaitGroup
	for _, args := range commands {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
			defer cancel()
			if r, err := m.stowage().Run(ctx, args...); err != nil || r.Code != code {
				m.Errorf("%v, want exit status %d:\n%s", err, code, r.All())
			}
		})
	}
	running.Wait()
}

// orphans returns all orphans by name.
func (m *machine) orphans() map[string]command.Orphan {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	list, err := m.stowage().Orphans(ctx)
	if err != nil {
		m.Fatal(err)
	}
	all := map[string]command.Orphan{}
	for _, o := range list {
		if o.Provider == "managed" {
			continue // its backing volume has the same name
		}
		if _, ok := all[o.Name]; ok {
			m.Errorf("two orphans are called %s: %+v", o.Name, list)
		}
		all[o.Name] = o
	}
	return all
}

// A restored state does not know the storage that was made after its backup. It reuses
// neither the numbers nor the data of that storage, which can be adopted.
// Fault F23.
func TestRestoredStateExposesNoOrphanData(t *testing.T) {
	t.Parallel() // most of the time passes before the second scan for orphans
	for _, test := range []struct {
		name     string
		command  bool // stowage restore; otherwise the file is copied back
		rebooted bool
	}{
		{"copied back while in use", false, false},
		{"copied back after a reboot", false, true},
		{"restored while in use", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(newMachine(t))
			stateFile, older := filepath.Join(p.data, "state.db"), filepath.Join(p.machine.dir, "older")
			p.startManager()
			if test.command {
				p.must("backup", older)
			} else {
				p.stop()
				p.copyFile(stateFile, older)
				p.startManager()
			}
			p.writeSpec(secrets)
			p.apply()
			p.writeContents(secretNames...)
			p.stop()
			if test.rebooted {
				unmountAndDetach(t, p.machine.dir)
			}
			if test.command {
				p.must("restore", older)
			} else {
				p.copyFile(older, stateFile)
			}

			p.startManager()
			if all := p.status(); len(all) != 0 {
				t.Fatalf("the older state has storage: %+v", all)
			}
			p.writeSpec(strings.ReplaceAll(secrets, "secrets", "other"))
			p.apply()
			for i, name := range otherNames {
				if bytes.Contains(p.contents(name), []byte(secretNames[i])) {
					t.Errorf("%s is attached with the data of %s", name, secretNames[i])
				}
			}
			p.must(append([]string{"remove", "--wait"}, otherNames...)...)

			orphans := p.orphans()
			var adoptions [][]string
			for _, name := range secretNames {
				o, ok := orphans[name]
				if !ok || o.State != "orphan" || o.UUID == "" || o.SizeMiB == 0 || o.Attached == test.rebooted {
					t.Fatalf("%s is not shown as an orphan: %+v", name, orphans)
				}
				adoptions = append(adoptions, []string{"adopt", name})
			}
			p.runAll(0, adoptions...)
			p.must(append([]string{"attach", "--wait"}, secretNames...)...)
			for _, name := range secretNames {
				p.wantContents(name, name)
			}
			if left := p.orphans(); len(left) != 0 {
				t.Errorf("orphans that were adopted: %+v", left)
			}
			p.must(append([]string{"remove", "--wait"}, secretNames...)...)
			p.wantNoStorage()
			p.stop()
		})
	}
}

// Storage that was removed after a backup is missing when the backup is restored. It is not
// created again, and can be removed again.
// Fault F23.
func TestRestoreDoesNotRecreateRemovedStorage(t *testing.T) {
	p := newProgram(newMachine(t))
	older := filepath.Join(p.machine.dir, "older")
	p.writeSpec(secrets)
	p.startManager()
	p.apply()
	p.writeContents(secretNames...)
	p.must("backup", older)
	if r := p.run("backup", older); r.Code != 1 {
		t.Errorf("an existing backup was overwritten: %s", r.All())
	}
	p.must(append([]string{"remove", "--wait"}, secretNames...)...)
	p.wantNoStorage()
	p.stop()
	p.must("restore", older)
	if kept, err := filepath.Glob(filepath.Join(p.data, "state.db.replaced-*")); err != nil || len(kept) != 1 {
		t.Errorf("copies of the replaced state: %q, %v; want one", kept, err)
	}

	p.startManager()
	p.poll("removed storage is not shown as missing", func() bool {
		all := p.status()
		return len(all) == len(secretNames) && !slices.ContainsFunc(secretNames, func(name string) bool {
			return all[name].Status != "error" || !strings.HasPrefix(all[name].Message, "missing")
		})
	})
	p.wantVolumes()
	p.must(append([]string{"remove", "--wait"}, secretNames...)...)
	p.wantNoStorage()
	p.stop()
}

// The backup records a filesystem as unmounted and its volume as still attached. Since then
// the filesystem was mounted again. After the restore, detaching takes away both.
func TestRestoreOfHalfDetachedStorage(t *testing.T) {
	m := newMachine(t)
	older := filepath.Join(m.dir, "older")
	m.writeSpec("storage: [{name: a, directive: 'loop,16M', kind: filesystem, mount: MNT/a}]")
	m.start()
	m.apply()
	holder, err := os.Open(loopsBelow(t, m.dir)[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	m.must("detach", "a")
	m.poll("a is not unmounted with its volume still attached", func() bool {
		s := m.status()["a"]
		return s.Status == "detaching" && strings.Contains(s.Message, "detaching volume")
	})
	m.must("backup", older)
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	m.must("detach", "a", "--wait")
	m.must("attach", "a", "--wait")
	m.stop()
	m.must("restore", older)

	m.start()
	m.must("detach", "a", "--wait", "--timeout", "20s")
	m.stop()
	if loops := loopsBelow(t, m.dir); len(loops) > 0 {
		t.Errorf("still attached: %v", loops)
	}
}

// Storage is asked for and not made yet when the state is copied. It is made, attached and used;
// the copy is put back, and the storage is removed before a worker has made it again. Nothing of
// it is left.
// Finding N32.
func TestRestoredStateRemovesWhatWasMadeSince(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.stop()
	all := []string{"raw", "data", "scratch", "logs"}
	m.changeState(func(st *state.State) error {
		var wanted []state.StorageParams
		for name, pool := range map[string]string{"raw": "loop", "data": "loop", "scratch": "tmpfs", "logs": "rootfs"} {
			p := state.StorageParams{Name: name, Kind: storage.StorageKindBlock, Pool: pool, Size: 16, Machine: names.NewMachineTag("0")}
			if name != "raw" {
				p.Kind, p.MountPoint = storage.StorageKindFilesystem, m.mount(name)
			}
			wanted = append(wanted, p)
		}
		return st.AddStorage(wanted...)
	})
	copied, err := os.ReadFile(filepath.Join(m.data, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	m.must(append([]string{"attach", "--wait"}, all...)...)
	// The copy is noticed to be older, because numbers were handed out twice since: a crash may
	// cut off the last time.
	for _, name := range []string{"later", "last"} {
		m.writeSpec("storage: [{name: " + name + ", directive: 'loop,1M', kind: block}]")
		m.apply()
		m.must("remove", name, "--wait")
	}
	m.kill()
	if err := os.WriteFile(filepath.Join(m.data, "state.db"), copied, 0o600); err != nil {
		t.Fatal(err)
	}
	m.changeState(func(st *state.State) error { return st.RemoveStorage(all) })
	m.start()
	m.poll("storage is still there", func() bool { return len(m.status()) == 0 })
	m.wantNoStorage()
	if r := m.must("orphans"); strings.Contains(r.All(), "filesystem-") || strings.Contains(r.All(), "volume-") {
		t.Errorf("orphans are left:\n%s", r.All())
	}
	m.stop()
}

// An orphan is deleted only when it is not attached.
func TestDeleteOrphanOnlyWhenDetached(t *testing.T) {
	t.Parallel() // most of the time passes before the second scan for orphans
	m := newMachine(t)
	older := filepath.Join(m.dir, "older")
	m.start()
	m.must("backup", older)
	m.writeSpec(strings.Join(slices.DeleteFunc(strings.SplitAfter(secrets, "\n"), func(line string) bool {
		return strings.Contains(line, "disks,")
	}), ""))
	names := secretNames[:3]
	m.apply()
	m.writeContents(names...)
	m.stop()
	m.must("restore", older)

	m.start()
	orphans := m.orphans()
	var deletions [][]string
	for _, name := range names {
		deletions = append(deletions, []string{"delete", orphans[name].UUID, "--now"})
	}
	m.runAll(1, deletions...) // refused: they are attached
	m.stop()
	unmountAndDetach(t, m.dir)
	m.start()
	deletions[0] = deletions[0][:2] // into the trash
	m.runAll(0, deletions...)
	if after := m.orphans(); len(after) != 0 {
		t.Errorf("orphans that were deleted: %+v", after)
	}
	m.stop()
}
