package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// site is a server and its agents, all on this host. The commands of machine are those of the
// server.
type site struct {
	*machine
	address string
	running []*process
	// binary is what starts processes.
	binary string
}

// process is the server, or an agent.
type process struct {
	*command.Agent
	site *site
	name string
	log  string
}

func newSite(t testing.TB) *site {
	m := newMachine(t)
	s := &site{machine: m, address: freeAddress(t), binary: stowage}
	t.Cleanup(s.end) // before the cleanup of machine
	return s
}

// end ends what still runs.
func (s *site) end() {
	for _, p := range s.running {
		select {
		case <-p.Ended:
		default:
			p.kill()
		}
		if s.Failed() {
			log, err := os.ReadFile(p.log)
			s.Logf("log of %s (%v):\n%s", p.name, err, log)
		}
	}
}

// launch starts a process, and waits until it is ready.
func (s *site) launch(name, verb, ready string, args ...string) *process {
	s.Helper()
	p := s.begin(name, verb, ready, args...)
	select {
	case <-p.Listening:
	case <-p.Ended:
		s.Fatalf("%s ended at once: %v", name, p.Err())
	case <-time.After(waitTimeout):
		s.Fatalf("%s is not ready", name)
	}
	return p
}

// begin starts a process.
func (s *site) begin(name, verb, ready string, args ...string) *process {
	s.Helper()
	p := &process{site: s, name: name, log: filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", name, len(s.running)))}
	var err error
	p.Agent, err = command.Stowage{Binary: s.binary, DataDir: s.dataOf(name)}.StartAs(verb, ready, p.log, args...)
	if err != nil {
		s.Fatal(err)
	}
	s.running = append(s.running, p)
	return p
}

// dataOf returns the data directory of the server, or of the agent of a machine.
func (s *site) dataOf(name string) string {
	if name == "server" {
		return s.data
	}
	return filepath.Join(s.dir, name)
}

func (s *site) startServer(args ...string) *process {
	s.Helper()
	return s.launch("server", "server", "listening on ", append([]string{"--listen", s.address}, args...)...)
}

// startAgent starts the agent of a machine. token is empty once it is enrolled.
func (s *site) startAgent(name, token string, args ...string) *process {
	s.Helper()
	return s.launch(name, "agent", "connected to ", s.agentArgs(name, token, args...)...)
}

func (s *site) agentArgs(name, token string, args ...string) []string {
	return append([]string{"--server", "https://" + s.address, "--token", token, "--machine", name}, args...)
}

// token makes a token for a machine.
func (s *site) token(args ...string) string {
	s.Helper()
	return strings.TrimSpace(s.must(append([]string{"token", "create", "--role", "machine"}, args...)...).Stdout)
}

// awaitLog waits until the process has logged a text.
func (p *process) awaitLog(text string) {
	p.site.Helper()
	p.site.poll(p.name+" does not say "+text, func() bool {
		log, err := os.ReadFile(p.log)
		return err == nil && strings.Contains(string(log), text)
	})
}

// stop asks the process to end, which it does without an error, and without a warning except that it
// has no connection, if it has none.
func (p *process) stop() {
	p.site.Helper()
	before, err := os.ReadFile(p.log)
	if err != nil {
		p.site.Fatal(err)
	}
	if err := p.Signal(os.Interrupt); err != nil {
		p.site.Fatal(err)
	}
	if err := p.end(); err != nil {
		p.site.Errorf("%s ended with: %v", p.name, err)
	}
	after, err := os.ReadFile(p.log)
	if err != nil {
		p.site.Fatal(err)
	}
	for line := range strings.Lines(string(after[len(before):])) {
		if strings.Contains(line, " ERROR ") || strings.Contains(line, " WARNING ") && !strings.Contains(line, " no connection to ") {
			p.site.Errorf("when it is asked to end, %s says:\n%s", p.name, line)
		}
	}
}

func (p *process) kill() {
	p.site.Helper()
	if err := p.Signal(unix.SIGKILL); err != nil {
		p.site.Fatal(err)
	}
	_ = p.end() // it was killed
}

// pause stops the process, which goes on at SIGCONT, while it has no device open: it inspects those of
// other tests, too, and these could not be detached until it goes on.
func (p *process) pause() {
	p.site.Helper()
	for {
		if err := p.Signal(unix.SIGSTOP); err != nil {
			p.site.Fatal(err)
		}
		// The process has stopped when all its threads have.
		if err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			p.site.Fatalf("waiting until %s has stopped: %v", p.name, err)
		}
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID()))
		if err != nil {
			p.site.Fatal(err)
		}
		if !slices.ContainsFunc(open, func(fd string) bool {
			path, err := os.Readlink(fd)
			return err == nil && strings.HasPrefix(path, "/dev/loop")
		}) {
			return
		}
		if err := p.Signal(unix.SIGCONT); err != nil {
			p.site.Fatal(err)
		}
	}
}

