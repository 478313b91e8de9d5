package process

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/loggo"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"
	"golang.org/x/sys/unix"
)

// manager is a service manager: the socket on which it gets what a process says.
type manager struct {
	testing.TB
	conn *net.UnixConn
}

// newManager starts a service manager for this process, with a watchdog.
func newManager(t *testing.T, watchdog time.Duration) *manager {
	dir, err := os.MkdirTemp("", "notify") // TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	return &manager{TB: t, conn: conn}
}

// wait returns the next message.
func (m *manager) wait() string {
	m.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		m.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, err := m.conn.Read(buffer)
	if err != nil {
		m.Fatal(err)
	}
	return string(buffer[:n])
}

// wantNone requires that no message has arrived.
func (m *manager) wantNone(when string) {
	m.Helper()
	raw, err := m.conn.SyscallConn()
	if err != nil {
		m.Fatal(err)
	}
	buffer := make([]byte, 4096)
	err = raw.Read(func(fd uintptr) bool {
		if n, _, err := unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT); err == nil {
			m.Errorf("the service manager got %q %s", buffer[:n], when)
		}
		return true
	})
	if err != nil {
		m.Fatal(err)
	}
}

// want requires messages in this order.
func (m *manager) want(messages ...string) {
	m.Helper()
	for _, want := range messages {
		if got := m.wait(); got != want {
			m.Fatalf("the service manager got %q, want %q", got, want)
		}
	}
}

// reporter is a worker whose report takes as long as the test wants.
type reporter struct {
	*idle
	asked, answer chan struct{}
}

func (r *reporter) Report() map[string]any {
	r.asked <- struct{}{}
	<-r.answer
	return nil
}

// The watchdog is answered only while the loops of the workers turn, and READY is said only when
// the workers that serve requests run.
func TestServiceManager(t *testing.T) {
	const watchdog = 30 * time.Second
	m := newManager(t, watchdog)
	clock := testclock.NewClock(time.Now())
	logger := loggo.GetLogger("process")
	p := New(Config{Clock: clock, Logger: &logger})
	p.Serving = []string{"loop", "serving"} // the watchdog knows of workers that run
	stuck := &reporter{idle: newIdle(), asked: make(chan struct{}), answer: make(chan struct{})}
	serve := make(chan struct{})
	err := p.Run(dependency.Manifolds{
		"loop": Start(func() (worker.Worker, error) { return stuck, nil }),
		"serving": Start(func() (worker.Worker, error) {
			m.wantNone("before requests are served")
			close(serve)
			return newIdle(), nil
		}),
	}, func(error) bool { return false }, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	<-serve
	// advance lets time pass until the workers are asked for a report.
	advance := func() {
		for {
			select {
			case <-stuck.asked:
				return
			case <-time.After(time.Millisecond):
				clock.Advance(watchdog / watchdogMargin)
			}
		}
	}
	advance()
	m.want("READY=1")
	m.wantNone("although a loop does not answer")
	stuck.answer <- struct{}{}
	m.want("WATCHDOG=1")
	advance()
	m.wantNone("although a loop does not answer")
	stuck.answer <- struct{}{}
	m.want("WATCHDOG=1")

	p.Reload(func() {
		fields := strings.Split(m.wait(), "\n")
		if fields[0] != "RELOADING=1" || !strings.HasPrefix(fields[1], "MONOTONIC_USEC=") {
			t.Errorf("before a reload the service manager got %q", fields)
		}
	})
	m.want("READY=1")
	p.Kill()
	m.want("STOPPING=1")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	m.wantNone("after the end")
}
