package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/markfile"
	"github.com/stowage-io/stowage/storage/provider"
)

// waitTimeout limits each wait of a test.
const waitTimeout = 2 * time.Minute

// machine is a directory that holds everything that one test makes, and an agent.
type machine struct {
	testing.TB
	dir  string // the test's directory
	data string // the agent's data directory
	spec string // the file to apply
	log  string // the agent's log

	agent *command.Agent
}

// newMachine returns a machine without an agent. The test fails if a mount, loop device or
// process of the machine is left at its end.
func newMachine(tb testing.TB) *machine {
	tb.Helper()
	return newMachineIn(tb, os.TempDir())
}

// newMachineIn is newMachine with a parent directory.
func newMachineIn(tb testing.TB, parent string) *machine {
	tb.Helper()
	needRoot(tb)
	// TB.TempDir is too long: the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp(parent, "stowage-e2e")
	if err != nil {
		tb.Fatal(err)
	}
	m := &machine{
		TB:   tb,
		dir:  dir,
		data: filepath.Join(dir, "data"),
		spec: filepath.Join(dir, "spec.yaml"),
		log:  filepath.Join(dir, "agent.log"),
	}
	tb.Cleanup(m.cleanUp)
	return m
}

func (m *machine) cleanUp() {
	if m.Failed() {
		m.dump()
	}
	if m.agent != nil {
		m.kill()
	}
	if !m.Failed() {
		m.wantNothingLeft()
	}
	unmountAndDetach(m, m.dir)
	if len(mountsBelow(m, m.dir)) > 0 {
		return // nothing is deleted through a mount
	}
	if err := os.RemoveAll(m.dir); err != nil {
		m.Error(err)
	}
}

// dump logs the status, mounts, loop devices and the agent's log after a failure.
func (m *machine) dump() {
	if m.agent != nil {
		m.Logf("status:\n%s", m.run("status").All())
	}
	for _, mount := range mountsBelow(m, m.dir) {
		m.Logf("mount: %s of %s on %s", mount.FSType, mount.Source, mount.Mountpoint)
	}
	for _, loop := range loopsBelow(m, m.dir) {
		m.Logf("loop device: %+v", loop)
	}
	const most = 20 << 10
	log, err := os.ReadFile(m.log)
	if len(log) > most {
		log = append([]byte("… "), log[len(log)-most:]...)
	}
	m.Logf("log of the agent (%v):\n%s", err, log)
}

// wantNothingLeft waits, because the kernel detaches a loop device only when no process has
// it open any more.
func (m *machine) wantNothingLeft() {
	m.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	left := m.left()
	for deadline := time.Now().Add(waitTimeout); len(left) > 0 && time.Now().Before(deadline); <-tick.C {
		left = m.left()
	}
	for _, object := range left {
		m.Errorf("left %s", object)
	}
}

// left describes the mounts, loop devices and processes of the machine's directory.
func (m *machine) left() []string {
	m.Helper()
	var left []string
	for _, mount := range mountsBelow(m, m.dir) {
		left = append(left, fmt.Sprintf("mounted: %s on %s", mount.Source, mount.Mountpoint))
	}
	for _, loop := range loopsBelow(m, m.dir) {
		left = append(left, fmt.Sprintf("attached: %+v", loop))
	}
	for _, process := range processesOf(m, m.dir) {
		left = append(left, "running: "+process)
	}
	return left
}

// writeSpec writes the file to apply. MNT in the text stands for the machine's directory of
// mount points.
func (m *machine) writeSpec(text string) {
	m.Helper()
	text = strings.ReplaceAll(text, "MNT", m.mount(""))
	if err := os.WriteFile(m.spec, []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
}

// mount returns the path that "MNT/name" stands for in a file to apply.
func (m *machine) mount(name string) string { return filepath.Join(m.dir, "mnt", name) }

// start starts an agent and returns when it listens.
func (m *machine) start(args ...string) {
	m.Helper()
	agent, err := m.stowage().Start(m.log, args...)
	if err != nil {
		m.Fatal(err)
	}
	select {
	case <-agent.Listening:
		m.agent = agent
	case <-agent.Ended:
		m.Fatalf("the agent ended at once: %v", agent.Err())
	case <-time.After(waitTimeout):
		m.agent = agent
		m.Fatal("the agent does not listen")
	}
}

// stowage is the command, for the machine's agent.
func (m *machine) stowage() command.Stowage { return command.Stowage{Binary: stowage, DataDir: m.data} }

// changeState calls change with the state of an agent that has stopped.
func (m *machine) changeState(change func(*state.State) error) {
	m.Helper()
	store, err := boltkv.Open(filepath.Join(m.data, "state.db"))
	if err != nil {
		m.Fatal(err)
	}
	defer store.Close()
	st, err := state.Open(state.Config{
		Store: store, Clock: clock.WallClock, Registry: provider.CommonStorageProviders(),
		Marks: markfile.New(filepath.Join(m.data, "state.mark")),
	})
	if err != nil {
		m.Fatal(err)
	}
	defer st.Close()
	if err := change(st); err != nil {
		m.Fatal(err)
	}
}

// stop asks the agent to end, which it does without an error.
func (m *machine) stop() {
	m.Helper()
	if err := m.agent.Signal(os.Interrupt); err != nil {
		m.Fatal(err)
	}
	select {
	case <-m.agent.Ended:
		if err := m.agent.Err(); err != nil {
			m.Errorf("the agent ended with: %v", err)
		}
		m.agent = nil
	case <-time.After(waitTimeout):
		m.Fatal("the agent does not end")
	}
}

// kill ends the agent with SIGKILL.
func (m *machine) kill() {
	m.Helper()
	if err := m.agent.Signal(unix.SIGKILL); err != nil {
		m.Fatal(err)
	}
	<-m.agent.Ended
	m.agent = nil
}

// run runs a command of stowage.
func (m *machine) run(args ...string) command.Result {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	r, err := m.stowage().Run(ctx, args...)
	if err != nil {
		m.Fatal(err)
	}
	return r
}

// must runs a command of stowage that has to succeed.
func (m *machine) must(args ...string) command.Result {
	m.Helper()
	r := m.run(args...)
	if r.Code != 0 {
		m.Fatal(r.All())
	}
	return r
}

// apply applies the file and waits until everything is attached.
func (m *machine) apply() command.Result {
	m.Helper()
	return m.must("apply", "-f", m.spec, "--wait")
}

// status returns all storage by name.
func (m *machine) status() map[string]command.Storage {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	all, err := m.stowage().Status(ctx)
	if err != nil {
		m.Fatal(err)
	}
	return all
}
