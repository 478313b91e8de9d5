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

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
)

// Environment variables that make the test binary another user's process: its role and its
// socket.
const (
	roleEnv   = "CONTROL_TEST_ROLE"
	socketEnv = "CONTROL_TEST_SOCKET"

	roleClient    = "client"
	roleUntrusted = "impostor"

	otherUID = 1000
)

// runRole is the main function of the other user's process. It prints the outcome.
func runRole(role, socket string) {
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

// commandAs returns a command that runs the test binary in a role, as a user.
func commandAs(t *testing.T, uid uint32, role, socket string) *exec.Cmd {
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

// openToOthers gives all users full access to a path, and lets them pass the directories
// above it.
func openToOthers(t *testing.T, path string) {
	t.Helper()
	mode := os.FileMode(0o777)
	for ; path != os.TempDir(); path = filepath.Dir(path) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		mode = 0o755
	}
}

// The server takes the user of a connection from the kernel, so a changed mode of the socket
// admits nobody else.
// Promise S2.
func TestAnotherUserIsRefused(t *testing.T) {
	b := &userapitest.Backend{}
	_, path := serve(t, b, nil)
	openToOthers(t, path)
	for uid, want := range map[uint32]string{0: "<nil>", otherUID: "user 1000 may not use this agent: run the command as root"} {
		got, err := commandAs(t, uid, roleClient, path).Output()
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("user %d: got %q, %v, want %q", uid, got, err, want)
		}
	}
	if len(b.Calls()) != 1 {
		t.Errorf("the backend was called: %q", b.Calls())
	}
}

// The mode of the socket alone keeps other users out.
// Promise S1.
func TestAnotherUserCannotConnect(t *testing.T) {
	_, path := serve(t, &userapitest.Backend{}, nil)
	openToOthers(t, filepath.Dir(path))
	got, err := commandAs(t, otherUID, roleClient, path).Output()
	if want := "you may not use the agent at " + path + ": run the command as root\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// A client sends secrets and trusts the answer, so it does not use a socket of another user.
// Promise S3.
func TestClientSendsNothingToImpostor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	openToOthers(t, filepath.Dir(path))
	cmd := commandAs(t, otherUID, roleUntrusted, path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	output := bufio.NewScanner(out)
	if !output.Scan() || output.Text() != "listening" {
		t.Errorf("the impostor does not listen: %q", output.Text())
	}
	client := control.NewClient(path)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it never answers
	defer cancel()
	_, err = client.Apply(ctx, user.ApplyArgs{Content: "secret"})
	want := "user 1000, who is neither root nor you, listens on " + path + ": the request was not sent"
	if !errors.Is(err, errors.Unauthorized) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if output.Scan(); output.Text() != `was told "", <nil>` {
		t.Errorf("output of the impostor: %q", output.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// The socket is created with mode 0600, even with a umask of 0, and not changed afterwards.
// Promise S1.
// Finding N16.
func TestSocketIsCreatedWithFinalMode(t *testing.T) {
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
	server, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: &userapitest.Backend{}, Logger: logger{t}})
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
	// An event is: watch, mask, cookie, length of the name, name.
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(events[4*i:]) }
	if word(1) != unix.IN_CREATE || n != unix.SizeofInotifyEvent+int(word(3)) {
		t.Errorf("events % x, want only the creation of the socket", events[:n])
	}
	server.Kill()
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}

// connect opens connections, and sends nothing on them.
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

// Unauthorized users can keep only a few connections open. These take no slots from
// authorized users.
// Promise S4.
func TestUnauthorizedConnectionsDoNotBlockOthers(t *testing.T) {
	var authorized atomic.Bool
	client, path := serve(t, &userapitest.Backend{}, func(c *control.ServerConfig) {
		c.Authorize = func(uint32) bool { return authorized.Load() }
		c.RequestTimeout = time.Minute
	})
	conns := connect(t, path, 300)
	for i, conn := range conns[8:] {
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("unauthorized connection %d: got %d bytes, %v, want EOF", 8+i, n, err)
		}
	}
	authorized.Store(true)
	if _, err := client.Storage(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// The connection of an unauthorized user is closed after one answer.
// Promise S4.
func TestUnauthorizedConnectionClosesAfterAnswer(t *testing.T) {
	_, path := serve(t, &userapitest.Backend{}, func(c *control.ServerConfig) { c.Authorize = func(uint32) bool { return false } })
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
		t.Errorf("%d answers, want 1; error %v:\n%s", n, err, answers)
	}
}

// The server handles a limited number of connections. Others wait until one closes.
// Promise S4.
func TestConnectionLimit(t *testing.T) {
	client, path := serve(t, &userapitest.Backend{}, func(c *control.ServerConfig) { c.RequestTimeout = time.Minute })
	conns := connect(t, path, 128)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.Storage(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the limit: got %v, want the client to wait", err)
	}
	if err := conns[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Storage(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// A server at its limit of connections can still be stopped.
func TestFullServerEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	server, err := control.NewServer(control.ServerConfig{
		SocketPath: path, Backend: &userapitest.Backend{}, Logger: logger{t}, RequestTimeout: time.Minute,
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
		t.Error("the server does not end")
	}
}
