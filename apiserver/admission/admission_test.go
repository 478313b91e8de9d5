package admission_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/admission"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/link"
	"github.com/stowage-io/stowage/testing/providerfake"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// world is a state, a server of its agents, and a link to it.
type world struct {
	*state.State
	t       testing.TB
	ca      *trust.CA
	clock   *testclock.Clock
	handler *admission.Handler
	http    *httptest.Server
	link    *link.Link

	mu       sync.Mutex
	messages []string
	// onMessage, if set, is called for each message.
	onMessage func(string)
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, clock: testclock.NewClock(time.Now())}
	var err error
	w.State, err = state.Open(state.Config{Store: kvtest.NewMemory(), Clock: w.clock, Registry: storage.StaticProviderRegistry{
		Providers: map[storage.ProviderType]storage.Provider{"disk": providerfake.New(providerfake.Options{Scope: storage.ScopeMachine})},
	}})
	w.must(err)
	t.Cleanup(func() { w.must(w.Close()) })
	w.must(w.SetEnvironConfig(map[string]any{"name": "here", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b"}))
	w.ca, err = trust.NewCA(w.clock.Now())
	w.must(err)
	stop := w.start()
	t.Cleanup(func() { stop() })
	w.link = link.New(t, w.http.Listener.Addr().String())
	return w
}

// start starts a server. The function that it returns stops it.
func (w *world) start() (stop func()) { return w.startAs("") }

// startAs starts one of several servers.
func (w *world) startAs(name string) (stop func()) {
	w.t.Helper()
	var err error
	w.handler, err = admission.New(admission.Config{State: w.State, CA: w.ca, Server: name, Clock: w.clock, Logger: w})
	w.must(err)
	own := w.credentials(trust.Identity{Role: role.Server, ID: "s1"})
	server := httptest.NewUnstartedServer(w.handler)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS, err = trust.ServerConfig(func() trust.Credentials { return own }, w.clock.Now)
	w.must(err)
	server.StartTLS()
	w.http = server
	handler := w.handler
	return sync.OnceFunc(func() {
		handler.Kill()
		server.CloseClientConnections()
		server.Close()
		w.must(handler.Wait())
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(errors.ErrorStack(err))
	}
}

// Infof and Warningf are the loggers of everything.
func (w *world) Infof(format string, args ...any)    { w.log(format, args...) }
func (w *world) Warningf(format string, args ...any) { w.log(format, args...) }

func (w *world) log(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	w.mu.Lock()
	w.messages = append(w.messages, message)
	w.mu.Unlock()
	if w.onMessage != nil {
		w.onMessage(message)
	}
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.messages, "\n")
}

// await waits until the condition holds.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not so after %v\n%s", what, patience, w.logged())
		}
		<-time.After(time.Millisecond)
	}
}

// credentials returns new credentials.
func (w *world) credentials(identity trust.Identity) trust.Credentials {
	w.t.Helper()
	key, encoded, err := trust.NewKey()
	w.must(err)
	certificate, err := w.ca.Issue(key.Public(), identity, w.clock.Now(), "127.0.0.1")
	w.must(err)
	return trust.Credentials{Certificate: certificate, Key: encoded, CA: w.ca.Certificate()}
}

// token returns a token for a machine.
func (w *world) token(machine string) trust.Token {
	w.t.Helper()
	_, secret, err := w.CreateToken(state.TokenParams{Role: role.Machine, Machine: machine, Lifetime: time.Hour, Uses: 1})
	w.must(err)
	return trust.Token{CAHash: w.ca.Hash(), Secret: secret}
}

// config returns the configuration of a client.
func (w *world) config() api.Config {
	return api.Config{URLs: []string{"https://" + w.link.Address()}, Clock: clock.WallClock, Logger: w, MinDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond}
}

// agent is an agent that is enrolled.
type agent struct {
	*world
	name        string
	machine     names.MachineTag
	key         crypto.Signer
	credentials trust.Credentials
	secrets     *secrets
	boot        string
	urls        []string // of the servers, unless it is the link
}

func (w *world) enrol(name string) *agent {
	w.t.Helper()
	key, encoded, err := trust.NewKey()
	w.must(err)
	certificate, ca, err := api.Enrol(w.t.Context(), w.config(), w.token(""), name, key.Public())
	w.must(err)
	machine, err := w.MachineNamed(name)
	w.must(err)
	return &agent{w, name, machine, key, trust.Credentials{Certificate: certificate, Key: encoded, CA: ca}, &secrets{}, "", nil}
}

