package control_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/internal/leaktest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		runRole(role, os.Getenv(socketEnv))
	}
	leaktest.VerifyTestMain(m)
}

type logger struct{ t *testing.T }

func (l logger) Warningf(format string, args ...any) { l.t.Logf(format, args...) }

// serve starts a server on a new socket.
func serve(t *testing.T, b *userapitest.Backend, change func(*control.ServerConfig)) (*user.Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	config := control.ServerConfig{SocketPath: path, Backend: b, Logger: logger{t}}
	if change != nil {
		change(&config)
	}
	server, err := control.NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	client := control.NewClient(path)
	t.Cleanup(func() {
		client.Close()
		server.Kill()
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return client, path
}

var sample = user.Storage{
	Name: "data", Kind: "filesystem", Pool: "loop", Provider: "loop", SizeMiB: 64,
	Since: time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC), Location: "/srv/data",
	Attachments: []user.Attachment{{Machine: "0", Location: "/srv/data"}},
}

func TestClientCallsReachBackend(t *testing.T) {
	b := &userapitest.Backend{Storages: []user.Storage{sample}}
	client, _ := serve(t, b, nil)
	ctx := t.Context()

	result, err := client.Apply(ctx, user.ApplyArgs{File: "f", Content: "a\n\x00", DryRun: true})
	if err != nil || len(result.Names) != 1 || len(result.Changes) != 1 || result.Changes[0].Name != "data" {
		t.Errorf("apply: %+v, %v", result, err)
	}
	rows, err := client.Storage(ctx, []string{"data"})
	if err != nil || !reflect.DeepEqual(rows, []user.Storage{sample}) {
		t.Errorf("storage: %+v, %v", rows, err)
	}
	for _, change := range []func(context.Context, []string) error{client.Detach, client.Remove, client.Release} {
		if err := change(ctx, []string{"a", "b/1"}); err != nil {
			t.Error(err)
		}
	}
	for _, call := range []func() (user.ChangesResult, error){
		func() (user.ChangesResult, error) {
			return client.Attach(ctx, user.AttachArgs{Names: []string{"a", "b/1"}, Machine: "web"})
		},
		func() (user.ChangesResult, error) {
			return client.Resize(ctx, user.ResizeArgs{Names: []string{"a"}, SizeMiB: 512, More: true})
		},
		func() (user.ChangesResult, error) {
			return client.Rename(ctx, user.RenameArgs{Name: "a", To: "b"})
		},
		func() (user.ChangesResult, error) {
			return client.Import(ctx, user.ImportArgs{Name: "a", Pool: "loop", Source: "/f", Mount: "/m", Block: true, Copy: true})
		},
		func() (user.ChangesResult, error) {
			return client.Adopt(ctx, user.AdoptArgs{Orphan: "lost", As: "found"})
		},
	} {
		if changed, err := call(); err != nil || len(changed.Changes) != 1 || changed.Changes[0].Name != "data" {
			t.Errorf("%+v, %v", changed, err)
		}
	}
	orphans, err := client.Orphans(ctx, "web&db")
	if err != nil || len(orphans.Orphans) != 1 || orphans.Orphans[0].Name != "lost" || len(orphans.NotAsked) != 1 {
		t.Errorf("orphans: %+v, %v", orphans, err)
	}
	deleted, err := client.DeleteOrphan(ctx, user.DeleteOrphanArgs{UUID: "u", Now: true})
	if err != nil || len(deleted.Deleted) != 1 || deleted.Until.Unix() != 1e9 {
		t.Errorf("deleted: %+v, %v", deleted, err)
	}
	if backup, err := client.Backup(ctx, user.BackupArgs{Path: "/b"}); err != nil || backup.Bytes != 4096 {
		t.Errorf("backup: %+v, %v", backup, err)
	}
	pools, err := client.Pools(ctx)
	if err != nil || len(pools) != 1 || pools[0].Attributes["fs"] != "xfs" {
		t.Errorf("pools: %+v, %v", pools, err)
	}
	err = client.AddPool(ctx, user.AddPoolArgs{
		Name: "fast", Provider: "loop", Attributes: map[string]any{"fs": "xfs", "depth": 4}, Replace: true,
	})
	if err != nil {
		t.Error(err)
	}
	if err := client.RemovePools(ctx, []string{"fast"}); err != nil {
		t.Error(err)
	}
	machines, err := client.Machines(ctx)
	if err != nil || len(machines) != 1 || machines[0].Name != "web" || machines[0].LastSeen.Unix() != 1e9 {
		t.Errorf("machines: %+v, %v", machines, err)
	}
	if moved, err := client.Move(ctx, user.MoveArgs{Names: []string{"a"}, Machine: "1"}); err != nil || moved.Machines["a"] != "web" {
		t.Errorf("moved: %+v, %v", moved, err)
	}
	if drained, err := client.DrainMachine(ctx, user.MachineArgs{Machine: "web"}); err != nil || drained.Machines["a"] != "web" || len(drained.Stays) != 1 {
		t.Errorf("drained: %+v, %v", drained, err)
	}
	if err := client.UndrainMachine(ctx, user.MachineArgs{Machine: "web"}); err != nil {
		t.Error(err)
	}
	if err := client.FenceMachine(ctx, user.FenceMachineArgs{Machine: "web", Confirmed: true}); err != nil {
		t.Error(err)
	}
	if err := client.RemoveMachine(ctx, user.RemoveMachineArgs{Machine: "web", Lost: []string{"a"}}); err != nil {
		t.Error(err)
	}
	token, err := client.CreateToken(ctx, user.CreateTokenArgs{Role: "machine", Machine: "web", LifetimeSeconds: 3600, Uses: 2})
	if err != nil || token != "a.b.c" {
		t.Errorf("token %q, %v", token, err)
	}
	tokens, err := client.Tokens(ctx)
	if err != nil || len(tokens) != 1 || tokens[0].ID != "b" {
		t.Errorf("tokens: %+v, %v", tokens, err)
	}
	if err := client.RemoveTokens(ctx, []string{"b"}); err != nil {
		t.Error(err)
	}
	report, err := client.Report(ctx)
	if err != nil || report["state"] != "started" {
		t.Errorf("report: %v, %v", report, err)
	}
	want := []string{
		`apply f "a\n\x00" true`, `storage ["data"]`, `detach ["a" "b/1"]`, `remove {Names:[a b/1] Way: Force:false}`,
		`release {Names:[a b/1] Way: Force:false}`, "attach {Names:[a b/1] Machine:web Mount: MountOptions:<nil>}", "resize {Names:[a] SizeMiB:512 More:true}", "rename {Name:a To:b}", "import {Name:a Pool:loop Machine: Source:/f Mount:/m Block:true Copy:true}",
		"adopt {Orphan:lost As:found Machine:}", `orphans "web&db"`, "delete-orphan {UUID:u Now:true Machine:}", "backup {Path:/b}",
		"pools", "add pool {Name:fast Provider:loop Attributes:map[depth:4 fs:xfs] Replace:true}", `remove pools ["fast"]`,
		"machines", "move {Names:[a] Machine:1 MachineLabels:}", "drain-machine {Machine:web}", "undrain-machine {Machine:web}", "fence-machine {Machine:web Confirmed:true}", "remove-machine {Machine:web Lost:[a]}", "create-token {Role:machine Machine:web LifetimeSeconds:3600 Uses:2}", "tokens", `remove-tokens ["b"]`, "report",
	}
	if !reflect.DeepEqual(b.Calls(), want) {
		t.Errorf("calls %q, want %q", b.Calls(), want)
	}
}

func TestErrorsKeepTextAndKind(t *testing.T) {
	for _, err := range []error{
		errors.NotFoundf("storage %q", "x"), errors.NewNotValid(nil, "f:1: no"), errors.New("other"),
		errors.NewAlreadyExists(nil, "taken"),
	} {
		client, _ := serve(t, &userapitest.Backend{Err: err}, nil)
		_, got := client.Apply(t.Context(), user.ApplyArgs{})
		if got == nil || got.Error() != err.Error() {
			t.Errorf("got %v, want %v", got, err)
		}
		for _, kind := range []errors.ConstError{errors.NotFound, errors.NotValid, errors.AlreadyExists} {
			if errors.Is(got, kind) != errors.Is(err, kind) {
				t.Errorf("%v: errors.Is for %q: got %t, want %t", err, kind, errors.Is(got, kind), errors.Is(err, kind))
			}
		}
	}
}

func TestWatchStreamsUntilClientCancels(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2)}
	client, _ := serve(t, b, nil)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan user.Event)
	done := make(chan error, 1)
	go func() {
		done <- client.Watch(ctx, []string{"data"}, func(event user.Event) error {
			got <- event
			return nil
		})
	}()
	for _, want := range []user.Event{{Storage: []user.Storage{sample}}, {Gone: []string{"data"}}} {
		b.Watched <- want
		if event := <-got; !reflect.DeepEqual(event, want) {
			t.Errorf("event %+v, want %+v", event, want)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client's watch ended with %v", err)
	}
	if begun, ended := <-b.Watching, <-b.Watching; begun != "begun" || ended != "ended" {
		t.Errorf("the backend's watch: %q, then %q; want begun, ended", begun, ended)
	}
}

