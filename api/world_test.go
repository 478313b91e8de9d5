package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/agentapi"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/link"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

var (
	machine0 = names.NewMachineTag("0")
	machine1 = names.NewMachineTag("1")
)

// world is a state, a server of its accessors, and a link to it.
type world struct {
	*state.State
	t             testing.TB
	disk, environ *providerfake.Provider
	registry      storage.StaticProviderRegistry
	server        *server
	link          *link.Link
	tls           *tls.Config
	keepAlive     time.Duration

	mu sync.Mutex
	// authenticate is what the server asks.
	authenticate func(*http.Request) (storageprovisioner.Accessors, error)
	messages     []string
	// lost receives when a client has lost its connection, again when it has a new one.
	lost, again chan struct{}
}

// newWorld has two machines, a provider of machine 0 (disk), and one of the environment. The
// server serves machine 0, or the environment to an agent that names no server.
func newWorld(t testing.TB) *world { return newWorldWith(t, 0) }

// newWorldWith is newWorld with another time between keep-alive messages than the default.
func newWorldWith(t testing.TB, keepAlive time.Duration) *world {
	w := &world{
		t:         t,
		keepAlive: keepAlive,
		disk:      providerfake.New(providerfake.Options{Scope: storage.ScopeMachine}),
		environ:   providerfake.New(providerfake.Options{}),
		lost:      make(chan struct{}, 1),
		again:     make(chan struct{}, 1),
	}
	w.registry = storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"disk": w.disk, "environ": w.environ}}
	var err error
	w.State, err = state.Open(state.Config{Store: kvtest.NewMemory(), Clock: clock.WallClock, Registry: w.registry})
	w.must(err)
	t.Cleanup(func() { w.must(w.Close()) })
	for _, machine := range []names.MachineTag{machine0, machine1} {
		w.must(w.EnsureMachine(machine))
		w.must(w.SetInstanceId(machine, "i-0"))
	}
	w.must(w.SetEnvironConfig(map[string]any{
		"name": "here", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b", "size": 42, "list": []any{"a", true},
	}))
	w.serve(w.agent)
	w.server = w.startServer()
	w.link = link.New(t, w.server.address())
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(errors.ErrorStack(err))
	}
}

// agent is the default of authenticate.
func (w *world) agent(r *http.Request) (storageprovisioner.Accessors, error) {
	if r.TLS.ServerName == "" {
		return w.ForEnviron(), nil
	}
	return w.ForMachine(machine0), nil
}

// serve sets what the server asks about requests.
func (w *world) serve(authenticate func(*http.Request) (storageprovisioner.Accessors, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.authenticate = authenticate
}

// Warningf and Infof are loggers of clients and servers.
func (w *world) Warningf(format string, args ...any) { w.log(w.lost, format, args...) }
func (w *world) Infof(format string, args ...any)    { w.log(w.again, format, args...) }

func (w *world) log(logged chan struct{}, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.messages = append(w.messages, fmt.Sprintf(format, args...))
	select {
	case logged <- struct{}{}:
	default:
	}
}

// server is an HTTP/2 server of the API.
type server struct {
	handler *agentapi.Handler
	http    *httptest.Server
	stop    func()
}

func (s *server) address() string { return s.http.Listener.Addr().String() }

// startServer starts a server, which stops at the end of the test at the latest.
func (w *world) startServer() *server {
	w.t.Helper()
	handler, err := agentapi.New(agentapi.Config{
		Authenticate: func(r *http.Request) (storageprovisioner.Accessors, error) {
			w.mu.Lock()
			authenticate := w.authenticate
			w.mu.Unlock()
			return authenticate(r)
		},
		Logger:    w,
		KeepAlive: w.keepAlive,
	})
	w.must(err)
	s := &server{handler: handler, http: httptest.NewUnstartedServer(handler)}
	s.http.EnableHTTP2 = true
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.http.StartTLS()
	w.tls = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}
	w.tls.RootCAs.AddCert(s.http.Certificate())
	s.stop = sync.OnceFunc(func() {
		handler.Kill()
		if err := handler.Wait(); err != nil {
			w.t.Error(err)
		}
		s.http.Close()
	})
	w.t.Cleanup(s.stop)
	return s
}

func (w *world) config() api.Config {
	return api.Config{
		URLs: []string{"https://" + w.link.Address()}, TLS: w.tls, Logger: w,
		MinDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond, KeepAlive: w.keepAlive,
	}
}

// dial returns a client, which is closed at the end of the test.
func (w *world) dial() *api.Client {
	w.t.Helper()
	return w.dialWith(w.config())
}

func (w *world) dialWith(config api.Config) *api.Client {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := api.Dial(ctx, config)
	w.must(err)
	w.t.Cleanup(client.Kill)
	return client
}

// disconnect makes the server unreachable until connect, and returns when the client has
// noticed it.
func (w *world) disconnect() {
	w.t.Helper()
	w.link.Redirect("127.0.0.1:1")
	receive(w.t, w.lost, "the client notices a lost connection")
}

// connect makes the server reachable, and returns when the client is connected.
func (w *world) connect() {
	w.t.Helper()
	w.link.Redirect(w.server.address())
	receive(w.t, w.again, "the client is connected again")
}

// receive receives a value.
func receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case value, ok := <-from:
		if !ok {
			t.Fatalf("%s: the channel is closed", what)
		}
		return value
	case <-time.After(patience):
		t.Fatalf("%s: nothing after %v", what, patience)
	}
	panic("unreachable")
}

func (w *world) add(name, pool string, kind storage.StorageKind) {
	w.t.Helper()
	p := state.StorageParams{Name: name, Kind: kind, Pool: pool, Size: 10, Machine: machine0}
	if kind == storage.StorageKindFilesystem {
		p.MountPoint = "/srv/" + name
	}
	w.must(w.AddStorage(p))
}
