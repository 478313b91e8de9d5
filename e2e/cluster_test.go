package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

var (
	clusterFor  = flag.Duration("cluster", 0, "how long TestCluster searches")
	clusterSeed = flag.Uint64("cluster-seed", 0, "the seed of TestCluster; 0: a new one")
)

const (
	// roundLength is how long things fail before everything has to become as wanted.
	roundLength = 40 * time.Second
	// settleLimit is how long that may take: a lease has to end, calls that the server before was
	// making are waited for for a minute, and calls of the referee may be slow.
	settleLimit = 4 * time.Minute
)

// cluster is several servers with one state, and several machines, which are mount namespaces of
// this host. Things fail at random while users change storage of a shared provider.
type cluster struct {
	*site
	rand     *rand.Rand
	begun    time.Time
	referee  referee
	network  *network // nil: the servers cannot be cut off
	servers  []*clusterServer
	machines []*clusterMachine
	storage  map[string]*clusterStorage
	last     int // number of storage
	asking   bool
	answers  chan string
	counts   map[string]int
}

type clusterServer struct {
	name string
	args []string
	*process
	paused bool
	// host is where the server runs, if it can be cut off.
	host *networkHost
	cut  bool
	// heal is when it goes on; the zero time: it runs.
	heal time.Time
}

type clusterMachine struct {
	name, number string
	args         []string
	boot         string // path of its boot ID
	init         *exec.Cmd
	agent        *process
	paused       bool
	heal         time.Time
	off, fenced  bool
}

// clusterStorage is storage that users have asked for.
type clusterStorage struct {
	// confirmed is the number that was last written durably; tried is the last that may have been.
	confirmed, tried int
	removed          bool
}

// TestCluster searches for histories in which storage is attached to two machines, loses what was
// written, or does not become what users want.
func TestCluster(t *testing.T) {
	if *clusterFor == 0 {
		t.Skip("it takes long: set -cluster")
	}
	seed := *clusterSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	c := &cluster{
		site: newSite(t), rand: rand.New(rand.NewPCG(seed, 1)), begun: time.Now(), storage: map[string]*clusterStorage{},
		answers: make(chan string, 1), counts: map[string]int{},
	}
	t.Cleanup(c.switchOff) // before that of site
	c.say("seed %d", seed)
	c.start()
	for rounds := 1; time.Since(c.begun) < *clusterFor; rounds++ {
		c.say("round %d", rounds)
		for end := time.Now().Add(roundLength); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			c.step()
		}
		c.settle()
	}
	c.end()
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		c.say("%d × %s", c.counts[what], what)
	}
}

// say prints what happens, with the time since the beginning.
func (c *cluster) say(format string, args ...any) {
	fmt.Printf("%7.1f ", time.Since(c.begun).Seconds())
	fmt.Printf(format+"\n", args...)
}

// happen is say for what is counted.
func (c *cluster) happen(what, to string) {
	c.counts[what]++
	c.say("%s: %s", what, to)
}

// chance reports true once in n times.
func (c *cluster) chance(n int) bool { return c.rand.IntN(n) == 0 }

