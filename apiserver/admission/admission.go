package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/apiserver/agentapi"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Logger receives messages for the operator.
type Logger interface {
	Infof(format string, args ...any)
	Warningf(format string, args ...any)
}

// Config configures a [Handler].
type Config struct {
	// State has the machines, their tokens and sessions, and their storage. Required.
	State *state.State
	// CA signs the agents' certificates. A server that joins gets its key. Required.
	CA *trust.CA
	// Server is the name of this server among those that share the state. Empty if there is no
	// other one.
	Server string
	// Clock is the time of certificates, and measures the absence of agents. Required.
	Clock clock.Clock
	// Logger is required.
	Logger Logger
	// KeepAlive is the time between two messages on an idle stream. Zero means 5 seconds.
	KeepAlive time.Duration
	// Absence is how long an agent may have no stream before its machine counts as not
	// connected. Zero means 40 seconds.
	Absence time.Duration
	// Asked returns the storage that other programs ask for, for the agent in a session. Nil: agents do
	// not use such storage.
	Asked func(state.Session) agentapi.AskedAccessor
	// AddMember makes room for a new server that is to keep the state together with this one. Nil: the
	// servers do not do that.
	AddMember func(ctx context.Context, name, address string) (agentwire.JoinedCluster, error)
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch {
	case c.State == nil:
		return errors.NotValidf("nil State")
	case c.CA == nil:
		return errors.NotValidf("nil CA")
	case c.Clock == nil:
		return errors.NotValidf("nil Clock")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	case c.KeepAlive < 0:
		return errors.NotValidf("negative KeepAlive")
	case c.Absence < 0:
		return errors.NotValidf("negative Absence")
	}
	return nil
}

const (
	// maxRequest bounds the body of a request that is not a call, in bytes.
	maxRequest = 16 << 10
	// requestTimeout bounds the time for receiving it.
	requestTimeout = 30 * time.Second
	// maxOpening is how many sessions are opened at a time.
	maxOpening     = 64
	defaultAbsence = 40 * time.Second
)

var (
	errStopping  = errors.NotYetAvailablef("the server is stopping")
	errSuspended = errors.NotYetAvailablef("the server has no connection to the others")
)

// Handler serves agents. It is a worker: when Kill is called, streams end and new requests are
// answered with "try again"; when Wait returns, it makes no more calls of the state. Kill it
// before http.Server.Shutdown, which waits for streams.
type Handler struct {
	config   Config
	api      *agentapi.Handler
	presence *presence
	routes   http.ServeMux
	// opening has an element for each session that is being opened.
	opening chan struct{}

	mu sync.Mutex // guards what follows
	// serving ends when the server is suspended; suspend ends it.
	serving context.Context
	suspend context.CancelFunc
}

// New returns a handler. Its errors satisfy errors.IsNotValid, or are those of the state.
func New(config Config) (*Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Absence == 0 {
		config.Absence = defaultAbsence
	}
	presence, err := newPresence(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	h := &Handler{config: config, presence: presence, opening: make(chan struct{}, maxOpening)}
	h.Resume()
	h.api, err = agentapi.New(agentapi.Config{
		Authenticate: h.accessors,
		IsAgain:      func(err error) bool { return errors.Is(err, state.ErrSessionEnded) },
		Logger:       config.Logger,
		KeepAlive:    config.KeepAlive,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	h.routes.Handle("POST "+agentwire.EnrolPath, answer(h, h.enrol))
	h.routes.Handle("POST "+agentwire.LoginPath, answer(h, h.logIn))
	h.routes.Handle("POST "+agentwire.JoinPath, answer(h, h.join))
	h.routes.Handle("POST "+agentwire.CertificatePath, answer(h, h.renew))
	h.routes.Handle("POST "+agentwire.OpenSessionPath, answer(h, h.openSession))
	h.routes.Handle("POST "+agentwire.ConfirmSessionPath, answer(h, h.confirmSession))
	h.routes.Handle(agentwire.Prefix, h.api)
	h.routes.HandleFunc(agentwire.Prefix+agentwire.StreamMethod, h.stream)
	return h, nil
}

// Paths returns the patterns, as http.ServeMux has them, of the requests that the handler serves.
func Paths() []string {
	return []string{
		agentwire.EnrolPath, agentwire.LoginPath, agentwire.JoinPath, agentwire.CertificatePath,
		agentwire.OpenSessionPath, agentwire.ConfirmSessionPath, agentwire.Prefix,
	}
}

// Suspend ends all streams, and lets no stream begin until Resume is called: the server is no longer
// sure that the other servers count its agents as connected.
func (h *Handler) Suspend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.suspend()
}

// Resume ends the effect of Suspend.
func (h *Handler) Resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving, h.suspend = context.WithCancel(context.Background())
}

// Ready returns an error while no stream can begin.
func (h *Handler) Ready() error {
	if h.servingContext().Err() != nil {
		return errSuspended
	}
	return nil
}

func (h *Handler) servingContext() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.serving
}