// end waits until the process has ended, and returns its error.
func (p *process) end() error {
	p.site.Helper()
	select {
	case <-p.Ended:
		return p.Err()
	case <-time.After(waitTimeout):
		p.site.Fatalf("%s does not end", p.name)
		return nil
	}
}

// says waits until the process has ended with an error, and says a text.
func (p *process) says(text string) {
	p.site.Helper()
	err := p.end()
	log, readErr := os.ReadFile(p.log)
	if readErr != nil {
		p.site.Fatal(readErr)
	}
	if err == nil || !strings.Contains(string(log), text) {
		p.site.Errorf("%s ended with %v, and does not say %q:\n%s", p.name, err, text, log)
	}
}

// machines returns the status of each machine by name.
func (s *site) machines() map[string]string {
	s.Helper()
	var list []struct {
		Name     string    `json:"name"`
		Status   string    `json:"status"`
		LastSeen time.Time `json:"last-seen"`
	}
	if err := json.Unmarshal([]byte(s.must("machines", "-o", "json").Stdout), &list); err != nil {
		s.Fatal(err)
	}
	found := make(map[string]string)
	for _, m := range list {
		found[m.Name] = m.Status
		if m.Status == "up" && time.Since(m.LastSeen) > waitTimeout {
			s.Errorf("machine %s is up, and was last seen at %v", m.Name, m.LastSeen)
		}
	}
	return found
}

// write and read use a file of storage.
func (s *site) write(name, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.mount(name), "file"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *site) read(name string) string {
	s.Helper()
	content, err := os.ReadFile(filepath.Join(s.mount(name), "file"))
	if err != nil {
		s.Fatal(err)
	}
	return string(content)
}

const siteSpec = `storage:
- {name: a, directive: "loop,16M", kind: filesystem, mount: MNT/a, machine: web}
- {name: b, directive: "loop,8M", kind: block, machine: db}
- {name: c, directive: "rootfs,8M", kind: filesystem, mount: MNT/c, machine: db}
`