func TestWatchReturnsBackendError(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2), Err: errors.New("state is closed")}
	close(b.Watched)
	client, _ := serve(t, b, nil)
	err := client.Watch(t.Context(), nil, func(user.Event) error { return nil })
	if err == nil || err.Error() != "state is closed" {
		t.Errorf("got %v", err)
	}
}

func TestKilledServerEndsWatches(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2)}
	path := filepath.Join(t.TempDir(), "s.sock")
	server, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: b, Logger: logger{t}})
	if err != nil {
		t.Fatal(err)
	}
	client := control.NewClient(path)
	defer client.Close()
	done := make(chan error, 1)
	go func() { done <- client.Watch(t.Context(), nil, func(user.Event) error { return nil }) }()
	<-b.Watching
	server.Kill()
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
	if len(b.Watching) != 1 {
		t.Error("the server has ended, but its watch has not")
	}
	want := fmt.Sprintf("the agent at %s has stopped", path)
	if err := <-done; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestAgentStopsBeforeAnswer(t *testing.T) {
	for _, how := range []struct {
		name string
		stop func(*net.UnixConn) error
	}{
		{"closed", func(conn *net.UnixConn) error {
			_, err := http.ReadRequest(bufio.NewReader(conn))
			return err
		}},
		{"reset", func(conn *net.UnixConn) error { return nil }}, // closed with an unread request
	} {
		t.Run(how.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.sock")
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			done := make(chan error, 1)
			go func() {
				conn, err := listener.AcceptUnix()
				if err == nil {
					defer conn.Close()
					err = how.stop(conn)
				}
				done <- err
			}()
			client := control.NewClient(path)
			defer client.Close()
			_, err = client.Storage(t.Context(), nil)
			if want := fmt.Sprintf("the agent at %s stopped before it answered", path); err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// Promise S4.
func TestTooManyWatchersAreRefused(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 1000)}
	client, _ := serve(t, b, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	defer cancel()
	for range 64 {
		watchers.Go(func() {
			if err := client.Watch(ctx, nil, func(user.Event) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		<-b.Watching
	}
	err := client.Watch(ctx, nil, func(user.Event) error { return nil })
	if want := "64 clients are watching already: try again when one has ended"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}

	// When watchers end, others can watch.
	cancel()
	watchers.Wait()
	for range 64 {
		<-b.Watching
	}
	done := errors.New("done")
	b.Watched = make(chan user.Event, 1)
	b.Watched <- user.Event{}
	deadline := time.After(10 * time.Second)
	for !errors.Is(err, done) {
		select {
		case <-deadline:
			t.Fatal(err)
		case <-time.After(time.Millisecond): // the server frees the slot soon after the watch ends
		}
		err = client.Watch(t.Context(), nil, func(user.Event) error { return done })
	}
}

func TestWatchOutlastsRequestTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second // a busy machine needs time for the request itself
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2)}
	client, _ := serve(t, b, func(c *control.ServerConfig) { c.RequestTimeout = timeout })
	done := errors.New("done")
	go func() {
		<-b.Watching
		<-time.After(timeout + timeout/4)
		b.Watched <- user.Event{Gone: []string{"late"}}
	}()
	if err := client.Watch(t.Context(), nil, func(user.Event) error { return done }); !errors.Is(err, done) {
		t.Errorf("the watch ended with %v", err)
	}
}

// blockingBackend is a backend whose Pools ignores its context and blocks until released.
type blockingBackend struct {
	*userapitest.Backend
	started, release chan struct{}
}

func (s *blockingBackend) Pools(context.Context) ([]user.Pool, error) {
	close(s.started)
	<-s.release
	return nil, nil
}

func TestKilledServerWaitsForRunningCalls(t *testing.T) {
	t.Parallel()
	b := &blockingBackend{&userapitest.Backend{}, make(chan struct{}), make(chan struct{})}
	path := filepath.Join(t.TempDir(), "s.sock")
	server, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: b, Logger: logger{t}})
	if err != nil {
		t.Fatal(err)
	}
	client := control.NewClient(path)
	defer client.Close()
	answered := make(chan error, 1)
	go func() {
		_, err := client.Pools(t.Context())
		answered <- err
	}()
	<-b.started
	server.Kill()
	if err := <-answered; err == nil { // the server cuts the connection after its grace period
		t.Error("the call of a killed server has succeeded")
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	select {
	case <-ended:
		t.Error("the server ended before a running call did")
	case <-time.After(100 * time.Millisecond):
	}
	close(b.release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Promise S2.
func TestUnauthorizedUserIsRefused(t *testing.T) {
	var asked []uint32
	client, _ := serve(t, &userapitest.Backend{}, func(c *control.ServerConfig) {
		c.Authorize = func(uid uint32) bool {
			asked = append(asked, uid)
			return false
		}
	})
	_, err := client.Storage(t.Context(), nil)
	self := os.Geteuid()
	want := fmt.Sprintf("user %d may not use this agent: run the command as root", self)
	if !errors.Is(err, errors.Unauthorized) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if !reflect.DeepEqual(asked, []uint32{uint32(self)}) {
		t.Errorf("Authorize was called with %v, want the user ID of the peer, %d", asked, self)
	}
}

// Promise S4.
func TestRequestSizeIsLimited(t *testing.T) {
	b := &userapitest.Backend{}
	client, path := serve(t, b, nil)
	const most = 4 << 20
	_, err := client.Apply(t.Context(), user.ApplyArgs{Content: strings.Repeat("a", most)})
	if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "too large") {
		t.Errorf("the client: got %v", err)
	}
	// The server reads all of a request that is one byte too large, so that its answer
	// reaches a client that checks nothing.
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Post("http://stowage/v1/apply", "application/json", bytes.NewReader(make([]byte, most+1)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if answer, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(answer), "too large") {
		t.Errorf("the server: %s, %v", answer, err)
	}
	if len(b.Calls()) != 0 {
		t.Errorf("the backend was called: %q", b.Calls())
	}
}

func TestSocketIsOwnerOnly(t *testing.T) {
	_, path := serve(t, &userapitest.Backend{}, nil)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	server, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: &userapitest.Backend{}, Logger: logger{t}})
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}

