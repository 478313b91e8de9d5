package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// freeAddress returns an address on this host that nobody uses, as the next port, and nobody is likely
// to take soon. Its port is not one of those that the kernel gives to connections: those that try to
// reach a server that was killed would take it.
func freeAddress(t testing.TB) string {
	t.Helper()
	const first, last = 10000, 32000
	for range 100 {
		port := first + 2*rand.IntN((last-first)/2)
		free := true
		for n := range 2 {
			listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+n)))
			if err != nil {
				free = false
				break
			}
			listener.Close()
		}
		if free {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		}
	}
	t.Fatal("no two ports in a row are free")
	return ""
}

// etcdBinary builds etcd beside the command.
var etcdBinary = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(filepath.Dir(stowage), "etcd")
	out, err := exec.Command("go", "build", "-o", binary, "go.etcd.io/etcd/server/v3").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("building etcd: %w\n%s", err, out)
	}
	return binary, err
})

// startEtcd starts etcd with the limits that a state needs, until the end of the test. It returns its
// URL.
func (s *site) startEtcd() string { s.Helper(); return s.startEtcdIn(nil) }

// startEtcdIn is startEtcd on a host of a network.
func (s *site) startEtcdIn(host *networkHost) string {
	s.Helper()
	binary, err := etcdBinary()
	if err != nil {
		s.Fatal(err)
	}
	client, peer, command := "http://"+freeAddress(s), "http://"+freeAddress(s), []string{binary}
	if host != nil {
		client, peer = "http://"+host.address+":2379", "http://"+host.address+":2380"
		command = []string{"nsenter", "--net=" + host.namespace, binary}
	}
	log, err := os.Create(filepath.Join(s.dir, "etcd.log"))
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(command[0], append(command[1:], "--data-dir", filepath.Join(s.dir, "etcd-data"), "--max-txn-ops=32768", "--max-request-bytes=10485760",
		"--unsafe-no-fsync", "--log-level=error", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		log.Close()
	})
	s.poll("etcd does not answer", func() bool {
		response, err := http.Get(client + "/health")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return client
}

// Several servers have one state. Agents and users can use any of them, one provisions the
// environment's storage, and another one takes over when it fails.
// Promise S27.
// Fault F38.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	etcd := s.startEtcd()
	shared := filepath.Join(s.dir, "shared")
	if out, err := exec.Command("go", "build", "-o", filepath.Join(shared, "provider"), "../examples/shared-directory").CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	flag := "--provider=shared=" + filepath.Join(shared, "provider")
	addresses := map[string]string{"server": s.address, "second": freeAddress(t), "third": freeAddress(t)}
	args := func(name string, more ...string) []string {
		return append([]string{"--listen", addresses[name], "--etcd-endpoints", etcd, flag, "--unreachable-after", "2s"}, more...)
	}
	start := func(name string, more ...string) *process {
		t.Helper()
		return s.launch(name, "server", "listening on ", args(name, more...)...)
	}
	on := func(name string, args ...string) command.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		r, err := command.Stowage{Binary: stowage, DataDir: s.dataOf(name)}.Run(ctx, args...)
		if err != nil || r.Code != 0 {
			t.Fatalf("on %s: %v\n%s", name, err, r.All())
		}
		return r
	}
	first := start("server")
	s.begin("third", "server", "listening on ", args("third")...).says("the state has servers with another certificate authority: join them with --join URL and --token")
	s.begin("third", "server", "listening on ", args("third", "--join", "https://"+s.address)...).says("has not joined the others yet: make a token with")
	s.begin("third", "server", "listening on ", args("third", "--join", "https://"+s.address, "--token", s.token())...).says("the token is not valid for role server")
	token := strings.TrimSpace(s.must("token", "create", "--role", "server").Stdout)
	second := start("second", "--join", "https://"+s.address, "--token", token)
	s.begin("second", "server", "listening on ", args("second")...).says("another server uses it: stop it, or choose another --data-dir")
	s.begin("second", "server", "listening on ", "--listen", "127.0.0.1:0").says("is in etcd, below /stowage/: start it with --etcd-endpoints")

	both := "https://" + s.address + ",https://" + addresses["second"]
	agent := func(name, token string) *process {
		t.Helper()
		return s.launch(name, "agent", "connected to ", "--server", both, "--token", token, "--machine", name, flag)
	}
	web, db := agent("web", s.token()), agent("db", strings.TrimSpace(on("second", "token", "create", "--role", "machine").Stdout))
	s.writeSpec(`storage:
- {name: a, directive: "shared,16M", kind: filesystem, mount: MNT/a, machine: web}
- {name: b, directive: "loop,16M", kind: filesystem, mount: MNT/b, machine: db}
`)
	on("second", "apply", "-f", s.spec, "--wait")
	s.write("a", "precious")
	s.write("b", "precious too")
	if got := s.status()["a"]; got.Status != "attached" || got.Attachments[0].Machine != "web" {
		t.Errorf("the other server shows %+v", got)
	}
	for _, name := range []string{"server", "second"} {
		if out := on(name, "status").Stdout; strings.Contains(out, "not connected") {
			t.Errorf("%s shows\n%s", name, out)
		}
	}

	// Of two users who want the same at different servers, one gets it.
	results := make(chan command.Result)
	for _, name := range []string{"server", "second"} {
		file := filepath.Join(s.dir, name+".yaml")
		content := "storage: [{name: " + name + ", directive: \"rootfs,1M\", kind: filesystem, mount: " + s.mount("c") + ", machine: db}]\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		go func() {
			r, err := command.Stowage{Binary: stowage, DataDir: s.dataOf(name)}.Run(t.Context(), "apply", "-f", file)
			if err != nil {
				t.Error(err)
			}
			results <- r
		}()
	}
	if one, other := <-results, <-results; one.Code+other.Code != 1 || !strings.Contains(one.Stderr+other.Stderr, s.mount("c")) {
		t.Errorf("two users want one mount point:\n%s\n%s", one.All(), other.All())
	}
	for name := range s.status() {
		if name != "a" && name != "b" {
			s.must("remove", name, "--wait")
		}
	}

	// The server that has the lease fails, with the connections of all agents.
	began := time.Now()
	first.kill()
	wait := func(what, server string, holds func(machines string) bool) {
		t.Helper()
		s.poll(what, func() bool { return holds(on(server, "machines").Stdout) })
	}
	on("second", "move", "a", "--to", "db", "--wait", "--timeout", "60s")
	t.Logf("storage has moved %.1f s after the server had failed", time.Since(began).Seconds())
	if got := s.read("a"); got != "precious" {
		t.Errorf("after the move, the storage has %q", got)
	}
	wait("not both machines are up", "second", func(m string) bool { return strings.Count(m, " up ") == 2 })

	// A program that the first server has begun may still run. It can do nothing.
	late := exec.Command(filepath.Join(shared, "provider"), "detach-volumes")
	late.Stdin = strings.NewReader(`{"term": 1, "arguments": []}`)
	if out, err := late.CombinedOutput(); err == nil || !strings.Contains(string(out), "the server with term 1 has been replaced") {
		t.Errorf("a late call of the program: %v\n%s", err, out)
	}

	// It comes back, and takes over when the other one is stopped.
	first = start("server")
	web.kill()
	second.stop()
	s.must("detach", "a", "--wait")
	s.must("attach", "a", "--machine", "db", "--wait")
	if got := s.read("a") + ", " + s.read("b"); got != "precious, precious too" {
		t.Errorf("the storage has %q", got)
	}
	// A machine that failed with its server is noticed.
	wait("the machine that has failed is up", "server", func(m string) bool { return strings.Contains(m, " unreachable ") })

	backup := filepath.Join(s.dir, "backup")
	s.must("backup", backup)
	if info, err := os.Stat(backup); err != nil || info.Size() == 0 {
		t.Errorf("the backup is %v, %v", info, err)
	}
	if r := s.run("restore", backup); r.Code != 1 || !strings.Contains(r.Stderr, "stop the agent first") {
		t.Errorf("restoring below a server:\n%s", r.All())
	}

	// The backup replaces the state in etcd, once no server has it. What came after it is gone, and
	// the environment's storage waits until a user accepts that.
	restore := func(name string) command.Result {
		return s.at(name, "server", "--cluster-reset", "--etcd-endpoints", etcd, "--restore", backup)
	}
	s.must("token", "create", "--role", "machine")
	if r := restore("second"); r.Code != 1 || !strings.Contains(r.Stderr, "servers use the state") {
		t.Errorf("restoring a state that a server has:\n%s", r.All())
	}
	first.stop()
	if r := restore("server"); r.Code != 0 || !strings.Contains(r.Stdout, "the replaced state is kept as "+s.data) {
		t.Errorf("restoring:\n%s", r.All())
	}
	first = start("server")
	first.awaitLog("the state was restored from a backup")
	first.stop()
	first = start("server", "--accept-restored")
	s.poll("the restored storage is not attached", func() bool {
		got := s.status()
		return got["a"].Status == "attached" && got["b"].Status == "attached"
	})
	s.must("remove", "a", "b", "--wait")
	db.stop()
	first.stop()
	if r := s.run("restore", backup); r.Code != 1 || !strings.Contains(r.Stderr, "has no state, since that is in etcd") {
		t.Errorf("restoring a state in etcd:\n%s", r.All())
	}
	s.wantNoStorageIn("db")
}