// A server and its agents provision the storage of each machine on it, and storage in use
// outlives each of them.
// Fault F33.
// Fault F34.
func TestServerWithAgents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startServer()
	if s.must("status").Stdout == "" || len(s.machines()) > 0 {
		t.Errorf("a new server has machines: %v", s.machines())
	}
	s.writeSpec(siteSpec)
	if r := s.run("apply", "-f", s.spec); r.Code != 1 || !strings.Contains(r.Stderr, `machine: "web" is not known: there are no machines yet`) {
		t.Errorf("storage for an unknown machine:\n%s", r.All())
	}
	web, db := s.startAgent("web", s.token()), s.startAgent("db", s.token())
	s.poll("not both machines are up", func() bool {
		up := s.machines()
		return len(up) == 2 && up["web"] == "up" && up["db"] == "up"
	})
	s.apply()
	for name, want := range map[string]string{"a": "web", "b": "db", "c": "db"} {
		if got := s.status()[name]; len(got.Attachments) != 1 || got.Attachments[0].Machine != want || got.Location == "" {
			t.Errorf("storage %s is %+v, want it on machine %s", name, got, want)
		}
	}
	s.write("a", "precious")

	web.kill()
	s.must("detach", "a")
	if got := s.read("a"); got != "precious" {
		t.Errorf("after its agent was killed, the storage has %q", got)
	}
	web = s.startAgent("web", "")
	s.must("detach", "a", "--wait")
	s.must("attach", "a", "--wait")

	server.kill()
	if got := s.read("a"); got != "precious" {
		t.Errorf("after the server was killed, the storage has %q", got)
	}
	server = s.startServer()
	s.must("detach", "a", "b", "c", "--wait")
	web.stop()
	server.stop()
	db.awaitLog("no connection to")
	db.stop()
	server, web, db = s.startServer(), s.startAgent("web", ""), s.startAgent("db", "")
	s.must("attach", "a", "b", "c", "--wait")
	if got := s.read("a"); got != "precious" {
		t.Errorf("the storage has %q", got)
	}
	s.must("remove", "a", "b", "c", "--wait")
	for _, p := range []*process{db, web, server} {
		p.stop()
	}
	s.wantNoStorageIn("web", "db")
}

// wantNoStorageIn checks that agents have left no storage in their directories.
func (s *site) wantNoStorageIn(names ...string) {
	s.Helper()
	for _, name := range names {
		for _, pattern := range []string{"loop/volumes/*", "loop/snapshots/*/*", "rootfs/filesystems/*", "*/records/*.json", "*/*/records/*.json"} {
			left, err := filepath.Glob(filepath.Join(s.dataOf(name), "storage", pattern))
			if err != nil {
				s.Fatal(err)
			}
			for _, path := range left {
				s.Errorf("left %s", path)
			}
		}
	}
}

// What may not join or go on is refused, says why, and harms nothing.
// Promise S25.
// Fault F37.
func TestAgentsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startServer()
	web := s.startAgent("web", s.token())
	s.writeSpec(`storage: [{name: a, directive: "loop,16M", kind: filesystem, mount: MNT/a, machine: web}]`)
	s.apply()
	s.write("a", "precious")

	refused := func(name, text string, args ...string) {
		t.Helper()
		s.begin(name, "agent", "connected to ", args...).says(text)
	}
	used := s.token()
	other := s.startAgent("other", used)
	refused("new", "is not enrolled: make a token with", s.agentArgs("new", "")...)
	refused("new", "a token has three parts", s.agentArgs("new", "secret")...)
	refused("new", "the token is not valid for role machine", s.agentArgs("new", used)...)
	refused("new", "there is a machine with this name", s.agentArgs("web", s.token())...)
	refused("new", `the token is for machine "third"`, s.agentArgs("new", s.token("--machine", "third"))...)
	refused("web", "another agent runs in", s.agentArgs("web", "")...)
	other.stop()
	refused("other", `is that of machine "other", not of "third"`, s.agentArgs("third", "")...)

	// A copy of the directory of an agent says so before it does anything.
	web.stop()
	if out, err := exec.Command("cp", "-a", s.dataOf("web"), s.dataOf("copy")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	refused("copy", "is not the directory in which its agent was enrolled", s.agentArgs("web", "")...)
	copied := command.Stowage{Binary: stowage, DataDir: s.dataOf("copy")}
	for _, test := range []struct{ args, want string }{
		{"adopt-dir --copy", "delete the copy"},
		{"recover", "has no state, since it is that of a server's agent"},
		{"restore FILE", "has no state, since it is that of a server's agent"},
		{"run", "is the data directory of `stowage agent`"},
	} {
		if r, err := copied.Run(t.Context(), strings.Fields(test.args)...); err != nil || r.Code != 1 || !strings.Contains(r.Stderr, test.want) {
			t.Errorf("%s: %v, want %q:\n%s", test.args, err, test.want, r.All())
		}
	}
	if r := s.run("run"); r.Code != 1 || !strings.Contains(r.Stderr, "is the data directory of `stowage server`") {
		t.Errorf("an agent in the directory of a server:\n%s", r.All())
	}

	// The agent goes on in its own directory, until another one replaces it.
	web = s.startAgent("web", "")
	replacement := s.launch("replacement", "agent", "connected to ", s.agentArgs("web", s.token("--machine", "web"))...)
	web.says("stowage: the server refuses this agent, and its storage stays as it is: ")
	web.says("its agent was replaced by another one")
	if got := s.read("a"); got != "precious" {
		t.Errorf("the storage has %q", got)
	}
	for _, p := range []*process{replacement, server} {
		p.stop()
	}
	unmountAndDetach(t, s.dir)
}

