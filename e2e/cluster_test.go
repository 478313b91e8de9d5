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

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
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
	network  *network
	skewed   string // the command with a clock that may differ
	links    []*clusterLink
	disk     *clusterDisk
	servers  []*clusterServer
	machines []*clusterMachine
	storage  map[string]*clusterStorage
	last     int // number of storage
	asking   bool
	answers  chan string
	counts   map[string]int
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
	c.skewed = c.buildSkewed()
	c.network = newNetwork(c, c.dir)
	state := []string{"--cluster-init"}
	if c.chance(2) {
		state = []string{"--etcd-endpoints", c.startEtcdIn(c.addHost("etcd"))}
	}
	c.say("the state: %s", state)
	c.referee = referee{dir: filepath.Join(c.dir, "referee"), knows: pick(c.rand, []string{"terms", "list", "nothing"})}
	c.say("the provider knows: %s", c.referee.knows)
	own, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	for _, dir := range []string{"shared", "connected", "isolated"} {
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
		s := &clusterServer{name: name, host: c.addHost(name)}
		if i == 2 {
			c.limitDisk(name)
		}
		address := s.host.address + ":7117"
		urls = append(urls, "https://"+address)
		s.args = []string{
			"--listen", address, "--provider=shared=" + c.referee.path("provider"), "--unreachable-after", "2s", "--retry-min", "300ms",
		}
		first := slices.Clone(s.args)
		if i > 0 {
			first = append(first, "--join", urls[0], "--token", strings.TrimSpace(c.must("token", "create", "--role", "server").Stdout))
		}
		if state[0] == "--etcd-endpoints" {
			s.args = append(s.args, state...)
			first = append(first, state...)
		} else if i == 0 {
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
		m := &clusterMachine{
			name: name, number: "machine-" + strconv.Itoa(i), boot: filepath.Join(c.dir, name+"-boot-id"), host: c.addHost(name), args: []string{
				"--server", strings.Join(urls, ","), "--machine", name, "--provider=shared=" + c.referee.path("provider"),
				"--retry-min", "300ms",
			}}
		c.machines = append(c.machines, m)
		c.powerOn(m, "--token", c.token())
		c.poll(name+" does not join", func() bool { return c.machinesOf()[name] == "up" })
	}
}

// addHost adds a host, with a link that can fail.
func (c *cluster) addHost(name string) *networkHost {
	c.Helper()
	host := c.network.add()
	c.links = append(c.links, &clusterLink{of: name, host: host})
	return host
}

// limitDisk gives a server a filesystem of its own.
func (c *cluster) limitDisk(server string) {
	c.Helper()
	dir := c.dataOf(server)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = unix.Mount("stowage-e2e", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "size=512m,mode=0700")
	}
	if err != nil {
		c.Fatal(err)
	}
	c.disk = &clusterDisk{server: server, dir: dir}
	// The server is ended after this.
	c.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			c.Error(err)
		}
	})
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
		if found, _ := filepath.Glob(c.referee.volume("volume-" + s.Volume + "-*")); len(found) > 0 { // with its UUID
			c.storage[name].volume = filepath.Base(found[0])
		}
		for _, m := range c.machines {
			if err := c.writeOn(m, name); (err == nil) != (m.name == on) {
				return fmt.Sprintf("%s is attached to %q; on %s: %v", name, on, m.name, err)
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
