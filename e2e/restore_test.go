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

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// secrets are of every kind that keeps data.
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

// place returns the file or device that has the data of attached storage.
func (m *machine) place(name string) string {
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

// keep writes data to attached storage, synced.
func (m *machine) keep(names ...string) {
	m.Helper()
	for _, name := range names {
		f, err := os.OpenFile(m.place(name), os.O_CREATE|os.O_WRONLY, 0o600)
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

// data returns what is where keep writes to; nil where there is no such file.
func (m *machine) contents(name string) []byte {
	m.Helper()
	f, err := os.Open(m.place(name))
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

// wantKept checks that storage has the data which was written as that of another name.
func (m *machine) wantKept(name, writtenAs string) {
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

// together runs commands at the same time, for what is done with an orphan takes ten
// seconds. Each has to end with the exit status.
func (m *machine) together(code int, commands ...[]string) {
	m.Helper()
	var running sync.WaitGroup
	for _, args := range commands {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := m.stowage().Orphans(ctx)
	if err != nil {
		m.Fatal(err)
	}
	all := map[string]command.Orphan{}
	for _, o := range list {
		if o.Provider == "managed" {
			continue // it is on a volume of that name
		}
		if _, ok := all[o.Name]; ok {
			m.Errorf("two orphans are called %s: %+v", o.Name, list)
		}
		all[o.Name] = o
	}
	return all
}

// An older state that comes back knows nothing of the secrets that were made since, and
// hands out their numbers to nobody.
func TestOlderStateGivesNoDataAway(t *testing.T) {
	t.Parallel() // most of it waits for the second look at orphans
	for _, test := range []struct {
		name     string
		command  bool // or the file is copied back
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
			p.keep(secretNames...)
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
			p.together(0, adoptions...)
			p.must(append([]string{"attach", "--wait"}, secretNames...)...)
			for _, name := range secretNames {
				p.wantKept(name, name)
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

// What was removed after a backup is missing once that is restored, is not made again,
// and can be removed again.
func TestOlderStateDoesNotMakeAgainWhatWasRemoved(t *testing.T) {
	p := newProgram(newMachine(t))
	older := filepath.Join(p.machine.dir, "older")
	p.writeSpec(secrets)
	p.startManager()
	p.apply()
	p.keep(secretNames...)
	p.must("backup", older)
	if r := p.run("backup", older); r.Code != 1 {
		t.Errorf("a backup is overwritten: %s", r.All())
	}
	p.must(append([]string{"remove", "--wait"}, secretNames...)...)
	p.wantNoStorage()
	p.stop()
	p.must("restore", older)
	if kept, err := filepath.Glob(filepath.Join(p.data, "state.db.replaced-*")); err != nil || len(kept) != 1 {
		t.Errorf("the state that was replaced is kept as %q, %v", kept, err)
	}

	p.startManager()
	p.poll("storage that was removed is not missing", func() bool {
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

// What had been unmounted, and no more, when the backup was made may be mounted again when it
// is restored. It is detached whole then.
func TestOlderStateOfWhatWasHalfDetached(t *testing.T) {
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
	m.poll("a is not unmounted, or its volume detached", func() bool {
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
		t.Errorf("attached still: %v", loops)
	}
}

// Orphans are deleted only when nobody has them.
func TestOrphanIsDeletedOnRequest(t *testing.T) {
	t.Parallel() // as above
	m := newMachine(t)
	older := filepath.Join(m.dir, "older")
	m.start()
	m.must("backup", older)
	m.writeSpec(strings.Join(slices.DeleteFunc(strings.SplitAfter(secrets, "\n"), func(line string) bool {
		return strings.Contains(line, "disks,")
	}), ""))
	names := secretNames[:3]
	m.apply()
	m.keep(names...)
	m.stop()
	m.must("restore", older)

	m.start()
	orphans := m.orphans()
	var deletions [][]string
	for _, name := range names {
		deletions = append(deletions, []string{"delete", orphans[name].UUID, "--now"})
	}
	m.together(1, deletions...) // they are attached
	m.stop()
	unmountAndDetach(t, m.dir)
	m.start()
	deletions[0] = deletions[0][:2] // into the trash
	m.together(0, deletions...)
	if after := m.orphans(); len(after) != 0 {
		t.Errorf("orphans after all were deleted: %+v", after)
	}
	m.stop()
}