// A directory that was moved is used again once that is confirmed.
func TestMovedAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startServer()
	web := s.startAgent("web", s.token())
	s.writeSpec(`storage: [{name: a, directive: "loop,16M", kind: filesystem, mount: MNT/a, machine: web}]`)
	s.apply()
	s.write("a", "precious")
	s.must("detach", "a", "--wait")
	web.stop()
	moved := s.dataOf("moved")
	if out, err := exec.Command("sh", "-c", `cp -a "$0" "$1" && rm -r "$0"`, s.dataOf("web"), moved).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r, err := (command.Stowage{Binary: stowage, DataDir: moved}).Run(t.Context(), "adopt-dir", "--moved"); err != nil || r.Code != 0 {
		t.Fatalf("%v\n%s", err, r.All())
	}
	web = s.launch("moved", "agent", "connected to ", s.agentArgs("web", "")...)
	s.must("attach", "a", "--wait")
	if got := s.read("a"); got != "precious" {
		t.Errorf("the storage has %q", got)
	}
	s.must("remove", "a", "--wait")
	web.stop()
	server.stop()
}

// After a restore, the environment's storage waits until somebody has made sure of it; that of
// the machines does not.
func TestRestoredServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startServer()
	web := s.startAgent("web", s.token())
	s.writeSpec(siteSpec[:strings.Index(siteSpec, "- {name: b")])
	s.apply()
	backup := filepath.Join(s.dir, "backup")
	s.must("backup", backup)
	s.must("detach", "a", "--wait")
	server.stop()
	s.must("restore", backup)
	server = s.startServer()
	s.must("attach", "a", "--wait")
	log, err := os.ReadFile(server.log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "start the server with --accept-restored") {
		t.Errorf("the server says nothing about the restored state:\n%s", log)
	}
	if report := s.must("report").Stdout; strings.Contains(report, "environment-storage-provisioner") {
		t.Errorf("the environment's storage is managed:\n%s", report)
	}
	server.stop()
	server = s.startServer("--accept-restored")
	if report := s.must("report").Stdout; !strings.Contains(report, "environment-storage-provisioner") {
		t.Errorf("the environment's storage is not managed:\n%s", report)
	}
	server.stop()
	server = s.startServer()
	if report := s.must("report").Stdout; !strings.Contains(report, "environment-storage-provisioner") {
		t.Errorf("the environment's storage is not managed after another start:\n%s", report)
	}
	s.must("remove", "a", "--wait")
	web.stop()
	server.stop()
}