// dial returns a client of the agent, which ends at the end of the test at the latest.
func (a *agent) dial() *api.Client {
	a.t.Helper()
	client, err := a.tryDial()
	a.must(err)
	return client
}

func (a *agent) tryDial() (*api.Client, error) {
	a.t.Helper()
	config := a.config()
	config.Secrets, config.BootID = a.secrets, a.boot
	if a.urls != nil {
		config.URLs = a.urls
	}
	var err error
	config.TLS, err = trust.ClientConfig(func() trust.Credentials { return a.credentials }, a.clock.Now)
	a.must(err)
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	client, err := api.Dial(ctx, config)
	if err == nil {
		a.t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

// publish makes a call that succeeds only in the current session.
func (a *agent) publish(client *api.Client, device string) error {
	return client.Accessors().SetMachineBlockDevices([]storage.BlockDevice{{DeviceName: device}})
}

func (a *agent) published() string {
	a.t.Helper()
	devices, err := a.MachineBlockDevices(a.machine)
	a.must(err)
	if len(devices) != 1 {
		return ""
	}
	return devices[0].DeviceName
}

// secrets keeps a secret in memory.
type secrets struct {
	mu     sync.Mutex
	secret string
	err    error
	// stored is called once, when a secret has been stored, with the one before.
	stored func(former string)
}

func (s *secrets) Load() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secret, nil
}

func (s *secrets) Store(secret string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.stored != nil {
		s.stored(s.secret)
		s.stored = nil
	}
	s.secret = secret
	return nil
}

func (s *secrets) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// An agent with a token is enrolled, and may then use the storage of its machine, and no other.
// Promise S24.
func TestAgentIsAdmitted(t *testing.T) {
	w := newWorld(t)
	web, db := w.enrol("web"), w.enrol("db")
	client := web.dial()
	w.must(web.publish(client, "sda"))
	if web.published() != "sda" || db.published() != "" {
		t.Errorf("published for web: %q, for db: %q", web.published(), db.published())
	}
	result, err := client.Accessors().InstanceIds([]names.MachineTag{web.machine, db.machine})
	w.must(err)
	if result[0].Error != nil || result[0].Result == "" || params.ErrCode(result[1].Error) != params.CodeUnauthorized {
		t.Errorf("instances %+v", result)
	}
	if err := client.Accessors().SetStatus([]params.EntityStatusArgs{{Tag: "volume-0", Status: "error"}}); !errors.Is(err, errors.Unauthorized) {
		t.Errorf("the status of a volume of the environment: %v", err)
	}
}

// An agent sees, begins and answers the tasks of its machine, and of no other.
// Promise S24.
func TestAgentHasOnlyItsTasks(t *testing.T) {
	w := newWorld(t)
	web, db := w.enrol("web"), w.enrol("db")
	client, other := web.dial().Tasks(), db.dial().Tasks()
	for _, a := range []*agent{web, db} {
		w.await("a connection", func() bool { return w.CheckReachable(a.machine) == nil })
	}
	changes, err := client.WatchTasks()
	w.must(err)
	defer func() { w.must(worker.Stop(changes)) }()
	<-changes.Changes()
	id, err := w.CreateTask(web.machine, task.Request{Scan: &task.Scan{}}, time.Minute)
	w.must(err)
	<-changes.Changes()
	if open, err := other.Tasks(); err != nil || len(open) != 0 {
		t.Errorf("the other machine has the tasks %+v, %v", open, err)
	}
	result := task.Result{Scan: &task.Scanned{Objects: []task.Object{{SizeMiB: 1}}}}
	refuse := func(when string) {
		t.Helper()
		for _, err := range []error{other.BeginTask(id, "run"), other.AnswerTask(id, result, nil)} {
			if !errors.Is(err, errors.NotFound) {
				t.Errorf("another machine's task, %s: %v", when, err)
			}
		}
	}
	refuse("before it was begun")
	open, err := client.Tasks()
	w.must(err)
	if len(open) != 1 || open[0].ID != id {
		t.Errorf("the machine has the tasks %+v", open)
	}
	w.must(client.BeginTask(id, "run"))
	refuse("while it is carried out")
	w.must(client.AnswerTask(id, result, nil))
	if now, err := w.Task(web.machine, id); err != nil || !now.Ended || len(now.Result.Scan.Objects) != 1 {
		t.Errorf("the task is %+v, %v", now, err)
	}
}

// Who is not enrolled, and with what is not a token, learns nothing and changes nothing.
// Promise S22.
func TestEnrolmentIsRefused(t *testing.T) {
	w := newWorld(t)
	w.enrol("web")
	used := w.token("")
	key, _, err := trust.NewKey()
	w.must(err)
	_, _, err = api.Enrol(t.Context(), w.config(), used, "first", key.Public())
	w.must(err)
	other, err := trust.NewCA(w.clock.Now())
	w.must(err)
	foreign := w.token("")
	foreign.CAHash = other.Hash()
	for what, test := range map[string]struct {
		token   trust.Token
		name    string
		refused bool
		want    string
	}{
		"a token that was used":        {used, "second", true, "the token is not valid for role machine"},
		"a token for another machine":  {w.token("db"), "second", true, `the token is for machine "db"`},
		"a token of another authority": {foreign, "second", true, "not one of those that the token is for"},
		"an existing name":             {w.token(""), "web", false, "there is a machine with this name"},
		"a name that is not valid":     {w.token(""), "two words", false, `machine name "two words"`},
	} {
		other, _, err := trust.NewKey()
		w.must(err)
		_, _, err = api.Enrol(t.Context(), w.config(), test.token, test.name, other.Public())
		if err == nil || errors.Is(err, api.ErrRefused) != test.refused || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", what, err, test.want)
		}
	}
	all, err := w.Machines()
	w.must(err)
	if len(all) != 2 {
		t.Errorf("there are machines %+v", all)
	}
	// A token that is refused for a name can be used for another.
	_, _, err = api.Enrol(t.Context(), w.config(), w.token("web"), "web", key.Public())
	w.must(err)
}

