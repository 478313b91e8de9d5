package agentapi

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// stream is a stream with its watchers. The goroutine of the request reads the agent's messages.
// One goroutine for each watcher sends its events.
type stream struct {
	agent   storageprovisioner.Accessors
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	// sending guards the response. stalled ends the stream if the agent does not read it: to set a
	// deadline for each message would wake the goroutine of the connection each time.
	sending  sync.Mutex
	response http.ResponseWriter
	stalled  *time.Timer

	maxWatchers int
	mu          sync.Mutex // guards watchers
	watchers    map[uint64]*streamWatcher
}

// streamWatcher is a watcher of a stream. Its context ends when the agent stops it.
type streamWatcher struct {
	number uint64
	ctx    context.Context
	cancel context.CancelFunc
	// acked receives when the agent has taken an event.
	acked chan struct{}
}

func (h *Handler) stream(w http.ResponseWriter, r *http.Request, agent storageprovisioner.Accessors) {
	if r.ProtoMajor < 2 {
		writeError(w, http.StatusHTTPVersionNotSupported, errors.NotSupportedf("a stream over %s", r.Proto))
		return
	}
	if !h.countStream(1) {
		writeError(w, http.StatusServiceUnavailable, errors.NotYetAvailablef("another stream besides %d", h.maxStreams))
		return
	}
	defer h.countStream(-1)
	s := &stream{agent: agent, response: w, maxWatchers: h.maxWatchers, watchers: make(map[uint64]*streamWatcher)}
	s.ctx, s.cancel = context.WithCancel(r.Context())
	s.stalled = time.AfterFunc(stallTimeout, s.cancel)
	silence := h.config.KeepAlive * agentwire.MissedKeepAlives
	silent := time.AfterFunc(silence, s.cancel)
	defer silent.Stop()
	controller := http.NewResponseController(w)
	s.running.Go(func() { s.keepAlive(h.config.KeepAlive) })
	s.running.Go(func() {
		select {
		case <-h.killing:
			s.cancel()
		case <-s.ctx.Done():
		}
		// End the reads and writes in progress.
		_ = controller.SetReadDeadline(time.Unix(1, 0))
		_ = controller.SetWriteDeadline(time.Unix(1, 0))
	})
	defer s.stalled.Stop()
	defer s.running.Wait()
	defer s.cancel()

	w.Header().Set("Content-Type", "application/x-ndjson")
	s.send(agentwire.Message{Type: agentwire.Hello, Methods: offeredMethods(agent)})
	reader := agentwire.NewReader(r.Body, agentwire.MaxMessage)
	for {
		message, err := reader.Next()
		if err != nil || !s.receive(message) {
			return
		}
		silent.Reset(silence)
	}
}

// countStream adds n to the number of streams, unless there are too many.
func (h *Handler) countStream(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams+n > h.maxStreams {
		return false
	}
	h.streams += n
	return true
}

func (s *stream) keepAlive(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.send(agentwire.Message{Type: agentwire.Alive})
		case <-s.ctx.Done():
			return
		}
	}
}

// send sends a message. A stream that cannot be written to ends.
func (s *stream) send(message agentwire.Message) {
	data, err := json.Marshal(message)
	if err == nil && len(data) > agentwire.MaxAnswer {
		err = errors.NotValidf("an event of %d bytes", len(data))
	}
	if err != nil {
		data, _ = json.Marshal(agentwire.Message{Type: agentwire.Ended, Watcher: message.Watcher, Error: params.ServerError(err)})
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	defer s.stalled.Stop()
	err = writeParts(s.response, append(data, '\n'), func() error {
		s.stalled.Reset(stallTimeout)
		return nil
	})
	if err != nil {
		s.cancel()
	}
}

// receive handles a message. It reports false for one that breaks the protocol.
func (s *stream) receive(message agentwire.Message) bool {
	s.mu.Lock()
	w, known := s.watchers[message.Watcher] // not known if it has just ended
	s.mu.Unlock()
	switch message.Type {
	case agentwire.Alive:
	case agentwire.Start:
		if known {
			return false
		}
		s.start(message)
	case agentwire.Ack:
		if known {
			select {
			case w.acked <- struct{}{}:
			default:
			}
		}
	case agentwire.Stop:
		if known {
			w.cancel()
		}
	default:
		return false
	}
	return true
}

// start starts a watcher. Only the reader of the stream adds watchers.
func (s *stream) start(message agentwire.Message) {
	w := &streamWatcher{number: message.Watcher, acked: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	full := len(s.watchers) >= s.maxWatchers
	if !full {
		s.watchers[w.number] = w
	}
	s.mu.Unlock()
	if full {
		w.cancel()
		err := errors.QuotaLimitExceededf("%d watchers on one stream", s.maxWatchers)
		s.send(agentwire.Message{Type: agentwire.Ended, Watcher: w.number, Error: params.ServerError(err)})
		return
	}
	s.running.Go(func() { s.watch(w, message) })
}

// watch runs a watcher.
func (s *stream) watch(w *streamWatcher, start agentwire.Message) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.cancel()
		delete(s.watchers, w.number)
	}()
	err := s.sendEvents(w, start)
	if w.ctx.Err() == nil {
		s.send(agentwire.Message{Type: agentwire.Ended, Watcher: w.number, Error: params.ServerError(err)})
	}
}

// sendEvents sends the events of a watcher until it fails or is stopped. The next event is
// received only when the agent has taken the last one: changes in between are merged by the
// watcher.
func (s *stream) sendEvents(w *streamWatcher, start agentwire.Message) error {
	m, ok := watchMethods[start.Method]
	if !ok {
		return errors.NotImplementedf("%q", start.Method)
	}
	source, err := m.start(s.agent, start.Args)
	if err != nil {
		return err
	}
	s.send(agentwire.Message{Type: agentwire.Started, Watcher: w.number})
	for {
		event, ok := source.next(w.ctx.Done())
		if !ok {
			// This ends the watcher.
			return watcher.EnsureErr(source)
		}
		data, err := json.Marshal(event)
		if err != nil {
			return errors.Trace(err)
		}
		s.send(agentwire.Message{Type: agentwire.Event, Watcher: w.number, Event: data})
		select {
		case <-w.acked:
		case <-w.ctx.Done():
		}
	}
}