// Kill implements worker.Worker.
func (h *Handler) Kill() { h.api.Kill() }

// Wait implements worker.Worker. It returns nil.
func (h *Handler) Wait() error {
	err := h.api.Wait()
	h.presence.close()
	return err
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.routes.ServeHTTP(w, r) }

// enrolment returns the enrolment of the agent whose certificate came with a request. The error
// satisfies errors.IsUnauthorized unless it is admitted.
func (h *Handler) enrolment(r *http.Request) (state.Enrolment, error) {
	identity, err := identityOf(r)
	switch {
	case err != nil:
		return state.Enrolment{}, errors.Trace(err)
	case identity.Role != role.Machine || !names.IsValidMachine(identity.ID):
		return state.Enrolment{}, errors.NewUnauthorized(nil, fmt.Sprintf("the certificate is that of %s, not of a machine", identity))
	}
	e := state.Enrolment{Machine: names.NewMachineTag(identity.ID), Number: identity.Enrolment}
	return e, errors.Trace(h.config.State.CheckEnrolment(e))
}

// session returns the session that a request names.
func (h *Handler) session(r *http.Request) (state.Session, error) {
	e, err := h.enrolment(r)
	if err != nil {
		return state.Session{}, errors.Trace(err)
	}
	number, err := strconv.ParseUint(r.Header.Get(agentwire.SessionHeader), 10, 64)
	if err != nil || number == 0 {
		return state.Session{}, errors.NotYetAvailablef("the request has no session")
	}
	return state.Session{Machine: e.Machine, Number: number}, nil
}

// accessors returns what the sender of a request may use.
func (h *Handler) accessors(r *http.Request) (storageprovisioner.Accessors, error) {
	s, err := h.session(r)
	if err != nil {
		return nil, errors.Trace(err)
	}
	st := h.config.State
	a := agent{st.ForSession(s), st.TasksForSession(s), st.SpaceForSession(s), st.DriversForSession(s)}
	if h.config.Asked == nil {
		return a, nil
	}
	return askingAgent{a, h.config.Asked(s)}, nil
}

// agent is what an agent may use.
type agent struct {
	*state.Accessor
	*state.MachineTasks
	*state.MachineSpace
	*state.MachineDrivers
}

// askingAgent is what an agent may use that uses storage which other programs ask for.
type askingAgent struct {
	agent
	agentapi.AskedAccessor
}