// An agent whose answer is lost enrols again with its key.
func TestEnrolmentIsRepeated(t *testing.T) {
	w := newWorld(t)
	token := w.token("")
	key, _, err := trust.NewKey()
	w.must(err)
	for range 2 {
		_, _, err = api.Enrol(t.Context(), w.config(), token, "web", key.Public())
		w.must(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	w.link.Stall()
	if _, _, err = api.Enrol(ctx, w.config(), token, "web", key.Public()); err == nil {
		t.Error("enrolled without a connection")
	}
	w.link.Resume()
}

// An agent whose enrolment has succeeded, and whose answer is lost, tries again, and is the same
// machine.
func TestEnrolmentAnswerIsLost(t *testing.T) {
	w := newWorld(t)
	token := w.token("")
	key, _, err := trust.NewKey()
	w.must(err)
	cuts := 0
	w.onMessage = func(message string) {
		if strings.Contains(message, "is enrolled as machine") && cuts == 0 {
			cuts++
			w.link.Cut() // the answer is written after the message
		}
	}
	_, _, err = api.Enrol(t.Context(), w.config(), token, "web", key.Public())
	w.must(err)
	if cuts != 1 || !strings.Contains(w.logged(), "trying again") {
		t.Errorf("the answer was not lost:\n%s", w.logged())
	}
	if all, err := w.Machines(); err != nil || len(all) != 1 {
		t.Errorf("machines %+v, %v", all, err)
	}
}

// A connection that is lost costs nothing: the agent goes on in a new session.
// Fault F33.
func TestAgentReconnects(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	client := web.dial()
	for i := range 5 {
		before, err := w.CurrentSession(web.machine)
		w.must(err)
		w.link.Cut()
		w.must(web.publish(client, fmt.Sprintf("sd%d", i)))
		w.await("a newer session", func() bool {
			now, err := w.CurrentSession(web.machine)
			return err == nil && now.Number > before.Number
		})
		w.must(web.publish(client, fmt.Sprintf("vd%d", i)))
		if got := web.published(); got != fmt.Sprintf("vd%d", i) {
			t.Errorf("published %q", got)
		}
	}
}

// An agent that has started has looked at nothing yet; one that has only lost its connection has.
func TestStatusesAfterStart(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	w.must(w.AddStorage(state.StorageParams{Name: "a", Kind: storage.StorageKindBlock, Pool: "disk", Size: 1, Machine: web.machine}))
	check := func(what string, want status.Status) {
		t.Helper()
		found, err := w.Storage("a")
		w.must(err)
		if found[0].Status != want {
			t.Errorf("%s: the storage is %s %q, want %s", what, found[0].Status, found[0].Message, want)
		}
		w.must(w.ForMachine(web.machine).SetStatus([]params.EntityStatusArgs{{Tag: found[0].Volume.Tag.String(), Status: string(status.Attached)}}))
	}
	check("added", status.Pending)
	client := web.dial()
	check("after a start", status.Attaching)
	w.link.Cut()
	w.must(web.publish(client, "sda"))
	w.await("a newer session", func() bool {
		now, err := w.CurrentSession(web.machine)
		return err == nil && now.Number > 1
	})
	w.must(web.publish(client, "sdb"))
	check("after a lost connection", status.Attached)
	w.must(client.Close())
	web.dial()
	check("after another start", status.Attaching)
}

// Of two agents with copies of one directory, one goes on, and the other one is refused: what it
// does has no effect any more.
// Promise S25.
// Fault F37.
func TestCopiedDirectory(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	first := web.dial()
	clone := *web
	secret, err := web.secrets.Load()
	w.must(err)
	clone.secrets = &secrets{secret: secret}
	// The one that was connected may return before the other one has confirmed its session.
	second, err := clone.tryDial()
	stays, refused := second, first
	if err == nil {
		err = first.Wait()
	} else {
		stays, refused = first, nil
	}
	if !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), "another agent uses a copy of its directory") {
		t.Errorf("the agent that is refused: %v", err)
	}
	w.must(web.publish(stays, "sdb"))
	if refused != nil {
		if err := web.publish(refused, "sda"); err == nil || web.published() != "sdb" {
			t.Errorf("a call of the agent that is refused: %v, published %q", err, web.published())
		}
	}
	if now, err := w.CurrentSession(web.machine); err != nil || now.Refused.IsZero() {
		t.Errorf("the state knows no refusal: %+v, %v", now, err)
	}
	if !strings.Contains(w.logged(), "refused an agent at") {
		t.Errorf("the operator is told nothing:\n%s", w.logged())
	}
}