// Promise S5.
func TestSocketInUseAndOtherFilesAreKept(t *testing.T) {
	_, live := serve(t, &userapitest.Backend{}, nil)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		live:                           "another agent already answers on " + live,
		file:                           file + " exists and is not a socket: move it away, or choose another path",
		"/" + strings.Repeat("a", 107): `the socket's path "/` + strings.Repeat("a", 107) + `" is longer than 107 bytes: choose a shorter path`,
	} {
		if err := control.CheckSocket(path); err == nil || err.Error() != want {
			t.Errorf("CheckSocket: got %v, want %s", err, want)
		}
		_, err := control.NewServer(control.ServerConfig{SocketPath: path, Backend: &userapitest.Backend{}, Logger: logger{t}})
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "precious" {
		t.Errorf("the file: %q, %v", content, err)
	}
}

func TestClientWithoutServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	client := control.NewClient(path)
	defer client.Close()
	want := fmt.Sprintf("cannot reach the agent at %s: is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?", path)
	if _, err := client.Storage(t.Context(), nil); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := client.Watch(t.Context(), nil, nil); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestValidateNamesMissingField(t *testing.T) {
	full := control.ServerConfig{SocketPath: "x", Backend: &userapitest.Backend{}, Logger: logger{t}}
	for want, change := range map[string]func(*control.ServerConfig){
		"empty SocketPath not valid":        func(c *control.ServerConfig) { c.SocketPath = "" },
		"nil Backend and Handler not valid": func(c *control.ServerConfig) { c.Backend = nil },
		"Backend with Handler not valid":    func(c *control.ServerConfig) { c.Handler = http.NotFoundHandler() },
		"nil Logger not valid":              func(c *control.ServerConfig) { c.Logger = nil },
	} {
		config := full
		change(&config)
		if err := config.Validate(); !errors.Is(err, errors.NotValid) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
