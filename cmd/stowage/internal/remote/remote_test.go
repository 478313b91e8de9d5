package remote_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/remote"
	"github.com/stowage-io/stowage/cmd/stowage/internal/server"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

type logger struct {
	t    testing.TB
	name string
}

func (l logger) log(level, format string, args ...any) {
	l.t.Logf("%s: %s %s", l.name, level, fmt.Sprintf(format, args...))
}

func (l logger) Tracef(string, ...any)               {}
func (l logger) Debugf(string, ...any)               {}
func (l logger) Infof(format string, args ...any)    { l.log("INFO", format, args...) }
func (l logger) Warningf(format string, args ...any) { l.log("WARNING", format, args...) }
func (l logger) Errorf(format string, args ...any)   { l.log("ERROR", format, args...) }

// site is a server in this process, with a provider of the machines (disk) and one of the
// environment (shared).
type site struct {
	server       *server.Server
	fenceProgram string
	absence      time.Duration
	csi          bool // the server and its agents serve CSI
	clock        clock.Clock
	t            testing.TB
	dir          string
	address      string
	registry     storage.StaticProviderRegistry
	client       *user.Client
	stop         func() // stops the server
}

func newSite(t testing.TB) *site {
	// TB.TempDir is too long for a socket.
	dir, err := os.MkdirTemp("", "remote")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &site{t: t, dir: dir, address: "127.0.0.1:0", clock: clock.WallClock, registry: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
		"disk":   providerfake.New(providerfake.Options{Scope: storage.ScopeMachine}),
		"shared": providerfake.New(providerfake.Options{}),
	}}}
	s.client = control.NewClient(filepath.Join(dir, "s"))
	t.Cleanup(s.client.Close)
	s.start()
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(errors.ErrorStack(err))
	}
}

func (s *site) config(name string) process.Config {
	return process.Config{Registry: s.registry, Clock: s.clock, Logger: logger{s.t, name}}
}

// start starts the server, which stops at the end of the test at the latest.
func (s *site) start() {
	s.t.Helper()
	w, err := server.New(s.t.Context(), server.Config{
		Config: s.config("server"), DataDir: filepath.Join(s.dir, "server"), SocketPath: filepath.Join(s.dir, "s"), Listen: s.address,
		FenceProgram: s.fenceProgram, Absence: s.absence, CSI: s.csiOf("server"),
	})
	s.must(err)
	s.address, s.server = w.Address(), w
	s.stop = sync.OnceFunc(func() {
		w.Kill()
		s.must(w.Wait())
	})
	s.t.Cleanup(s.stop)
	deadline := time.Now().Add(patience)
	for {
		_, err := s.client.Machines(s.t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
}

// agent starts an agent, which stops at the end of the test at the latest.
func (s *site) agent(dir, name, token string) (*remote.Agent, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	a, err := remote.New(ctx, remote.Config{
		Config: s.config(dir), DataDir: filepath.Join(s.dir, dir), Servers: []string{"https://" + s.address}, Token: token, Machine: name, CSI: s.csiOf(dir),
	})
	if err == nil {
		s.t.Cleanup(func() {
			a.Kill()
			_ = a.Wait() // the test looks at its error
		})
	}
	return a, err
}

func (s *site) token() string {
	s.t.Helper()
	token, err := s.client.CreateToken(s.t.Context(), user.CreateTokenArgs{Role: "machine", LifetimeSeconds: 3600, Uses: 1})
	s.must(err)
	return token
}

func (s *site) attach(ctx context.Context, args user.AttachArgs) error {
	_, err := s.client.Attach(ctx, args)
	return err
}

// await waits until the storage with the name satisfies the condition.
func (s *site) await(name string, condition func(user.Storage) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	done := errors.New("done")
	var last user.Storage
	err := s.client.Watch(ctx, []string{name}, func(event user.Event) error {
		for _, row := range event.Storage {
			if last = row; condition(row) {
				return done
			}
		}
		return nil
	})
	if err != done {
		s.t.Fatalf("storage %s is %+v: %v", name, last, err)
	}
}

// awaitStatus waits until a machine has the status.
func (s *site) awaitStatus(machine string, want user.MachineStatus) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		all, err := s.client.Machines(s.t.Context())
		s.must(err)
		var status user.MachineStatus
		for _, m := range all {
			if m.Name == machine {
				status = m.Status
			}
		}
		if status == want {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("machine %s is %s, want %s", machine, status, want)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func attachedTo(machine string) func(user.Storage) bool {
	return func(s user.Storage) bool {
		return s.Status == status.Attached && len(s.Attachments) == 1 && s.Attachments[0].Machine == machine
	}
}

const file = `storage:
- {name: a, directive: "disk,16M", kind: filesystem, mount: /srv/a, machine: web}
- {name: b, directive: "shared,16M", kind: filesystem, mount: /srv/b, machine: web}
`

// A client that follows storage goes on with a server that has started again, and misses nothing.
func TestClientOutlivesServer(t *testing.T) {
	s := newSite(t)
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	_, err = s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: file})
	s.must(err)
	s.await("a", attachedTo("web"))
	s.await("b", attachedTo("web"))

	events := make(chan user.Event)
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		ended <- s.client.Follow(ctx, nil, func(event user.Event) error {
			select {
			case events <- event:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	// until takes events until one of them says this.
	until := func(says func(user.Event) bool) {
		t.Helper()
		for {
			select {
			case event := <-events:
				if says(event) {
					return
				}
			case err := <-ended:
				t.Fatal(err)
			}
		}
	}
	until(func(e user.Event) bool { return len(e.Storage) == 2 })
	s.must(s.client.Remove(t.Context(), []string{"a"}))
	s.stop()
	s.start()
	until(func(e user.Event) bool { return slices.Contains(e.Gone, "a") })
	s.must(s.client.Remove(t.Context(), []string{"b"}))
	until(func(e user.Event) bool { return slices.Contains(e.Gone, "b") })
	cancel()
	<-ended
	web.Kill()
	s.must(web.Wait())
}

// An agent provisions the storage of its machine while the server comes and goes.
// Fault F33.
// Fault F34.
func TestAgentOfServer(t *testing.T) {
	s := newSite(t)
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	_, err = s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: file})
	s.must(err)
	s.await("a", attachedTo("web"))
	s.await("b", attachedTo("web"))

	s.stop()
	s.start()
	s.must(s.client.Detach(t.Context(), []string{"a"}))
	s.await("a", func(row user.Storage) bool { return row.Status == status.Detached })

	web.Kill()
	s.must(web.Wait())
	s.must(s.attach(t.Context(), user.AttachArgs{Names: []string{"a"}}))
	if _, err = s.agent("web", "", ""); err != nil {
		t.Fatal(err)
	}
	s.await("a", attachedTo("web"))
	machines, err := s.client.Machines(t.Context())
	if err != nil || len(machines) != 1 || machines[0].Name != "web" || machines[0].Status != user.MachineUp {
		t.Errorf("machines %+v, %v", machines, err)
	}
}

// An agent that the server refuses ends, with an error that says so.
func TestRefusedAgent(t *testing.T) {
	s := newSite(t)
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	s.must(s.client.RemoveMachine(t.Context(), user.RemoveMachineArgs{Machine: "web"}))
	if err := web.Wait(); !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), "its storage stays as it is") {
		t.Errorf("the agent ended with %v", err)
	}
	if _, err := s.agent("web", "", ""); !errors.Is(err, api.ErrRefused) {
		t.Errorf("the agent starts again: %v", err)
	}
}