// Storage of the environment is made by the server, with a program, and mounted by the agent of
// the machine that has it.
func TestEnvironmentStorageOfServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disks := newProgram(s.machine)
	server := s.startServer(disks.flag())
	web, db := s.startAgent("web", s.token()), s.startAgent("db", s.token())
	s.writeSpec(`storage:
- {name: a, directive: "disks,16M", kind: filesystem, mount: MNT/a, machine: web}
- {name: b, directive: "disks,16M", kind: block, machine: db}
`)
	s.apply()
	s.write("a", "precious")
	for name, want := range map[string]string{"a": "web", "b": "db"} {
		if got := s.status()[name]; len(got.Attachments) != 1 || got.Attachments[0].Machine != want || got.Location == "" {
			t.Errorf("storage %s is %+v, want it on machine %s", name, got, want)
		}
	}
	s.must("detach", "b", "--wait")
	if r := s.run("attach", "b"); r.Code != 1 || !strings.Contains(r.Stderr, "name one with --machine") {
		t.Errorf("attaching storage of the environment to no machine:\n%s", r.All())
	}
	s.must("attach", "b", "--machine", "web", "--wait")
	if got := s.read("a"); got != "precious" {
		t.Errorf("the storage has %q", got)
	}
	s.must("remove", "a", "b", "--wait")
	for _, p := range []*process{web, db, server} {
		p.stop()
	}
	s.wantNoStorageIn("web", "db")
}

// Storage of the environment moves with its data, and storage of a machine does not.
func TestMoveStorage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	disks := newProgram(s.machine)
	server := s.startServer(disks.flag())
	web, db := s.startAgent("web", s.token()), s.startAgent("db", s.token())
	s.writeSpec(`storage:
- {name: a, directive: "disks,16M", kind: filesystem, mount: MNT/a, machine: web}
- {name: b, directive: "disks,16M", kind: block, machine: web}
- {name: c, directive: "loop,16M", kind: filesystem, mount: MNT/c, machine: web}
`)
	s.apply()
	s.write("a", "precious")
	for _, to := range []string{"db", "web", "db"} {
		s.must("move", "a", "b", "--to", to, "--wait", "--timeout", "60s")
		for _, name := range []string{"a", "b"} {
			if got := s.status()[name]; len(got.Attachments) != 1 || got.Attachments[0].Machine != to || got.Location == "" {
				t.Errorf("storage %s is %+v, want it on machine %s", name, got, to)
			}
		}
		if got := s.read("a"); got != "precious" {
			t.Errorf("on machine %s, the storage has %q", to, got)
		}
	}
	refused := func(text string, args ...string) {
		t.Helper()
		if r := s.run(append([]string{"move"}, args...)...); r.Code != 1 || !strings.Contains(r.Stderr, text) {
			t.Errorf("move %q: want %q:\n%s", args, text, r.All())
		}
	}
	refused("cannot leave it: add storage on the other machine, and copy the data to it", "c", "--to", "db")
	refused(`machine "none" not found`, "a", "--to", "none")
	refused(`storage "none" not found`, "none", "--to", "db")
	s.must("remove", "a", "b", "c", "--wait")
	for _, p := range []*process{web, db, server} {
		p.stop()
	}
	s.wantNoStorageIn("web", "db")
}