// A request for a session that the agent has given up, since its answer did not come in time, opens
// one when the agent has the secret of a newer one. The agent is not refused.
// Finding N42.
func TestSessionThatIsOpenedLate(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	late := func(stored string) {
		secret, opener, _ := strings.Cut(stored, ",")
		_, err := w.OpenSession(web.machine, []string{secret, opener}, "")
		if err != nil {
			t.Errorf("the late request: %v", err)
		}
	}
	web.secrets.stored = late
	client := web.dial()
	w.must(web.publish(client, "sda"))
	web.secrets.mu.Lock()
	web.secrets.stored = late
	web.secrets.mu.Unlock()
	w.link.Cut()
	w.await("the agent opens a session once more", func() bool {
		now, err := w.CurrentSession(web.machine)
		return err == nil && now.Number == 6
	})
	w.must(web.publish(client, "sdb"))
	if now, err := w.CurrentSession(web.machine); err != nil || !now.Refused.IsZero() {
		t.Errorf("an agent was refused: %+v, %v", now, err)
	}
}

// A secret that cannot be stored ends no session of the agent: it tries until it can.
func TestSecretThatCannotBeStored(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	client := web.dial()
	web.secrets.fail(errors.New("no space left on device"))
	w.link.Cut()
	w.await("the reason is logged", func() bool { return strings.Contains(w.logged(), "no space left on device") })
	web.secrets.fail(nil)
	w.must(web.publish(client, "sda"))
}

// An agent whose machine was removed, or whose place another one has taken, is refused.
// Promise S21.
func TestAgentThatIsNoLongerAdmitted(t *testing.T) {
	for what, end := range map[string]func(*agent){
		"the machine was removed": func(a *agent) { a.must(a.RemoveMachine(a.machine)) },
		"its agent was replaced": func(a *agent) {
			key, _, err := trust.NewKey()
			a.must(err)
			_, _, err = api.Enrol(a.t.Context(), a.config(), a.token(a.name), a.name, key.Public())
			a.must(err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			web := w.enrol("web")
			client := web.dial()
			end(web)
			if err := client.Wait(); !errors.Is(err, api.ErrRefused) || !strings.Contains(err.Error(), what) {
				t.Errorf("its client ended with %v", err)
			}
		})
	}
}

