package api

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/agentwire"
)

// openTimeout is how long a server may take to open a session. It is longer than the silence after which a
// stream counts as lost, because all agents make this request when a server starts. That the server is there
// is seen by HTTP/2 pings.
const openTimeout = time.Minute

// stream is a stream of messages to and from a server.
type stream struct {
	// ctx ends when the connection is lost.
	ctx   context.Context
	mu    sync.Mutex
	queue []agentwire.Message
	// queued receives when the queue is not empty.
	queued chan struct{}
}

// send queues a message. The queue is short: it has at most a start, a stop and an
// acknowledgement for each watcher.
func (s *stream) send(message agentwire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, message)
	select {
	case s.queued <- struct{}{}:
	default:
	}
}

func (s *stream) take() []agentwire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.queue
	s.queue = nil
	return taken
}

// write writes the queued messages until the context ends.
func (c *Client) write(ctx context.Context, s *stream, to io.Writer) {
	encoder := json.NewEncoder(to)
	for {
		alive := c.config.Clock.NewTimer(c.config.KeepAlive)
		var messages []agentwire.Message
		select {
		case <-s.queued:
			messages = s.take()
		case <-alive.Chan():
			messages = []agentwire.Message{{Type: agentwire.Alive}}
		case <-ctx.Done():
		}
		alive.Stop()
		if ctx.Err() != nil {
			return
		}
		for _, message := range messages {
			if encoder.Encode(message) != nil {
				return // the reader notices it too
			}
		}
	}
}

// registration is a watcher, as the stream knows it.
type registration struct {
	start   agentwire.Message
	watcher remoteWatcher
	// fresh says that no event has come on the present stream.
	fresh bool
}

// remoteWatcher is a watcher of any kind. The reader of the stream calls its methods.
type remoteWatcher interface {
	// started says that the watcher runs on the server.
	started()
	// receive passes on an event.
	receive(received)
	// end ends the watcher. It does not wait.
	end(error)
}

// received is an event, and the stream that it came from. first says that it is the first event
// on that stream.
type received struct {
	event  json.RawMessage
	first  bool
	stream *stream
}

// serveStream opens a stream, starts all watchers on it, and passes on its messages until it
// ends. connected reports whether the server has answered.
func (c *Client) serveStream(onConnect func()) (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	silence := c.config.KeepAlive * agentwire.MissedKeepAlives
	watchdog := c.config.Clock.AfterFunc(openTimeout, func() {
		cancel(errors.New("no message in time"))
	})
	defer watchdog.Stop()

	if err := c.openSession(ctx); err != nil {
		return false, err
	}
	watchdog.Reset(silence)
	s := &stream{ctx: ctx, queued: make(chan struct{}, 1)}
	body, out := io.Pipe()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer func() { _ = body.Close() }() // ends a write
	defer cancel(nil)
	writing.Go(func() {
		c.write(ctx, s, out)
		// The transport does not look at the context while it waits for this.
		_ = out.CloseWithError(context.Canceled)
	})

	response, err := c.post(ctx, agentwire.StreamMethod, body)
	if err != nil {
		return false, err
	}
	defer func() { _ = response.Body.Close() }()
	reader := agentwire.NewReader(aliveReader{response.Body, func() { watchdog.Reset(silence) }}, agentwire.MaxAnswer)
	next := func() (agentwire.Message, error) {
		message, err := reader.Next()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return message, &lostError{errors.Annotate(err, "reading the stream")}
		}
		return message, nil
	}
	hello, err := next()
	if err != nil {
		return false, err
	}
	if err := checkHello(hello); err != nil {
		return false, err
	}
	onConnect()
	c.attach(s)
	defer c.detach()
	for {
		message, err := next()
		if err != nil {
			return true, err
		}
		c.dispatch(s, message)
	}
}

// aliveReader calls alive whenever it has read something, because a large message takes time.
type aliveReader struct {
	io.Reader
	alive func()
}

// Read implements io.Reader.
func (r aliveReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.alive()
	}
	return n, err
}

// checkHello returns an error if the server lacks accessors: without one, the worker would take
// decisions that the state does not want, such as to destroy storage that is to be released.
func checkHello(hello agentwire.Message) error {
	if hello.Type != agentwire.Hello {
		return &lostError{errors.Errorf("the server begins with %q", hello.Type)}
	}
	for _, method := range accessorMethods {
		if !slices.Contains(hello.Methods, method) {
			return errors.NotSupportedf("by the server: %s", method)
		}
	}
	return nil
}

// attach starts all watchers on a stream.
func (c *Client) attach(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = s
	for _, w := range c.watchers {
		w.fresh = true
		s.send(w.start)
	}
	close(c.reconnected)
	c.reconnected = make(chan struct{})
}

func (c *Client) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = nil
}

// dispatch passes a message to its watcher. One that has been stopped may still get messages.
func (c *Client) dispatch(s *stream, message agentwire.Message) {
	c.mu.Lock()
	w, ok := c.watchers[message.Watcher]
	first := false
	if ok && message.Type == agentwire.Event {
		first, w.fresh = w.fresh, false
	}
	c.mu.Unlock()
	if !ok {
		return
	}
	switch message.Type {
	case agentwire.Started:
		w.watcher.started()
	case agentwire.Event:
		w.watcher.receive(received{message.Event, first, s})
	case agentwire.Ended:
		if message.Error == nil {
			w.watcher.end(errors.New("the server has ended the watcher"))
		} else {
			w.watcher.end(params.TranslateWellKnownError(message.Error))
		}
	}
}

// register makes a watcher known to this stream and later ones, and returns its number. run is
// called before the watcher can receive anything. ok is false if the client has ended.
func (c *Client) register(w remoteWatcher, method string, args []string, run func(number uint64)) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.lastWatcher++
	start := agentwire.Message{Type: agentwire.Start, Watcher: c.lastWatcher, Method: method, Args: args}
	c.watchers[start.Watcher] = &registration{start: start, watcher: w, fresh: true}
	c.busy.Add(1)
	run(start.Watcher)
	if c.stream != nil {
		c.stream.send(start)
	}
	return true
}

// unregister undoes register when a watcher has ended.
func (c *Client) unregister(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watchers, number)
	if c.stream != nil {
		c.stream.send(agentwire.Message{Type: agentwire.Stop, Watcher: number})
	}
	c.busy.Done()
}