// soon returns a time within some seconds.
func (c *cluster) soon(seconds int) time.Time {
	return time.Now().Add(time.Duration(c.rand.IntN(seconds*1000)) * time.Millisecond)
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func (c *cluster) start() {
	state := []string{"--cluster-init"}
	if c.chance(2) {
		state = []string{"--etcd-endpoints", c.startEtcd()}
	} else {
		c.network = newNetwork(c, c.dir)
	}
	c.say("the state: %s", state)
	c.referee = referee{dir: filepath.Join(c.dir, "referee"), knows: pick(c.rand, []string{"terms", "list", "nothing"})}
	c.say("the provider knows: %s", c.referee.knows)
	own, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	for _, dir := range []string{"shared", "connected"} {
		if err := os.MkdirAll(c.referee.path(dir), 0o700); err != nil {
			c.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-o", c.referee.path("shared", "provider"), "../examples/shared-directory").CombinedOutput(); err != nil {
		c.Fatalf("building the example: %v\n%s", err, out)
	}
	for name, text := range map[string]string{
		"knows":    c.referee.knows,
		"provider": fmt.Sprintf("#!/bin/sh\nexport %s=referee %s=%s\nexec %s \"$@\"\n", programVariable, refereeVariable, c.referee.dir, own),
		"writer":   fmt.Sprintf("#!/bin/sh\nexport %s=writer\nexec %s \"$@\"\n", programVariable, own),
	} {
		if err := os.WriteFile(c.referee.path(name), []byte(text), 0o700); err != nil {
			c.Fatal(err)
		}
	}
	if err := os.MkdirAll(c.mount(""), 0o755); err != nil {
		c.Fatal(err)
	}

	var urls []string
	for i, name := range []string{"server", "second", "third"} {
		s := &clusterServer{name: name}
		address := freeAddress(c)
		if c.network != nil {
			s.host = c.network.add()
			address = s.host.address + ":7117"
		}
		urls = append(urls, "https://"+address)
		s.args = []string{
			"--listen", address, "--provider=shared=" + c.referee.path("provider"), "--unreachable-after", "2s", "--retry-min", "300ms",
		}
		if c.network == nil {
			s.args = append(s.args, state...)
		}
		first := slices.Clone(s.args)
		if i > 0 {
			first = append(first, "--join", urls[0], "--token", strings.TrimSpace(c.must("token", "create", "--role", "server").Stdout))
		} else if c.network != nil {
			first = append(first, state...)
		}
		c.startServerOf(s, first...)
		select {
		case <-s.Listening:
		case <-time.After(waitTimeout):
			c.Fatalf("%s is not ready", name)
		}
		c.servers = append(c.servers, s)
	}
	for i, name := range []string{"web", "db", "cache"} {
		m := &clusterMachine{name: name, number: "machine-" + strconv.Itoa(i), boot: filepath.Join(c.dir, name+"-boot-id"), args: []string{
			"--server", strings.Join(urls, ","), "--machine", name, "--provider=shared=" + c.referee.path("provider"),
			"--retry-min", "300ms",
		}}
		c.machines = append(c.machines, m)
		c.powerOn(m, "--token", c.token())
		c.poll(name+" does not join", func() bool { return c.machinesOf()[name] == "up" })
	}
}

// startServerOf starts a server, without waiting for it.
func (c *cluster) startServerOf(s *clusterServer, args ...string) {
	c.Helper()
	if s.host != nil {
		c.binary = s.host.enter
	}
	s.process = c.begin(s.name, "server", "listening on ", args...)
	c.binary = stowage
}

// machinesOf is machines, without the checks of a test that nothing disturbs.
func (c *cluster) machinesOf() map[string]string {
	r := c.ask(10*time.Second, c.servers[0].name, "machines")
	found := map[string]string{}
	for line := range strings.Lines(r.Stdout) {
		if fields := strings.Fields(line); len(fields) > 2 {
			found[fields[0]] = strings.TrimSuffix(fields[2], ",")
		}
	}
	return found
}

// ask runs a command at a server. The command may fail.
func (c *cluster) ask(timeout time.Duration, server string, args ...string) command.Result {
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	r, err := command.Stowage{Binary: stowage, DataDir: c.dataOf(server)}.Run(ctx, args...)
	if err != nil {
		r.Code, r.Stderr = -1, err.Error()
	}
	return r
}

// powerOn boots a machine, and starts its agent.
func (c *cluster) powerOn(m *clusterMachine, more ...string) {
	c.Helper()
	if err := os.WriteFile(m.boot, []byte(uuid.NewString()+"\n"), 0o600); err != nil {
		c.Fatal(err)
	}
	m.init = exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount --bind "+m.boot+" /proc/sys/kernel/random/boot_id && echo up && exec sleep infinity")
	out, err := m.init.StdoutPipe()
	if err == nil {
		err = m.init.Start()
	}
	if err != nil {
		c.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		c.Fatalf("%s does not boot: %v", m.name, err)
	}
	m.off, m.fenced = false, false
	c.startAgentOf(m, more...)
}

// startAgentOf starts the agent of a machine, without waiting for it.
func (c *cluster) startAgentOf(m *clusterMachine, more ...string) {
	c.Helper()
	enter := filepath.Join(c.dir, m.name+"-enter")
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --mount=/proc/%d/ns/mnt %s \"$@\"\n", m.init.Process.Pid, stowage)
	if err := os.WriteFile(enter, []byte(script), 0o700); err != nil {
		c.Fatal(err)
	}
	c.binary = enter
	m.agent = c.begin(m.name, "agent", "connected to ", append(slices.Clone(m.args), more...)...)
	c.binary = stowage
}

// powerOff ends everything on a machine at once, with what it has of the volumes.
func (c *cluster) powerOff(m *clusterMachine) {
	c.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", m.init.Process.Pid))
	if err != nil {
		c.Fatal(err)
	}
	c.poll(m.name+" does not go off", func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
		if err != nil {
			c.Fatal(err)
		}
		found := false
		for _, path := range all {
			if own, err := os.Readlink(path); err != nil || own != ns {
				continue
			}
			found = true
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		return !found
	})
	_ = m.init.Wait() // it was killed
	<-m.agent.Ended
	err = c.referee.locked(func() error {
		volumes, err := os.ReadDir(c.referee.path("connected"))
		if err != nil {
			return err
		}
		for _, v := range volumes {
			machine, err := c.referee.connectedTo(v.Name())
			if err != nil {
				return err
			}
			if machine != m.number {
				continue
			}
			if err := kernel.Clear(c.referee.path("shared", "volumes", v.Name())); err != nil {
				return err
			}
			if err := os.Remove(c.referee.path("connected", v.Name())); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		c.Fatal(err)
	}
	m.off, m.paused = true, false
}

// switchOff ends the machines that a failed test leaves.
func (c *cluster) switchOff() {
	for _, m := range c.machines {
		if !m.off {
			_ = m.init.Process.Kill()
			_ = m.init.Wait() // it was killed
		}
	}
}

// step does one thing, or nothing.
func (c *cluster) step() {
	c.heal(false)
	if c.chance(8) {
		c.disturb()
	}
	select {
	case answer := <-c.answers:
		c.say("%s", answer)
		c.asking = false
	default:
	}
	if c.chance(4) {
		c.change()
	}
	if c.chance(2) {
		c.write()
	}
	c.check()
}

// heal lets what has failed go on, when it is due, or all of it.
func (c *cluster) heal(all bool) {
	due := func(at time.Time) bool { return !at.IsZero() && (all || time.Now().After(at)) }
	for _, s := range c.servers {
		if !due(s.heal) {
			continue
		}
		s.heal = time.Time{}
		if s.paused {
			s.paused = false
			c.signal(s.process, unix.SIGCONT)
			continue
		}
		if s.cut {
			s.cut = false
			c.network.mend(s.host)
			continue
		}
		c.startServerOf(s, s.args...)
	}
	for _, m := range c.machines {
		if !due(m.heal) {
			continue
		}
		m.heal = time.Time{}
		switch {
		case m.paused:
			m.paused = false
			c.signal(m.agent, unix.SIGCONT)
		case m.off:
			c.powerOn(m)
		default:
			c.startAgentOf(m)
		}
	}
	// A server exits rather than have a call that outlives its lease, and is then started again.
	for _, s := range c.servers {
		select {
		case <-s.Ended:
			if s.cut {
				s.cut = false
				c.network.mend(s.host)
				s.heal = time.Time{}
			}
			if s.heal.IsZero() {
				c.happen("server exits", s.name)
				s.heal = c.soon(3)
			}
		default:
		}
	}
	for _, m := range c.machines {
		select {
		case <-m.agent.Ended:
			if !m.off && m.heal.IsZero() {
				c.happen("agent exits", m.name)
				m.heal = c.soon(3)
			}
		default:
		}
	}
}

func (c *cluster) signal(p *process, signal unix.Signal) {
	c.Helper()
	if err := p.Signal(signal); err != nil {
		select {
		case <-p.Ended:
		default:
			c.Fatalf("%s: %v", p.name, err)
		}
	}
}

// disturb lets something fail.
func (c *cluster) disturb() {
	if c.chance(2) {
		s := pick(c.rand, c.servers)
		if !s.heal.IsZero() {
			return
		}
		if c.network != nil && c.chance(3) {
			c.happen("cut a server off", s.name)
			c.network.cut(s.host)
			s.cut, s.heal = true, c.soon(30)
			return
		}
		switch c.rand.IntN(4) {
		case 0:
			c.happen("kill a server", s.name)
			c.signal(s.process, unix.SIGKILL)
			<-s.Ended
			s.heal = c.soon(8)
		case 1:
			c.happen("stop a server", s.name)
			c.signal(s.process, unix.SIGINT)
			_ = s.end() // it may have to wait for a call
			s.heal = c.soon(4)
		default:
			c.happen("pause a server", s.name)
			c.signal(s.process, unix.SIGSTOP)
			s.paused, s.heal = true, c.soon(30)
		}
		return
	}
	m := pick(c.rand, c.machines)
	if !m.heal.IsZero() {
		if m.off && !m.fenced && !c.asking {
			c.happen("fence a machine", m.name)
			m.fenced = true
			c.do("machine", "fence", m.name, "--confirmed")
		}
		return
	}
	switch c.rand.IntN(4) {
	case 0:
		c.happen("switch a machine off", m.name)
		c.powerOff(m)
		m.heal = c.soon(60)
	case 1:
		c.happen("pause an agent", m.name)
		c.signal(m.agent, unix.SIGSTOP)
		m.paused, m.heal = true, c.soon(20)
	default:
		c.happen("kill an agent", m.name)
		c.signal(m.agent, unix.SIGKILL)
		<-m.agent.Ended
		m.heal = c.soon(5)
	}
}

// do makes a request of a user at a server that runs. Only one is made at a time.
func (c *cluster) do(args ...string) {
	var running []*clusterServer
	for _, s := range c.servers {
		if s.heal.IsZero() {
			running = append(running, s)
		}
	}
	if len(running) == 0 || c.asking {
		return
	}
	c.asking = true
	server := pick(c.rand, running).name
	c.happen("request", server+": "+strings.Join(args, " "))
	go func() {
		r := c.ask(20*time.Second, server, args...)
		text, _, _ := strings.Cut(strings.TrimSpace(r.Stderr), "\n")
		c.answers <- fmt.Sprintf("answer: %d %s", r.Code, text)
	}()
}

// change changes what storage is wanted.
func (c *cluster) change() {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.storage)) {
		if !c.storage[name].removed {
			all = append(all, name)
		}
	}
	machine := pick(c.rand, c.machines).name
	if len(all) < 2 || len(all) < 6 && c.chance(4) {
		c.last++
		name := fmt.Sprintf("s%d", c.last)
		if c.chance(2) {
			machine = "any"
		}
		file := filepath.Join(c.dir, name+".yaml")
		text := fmt.Sprintf("storage: [{name: %s, directive: \"shared,16M\", kind: filesystem, mount: %s, machine: %s}]\n", name, c.mount(name), machine)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			c.Fatal(err)
		}
		c.storage[name] = &clusterStorage{}
		c.do("apply", "-f", file)
		return
	}
	name := pick(c.rand, all)
	switch c.rand.IntN(12) {
	case 0:
		c.storage[name].removed = true // it may be, from now on
		c.do("remove", name)
	case 1:
		c.do("detach", name)
	case 2, 3:
		c.do("attach", name, "--machine", machine)
	case 4:
		c.do("machine", "drain", machine)
	case 5, 6:
		c.do("machine", "undrain", machine)
	case 7:
		c.do("move", name, "--to", "any")
	default:
		c.do("move", name, "--to", machine)
	}
}