// An agent whose machine was fenced is told so, until the machine has been restarted.
// Fault F36.
func TestFencedAgent(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	web.boot = "boot-1"
	client := web.dial()
	w.await("connected", func() bool { return w.handler.IsConnected(web.machine) })
	w.handler.ExpectAbsent(web.machine)
	if err := w.FenceMachine(web.machine); !errors.Is(err, errors.NotValid) {
		t.Errorf("fencing a machine that is connected: %v", err)
	}
	w.must(client.Close())
	w.await("the machine can be fenced", func() bool {
		w.handler.ExpectAbsent(web.machine)
		return w.FenceMachine(web.machine) == nil
	})
	if _, err := web.tryDial(); !errors.Is(err, api.ErrFenced) || !errors.Is(err, api.ErrRefused) {
		t.Errorf("an agent of a machine that was fenced: %v", err)
	}
	web.boot = "boot-2"
	w.must(web.publish(web.dial(), "sda"))
}

func TestCertificateIsRenewed(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	client := web.dial()
	w.clock.Advance(trust.Lifetime * 2 / 3)
	renewed, err := client.Renew(t.Context(), web.key.Public())
	w.must(err)
	web.credentials.Certificate = renewed
	leaf, err := web.credentials.Leaf()
	w.must(err)
	if want := w.clock.Now().Add(trust.Lifetime); leaf.NotAfter.Sub(want).Abs() > time.Minute {
		t.Errorf("valid until %v, want %v", leaf.NotAfter, want)
	}
	identity, err := trust.IdentityOf(leaf)
	if want := (trust.Identity{Role: role.Machine, ID: web.machine.Id(), Enrolment: 1}); err != nil || identity != want {
		t.Errorf("renewed for %+v, %v; want %+v", identity, err, want)
	}
}

// The state knows which agents are connected: an absence counts after 40 seconds, and after a
// restart of the server, too.
// Fault F34.
func TestPresence(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	connected := func() bool {
		p, err := w.Presence(web.machine)
		w.must(err)
		return p.Connected
	}
	lastSeen := func() time.Time {
		all, err := w.Machines()
		w.must(err)
		return w.handler.LastSeen(all[0])
	}
	if connected() || !lastSeen().IsZero() {
		t.Error("an agent that never had a connection counts")
	}
	client := web.dial()
	w.await("connected", connected)
	w.clock.Advance(time.Hour)
	if !lastSeen().Equal(w.clock.Now()) {
		t.Errorf("last seen at %v, and it is %v", lastSeen(), w.clock.Now())
	}
	w.must(client.Close())
	w.must(w.clock.WaitAdvance(39*time.Second, patience, 1))
	lost := w.clock.Now().Add(-39 * time.Second)
	if !connected() || !lastSeen().Equal(lost) {
		t.Errorf("after a short absence: connected %t, last seen at %v, want %v", connected(), lastSeen(), lost)
	}
	client = web.dial()
	w.await("seen again", func() bool { return lastSeen().Equal(w.clock.Now()) })
	w.must(client.Close())
	w.must(w.clock.WaitAdvance(40*time.Second, patience, 1))
	w.await("no longer connected", func() bool { return !connected() })
	if want := w.clock.Now().Add(-40 * time.Second); !lastSeen().Equal(want) {
		t.Errorf("last seen at %v, want %v", lastSeen(), want)
	}

	web.dial()
	w.await("connected again", connected)
	w.http.CloseClientConnections()
	w.handler.Kill()
	w.http.Close()
	w.must(w.handler.Wait())
	defer w.start()()
	if !connected() {
		t.Error("a restart of the server counts as an absence")
	}
	w.must(w.clock.WaitAdvance(40*time.Second, patience, 1))
	w.await("no longer connected", func() bool { return !connected() })
}

// A machine that fails just after its agent has opened a session, and before anything else, counts
// as absent, and can be fenced.
// Fault F34.
func TestAgentThatFailsWhileItReconnects(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	client := web.dial()
	connected := func() bool {
		p, err := w.Presence(web.machine)
		w.must(err)
		return p.Connected
	}
	w.await("connected", connected)
	web.secrets.fail(errors.New("the disk is gone"))
	w.link.Cut()
	w.await("a newer session", func() bool {
		now, err := w.CurrentSession(web.machine)
		return err == nil && now.Number > 1
	})
	w.must(client.Close())
	w.await("no longer connected", func() bool {
		w.clock.Advance(time.Minute)
		return !connected()
	})
	w.must(w.FenceMachine(web.machine))
}