// stream serves a stream until its session ends.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	end, ok := h.api.Begin()
	if !ok {
		writeError(w, errStopping)
		return
	}
	defer end()
	serving := h.servingContext()
	if serving.Err() != nil {
		writeError(w, errSuspended)
		return
	}
	s, err := h.session(r)
	if err != nil {
		writeError(w, err)
		return
	}
	changes, err := h.config.State.WatchSession(s.Machine)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer context.AfterFunc(serving, cancel)()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		for {
			select {
			case _, ok := <-changes.Changes():
				if !ok || !h.isCurrent(s) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { _ = worker.Stop(changes) }() // its end is noticed above
	defer func() { <-watched }()
	defer cancel()
	defer h.presence.begin(s)()
	h.api.ServeHTTP(w, r.WithContext(ctx))
}

func (h *Handler) isCurrent(s state.Session) bool {
	now, err := h.config.State.CurrentSession(s.Machine)
	return err == nil && now.Number == s.Number
}

func (h *Handler) enrol(_ *http.Request, args agentwire.EnrolRequest) (agentwire.CertificateResult, error) {
	key, err := parseKey(args.Key)
	if err != nil {
		return agentwire.CertificateResult{}, errors.Trace(err)
	}
	enrolled, err := h.config.State.Enrol(args.Token, args.Name, args.Key)
	if err != nil {
		h.config.Logger.Warningf("%v", err)
		return agentwire.CertificateResult{}, errors.Trace(err)
	}
	h.config.Logger.Infof("machine %s is enrolled as machine %s", args.Name, enrolled.Machine.Id())
	return h.issue(machineIdentity(enrolled), key)
}

// join gives the authority to a server that has a token: the sender knows by the token that this is
// one of its servers, and has sent the token's secret.
func (h *Handler) join(r *http.Request, args agentwire.JoinRequest) (agentwire.JoinResult, error) {
	refuse := func(err error) (agentwire.JoinResult, error) {
		h.config.Logger.Warningf("a server at %s: %v", r.RemoteAddr, err)
		return agentwire.JoinResult{}, errors.Trace(err)
	}
	isMember := args.Address != ""
	switch {
	case isMember && h.config.AddMember == nil:
		return refuse(errors.NewForbidden(nil, "the servers that it names do not keep the state together: they began without --cluster-init"))
	case !isMember && h.config.AddMember != nil:
		return refuse(errors.NewForbidden(nil, "the servers that it names keep the state together: it has to be started without --etcd-endpoints"))
	}
	if err := h.config.State.UseToken(args.Token, role.Server); err != nil {
		return refuse(err)
	}
	key, err := h.config.CA.Key()
	if err != nil {
		return refuse(err)
	}
	result := agentwire.JoinResult{Key: string(key)}
	if isMember {
		cluster, err := h.config.AddMember(r.Context(), args.Name, args.Address)
		if err != nil {
			return refuse(errors.Annotate(err, "its token is used up, and it has not joined"))
		}
		result.Cluster = &cluster
	}
	h.config.Logger.Infof("a server at %s has joined", r.RemoteAddr)
	return result, nil
}

func (h *Handler) renew(r *http.Request, args agentwire.CertificateRequest) (agentwire.CertificateResult, error) {
	key, err := parseKey(args.Key)
	if err != nil {
		return agentwire.CertificateResult{}, errors.Trace(err)
	}
	identity, err := h.admitted(r)
	if err != nil {
		return agentwire.CertificateResult{}, errors.Trace(err)
	}
	return h.issue(identity, key)
}

func (h *Handler) issue(identity trust.Identity, key *ecdsa.PublicKey) (agentwire.CertificateResult, error) {
	certificate, err := h.config.CA.Issue(key, identity, h.config.Clock.Now())
	return agentwire.CertificateResult{Certificate: string(certificate)}, errors.Trace(err)
}

// parseKey accepts the keys that this project makes.
func parseKey(der []byte) (*ecdsa.PublicKey, error) {
	parsed, err := x509.ParsePKIXPublicKey(der)
	key, ok := parsed.(*ecdsa.PublicKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, errors.NewNotValid(err, "the key is not an ECDSA key on P-256")
	}
	return key, nil
}

// openSession opens a session, if its turn comes before the agent gives the request up. When a server
// starts, all agents make this request at once, and the last ones would wait for longer than an agent does:
// what they no longer wait for takes no time from the others.
func (h *Handler) openSession(r *http.Request, args agentwire.OpenSessionRequest) (agentwire.OpenSessionResult, error) {
	e, err := h.enrolment(r)
	if err != nil {
		return agentwire.OpenSessionResult{}, errors.Trace(err)
	}
	serving := h.servingContext()
	if serving.Err() != nil {
		return agentwire.OpenSessionResult{}, errSuspended // no stream could begin
	}
	select {
	case h.opening <- struct{}{}:
		defer func() { <-h.opening }()
	case <-serving.Done():
		return agentwire.OpenSessionResult{}, errSuspended
	case <-r.Context().Done():
		return agentwire.OpenSessionResult{}, errors.Trace(context.Cause(r.Context()))
	}
	secrets := []string{args.Secret}
	if args.Opener != nil {
		secrets = append(secrets, *args.Opener)
	}
	s, err := h.config.State.OpenSession(e.Machine, secrets, args.BootID)
	if errors.Is(err, errors.Unauthorized) || errors.Is(err, errors.Forbidden) {
		h.config.Logger.Warningf("refused an agent at %s: %v", r.RemoteAddr, err)
	}
	if err == nil {
		h.presence.open(s)
	}
	if err == nil && args.Started {
		err = h.config.State.RecheckMachine(e.Machine, "the agent has started again")
	}
	return agentwire.OpenSessionResult{
		Number: s.Number, Secret: s.Secret, Reopened: s.Opener != args.Secret, Generation: h.config.State.Generation(),
	}, errors.Trace(err)
}

func (h *Handler) confirmSession(r *http.Request, args agentwire.ConfirmSessionRequest) (struct{}, error) {
	e, err := h.enrolment(r)
	if err != nil {
		return struct{}{}, errors.Trace(err)
	}
	return struct{}{}, errors.Trace(h.config.State.ConfirmSession(state.Session{Machine: e.Machine, Number: args.Number}))
}

// answer returns the handler of a request that is not a call.
func answer[A, R any](h *Handler, do func(*http.Request, A) (R, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end, ok := h.api.Begin()
		if !ok {
			writeError(w, errStopping)
			return
		}
		defer end()
		controller := http.NewResponseController(w)
		_ = controller.SetReadDeadline(time.Now().Add(requestTimeout)) // a connection that has ended fails below
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			writeError(w, errors.NewNotYetAvailable(err, "reading the request"))
			return
		}
		_ = controller.SetReadDeadline(time.Time{})
		var args A
		if err := json.Unmarshal(body, &args); err != nil {
			writeError(w, errors.NewNotValid(err, "reading the request"))
			return
		}
		result, err := do(r, args)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, agentwire.Answer[R]{Result: result})
	})
}

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, errors.Unauthorized):
		status = http.StatusUnauthorized
	case errors.Is(err, errors.Forbidden):
		status = http.StatusForbidden
	case errors.Is(err, errors.NotValid), errors.Is(err, errors.AlreadyExists):
		status = http.StatusBadRequest
	}
	writeJSON(w, status, agentwire.Answer[any]{Error: params.ServerError(err)})
}

// writeJSON writes an answer. It ignores errors, which mean that the agent has disconnected.
func writeJSON(w http.ResponseWriter, status int, answer any) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(requestTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}
