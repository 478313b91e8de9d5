package agentapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Logger receives messages for the operator.
type Logger interface {
	Warningf(format string, args ...any)
}

// Config configures a [Handler].
type Config struct {
	// Authenticate returns the accessors that the sender of a request may use: those of its
	// scope, which check every entity of every call. Their optional capabilities are served
	// too, and so are the recording of block devices, tasks and storage that others ask for, if they
	// are a diskmanager.BlockDeviceSetter, a diskmanager.BlockDeviceUpdater, a [SpaceSetter], a
	// [TaskAccessor] or an [AskedAccessor]. Their methods may be called concurrently. An error that satisfies
	// errors.Is(err, errors.Unauthorized) or errors.Is(err, errors.Forbidden) refuses the
	// agent for good, and is sent to it. After any other error the agent tries again. A
	// stream is authenticated once, when it begins: to end it, cancel the context of its
	// request. Required.
	Authenticate func(*http.Request) (storageprovisioner.Accessors, error)
	// IsAgain reports whether an error of an accessor says that the call was not made, and that
	// the agent should make it again. Nil: no error says that.
	IsAgain func(error) bool
	// Logger is required.
	Logger Logger
	// KeepAlive is the time between two messages on an idle stream. Both sides should use the
	// same. Zero means 5 seconds.
	KeepAlive time.Duration
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or
// nil.
func (c Config) Validate() error {
	switch {
	case c.Authenticate == nil:
		return errors.NotValidf("nil Authenticate")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	case c.KeepAlive < 0:
		return errors.NotValidf("negative KeepAlive")
	}
	return nil
}

const (
	// maxStreams bounds the streams of all agents, maxWatchers the watchers of one stream.
	maxStreams  = 16384
	maxWatchers = 16384
	// requestTimeout bounds the time for receiving a request, stallTimeout how long an agent
	// may leave a part of an answer unread.
	requestTimeout = 30 * time.Second
	stallTimeout   = 30 * time.Second
	// chunk is the size of those parts.
	chunk = 256 << 10
)

// Handler serves the agent API. It is a worker: when Kill is called, its streams end and new
// requests are answered with "try again"; when Wait returns, it makes no more calls. Kill it
// before http.Server.Shutdown, which waits for streams, and before the state is closed.
type Handler struct {
	config                  Config
	maxStreams, maxWatchers int

	mu      sync.Mutex // guards what follows
	killed  bool
	killing chan struct{} // closed by Kill
	streams int
	running sync.WaitGroup // requests
}

// New returns a handler. Its errors satisfy errors.IsNotValid.
func New(config Config) (*Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.KeepAlive == 0 {
		config.KeepAlive = agentwire.KeepAlive
	}
	if config.IsAgain == nil {
		config.IsAgain = func(error) bool { return false }
	}
	return &Handler{config: config, maxStreams: maxStreams, maxWatchers: maxWatchers, killing: make(chan struct{})}, nil
}

// Kill implements worker.Worker.
func (h *Handler) Kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.killed {
		h.killed = true
		close(h.killing)
	}
}

// Wait implements worker.Worker. It returns nil.
func (h *Handler) Wait() error {
	<-h.killing
	h.running.Wait()
	return nil
}

// Begin begins a request of the embedder's own, for which Wait then waits. The caller calls end
// after it. ok is false if the handler is killed.
func (h *Handler) Begin() (end func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.killed {
		return nil, false
	}
	h.running.Add(1)
	return h.running.Done, true
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	end, ok := h.Begin()
	if !ok {
		writeError(w, http.StatusServiceUnavailable, errors.NotYetAvailablef("the server is stopping"))
		return
	}
	defer end()
	agent, err := h.config.Authenticate(r)
	switch {
	case errors.Is(err, errors.Unauthorized):
		writeError(w, http.StatusUnauthorized, err)
		return
	case errors.Is(err, errors.Forbidden):
		writeError(w, http.StatusForbidden, err)
		return
	case errors.Is(err, errors.NotYetAvailable):
		writeError(w, http.StatusServiceUnavailable, err)
		return
	case err != nil:
		h.config.Logger.Warningf("authenticating an agent: %v", err)
		writeError(w, http.StatusServiceUnavailable, errors.NotYetAvailablef("authentication"))
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, agentwire.Prefix)
	m, known := methods[name]
	switch {
	case r.Method != http.MethodPost:
		writeError(w, http.StatusMethodNotAllowed, errors.MethodNotAllowedf("method %q", r.Method))
	case ok && name == agentwire.StreamMethod:
		h.stream(w, r, agent)
	case ok && known && m.offered(agent):
		h.call(w, r, agent, m)
	default:
		writeError(w, http.StatusNotFound, errors.NotImplementedf("%q", r.URL.Path))
	}
}

// call serves one call. Its answer has the status 200 whether the accessor has returned results
// or an error: other statuses say that the accessor was not called.
func (h *Handler) call(w http.ResponseWriter, r *http.Request, agent storageprovisioner.Accessors, m method) {
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, agentwire.MaxRequest))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, errors.NewNotValid(err, fmt.Sprintf("reading a request of more than %d bytes", tooLarge.Limit)))
		return
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, errors.NewNotYetAvailable(err, "reading the request"))
		return
	}
	do, err := m.prepare(agent, body)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	if err := r.Context().Err(); err != nil {
		return // the agent has disconnected, and may have made the call again
	}
	result, err := do()
	if err != nil && h.config.IsAgain(err) {
		writeError(w, http.StatusServiceUnavailable, err)
		return
	}
	writeJSON(w, http.StatusOK, agentwire.Answer[any]{Error: params.ServerError(err), Result: result})
}

func writeError(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, agentwire.Answer[any]{Error: params.ServerError(err)})
}

// writeJSON writes an answer. It ignores errors of writing, which mean that the agent has
// disconnected.
func writeJSON(w http.ResponseWriter, status int, answer agentwire.Answer[any]) {
	body, err := json.Marshal(answer)
	if err == nil && len(body) > agentwire.MaxAnswer {
		err = errors.NotValidf("an answer of %d bytes", len(body))
	}
	if err != nil {
		status = http.StatusOK
		body, _ = json.Marshal(agentwire.Answer[any]{Error: params.ServerError(errors.Annotate(err, "writing the answer"))})
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeAll(w, body)
}

// writeAll writes data, and fails if the agent does not read it.
func writeAll(w http.ResponseWriter, data []byte) error {
	controller := http.NewResponseController(w)
	err := writeParts(w, data, func() error { return controller.SetWriteDeadline(time.Now().Add(stallTimeout)) })
	if err != nil {
		return err
	}
	return controller.SetWriteDeadline(time.Time{})
}

// writeParts writes data, and calls begin before each part.
func writeParts(w http.ResponseWriter, data []byte, begin func() error) error {
	for len(data) > 0 {
		n := min(len(data), chunk)
		if err := begin(); err != nil {
			return err
		}
		if _, err := w.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return http.NewResponseController(w).Flush()
}