// write writes the next number to storage where it is mounted.
func (c *cluster) write() {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.storage)) {
		if !c.storage[name].removed {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return
	}
	name := pick(c.rand, all)
	for _, m := range c.machines {
		if !m.off {
			c.writeOn(m, name)
		}
	}
}

// writeOn writes the next number to storage if a machine has it mounted, and reports whether it has.
func (c *cluster) writeOn(m *clusterMachine, name string) bool {
	s := c.storage[name]
	s.tried++
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", m.init.Process.Pid),
		c.referee.path("writer"), c.mount(name), strconv.Itoa(s.tried))
	out, err := cmd.Output()
	if err != nil {
		return false
	}
	c.counts["write"]++
	before, _ := strconv.Atoi(string(out)) // nothing, at first
	if before < s.confirmed || before >= s.tried {
		c.Fatalf("%s had %d on %s, and %d to %d were written", name, before, m.name, s.confirmed, s.tried-1)
	}
	s.confirmed = s.tried
	return true
}

// check fails if the referee has seen a violation.
func (c *cluster) check() {
	c.Helper()
	if seen, err := os.ReadFile(c.referee.path("violations")); err == nil {
		c.Fatalf("%s", seen)
	}
}

// settle ends all failures, and waits until everything is as wanted.
func (c *cluster) settle() {
	c.Helper()
	c.say("settling")
	if c.asking {
		c.say("%s", <-c.answers)
		c.asking = false
	}
	said := ""
	for deadline := time.Now().Add(settleLimit); ; time.Sleep(500 * time.Millisecond) {
		c.heal(true)
		wrong := c.wrong()
		if wrong == "" {
			break
		}
		if wrong != said {
			c.say("%s", wrong)
			said = wrong
		}
		c.check()
		if time.Now().After(deadline) {
			c.Fatalf("not as wanted within %s: %s\n%s", settleLimit, wrong, c.ask(10*time.Second, c.servers[0].name, "status").All())
		}
	}
	c.check()
	c.say("settled")
}