// An agent that waits for its server can be stopped.
func TestAgentWithoutServer(t *testing.T) {
	s := newSite(t)
	token := s.token()
	s.stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and does not answer
	s.must(err)
	defer listener.Close()
	for what, address := range map[string]string{"nobody listens": s.address, "nobody answers": listener.Addr().String()} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := remote.New(ctx, remote.Config{
			Config: s.config("agent"), DataDir: filepath.Join(s.dir, "agent"), Servers: []string{"https://" + address}, Token: token, Machine: "web",
		})
		if err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), "enrolling at https://"+address) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Nothing is left that would keep the agent from joining later.
	s.start()
	if _, err := s.agent("agent", "db", token); err != nil {
		t.Error(err)
	}
}

// Storage that any machine may have is given to one that is connected and has the labels, and stays
// there.
func TestAnyMachine(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"db", "web"} {
		_, err := s.agent(name, name, s.token())
		s.must(err)
	}
	s.must(s.client.LabelMachine(t.Context(), user.LabelMachineArgs{Machine: "web", Set: map[string]string{"zone": "b", "disk": "ssd"}}))
	s.must(s.client.LabelMachine(t.Context(), user.LabelMachineArgs{Machine: "web", Remove: []string{"disk"}}))
	const anywhere = `storage:
- {name: a, directive: "disk,16M", kind: filesystem, mount: /srv/a, machine: any, machine-labels: zone=b}
- {name: b, directive: "shared,16M", kind: filesystem, mount: /srv/b, machine: any}
`
	for range 2 {
		_, err := s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: anywhere})
		s.must(err)
		s.await("a", attachedTo("web"))
		s.await("b", attachedTo("db"))
	}
	_, err := s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: strings.Replace(anywhere, "zone=b", "disk=ssd", 1)})
	if err != nil { // a is there already
		t.Error(err)
	}
	_, err = s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: strings.ReplaceAll(strings.Replace(anywhere, "zone=b", "disk=ssd", 1), "name: a", "name: c")})
	if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "no machine that can be chosen has the labels disk=ssd") {
		t.Errorf("labels that no machine has: %v", err)
	}
	machines, err := s.client.Machines(t.Context())
	s.must(err)
	if len(machines) != 2 {
		t.Errorf("machines %+v", machines)
	}
	for _, m := range machines {
		if want := map[string]string{"web": "b"}[m.Name]; m.Labels["zone"] != want || len(m.Labels) > 1 {
			t.Errorf("machine %s has the labels %v", m.Name, m.Labels)
		}
	}
}

