package remote_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
)

// The server's program switches machines off: on request, only machines that are not connected, and
// only if it says that it has done so.
// Fault F39.
func TestFenceProgram(t *testing.T) {
	s := newSite(t)
	program := filepath.Join(s.dir, "fence")
	requests := filepath.Join(s.dir, "requests")
	script := func(status int) {
		s.must(os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\ncat >>%s\necho no power >&2\nexit %d\n", requests, status), 0o755))
	}
	fence := func() error {
		return s.client.FenceMachine(t.Context(), user.FenceMachineArgs{Machine: "web"})
	}
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	if err := fence(); !errors.Is(err, errors.NotSupported) {
		t.Errorf("a server without a program: %v", err)
	}
	s.stop()
	s.fenceProgram, s.absence = program, time.Second
	script(0)
	s.start()
	if err := fence(); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "its agent is connected") {
		t.Errorf("a machine that is connected: %v", err)
	}
	if _, err := os.Stat(requests); err == nil {
		t.Error("the program was run for a machine that is connected")
	}
	web.Kill()
	s.must(web.Wait())
	status := func() user.MachineStatus {
		machines, err := s.client.Machines(t.Context())
		s.must(err)
		for _, m := range machines {
			if m.Name == "web" {
				return m.Status
			}
		}
		return ""
	}
	deadline := time.Now().Add(patience)
	for status() != user.MachineUnreachable {
		if time.Now().After(deadline) {
			t.Fatal(status())
		}
		<-time.After(10 * time.Millisecond)
	}
	script(1)
	if err := fence(); err == nil || !strings.Contains(err.Error(), "fencing machine web, which may be on") || !strings.Contains(err.Error(), "no power") {
		t.Errorf("a program that fails: %v", err)
	}
	if got := status(); got != user.MachineUnreachable {
		t.Errorf("after a failure the machine is %s", got)
	}
	script(0)
	s.must(fence())
	if got := status(); got != user.MachineFenced {
		t.Errorf("the machine is %s", got)
	}
	content, err := os.ReadFile(requests)
	s.must(err)
	for _, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		if !strings.HasPrefix(line, `{"operation":"fence","machine":"web","number":"0","instance-id":"`) || !strings.Contains(line, `"boot-id":"`) {
			t.Errorf("request %s", line)
		}
	}
}