// renewal returns the body of a request for a certificate.
func renewal(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(agentwire.CertificateRequest{Key: der})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// What is not an agent's request is refused, with a reason.
// Promise S21.
func TestRequests(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	client := func(c trust.Credentials, with bool) *http.Client {
		config := &tls.Config{InsecureSkipVerify: true} // only the server's side is of interest
		if with {
			own, err := trust.ClientConfig(func() trust.Credentials { return c }, w.clock.Now)
			w.must(err)
			config = own
		}
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	}
	admin := client(w.credentials(trust.Identity{Role: role.Admin, ID: "u1", Enrolment: 1}), true)
	machine := client(web.credentials, true)
	gone := client(w.credentials(trust.Identity{Role: role.Machine, ID: "77", Enrolment: 1}), true)
	nobody := client(trust.Credentials{}, false)
	for _, c := range []*http.Client{admin, machine, gone, nobody} {
		defer c.CloseIdleConnections()
	}
	for _, test := range []struct {
		what, path, body, session string
		client                    *http.Client
		status                    int
		want                      string
	}{
		{"a call without a certificate", agentwire.Prefix + "EnvironConfig", `{"args": []}`, "1", nobody, 401, "a certificate is needed"},
		{"a stream without a certificate", agentwire.Prefix + "Stream", ``, "1", nobody, 401, "a certificate is needed"},
		{"a session without a certificate", agentwire.OpenSessionPath, `{}`, "", nobody, 401, "a certificate is needed"},
		{"a renewal without a certificate", agentwire.CertificatePath, string(renewal(t, web.key)), "", nobody, 401, "a certificate is needed"},
		{"a call of an administrator", agentwire.Prefix + "EnvironConfig", `{"args": []}`, "1", admin, 401, "admin u1, not of a machine"},
		{"a machine that is gone", agentwire.OpenSessionPath, `{}`, "", gone, 401, "the machine was removed"},
		{"a call without a session", agentwire.Prefix + "EnvironConfig", `{"args": []}`, "", machine, 503, ""},
		{"a call in session 0", agentwire.Prefix + "EnvironConfig", `{"args": []}`, "0", machine, 503, ""},
		{"a call in a session that does not exist", agentwire.Prefix + "Volumes", `{"args": ["volume-0"]}`, "99", machine, 503, "the session has ended"},
		{"confirming another session", agentwire.ConfirmSessionPath, `{"number": 99}`, "", machine, 503, "the session has ended"},
		{"what is not JSON", agentwire.OpenSessionPath, `{`, "", machine, 400, "reading the request"},
		{"a huge request", agentwire.EnrolPath, `{"name": "` + strings.Repeat("a", 1<<20) + `"}`, "", nobody, 503, "too large"},
		{"no key", agentwire.EnrolPath, `{"token": "a.b", "name": "db"}`, "", nobody, 400, "the key is not an ECDSA key"},
		{"an unknown path", "/v1/agents", `{}`, "", machine, 404, ""},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.link.Address()+test.path, strings.NewReader(test.body))
		w.must(err)
		if test.session != "" {
			request.Header.Set(agentwire.SessionHeader, test.session)
		}
		response, err := test.client.Do(request)
		w.must(err)
		body, err := io.ReadAll(response.Body)
		w.must(err)
		w.must(response.Body.Close())
		if response.StatusCode != test.status || !bytes.Contains(body, []byte(test.want)) {
			t.Errorf("%s: %d %s; want %d %q", test.what, response.StatusCode, body, test.status, test.want)
		}
	}
}

// A server with a token gets the authority of the others, once.
// Promise S27.
func TestServerJoins(t *testing.T) {
	w := newWorld(t)
	_, secret, err := w.CreateToken(state.TokenParams{Role: role.Server, Lifetime: time.Hour, Uses: 1})
	w.must(err)
	token := trust.Token{CAHash: w.ca.Hash(), Secret: secret}
	join := func(token trust.Token) (api.Joined, error) {
		return api.Join(t.Context(), w.config(), api.JoinArgs{Token: token})
	}
	if _, err := join(w.token("")); !errors.Is(err, api.ErrRefused) {
		t.Errorf("joining with the token of a machine: %v", err)
	}
	joined, err := join(token)
	w.must(err)
	if joined.CA.Hash() != w.ca.Hash() {
		t.Error("got another authority")
	}
	if _, err := join(token); !errors.Is(err, api.ErrRefused) {
		t.Errorf("joining with a token that was used: %v", err)
	}
}

