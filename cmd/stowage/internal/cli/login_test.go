package cli_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/loggo"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/server"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// host is where a user runs commands.
type host struct {
	t    *testing.T
	home string
	env  map[string]string
	now  clock.Clock
}

func newHost(t *testing.T) *host {
	return &host{t: t, home: t.TempDir(), env: map[string]string{}, now: clock.WallClock}
}

func (h *host) run(args ...string) result {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	code := cli.Main(ctx, args, cli.Env{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Clock: h.now,
		Getenv: func(name string) string {
			if name == "HOME" {
				return h.home
			}
			return h.env[name]
		},
	})
	return result{code, stdout.String(), stderr.String()}
}

// want runs a command, and checks its exit status and a part of its output.
func (h *host) want(code int, text string, args ...string) string {
	h.t.Helper()
	r := h.run(args...)
	if r.code != code || !strings.Contains(r.stdout+r.stderr, text) {
		h.t.Errorf("%q: exit status %d, want %d and %q\n%s%s", args, r.code, code, text, r.stdout, r.stderr)
	}
	return r.stdout
}

// laterClock is some time ahead.
type laterClock struct {
	clock.Clock
	by time.Duration
}

func (c laterClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// startServer starts a server, and returns its URL and its data directory.
func startServer(t *testing.T) (url, dir string) {
	t.Helper()
	parent, err := os.MkdirTemp("", "cli") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil {
			t.Error(err)
		}
	})
	dir = filepath.Join(parent, "S")
	s, err := server.New(t.Context(), server.Config{
		Config: process.Config{Clock: clock.WallClock, Logger: loggo.GetLogger("test.server"), Registry: storage.StaticProviderRegistry{
			Providers: map[storage.ProviderType]storage.Provider{"shared": providerfake.New(providerfake.Options{})},
		}},
		DataDir: dir, SocketPath: filepath.Join(dir, "stowage.sock"), Listen: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if err := s.Wait(); err != nil {
			t.Error(err)
		}
	})
	return "https://" + s.Address(), dir
}

func (h *host) token(dir, role string) string {
	h.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) { // until the socket is there
		r := h.run("token", "create", "--role", role, "--data-dir", dir)
		if r.code == 0 {
			return strings.TrimSpace(r.stdout)
		}
		if time.Now().After(deadline) {
			h.t.Fatal(r)
		}
	}
}

// Users of other hosts log in with a token, and do what their role allows.
// Promise S28.
// Promise S29.
func TestLogin(t *testing.T) {
	url, dir := startServer(t)
	ann, bob := newHost(t), newHost(t)
	admin, viewer := ann.token(dir, "admin"), ann.token(dir, "viewer")
	ann.want(0, "logged in as ann, with role admin; context prod is the current one", "login", url, "--token", admin, "--name", "ann", "--as", "prod")
	bob.want(0, "logged in as bob, with role viewer; context 127.0.0.1 is the current one", "login", url, "--token", viewer, "--name", "bob")
	ann.want(1, "may have expired, or been used before", "login", url, "--token", admin, "--name", "eve", "--as", "again")
	ann.want(1, "there is a context prod already", "login", url, "--token", admin, "--name", "ann", "--as", "prod")
	ann.want(2, "a token has three parts", "login", url, "--token", "x")

	ann.want(0, "", "pools", "add", "fast", "shared")
	if got := bob.want(0, "", "pools", "-o", "json"); !strings.Contains(got, `"fast"`) {
		t.Errorf("the viewer sees the pools %s", got)
	}
	bob.want(1, "role viewer may only read: this needs role admin", "pools", "remove", "fast")
	bob.want(0, "no orphans", "orphans")
	taking := []string{"import", "old", "/srv/old", "--pool", "fast", "--machine", "web"}
	bob.want(1, "role viewer may only read: this needs role admin", taking...)
	ann.want(1, `machine "web" not found`, taking...)
	ann.want(1, "make it there, as root, with --data-dir", "backup", filepath.Join(t.TempDir(), "b"))
	ann.want(0, "*        prod  ann   admin  "+url, "context")
	ann.want(0, "bob   viewer", "user")

	// The socket and other contexts can be chosen.
	ann.want(0, "fast", "pools", "--data-dir", dir)
	ann.want(2, "use one of them", "pools", "--data-dir", dir, "--context", "prod")
	ann.want(1, `there is no context "none"`, "pools", "--context", "none")
	ann.want(0, "", "context", "use", "--none")
	ann.want(1, "cannot reach the agent at", "pools", "--socket", filepath.Join(t.TempDir(), "s"))
	ann.env["STOWAGE_CONTEXT"] = "prod"
	ann.want(0, "fast", "pools")

	// A certificate is renewed in time.
	path := filepath.Join(bob.home, ".config/stowage/contexts/127.0.0.1.yaml")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bob.want(0, "fast", "pools")
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(before, now) {
		t.Errorf("the context was written too early, %v", err)
	}
	bob.now = laterClock{clock.WallClock, trust.Lifetime*2/3 + time.Hour}
	bob.want(0, "fast", "pools")
	if now, err := os.ReadFile(path); err != nil || bytes.Equal(before, now) {
		t.Errorf("the certificate was not renewed, %v", err)
	}
	bob.now = clock.WallClock

	ann.want(0, "", "user", "remove", "bob")
	bob.want(1, `user "bob" was removed`, "pools")
	ann.want(0, "", "context", "remove", "prod")
	ann.want(1, `there is no context "prod"`, "pools")
}

// A server that does not answer is named.
func TestLoginWithoutServer(t *testing.T) {
	url, dir := startServer(t)
	h := newHost(t)
	token := h.token(dir, "viewer")
	h.want(0, "", "login", "https://127.0.0.1:1", url, "--token", token, "--name", "ann", "--as", "prod") // the second answers
	h.want(0, "shared", "pools")
	r := h.run("login", url, "--token", strings.Replace(token, token[:4], "0000", 1), "--name", "eve", "--as", "other")
	if r.code != 1 || !strings.Contains(r.stderr, url) {
		t.Errorf("a server of another authority: %+v", r)
	}
}

// A server that is being killed still accepts connections, and answers nothing: commands use the
// next one.
func TestServerThatClosesConnections(t *testing.T) {
	url, dir := startServer(t)
	h := newHost(t)
	dying, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := dying.Accept()
			if err != nil {
				return
			}
			connection.Close()
		}
	}()
	t.Cleanup(func() {
		dying.Close()
		<-done
	})
	h.want(0, "", "login", "https://"+dying.Addr().String(), url, "--token", h.token(dir, "viewer"), "--name", "ann", "--as", "prod")
	h.want(0, "shared", "pools")
}
