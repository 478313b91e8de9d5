package control_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
)

// Environment of the test binary as another user's process: what it does, and with
// which socket.
const (
	roleEnv   = "CONTROL_TEST_ROLE"
	socketEnv = "CONTROL_TEST_SOCKET"

	roleClient    = "client"
	roleUntrusted = "impostor"

	otherUID = 1000
)

// actAs is the other user's process, which tells its standard output how it went.
func actAs(role, socket string) {
	switch role {
	case roleClient:
		client := control.NewClient(socket)
		_, err := client.Storage(context.Background(), nil)
		fmt.Println(err)
	case roleUntrusted:
		listener, err := net.Listen("unix", socket)
		if err == nil {
			err = os.Chmod(socket, 0o777)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("listening")
		conn, err := listener.Accept()
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		received, err := io.ReadAll(conn)
		fmt.Printf("was told %q, %v\n", received, err)
	}
	os.Exit(0)
}

// as returns the test binary as a process of a user's that does what the role is.
func as(t *testing.T, uid uint32, role, socket string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("being another user needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("being another user needs root")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role, socketEnv+"="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = os.Stderr
	return cmd
}

// open lets everybody have their way with a path, and through what is above it.
func open(t *testing.T, path string) {
	t.Helper()
	mode := os.FileMode(0o777)
	for ; path != os.TempDir(); path = filepath.Dir(path) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		mode = 0o755
	}
}

// Who connects is for the kernel to say, whatever has become of the socket's mode.
func TestAnotherUserIsRefused(t *testing.T) {
	b := &backend{}
	_, path := serve(t, b, nil)
	open(t, path)
	for uid, want := range map[uint32]string{0: "<nil>", otherUID: "user 1000 on this agent: run the command as root"} {
		got, err := as(t, uid, roleClient, path).Output()
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("user %d: got %q, %v, want %q", uid, got, err, want)
		}
	}
	if len(b.calls) != 1 {
		t.Errorf("the backend was called: %q", b.calls)
	}
}

// The mode alone keeps others out.
func TestAnotherUserCannotConnect(t *testing.T) {
	_, path := serve(t, &backend{}, nil)
	open(t, filepath.Dir(path))
	got, err := as(t, otherUID, roleClient, path).Output()
	if want := "may not use the agent at " + path + ": run the command as root\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// A client has secrets to tell, and does as the answer says.
func TestImpostorIsToldNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	open(t, filepath.Dir(path))
	cmd := as(t, otherUID, roleUntrusted, path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	output := bufio.NewScanner(out)
	if !output.Scan() || output.Text() != "listening" {
		t.Errorf("the impostor says %q", output.Text())
	}
	client := control.NewClient(path)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it never answers
	defer cancel()
	_, err = client.Apply(ctx, control.ApplyArgs{Content: []byte("secret")})
	want := "what listens on " + path + " is user 1000's, and neither root's nor your own: it is told nothing"
	if !errors.Is(err, errors.Unauthorized) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if output.Scan(); output.Text() != `was told "", <nil>` {
		t.Errorf("the impostor %s", output.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// The socket is made with the mode that it keeps, whatever the umask.
func TestSocketIsNeverOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_ATTRIB|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(dir, "s.sock")
	server, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: &backend{}, Logger: logger{t}})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	events := make([]byte, 4096)
	n, err := unix.Read(watch, events)
	if err != nil {
		t.Fatal(err)
	}
	// An event is: watch, what happened, cookie, length of the name, name.
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(events[4*i:]) }
	if word(1) != unix.IN_CREATE || n != unix.SizeofInotifyEvent+int(word(3)) {
		t.Errorf("more happened to the socket than that it was made: % x", events[:n])
	}
	server.Kill()
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}

// connect opens connections, and says nothing on them.
func connect(t *testing.T, path string, n int) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns[i] = conn
	}
	return conns
}

// Users who may not use the socket can hold only a few connections open, and do not
// take up the slots of those who may.
func TestStrangersAreNotInTheWay(t *testing.T) {
	var known atomic.Bool
	client, path := serve(t, &backend{}, func(c *control.ServerConfig) {
		c.Authorize = func(uint32) bool { return known.Load() }
		c.RequestTimeout = time.Minute
	})
	conns := connect(t, path, 300)
	for i, conn := range conns[8:] {
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("stranger %d: got %d bytes, %v", 8+i, n, err)
		}
	}
	known.Store(true)
	if _, err := client.Storage(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// The connection of a user who may not use the socket is closed after one response.
func TestStrangersAreAnsweredOnce(t *testing.T) {
	_, path := serve(t, &backend{}, func(c *control.ServerConfig) { c.Authorize = func(uint32) bool { return false } })
	conn := connect(t, path, 1)[0]
	const request = "POST /v1/pools HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
	if _, err := io.WriteString(conn, request+request); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answers, err := io.ReadAll(conn)
	if n := strings.Count(string(answers), "403 Forbidden"); err != nil || n != 1 {
		t.Errorf("%d answers, %v: %s", n, err, answers)
	}
}

// However many connect, a bounded number is served, and the others get their turn.
func TestConnectionsAreBounded(t *testing.T) {
	client, path := serve(t, &backend{}, func(c *control.ServerConfig) { c.RequestTimeout = time.Minute })
	conns := connect(t, path, 128)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.Storage(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while all places are taken: got %v", err)
	}
	if err := conns[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Storage(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// A server that is full ends all the same.
func TestFullServerEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	server, err := control.NewServer(control.ServerConfig{
		SocketPath: path, Backend: &backend{}, Logger: logger{t}, RequestTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	connect(t, path, 200)
	server.Kill()
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it does not end")
	}
}