// While a server is suspended, it has no agents: they use another server. The agents of a server that
// has failed have some time to do so.
// Fault F38.
func TestAgentUsesAnotherServer(t *testing.T) {
	w := newWorld(t)
	stopFirst := w.startAs("first")
	first, url := w.handler, w.http.URL
	defer w.startAs("second")()
	second := w.handler
	web, db := w.enrol("web"), w.enrol("db")
	web.urls, db.urls = []string{url, w.http.URL}, []string{url, w.http.URL}
	at := func(a *agent) string {
		p, err := w.Presence(a.machine)
		w.must(err)
		return fmt.Sprintf("%s %t", p.Server, p.Connected)
	}
	both := func(want string) func() bool {
		return func() bool { return at(web) == want && at(db) == want }
	}
	client, lost := web.dial(), db.dial()
	w.await("both are connected to the first server", both("first true"))
	first.Suspend()
	w.await("both are connected to the second server", both("second true"))
	w.must(web.publish(client, "sda"))
	second.Suspend()
	first.Resume()
	w.await("both are connected to the first server again", both("first true"))
	w.must(web.publish(client, "sdb"))
	if got := web.published(); got != "sdb" || client.Server() != url {
		t.Errorf("published %q with the server %s", got, client.Server())
	}

	// The first server fails, and with it one of the machines.
	second.Resume()
	w.must(lost.Close())
	stopFirst()
	w.await("the machine uses the second server", func() bool { return at(web) == "second true" })
	w.must(second.InheritAgents("first"))
	w.clock.Advance(39 * time.Second)
	w.must(second.InheritAgents("first")) // the time goes on
	w.clock.Advance(time.Second)
	w.await("the machine that has failed is absent", func() bool { return at(db) == "first false" })
	if got := at(web); got != "second true" {
		t.Errorf("the machine that has not failed: %s", got)
	}
}

// A request for a session whose agent gives up before its turn comes opens none.
func TestSessionOfAgentThatGivesUp(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	open := func(ctx context.Context) int {
		r := w.requestOf(web.credentials).WithContext(ctx)
		r.Method, r.URL.Path = http.MethodPost, agentwire.OpenSessionPath
		r.Body = io.NopCloser(strings.NewReader(`{"boot-id": "boot"}`))
		answer := httptest.NewRecorder()
		w.handler.ServeHTTP(answer, r)
		return answer.Code
	}
	wantSession := func(number uint64) {
		t.Helper()
		if now, err := w.CurrentSession(web.machine); err != nil || now.Number != number {
			t.Errorf("session %d, %v; want %d", now.Number, err, number)
		}
	}
	empty := w.handler.FillOpening()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := open(ctx); code == http.StatusOK {
		t.Errorf("a request that was given up: status %d", code)
	}
	wantSession(0)
	empty()
	if code := open(t.Context()); code != http.StatusOK {
		t.Errorf("a request whose turn comes: status %d", code)
	}
	wantSession(1)
	w.handler.Suspend()
	if code := open(t.Context()); code != http.StatusServiceUnavailable {
		t.Errorf("a server without the others: status %d", code)
	}
	wantSession(1)
}

// A client of a state that was restored ends, so that its agent reads and publishes everything again.
func TestAgentOfRestoredState(t *testing.T) {
	w := newWorld(t)
	web := w.enrol("web")
	client := web.dial()
	w.must(web.publish(client, "sda"))
	w.link.Cut()
	// A stream that is opened with the session of before is not compared with what was restored.
	w.await("the client is connected again", func() bool {
		now, err := w.CurrentSession(web.machine)
		return err == nil && now.Number == 2 && client.IsConnected()
	})
	w.must(web.publish(client, "sdb")) // nothing was restored
	w.must(w.RaiseGeneration())
	w.link.Cut()
	<-client.Dead()
	if err := client.Wait(); !errors.Is(err, api.ErrRestored) || errors.Is(err, api.ErrRefused) {
		t.Errorf("the client ends with %v", err)
	}
	w.must(web.publish(web.dial(), "sdc"))
}
