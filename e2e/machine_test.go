package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long anything that a test waits for may take.
const patience = 2 * time.Minute

// machine is a directory with everything that one test makes, and an agent.
type machine struct {
	testing.TB
	dir  string // of the test
	data string // the agent's
	spec string // the file to apply
	log  string // of the agent

	agent  *exec.Cmd
	exited chan error
}

// newMachine returns a machine without an agent. When the test ends there must be
// no mount, loop device or process of it left.
func newMachine(tb testing.TB) *machine {
	tb.Helper()
	needRoot(tb)
	// Not TB.TempDir: the path of a socket has 107 bytes at most.
	dir, err := os.MkdirTemp("", "stowage-e2e")
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

// dump shows what there is to know about a failure.
func (m *machine) dump() {
	if m.agent != nil {
		m.Logf("status:\n%s", m.run("status").all())
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

func (m *machine) wantNothingLeft() {
	m.Helper()
	for _, mount := range mountsBelow(m, m.dir) {
		m.Errorf("left mounted: %s on %s", mount.Source, mount.Mountpoint)
	}
	for _, loop := range loopsBelow(m, m.dir) {
		m.Errorf("left attached: %+v", loop)
	}
	for _, process := range processesOf(m, m.dir) {
		m.Errorf("left running: %s", process)
	}
}

// writeSpec writes the file to apply. MNT in it stands for a directory of the
// machine's for mount points.
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
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.Fatal(err)
	}
	agent := exec.Command(stowage, append([]string{"run", "--data-dir", m.data, "--log-level", "debug"}, args...)...)
	stderr, err := agent.StderrPipe()
	if err != nil {
		m.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		m.Fatal(err)
	}
	listening, exited := make(chan struct{}), make(chan error, 1)
	go func() {
		defer log.Close()
		told := false
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(log, lines.Text())
			if !told && strings.Contains(lines.Text(), "listening on "+m.data) {
				told = true
				close(listening)
			}
		}
		exited <- agent.Wait()
	}()
	select {
	case <-listening:
		m.agent, m.exited = agent, exited
	case err := <-exited:
		m.Fatalf("the agent ended at once: %v", err)
	case <-time.After(patience):
		m.agent, m.exited = agent, exited
		m.Fatal("the agent does not listen")
	}
}

// stop asks the agent to end, which it does without an error.
func (m *machine) stop() {
	m.Helper()
	if err := m.agent.Process.Signal(os.Interrupt); err != nil {
		m.Fatal(err)
	}
	select {
	case err := <-m.exited:
		m.agent = nil
		if err != nil {
			m.Errorf("the agent ended with: %v", err)
		}
	case <-time.After(patience):
		m.Fatal("the agent does not end")
	}
}

// kill ends the agent in the middle of whatever it does.
func (m *machine) kill() {
	m.Helper()
	if err := m.agent.Process.Signal(unix.SIGKILL); err != nil {
		m.Fatal(err)
	}
	<-m.exited
	m.agent = nil
}

// result is what a command did.
type result struct {
	command        string
	stdout, stderr string
	code           int
}

func (r result) all() string {
	return fmt.Sprintf("$ %s\n%s%s[exit status %d]\n", r.command, r.stdout, r.stderr, r.code)
}

// run runs a command of stowage.
func (m *machine) run(args ...string) result {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, stowage, args...)
	cmd.Env = append(os.Environ(), "STOWAGE_DIR="+m.data)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		m.Fatalf("stowage %s: not done after %v\n%s%s", strings.Join(args, " "), patience, &stdout, &stderr)
	}
	if cmd.ProcessState == nil {
		m.Fatal(err)
	}
	return result{"stowage " + strings.Join(args, " "), stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command of stowage that has to succeed.
func (m *machine) must(args ...string) result {
	m.Helper()
	r := m.run(args...)
	if r.code != 0 {
		m.Fatal(r.all())
	}
	return r
}

// apply applies the file and waits until all is attached.
func (m *machine) apply() result {
	m.Helper()
	return m.must("apply", "-f", m.spec, "--wait")
}

// storage is an object of `status -o json`.
type storage struct {
	Name        string    `json:"name"`
	Kind        string    `json:"kind"`
	Pool        string    `json:"pool"`
	Provider    string    `json:"provider"`
	SizeMiB     uint64    `json:"size-mib"`
	WantedMiB   uint64    `json:"wanted-mib"`
	Life        string    `json:"life"`
	Status      string    `json:"status"`
	Message     string    `json:"message"`
	Since       time.Time `json:"since"`
	Location    string    `json:"location"`
	Volume      string    `json:"volume"`
	Filesystem  string    `json:"filesystem"`
	Attachments []any     `json:"attachments"`
}

// status returns all storage by name.
func (m *machine) status() map[string]storage {
	m.Helper()
	r := m.must("status", "-o", "json")
	decoder := json.NewDecoder(strings.NewReader(r.stdout))
	decoder.DisallowUnknownFields()
	var list []storage
	if err := decoder.Decode(&list); err != nil {
		m.Fatalf("%v in\n%s", err, r.stdout)
	}
	byName := make(map[string]storage)
	for _, s := range list {
		byName[s.Name] = s
	}
	return byName
}
