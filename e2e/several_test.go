package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// several is three servers that keep the state together, and agents, with a provider of shared volumes.
type several struct {
	*site
	servers   []string
	addresses map[string]string
	urls      []string
	shared    string // the directory of the provider
	running   map[string]*process
}

// newSeveral starts the servers and the agents of machines with the binary.
func newSeveral(t testing.TB, binary string, machines ...string) *several {
	t.Helper()
	s := &several{site: newSite(t), servers: []string{"server", "second", "third"}, addresses: map[string]string{}, running: map[string]*process{}}
	s.shared = filepath.Join(s.dir, "shared")
	if err := os.MkdirAll(s.shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(s.shared, "provider"), "../examples/shared-directory").CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	for _, name := range s.servers {
		s.addresses[name] = s.address
		if name != "server" {
			s.addresses[name] = freeAddress(t)
		}
		s.urls = append(s.urls, "https://"+s.addresses[name])
	}
	s.binary = binary
	s.startServerOf("server", "--cluster-init")
	for _, name := range s.servers[1:] {
		s.startServerOf(name, "--join", s.urls[0], "--token", strings.TrimSpace(s.must("token", "create", "--role", "server").Stdout))
	}
	for _, name := range machines {
		s.startAgentOf(name, s.token())
	}
	return s
}

func (s *several) plugin() string { return "--provider=shared=" + filepath.Join(s.shared, "provider") }

// startServerOf starts a server. One that has run needs no more arguments.
func (s *several) startServerOf(name string, more ...string) {
	s.Helper()
	args := []string{"--listen", s.addresses[name], s.plugin(), "--unreachable-after", "2s"}
	s.running[name] = s.launch(name, "server", "listening on ", append(args, more...)...)
}

// startAgentOf starts the agent of a machine. token is empty once it is enrolled.
func (s *several) startAgentOf(name, token string) {
	s.Helper()
	s.running[name] = s.launch(name, "agent", "connected to ",
		"--server", strings.Join(s.urls, ","), "--token", token, "--machine", name, s.plugin())
}

// at runs a command at a server.
func (s *site) at(server string, args ...string) command.Result {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), waitTimeout)
	defer cancel()
	r, err := command.Stowage{Binary: stowage, DataDir: s.dataOf(server)}.Run(ctx, args...)
	if err != nil {
		s.Fatalf("%s at %s: %v", args, server, err)
	}
	return r
}

// stopAll stops what runs, once all storage was removed, and checks that nothing of it is left.
func (s *several) stopAll(machines ...string) {
	s.Helper()
	for _, name := range machines {
		s.running[name].stop()
	}
	for _, name := range s.servers {
		s.running[name].kill() // the last ones could not note in the state that they stop
	}
	s.wantNoStorageIn(machines...)
	if left, err := filepath.Glob(filepath.Join(s.shared, "volumes", "*")); err != nil || len(left) > 0 {
		s.Errorf("left %q, %v", left, err)
	}
}
