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

// logLine matches a line of the agent's log. The only other line is the error at its end.
var logLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (TRACE|DEBUG|INFO|WARNING|ERROR) `)

// wantEnded checks that an agent ended with exit status 1, and that it printed, apart from
// its log, one line that has these parts.
func (m *machine) wantEnded(r command.Result, parts ...string) {
	m.Helper()
	var printed []string
	for line := range strings.Lines(r.Stderr) {
		if !logLine.MatchString(line) {
			printed = append(printed, line)
		}
	}
	if r.Code != 1 || len(printed) != 1 || !strings.HasPrefix(printed[0], "stowage: ") {
		m.Errorf("want exit status 1 and one line:\n%s", r.All())
		return
	}
	for _, part := range parts {
		if !strings.Contains(printed[0], part) {
			m.Errorf("want a line with %q:\n%s", part, r.All())
		}
	}
}

// listFiles returns a line for each file in the data directory, with its mode, size and time
// of modification. The files of volumes are without a time, because the kernel writes to them
// while they are attached.
func (m *machine) listFiles() []string {
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

// An agent whose state is lost does not start with a new one.
// Fault F20.
func TestAgentRefusesLostState(t *testing.T) {
	const mark, storage = "state.mark", "storage"
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.stop()
	for _, test := range []struct {
		name  string
		other string // another part of the data directory that is lost too
		empty bool   // the file exists, and is empty
	}{
		{"missing", "", false},
		{"empty", "", true},
		{"missing, with only the mark left", storage, false},
		{"empty, with only the mark left", storage, true},
		{"missing, with only storage left", mark, false},
		{"empty, with only storage left", mark, true},
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
			had, kernelHad := m.listFiles(), m.kernelObjects()
			for range 2 {
				m.wantEnded(m.run("run"), stateFile, "stowage recover", "stowage restore")
			}
			if has := m.listFiles(); !slices.Equal(has, had) {
				t.Errorf("the files changed to\n%s\nfrom\n%s", strings.Join(has, "\n"), strings.Join(had, "\n"))
			}
			if has := m.kernelObjects(); !slices.Equal(has, kernelHad) {
				t.Errorf("devices and mounts changed to %q from %q", has, kernelHad)
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

// damage is one way to damage a state file.
type damage struct {
	name string
	do   func(state []byte) []byte
	// lasting says that no agent can start after the damage.
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

// The types of pages in bbolt's files, and the sizes of page headers and elements.
const (
	branchPage = 0x01
	leafPage   = 0x02
	metaPage   = 0x04

	headerSize  = 16
	elementSize = 16
)

// damages returns ways to damage a state file. They are the same for the same file.
func damages(t *testing.T, state []byte) []damage {
	t.Helper()
	page := os.Getpagesize()
	number := func(at, size int) int {
		if size == 2 {
			return int(binary.NativeEndian.Uint16(state[at:]))
		}
		return int(binary.NativeEndian.Uint64(state[at:]))
	}
	// The newer meta page says how many pages are in use.
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
		// Keys and values follow the elements.
		at := leaf()
		begin := headerSize + number(at+10, 2)*elementSize
		all = append(all, flipped("a leaf page", at+begin+random.IntN((page-begin)/2)))
	}
	return all
}

// An agent with a damaged state either works normally, or ends with one line; then the state
// can be recovered.
// Fault F20, F21.
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
	m.writeContents(onMachineNames...)
	m.stop()
	whole := m.readState()
	if r := m.must("recover"); !strings.Contains(r.Stdout, "from "+filepath.Join(m.data, "state.db")+" and records") {
		t.Errorf("recover does not start from the undamaged state:\n%s", r.All())
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

// recover recovers the state, and checks that all storage on the machine can be attached and
// has its data.
func (m *machine) recover() {
	m.Helper()
	m.must("recover", "--yes")
	m.start()
	m.must(append([]string{"attach", "--wait"}, onMachineNames...)...)
	for _, name := range onMachineNames {
		m.wantContents(name, name)
	}
	m.stop()
}

// probe starts an agent after damage to file, and reports whether the agent ended. An agent
// that does not end has to attach all storage.
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
	case <-time.After(waitTimeout):
		m.Fatalf("%s: the agent neither listens nor ends", damage)
	}
	if attached {
		m.kill()
		return false
	}
	m.wantDamageReported(file, log, damage)
	return true
}

// wantDamageReported checks that the agent ends because a file of its state is damaged, and
// says so in its log. damage describes the damage for failure messages.
func (m *machine) wantDamageReported(file, log, damage string) {
	m.Helper()
	select {
	case <-m.agent.Ended:
	case <-time.After(waitTimeout):
		m.Fatalf("%s: the agent does not end", damage)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		m.Fatal(err)
	}
	r := command.Result{Command: "stowage run # " + file + " " + damage, Stderr: string(text), Code: exitStatus(m.agent)}
	m.agent = nil
	m.wantEnded(r, filepath.Join(m.data, file), "stowage recover", "stowage restore")
}

// The state's mark has two copies of 4096 bytes each. One intact copy is enough.
func TestDamagedMark(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.writeContents(onMachineNames...)
	m.stop()
	whole := m.readState()
	mark := filepath.Join(m.data, "state.mark")
	for _, d := range []damage{
		truncated(0, true), truncated(1, true), truncated(4096, true), truncated(8191, true),
		{"overwritten with zeros", func(mark []byte) []byte { return make([]byte, len(mark)) }, true},
		{"a byte flipped in both copies", func(mark []byte) []byte { mark[7] ^= 1; mark[4096+7] ^= 1; return mark }, true},
		flipped("the first copy", 7), flipped("the second copy", 4096+7),
		{"missing beside the state", func([]byte) []byte { return nil }, false},
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
			t.Errorf("state.mark %s: the agent ended: got %t, want %t", d.name, ended, d.lasting)
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

// A request finds a state that is damaged while the agent runs.
func TestStateTruncatedWhileAgentRuns(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.writeContents(onMachineNames...)
	m.stop()
	for name, use := range map[string][]string{
		"status":  {"status"},
		"apply":   {"apply", "-f", m.spec},
		"detach":  {"detach", "data"},
		"backup":  {"backup", filepath.Join(m.dir, "backup")},
		"orphans": {"orphans"},
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
			m.wantDamageReported("state.db", m.log, "truncated")
			m.recover()
		})
	}
	m.start()
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}

// exitStatus returns the exit status of an agent that has ended, or -1 if a signal ended it.
func exitStatus(agent *command.Agent) int {
	var exit *exec.ExitError
	if errors.As(agent.Err(), &exit) {
		return exit.ExitCode()
	}
	return 0
}

// allAttached reports whether the agent shows all storage on the machine as attached.
func (m *machine) allAttached() bool {
	m.Helper()
	r := m.run("status", "-o", "json")
	var all []command.Storage
	if r.Code != 0 || json.Unmarshal([]byte(r.Stdout), &all) != nil || len(all) != len(onMachineNames) {
		return false
	}
	return !slices.ContainsFunc(all, func(s command.Storage) bool { return s.Status != "attached" })
}

// readState returns the contents of the state file and its companion files, by name.
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

// writeState puts back the files that readState has read, and removes other state files.
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

// A command is refused if its backup is damaged, its target exists or an agent runs. It
// changes nothing then.
func TestRefusedRestoreChangesNothing(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(onMachine)
	m.start()
	m.apply()
	m.writeContents(onMachineNames...)
	backup, bad := filepath.Join(m.dir, "backup"), filepath.Join(m.dir, "bad")
	m.must("backup", backup)
	whole, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(why string, args ...string) {
		t.Helper()
		had := m.listFiles()
		if r := m.run(args...); r.Code != 1 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, why) {
			t.Errorf("want exit status 1 and a line with %q:\n%s", why, r.All())
		}
		// A running agent may write at any time.
		if has := m.listFiles(); m.agent == nil && !slices.Equal(has, had) {
			t.Errorf("the files changed to\n%s\nfrom\n%s", strings.Join(has, "\n"), strings.Join(had, "\n"))
		}
	}
	refused(backup+" already exists", "backup", backup)
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
	// The contents of the trailer, and its checksum.
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
		m.wantContents(name, name)
	}
	m.must(append([]string{"remove", "--wait"}, onMachineNames...)...)
	m.wantNoStorage()
	m.stop()
}
