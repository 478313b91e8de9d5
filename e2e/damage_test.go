package e2e

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// logLine is a line that an agent logs. It says all else in one line at its end.
var logLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (TRACE|DEBUG|INFO|WARNING|ERROR) `)

// wantEnded checks that what an agent said, beside its log, is one line that has these
// parts, and that it ended with exit status 1.
func (m *machine) wantEnded(r command.Result, parts ...string) {
	m.Helper()
	var said []string
	for line := range strings.Lines(r.Stderr) {
		if !logLine.MatchString(line) {
			said = append(said, line)
		}
	}
	if r.Code != 1 || len(said) != 1 || !strings.HasPrefix(said[0], "stowage: ") {
		m.Errorf("want exit status 1 and one line:\n%s", r.All())
		return
	}
	for _, part := range parts {
		if !strings.Contains(said[0], part) {
			m.Errorf("want a line with %q:\n%s", part, r.All())
		}
	}
}

// tree tells what there is in the data directory: names, sizes, and times of change, but
// for those of volumes' files, which the kernel writes to as long as they are attached.
func (m *machine) tree() []string {
	m.Helper()
	var all []string
	err := filepath.WalkDir(m.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || entry.IsDir() {
			return err
		}
		line := fmt.Sprintf("%s %v %d bytes", path, info.Mode(), info.Size())
		if filepath.Base(filepath.Dir(path)) != "volumes" {
			line += fmt.Sprintf(", %v", info.ModTime())
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		m.Fatal(err)
	}
	return all
}

// A state that is lost is not taken for one that never was.
func TestStateThatIsLostIsMissed(t *testing.T) {
	const mark, storage = "state.mark", "storage"
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.stop()
	for _, test := range []struct {
		name  string
		other string // the rest of the directory that is lost, too
		empty bool   // the file is there
	}{
		{"missing", "", false},
		{"empty", "", true},
		{"missing, beside the mark alone", storage, false},
		{"empty, beside the mark alone", storage, true},
		{"missing, beside storage alone", mark, false},
		{"empty, beside storage alone", mark, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := *m
			m.TB = t
			aside := filepath.Join(m.dir, "aside")
			if err := os.Mkdir(aside, 0o700); err != nil {
				t.Fatal(err)
			}
			lost, err := filepath.Glob(filepath.Join(m.data, "state.db*"))
			if err != nil {
				t.Fatal(err)
			}
			if test.other != "" {
				lost = append(lost, filepath.Join(m.data, test.other))
			}
			for _, path := range lost {
				if err := os.Rename(path, filepath.Join(aside, filepath.Base(path))); err != nil {
					t.Fatal(err)
				}
			}
			stateFile := filepath.Join(m.data, "state.db")
			if test.empty {
				if err := os.WriteFile(stateFile, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			had, kernelHad := m.tree(), m.inKernel()
			for range 2 {
				m.wantEnded(m.run("run"), stateFile, "stowage recover", "stowage restore")
			}
			if has := m.tree(); !slices.Equal(has, had) {
				t.Errorf("there are the files\n%s\nbefore there were\n%s", strings.Join(has, "\n"), strings.Join(had, "\n"))
			}
			if has := m.inKernel(); !slices.Equal(has, kernelHad) {
				t.Errorf("the kernel has %q, before it had %q", has, kernelHad)
			}
			if test.empty {
				if err := os.Remove(stateFile); err != nil {
					t.Fatal(err)
				}
			}
			for _, path := range lost {
				if err := os.Rename(filepath.Join(aside, filepath.Base(path)), path); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Remove(aside); err != nil {
				t.Fatal(err)
			}
		})
	}
	m.start()
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// damage is what is done to a state file.
type damage struct {
	name string
	do   func(state []byte) []byte
	// lasting says that an agent cannot start after it.
	lasting bool
}

func truncated(size int, lasting bool) damage {
	return damage{fmt.Sprintf("truncated to %d bytes", size), func(state []byte) []byte { return state[:size] }, lasting}
}

func flipped(what string, at int) damage {
	return damage{fmt.Sprintf("byte %d of %s flipped", at, what), func(state []byte) []byte {
		state[at] ^= 0x41
		return state
	}, false}
}

// The types of pages in bbolt's files, and the sizes of what they begin with.
const (
	branchPage = 0x01
	leafPage   = 0x02
	metaPage   = 0x04

	headerSize  = 16
	elementSize = 16
)

// damages returns some ways to damage a state file, the same for the same file.
func damages(t *testing.T, state []byte) []damage {
	t.Helper()
	page := os.Getpagesize()
	number := func(at, size int) int {
		if size == 2 {
			return int(binary.NativeEndian.Uint16(state[at:]))
		}
		return int(binary.NativeEndian.Uint64(state[at:]))
	}
	// The newer meta page tells how many pages are in use.
	used := max(number(16+40, 8), number(page+16+40, 8)) * page
	all := []damage{
		truncated(1, true), truncated(page-1, true), truncated(page, true), truncated(2*page, true),
		truncated(2*page+1, true), truncated(used/2, true), truncated(used-1, true), truncated(used, false),
		{"overwritten with zeros", func(state []byte) []byte { return make([]byte, len(state)) }, true},
		{"without either meta page", func(state []byte) []byte { clear(state[:2*page]); return state }, true},
	}
	pages := map[int][]int{}
	for at := 0; at < used; at += page {
		kind := number(at+8, 2)
		pages[kind] = append(pages[kind], at)
	}
	if len(pages[metaPage]) != 2 || len(pages[branchPage]) == 0 || len(pages[leafPage]) < 4 {
		t.Fatalf("of %d bytes in use the pages are %v", used, pages)
	}
	for _, at := range pages[metaPage] {
		for _, offset := range []int{0, 8, 16, 20, 24, 32, 56, 72} {
			all = append(all, flipped("a meta page", at+offset))
		}
	}
	// The header, the first element, and its key.
	for _, at := range pages[branchPage][:1] {
		for _, offset := range []int{0, 8, 10, 12, 16, 20, 24, 16 + number(at+16, 2)} {
			all = append(all, flipped("a branch page", at+offset))
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	leaf := func() int { return pages[leafPage][random.IntN(len(pages[leafPage]))] }
	for _, offset := range []int{0, 8, 10, 12, 16, 20, 24, 28} {
		all = append(all, flipped("a leaf page", leaf()+offset))
	}
	for range 20 {
		// Keys and values begin behind the elements.
		at := leaf()
		begin := headerSize + number(at+10, 2)*elementSize
		all = append(all, flipped("a leaf page", at+begin+random.IntN((page-begin)/2)))
	}
	return all
}

// An agent with a damaged state works as if it were whole, or ends with one line, and what
// there was is recovered.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	pools := "pools:\n"
	for i := range 60 {
		pools += fmt.Sprintf("  - {name: pool-%d, provider: loop, attributes: {fs: ext4}}\n", i)
	}
	m.writeSpec(pools + onMachine)
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	m.stop()
	whole := m.readState()
	if r := m.must("recover"); !strings.Contains(r.Stdout, "from "+filepath.Join(m.data, "state.db")+" and records") {
		t.Errorf("want it to begin with the state, which is whole:\n%s", r.All())
	}
	count := map[bool]int{}
	for _, d := range damages(t, whole["state.db"]) {
		m.writeState(whole)
		stateFile := filepath.Join(m.data, "state.db")
		if err := os.WriteFile(stateFile, d.do(slices.Clone(whole["state.db"])), 0o600); err != nil {
			t.Fatal(err)
		}
		ended := m.probe("state.db", d.name)
		count[ended]++
		if d.lasting && !ended {
			t.Errorf("%s: the agent runs", d.name)
		}
		if ended {
			t.Logf("recovering after %s", d.name)
			m.recover()
		}
	}
	t.Logf("%d agents ended, %d ran", count[true], count[false])
	m.writeState(whole)
	m.start()
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// recover puts the state together again, and checks that all storage on the machine can
// be attached, with its data.
func (m *machine) recover() {
	m.Helper()
	m.must("recover", "--yes")
	m.start()
	m.must(append([]string{"attach", "--wait"}, onMachineNames...)...)
	for _, name := range onMachineNames {
		m.wantKept(name, name)
	}
	m.stop()
}

// probe starts an agent, and reports whether that ended. One that does not has all storage
// attached. file is what was damaged.
func (m *machine) probe(file, damage string) (ended bool) {
	m.Helper()
	log := filepath.Join(m.dir, "probe.log")
	if err := os.RemoveAll(log); err != nil {
		m.Fatal(err)
	}
	agent, err := m.stowage().Start(log)
	if err != nil {
		m.Fatal(err)
	}
	m.agent = agent
	attached := false
	select {
	case <-agent.Ended:
	case <-agent.Listening:
		m.poll(damage+": the agent neither attaches all storage nor ends", func() bool {
			if attached = m.allAttached(); attached {
				return true
			}
			select {
			case <-agent.Ended:
				return true
			default:
				return false
			}
		})
	case <-time.After(patience):
		m.Fatalf("%s: the agent neither listens nor ends", damage)
	}
	if attached {
		m.kill()
		return false
	}
	m.wantDamageTold(file, log, damage)
	return true
}

// wantDamageTold checks that the agent ends since it finds a file of its state damaged,
// and says so in its log. damage is what was done to it.
func (m *machine) wantDamageTold(file, log, damage string) {
	m.Helper()
	select {
	case <-m.agent.Ended:
	case <-time.After(patience):
		m.Fatalf("%s: the agent does not end", damage)
	}
	said, err := os.ReadFile(log)
	if err != nil {
		m.Fatal(err)
	}
	r := command.Result{Command: "stowage run # " + file + " " + damage, Stderr: string(said), Code: exitStatus(m.agent)}
	m.agent = nil
	m.wantEnded(r, filepath.Join(m.data, file), "stowage recover", "stowage restore")
}

// The mark has two places of 4096 bytes, and needs one of them.
func TestDamagedMark(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	m.stop()
	whole := m.readState()
	mark := filepath.Join(m.data, "state.mark")
	for _, d := range []damage{
		truncated(0, true), truncated(1, true), truncated(4096, true), truncated(8191, true),
		{"overwritten with zeros", func(mark []byte) []byte { return make([]byte, len(mark)) }, true},
		{"flipped in both places", func(mark []byte) []byte { mark[7] ^= 1; mark[4096+7] ^= 1; return mark }, true},
		flipped("the first place", 7), flipped("the second place", 4096+7),
		{"lost but for the state", func([]byte) []byte { return nil }, false},
	} {
		m.writeState(whole)
		var err error
		if damaged := d.do(slices.Clone(whole["state.mark"])); damaged == nil {
			err = os.Remove(mark)
		} else {
			err = os.WriteFile(mark, damaged, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if ended := m.probe("state.mark", d.name); ended != d.lasting {
			t.Errorf("state.mark %s: the agent ended: %v", d.name, ended)
		} else if ended {
			m.recover()
		}
	}
	m.writeState(whole)
	m.start()
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// What is damaged while the agent runs is found when it is used.
func TestStateTruncatedBelowAnAgent(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	m.stop()
	for name, use := range map[string][]string{
		"looked at":  {"status"},
		"told":       {"apply", "-f", m.spec},
		"changed":    {"detach", "data"},
		"backed up":  {"backup", filepath.Join(m.dir, "backup")},
		"asked most": {"orphans"},
	} {
		t.Run(name, func(t *testing.T) {
			m := *m
			m.TB, m.log = t, m.log+"."+use[0]
			m.start()
			m.apply()
			if err := os.Truncate(filepath.Join(m.data, "state.db"), 2*int64(os.Getpagesize())); err != nil {
				t.Fatal(err)
			}
			if r := m.run(use...); r.Code != 1 {
				t.Errorf("want exit status 1:\n%s", r.All())
			}
			m.wantDamageTold("state.db", m.log, "truncated")
			m.recover()
		})
	}
	m.start()
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// exitStatus returns the exit status of an agent that has ended, -1 of one that a signal
// has.
func exitStatus(agent *command.Agent) int {
	var exit *exec.ExitError
	if errors.As(agent.Err(), &exit) {
		return exit.ExitCode()
	}
	return 0
}

// allAttached reports whether the agent says so of all storage on the machine.
func (m *machine) allAttached() bool {
	m.Helper()
	r := m.run("status", "-o", "json")
	var all []command.Storage
	if r.Code != 0 || json.Unmarshal([]byte(r.Stdout), &all) != nil || len(all) != len(onMachineNames) {
		return false
	}
	return !slices.ContainsFunc(all, func(s command.Storage) bool { return s.Status != "attached" })
}

// readState returns the state file and what is kept beside it, by name.
func (m *machine) readState() map[string][]byte {
	m.Helper()
	all := map[string][]byte{}
	for _, path := range m.stateFiles() {
		data, err := os.ReadFile(path)
		if err != nil {
			m.Fatal(err)
		}
		all[filepath.Base(path)] = data
	}
	return all
}

// writeState puts back what readState has read, and nothing else.
func (m *machine) writeState(all map[string][]byte) {
	m.Helper()
	for _, path := range m.stateFiles() {
		if err := os.Remove(path); err != nil {
			m.Fatal(err)
		}
	}
	for name, data := range all {
		if err := os.WriteFile(filepath.Join(m.data, name), data, 0o600); err != nil {
			m.Fatal(err)
		}
	}
}

func (m *machine) stateFiles() []string {
	m.Helper()
	files, err := filepath.Glob(filepath.Join(m.data, "state.*"))
	if err != nil {
		m.Fatal(err)
	}
	return files
}

// What is not a whole backup, or would be restored below an agent, changes nothing.
func TestRestoreIsRefused(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.keep(onMachineNames...)
	backup, bad := filepath.Join(m.dir, "backup"), filepath.Join(m.dir, "bad")
	m.must("backup", backup)
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(why string, args ...string) {
		t.Helper()
		had := m.tree()
		if r := m.run(args...); r.Code != 1 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, why) {
			t.Errorf("want exit status 1 and a line with %q:\n%s", why, r.All())
		}
		// An agent writes when it likes.
		if has := m.tree(); m.agent == nil && !slices.Equal(has, had) {
			t.Errorf("there are the files\n%s\nbefore there were\n%s", strings.Join(has, "\n"), strings.Join(had, "\n"))
		}
	}
	refused(backup+" is there already", "backup", backup)
	refused("stop the agent", "restore", backup)
	refused("stop the agent", "recover", "--yes")
	refused("stop the agent", "adopt-dir", "--moved")
	m.stop()

	refused("no such file", "restore", filepath.Join(m.dir, "none"))
	const trailer = 4096
	damages := []damage{truncated(0, true), truncated(1, true), truncated(len(whole)/2, true), truncated(len(whole)-trailer-1, true)}
	for at := 0; at < len(whole)-trailer; at += len(whole) / 20 {
		damages = append(damages, flipped("a backup", at))
	}
	// What the trailer says, and the checksum.
	damages = append(damages, flipped("a backup", len(whole)-trailer+40), flipped("a backup", len(whole)-30))
	for _, d := range damages {
		if err := os.WriteFile(bad, d.do(slices.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(bad, "restore", bad)
	}

	m.must("restore", backup)
	m.start()
	m.apply()
	for _, name := range onMachineNames {
		m.wantKept(name, name)
	}
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}