// A machine that is drained gives its storage to the others, except what cannot leave it, and gets
// none until that is ended.
func TestDrainMachine(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"db", "web"} {
		_, err := s.agent(name, name, s.token())
		s.must(err)
	}
	const wanted = `storage:
- {name: a, directive: "shared,16M", kind: filesystem, mount: /srv/a, machine: web}
- {name: b, directive: "shared,16M", kind: filesystem, mount: /srv/b, machine: web}
- {name: c, directive: "disk,16M", kind: filesystem, mount: /srv/c, machine: web}
`
	_, err := s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: wanted})
	s.must(err)
	for _, name := range []string{"a", "b", "c"} {
		s.await(name, attachedTo("web"))
	}
	drained, err := s.client.DrainMachine(t.Context(), user.MachineArgs{Machine: "web"})
	s.must(err)
	if want := map[string]string{"a": "db", "b": "db"}; !maps.Equal(drained.Machines, want) || !slices.Equal(drained.Stays, []string{"c"}) {
		t.Errorf("drained: %+v", drained)
	}
	s.await("a", attachedTo("db"))
	s.await("b", attachedTo("db"))
	s.await("c", attachedTo("web"))
	machines, err := s.client.Machines(t.Context())
	s.must(err)
	for _, m := range machines {
		if m.Drained != (m.Name == "web") {
			t.Errorf("machine %+v", m)
		}
	}

	anywhere := user.MoveArgs{Names: []string{"a"}, Machine: "any"}
	if _, err := s.client.Move(t.Context(), anywhere); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "no other machine is connected, is not drained") {
		t.Errorf("moving to any machine, and there is no other: %v", err)
	}
	if _, err := s.client.DrainMachine(t.Context(), user.MachineArgs{Machine: "db"}); !errors.Is(err, errors.NotValid) {
		t.Errorf("draining the last machine: %v", err)
	}
	s.must(s.client.UndrainMachine(t.Context(), user.MachineArgs{Machine: "web"}))
	anywhere.MachineLabels = "zone=b"
	if _, err := s.client.Move(t.Context(), anywhere); !errors.Is(err, errors.NotValid) {
		t.Errorf("moving to a machine with labels that none has: %v", err)
	}
	anywhere.MachineLabels = ""
	moved, err := s.client.Move(t.Context(), anywhere)
	s.must(err)
	if moved.Machines["a"] != "web" {
		t.Errorf("moved: %+v", moved)
	}
	s.await("a", attachedTo("web"))
}

// Storage is not attached to a machine where its mount point is taken, by whichever command.
func TestMountPointIsTakenOnMachine(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"web", "db"} {
		_, err := s.agent(name, name, s.token())
		s.must(err)
	}
	_, err := s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: `storage:
- {name: a, directive: "shared,16M", kind: filesystem, mount: /srv/a, machine: web}
- {name: b, directive: "shared,16M", kind: filesystem, mount: /srv/a/b, machine: db}
`})
	s.must(err)
	s.await("a", attachedTo("web"))
	s.await("b", attachedTo("db"))
	const conflict = `storage "a": machine db: "/srv/a" would hide "/srv/a/b", the mount point of b`
	_, err = s.client.Move(t.Context(), user.MoveArgs{Names: []string{"a"}, Machine: "db"})
	s.wantError("moving", err, errors.NotValid, conflict)
	s.must(s.client.Detach(t.Context(), []string{"a"}))
	s.await("a", func(s user.Storage) bool { return s.Status == status.Detached && len(s.Attachments) == 0 })
	s.wantError("attaching", s.attach(t.Context(), user.AttachArgs{Names: []string{"a"}, Machine: "db"}), errors.NotValid, conflict)
	s.must(s.attach(t.Context(), user.AttachArgs{Names: []string{"a"}, Machine: "web"}))
	s.await("a", attachedTo("web"))

	events, err := s.client.Events(t.Context(), user.EventsArgs{Names: []string{"a"}})
	s.must(err)
	for _, e := range events {
		if by := fmt.Sprintf("uid %d", os.Getuid()); strings.HasSuffix(e.Type, "-wanted") && e.By != by {
			t.Errorf("%s was asked for by %q, want %q", e.Type, e.By, by)
		}
	}
}