// Storage of a machine that is off moves once somebody has said so. The machine's agent is refused
// until the machine has been restarted.
// Promise S26.
// Fault F35.
func TestFencedMachine(t *testing.T) { // alone, since its mount namespaces have the mounts of other tests
	s := newSite(t)
	disks := newProgram(s.machine)
	server := s.startServer(disks.flag(), "--unreachable-after", "1s")
	web, db := s.startAgent("web", s.token()), s.startAgent("db", s.token())
	s.writeSpec(`storage: [{name: a, directive: "disks,16M", kind: filesystem, mount: MNT/a, machine: web}]`)
	s.apply()
	s.write("a", "precious")
	refused := func(code int, text string, args ...string) {
		t.Helper()
		if r := s.run(args...); r.Code != code || !strings.Contains(r.Stderr, text) {
			t.Errorf("%q: want exit status %d and %q:\n%s", args, code, text, r.All())
		}
	}
	refused(1, "its agent is connected", "machine", "fence", "web", "--confirmed")
	unix.Sync() // what is written before the machine is off
	web.kill()
	s.poll("the machine is not unreachable", func() bool { return s.machines()["web"] == "unreachable" })
	s.poll("the status of the storage does not say so", func() bool {
		return strings.Contains(s.status()["a"].Message, "machine web is not connected")
	})
	refused(1, "run `stowage machine fence web --confirmed`", "move", "a", "--to", "db")
	refused(2, "repeat with --confirmed", "machine", "fence", "web")
	if got := s.read("a"); got != "precious" {
		t.Errorf("before the machine is fenced, the storage has %q", got)
	}
	if err := unix.Unmount(s.mount("a"), 0); err != nil { // the power cut
		t.Fatal(err)
	}
	s.must("machine", "fence", "web", "--confirmed")
	if got := s.machines()["web"]; got != "fenced" {
		t.Errorf("the machine is %s", got)
	}
	s.must("move", "a", "--to", "db", "--wait", "--timeout", "60s")
	if got := s.read("a"); got != "precious" {
		t.Errorf("after the move, the storage has %q", got)
	}

	s.begin("web", "agent", "connected to ", s.agentArgs("web", "")...).says("it has not been restarted since")
	restarted := filepath.Join(s.dir, "restarted")
	boot := filepath.Join(s.dir, "boot-id")
	script := `#!/bin/sh
exec unshare --mount --propagation private sh -c 'umount ` + s.mount("a") + ` && mount --bind ` + boot + ` /proc/sys/kernel/random/boot_id && exec ` + stowage + ` "$@"' sh "$@"
`
	for path, content := range map[string]string{restarted: script, boot: "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b\n"} {
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.binary = restarted
	web = s.startAgent("web", "")
	s.poll("the machine is not up", func() bool { return s.machines()["web"] == "up" })
	if got := s.read("a"); got != "precious" {
		t.Errorf("after the machine has returned, the storage has %q", got)
	}
	s.must("move", "a", "--to", "web", "--wait", "--timeout", "60s")
	s.must("move", "a", "--to", "db", "--wait", "--timeout", "60s")
	if got := s.read("a"); got != "precious" {
		t.Errorf("after it was on the machine again, the storage has %q", got)
	}
	web.stop()
	s.must("remove", "a", "--wait")
	s.poll("the machine is not unreachable", func() bool { return s.machines()["web"] == "unreachable" })
	s.must("machine", "remove", "web")
	if _, ok := s.machines()["web"]; ok {
		t.Error("the machine is still there")
	}
	db.stop()
	server.stop()
	s.wantNoStorageIn("web", "db")
}

// A machine that was fenced although it was not off stops using the environment's storage without
// writing to it any more, when its agent is refused.
// Promise S26.
// Fault F36.
func TestFalseFence(t *testing.T) { // alone, since its mount namespaces have the mounts of other tests
	s := newSite(t)
	disks := newProgram(s.machine)
	server := s.startServer(disks.flag(), "--unreachable-after", "1s")
	// The machines have mount namespaces of their own.
	s.binary = filepath.Join(s.dir, "apart")
	if err := os.WriteFile(s.binary, []byte("#!/bin/sh\nexec unshare --mount --propagation private "+stowage+` "$@"`+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	web, db := s.startAgent("web", s.token()), s.startAgent("db", s.token())
	s.writeSpec(`storage: [{name: a, directive: "disks,16M", kind: filesystem, mount: MNT/a, machine: web}]`)
	s.apply()
	file := filepath.Join(s.mount("a"), "file")
	on := func(p *process, command string) (string, error) {
		t.Helper()
		out, err := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.PID()), "sh", "-c", command).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := on(web, "echo precious >"+file+" && sync"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A process keeps the namespace, as others on the machine would.
	user := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", web.PID()), "sh", "-c",
		`exec 3>>"$0"; echo open; read go; echo late >&3 && sync "$0"`, filepath.Join(s.mount("a"), "log"))
	stdin, err := user.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := user.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	web.pause()
	s.poll("the machine is not unreachable", func() bool { return s.machines()["web"] == "unreachable" })
	s.must("machine", "fence", "web", "--confirmed")
	if err := web.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	web.says("shut down the filesystem on " + s.mount("a") + " without writing to it")
	web.says("stowage: the server refuses this agent: ")
	if _, err := stdin.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	if err := user.Wait(); err == nil {
		t.Error("the machine that was fenced still writes")
	}
	s.must("move", "a", "--to", "db", "--wait", "--timeout", "60s")
	if got, err := on(db, "cat "+file); err != nil || got != "precious" {
		t.Errorf("the other machine reads %q, %v", got, err)
	}
	s.must("remove", "a", "--wait")
	db.stop()
	server.stop()
}

// Volumes of a program that acts on the machines move between them, and no two have one at a time.
func TestSharedDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	shared := filepath.Join(s.dir, "shared")
	if out, err := exec.Command("go", "build", "-o", filepath.Join(shared, "provider"), "../examples/shared-directory").CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	flag := "--provider=shared=" + filepath.Join(shared, "provider")
	server := s.startServer(flag, "--unreachable-after", "1s", "--retry-min", "300ms")
	web, db := s.startAgent("web", s.token(), flag), s.startAgent("db", s.token(), flag, "--retry-min", "300ms")
	bare := s.startAgent("bare", s.token())
	s.writeSpec(`storage:
- {name: a, directive: "shared,16M", kind: filesystem, mount: MNT/a, machine: web}
- {name: b, directive: "shared,16M", kind: block, machine: db}
- {name: c, directive: "shared,16M", kind: block, machine: web}
`)
	s.apply()
	s.write("a", "precious")
	holders := func() map[string]int {
		t.Helper()
		found := make(map[string]int)
		all, err := filepath.Glob(filepath.Join(shared, "holders", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			holder, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			machine, _, _ := strings.Cut(string(holder), " ")
			found[machine]++
		}
		return found
	}
	if got := fmt.Sprint(holders()); got != "map[machine-0:2 machine-1:1]" {
		t.Errorf("the volumes are held by %s", got)
	}
	s.must("move", "a", "--to", "db", "--wait", "--timeout", "60s")
	if got := s.read("a"); got != "precious" {
		t.Errorf("after the move, the storage has %q", got)
	}
	if got := fmt.Sprint(holders()); got != "map[machine-0:1 machine-1:2]" {
		t.Errorf("after the move, the volumes are held by %s", got)
	}

	// A machine whose agent has no such program says so, and the storage can leave it again.
	s.must("move", "b", "--to", "bare")
	s.poll("the status does not say what is missing", func() bool {
		return strings.Contains(s.status()["b"].Message, `this machine has no program of provider "shared": start its agent with --provider shared=PATH`)
	})
	bare.stop()
	bare = s.startAgent("bare", "", flag)
	s.poll("the storage is not attached", func() bool { return s.status()["b"].Status == "attached" })
	s.must("move", "b", "--to", "db", "--wait", "--timeout", "60s")

	s.must("remove", "c", "--wait")

	// A machine goes off, and another one gets its storage.
	db.kill()
	s.poll("the machine is not unreachable", func() bool { return s.machines()["db"] == "unreachable" })
	unix.Sync()
	unmountAndDetach(t, s.mount("a")) // the power cut
	unmountAndDetach(t, shared)
	s.must("machine", "fence", "db", "--confirmed")
	s.must("move", "a", "b", "--to", "web", "--wait", "--timeout", "60s")
	if got := s.read("a"); got != "precious" {
		t.Errorf("after the machine has failed, the storage has %q", got)
	}
	if got := fmt.Sprint(holders()); got != "map[machine-0:2]" {
		t.Errorf("after the machine has failed, the volumes are held by %s", got)
	}
	s.must("remove", "a", "b", "--wait")
	for _, p := range []*process{web, bare, server} {
		p.stop()
	}
	s.wantNoStorageIn("web", "bare")
	for _, dir := range []string{"volumes", "tags", "holders"} {
		if left, err := filepath.Glob(filepath.Join(shared, dir, "*")); err != nil || len(left) > 0 {
			t.Errorf("left %q, %v", left, err)
		}
	}
}