// A server that is paused for longer than its lease lasts notices that it has been replaced, and
// goes on as one of the others.
// Fault F38.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	etcd := s.startEtcd()
	address := freeAddress(t)
	first := s.startServer("--etcd-endpoints", etcd)
	token := strings.TrimSpace(s.must("token", "create", "--role", "server").Stdout)
	second := s.launch("second", "server", "listening on ", "--listen", address, "--etcd-endpoints", etcd, "--join", "https://"+s.address, "--token", token)
	web := s.launch("web", "agent", "connected to ", "--server", "https://"+s.address+",https://"+address, "--token", s.token(), "--machine", "web")
	says := func(p *process, text string) {
		t.Helper()
		s.poll(p.name+" does not say "+text, func() bool {
			log, err := os.ReadFile(p.log)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(string(log), text)
		})
	}
	says(first, "provisioning the environment's storage")
	first.pause()
	says(second, "provisioning the environment's storage")
	if err := first.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	says(first, "another server may provision it now")
	says(first, "agents are served again")
	s.writeSpec(`storage: [{name: a, directive: "loop,16M", kind: filesystem, mount: MNT/a, machine: web}]`)
	s.apply()
	s.must("remove", "a", "--wait")
	for _, p := range []*process{web, first, second} {
		p.stop()
	}
	s.wantNoStorageIn("web")
}