// wrong describes something that is not as wanted; "": nothing.
func (c *cluster) wrong() string {
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	all, err := command.Stowage{Binary: stowage, DataDir: c.data}.Poll(ctx)
	if err != nil {
		return err.Error()
	}
	for name, status := range c.machinesOf() {
		if status != "up" && name != "NAME" {
			return name + " is " + status
		}
	}
	for name, s := range all {
		on := ""
		switch {
		case s.Life == "alive" && s.Status == "attached" && s.Location != "" && len(s.Attachments) == 1 && s.Attachments[0].Life == "alive":
			on = s.Attachments[0].Machine
		case s.Life == "alive" && s.Status == "detached" && len(s.Attachments) == 0:
		default:
			return fmt.Sprintf("%s is %s, %s %s", name, s.Life, s.Status, s.Message)
		}
		if c.storage[name] == nil {
			return name + " was not wanted"
		}
		for _, m := range c.machines {
			if has := c.writeOn(m, name); has != (m.name == on) {
				return fmt.Sprintf("%s is attached to %q, and mounted on %s: %v", name, on, m.name, has)
			}
		}
	}
	for name := range c.storage {
		if _, ok := all[name]; !ok {
			delete(c.storage, name) // it was removed, or never added
		}
	}
	volumes, err := os.ReadDir(c.referee.path("shared", "volumes"))
	if err != nil {
		return err.Error()
	}
	if len(volumes) > len(all) { // storage that was detached before its volume was made has none
		return fmt.Sprintf("there are %d volumes for %d storage instances", len(volumes), len(all))
	}
	return ""
}

// end removes everything.
func (c *cluster) end() {
	c.Helper()
	if len(c.storage) > 0 {
		c.must(append([]string{"remove", "--wait", "--timeout", "2m"}, slices.Sorted(maps.Keys(c.storage))...)...)
	}
	for _, m := range c.machines {
		c.signal(m.agent, unix.SIGINT)
		<-m.agent.Ended
		c.powerOff(m)
	}
	for _, s := range c.servers {
		c.signal(s.process, unix.SIGINT)
		<-s.Ended
	}
	if left, err := filepath.Glob(c.referee.path("shared", "*", "volume-*")); err != nil || len(left) > 0 {
		c.Errorf("left %q, %v", left, err)
	}
}
