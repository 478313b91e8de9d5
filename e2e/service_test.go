package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// serviceManager is what systemd is to a service with Type=notify: a socket, and a watchdog that
// expects to hear of the service every second or so.
type serviceManager struct {
	*machine
	conn *net.UnixConn
	// stdin is the standard input of services.
	stdin *os.File
}

func newServiceManager(m *machine) *serviceManager {
	m.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(m.dir, "notify"), Net: "unixgram"})
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { conn.Close() })
	return &serviceManager{machine: m, conn: conn}
}

// begin starts a service, and returns before it is ready.
func (s *serviceManager) begin(dataDir, log, verb string, args ...string) *command.Agent {
	s.Helper()
	service := command.Stowage{Binary: stowage, DataDir: dataDir, StartProcess: func(cmd *exec.Cmd) error {
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(s.dir, "notify"), "WATCHDOG_USEC=1000000")
		if s.stdin != nil {
			cmd.Stdin = s.stdin
		}
		return cmd.Start()
	}}
	agent, err := service.StartAs(verb, "listening on ", log, args...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { // before that of the machine
		_ = agent.Signal(unix.SIGKILL)
		<-agent.Ended
	})
	return agent
}

// await waits for a message that begins with a text. Until then, it accepts answers to the watchdog.
func (s *serviceManager) await(text string) {
	s.Helper()
	if err := s.conn.SetReadDeadline(time.Now().Add(waitTimeout)); err != nil {
		s.Fatal(err)
	}
	buffer := make([]byte, 4096)
	for {
		n, err := s.conn.Read(buffer)
		if err != nil {
			s.Fatalf("waiting for %s: %v", text, err)
		}
		got := string(buffer[:n])
		if strings.HasPrefix(got, text) {
			return
		}
		if got != "WATCHDOG=1" {
			s.Fatalf("the service manager got %q, want %s", got, text)
		}
	}
}

// end stops a service, which says so.
func (s *serviceManager) end(service *command.Agent) {
	s.Helper()
	if err := service.Signal(unix.SIGTERM); err != nil {
		s.Fatal(err)
	}
	s.await("STOPPING=1")
	if err := service.Err(); err != nil {
		s.Errorf("the service ended with: %v", err)
	}
}

// hasLog waits until the service of the machine has logged a text.
func (s *serviceManager) hasLog(text string) {
	s.Helper()
	s.poll("the log does not say "+text, func() bool {
		log, err := os.ReadFile(s.log)
		return err == nil && strings.Contains(string(log), text)
	})
}

// SIGHUP applies the file of --spec again. A file that is wrong changes nothing.
func TestServiceReloads(t *testing.T) {
	m := newServiceManager(newMachine(t))
	one := "storage:\n- {name: one, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/one}\n"
	m.writeSpec(one)
	agent := m.begin(m.data, m.log, "run", "--spec", m.spec)
	m.await("READY=1")
	m.must("status") // requests are served
	m.await("WATCHDOG=1")

	reload := func(spec, logged string) {
		t.Helper()
		m.writeSpec(spec)
		if err := agent.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		m.await("RELOADING=1\nMONOTONIC_USEC=")
		m.await("READY=1")
		m.hasLog(logged)
	}
	two := one + "- {name: two, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/two}\n"
	reload(two, m.spec+": two: add")
	m.poll("two is not attached", func() bool { return m.status()["two"].Status == "attached" })
	reload(two+"- {name: three, directive: 'tmpfs,much', kind: filesystem, mount: MNT/three}\n", m.spec+":4: ")
	reload("storage: [", m.spec)
	if err := os.Remove(m.spec); err != nil {
		t.Fatal(err)
	}
	if err := agent.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.hasLog("nothing is changed: open " + m.spec)
	m.await("RELOADING=1")
	m.await("READY=1")
	if status := m.status(); len(status) != 2 || status["one"].Status != "attached" || status["two"].Status != "attached" {
		t.Errorf("after files that are wrong: %+v", status)
	}
	m.must("remove", "one", "two", "--wait")
	m.end(agent)
	m.hasLog("stopping")
}

// An agent without a file to apply ends at SIGHUP, as other programs do.
func TestHangupEndsAgentWithoutFile(t *testing.T) {
	m := newServiceManager(newMachine(t))
	agent := m.begin(m.data, m.log, "run")
	m.await("READY=1")
	if err := agent.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.await("STOPPING=1")
	if err := agent.Err(); err != nil {
		t.Errorf("the agent ended with: %v", err)
	}
}

// A server is ready when it serves agents and users, and its agent when it is connected. An agent that
// loses its server still answers the watchdog: a restart would not help.
func TestServerAndAgentNotifyServiceManager(t *testing.T) {
	s := newSite(t)
	m := newServiceManager(s.machine)
	server := m.begin(s.data, s.log, "server", "--listen", s.address)
	m.await("READY=1")
	token := s.token()
	agentLog := filepath.Join(s.dir, "web.log")
	agent := m.begin(s.dataOf("web"), agentLog, "agent", s.agentArgs("web", token)...)
	m.await("READY=1")
	if machines := s.must("machines").Stdout; !strings.Contains(machines, "web") || !strings.Contains(machines, "up") {
		t.Errorf("the agent is ready, and the machines are\n%s", machines)
	}
	m.end(server)
	for range 5 {
		m.await("WATCHDOG=1")
	}
	m.end(agent)
}

// An agent on a terminal ends when the terminal is closed, which sends it SIGHUP.
func TestHangupEndsAgentOnTerminal(t *testing.T) {
	m := newServiceManager(newMachine(t))
	m.writeSpec("storage: []\n")
	_, terminal := openTerminal(t, unix.Winsize{Row: 24, Col: 80})
	defer terminal.Close()
	m.stdin = terminal
	agent := m.begin(m.data, m.log, "run", "--spec", m.spec)
	m.await("READY=1")
	if err := agent.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.await("STOPPING=1")
	if err := agent.Err(); err != nil {
		t.Errorf("the agent ended with: %v", err)
	}
}
