package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/internal/agentwire"
)

// ErrRefused is the error of a client that the server has refused: it does not know the agent,
// or does not allow it to be an agent any more.
const ErrRefused = errors.ConstError("the server refuses this agent")

// ErrFenced is the error, besides [ErrRefused], of a client whose machine was fenced and has not
// been restarted since: what it has of the environment may be in use on another machine.
const ErrFenced = errors.ConstError("the machine is fenced")

// ErrRestored is the error of a client whose state was restored from a backup. What was read from it, and
// published to it, may not be so any more: connect again with another client, and begin everything again.
const ErrRestored = errors.ConstError("the state was restored from a backup")

// errForbidden is the error, besides ErrRefused, of an answer with the status 403.
const errForbidden = errors.ConstError("forbidden")

// ErrClosed is the error of calls and watchers of a client that has been closed.
const ErrClosed = errors.ConstError("the client of the server is closed")

// ErrNotConnected is the error of a call that is not made again when the connection to the server is lost.
// The server may have carried it out.
const ErrNotConnected = errors.ConstError("no connection to the server")

// Logger receives messages for the operator.
type Logger interface {
	Infof(format string, args ...any)
	Warningf(format string, args ...any)
}

// Config configures a [Client].
type Config struct {
	// URLs are the addresses of the servers, which share one state: https://HOST[:PORT]. The client
	// uses one at a time, and the next one when it cannot connect. At least one is required.
	URLs []string
	// TLS says whom the client trusts, and who it is. Nil: it trusts the certificates that
	// the machine trusts.
	TLS *tls.Config
	// Dial connects to the server. Nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Clock measures the delays between attempts. Nil means the wall clock.
	Clock clock.Clock
	// Secrets, if set, makes the client open a session for each connection: it is a client of
	// package apiserver/admission.
	Secrets Secrets
	// BootID identifies the time since the machine was started, for sessions.
	BootID string
	// Logger is required.
	Logger Logger

	// MinDelay and MaxDelay bound the delay after a failed attempt, which doubles with each
	// further failure. The actual delay is a random part of that. Zero means 1 s and 30 s.
	MinDelay, MaxDelay time.Duration
	// KeepAlive is the time between two messages on an idle stream. A connection without a
	// message for three times as long counts as lost. Both sides should use the same. Zero
	// means 5 seconds.
	KeepAlive time.Duration

	// transport is a replacement for the network, for tests.
	transport http.RoundTripper
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or
// nil.
func (c Config) Validate() error {
	for _, text := range c.URLs {
		address, err := url.Parse(text)
		switch {
		case err != nil:
			return errors.NewNotValid(err, "URL")
		case address.Scheme != "https" || address.Host == "" || strings.Trim(address.Path, "/") != "" || address.RawQuery != "":
			return errors.NotValidf("URL %q (want https://HOST[:PORT])", text)
		}
	}
	switch {
	case len(c.URLs) == 0:
		return errors.NotValidf("empty URLs")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	case c.MinDelay < 0:
		return errors.NotValidf("negative MinDelay")
	case c.MaxDelay < 0:
		return errors.NotValidf("negative MaxDelay")
	case c.KeepAlive < 0:
		return errors.NotValidf("negative KeepAlive")
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.URLs = slices.Clone(c.URLs)
	for i := range c.URLs {
		c.URLs[i] = strings.TrimRight(c.URLs[i], "/")
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Clock == nil {
		c.Clock = clock.WallClock
	}
	if c.MinDelay == 0 {
		c.MinDelay = time.Second
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = max(30*time.Second, c.MinDelay)
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = agentwire.KeepAlive
	}
	if c.transport == nil {
		c.transport = c.newTransport()
	}
	return c
}

func (c Config) newTransport() *http.Transport {
	silence := c.KeepAlive * agentwire.MissedKeepAlives
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, silence)
			defer cancel()
			return c.Dial(ctx, network, address)
		},
		TLSClientConfig:     c.TLS.Clone(),
		TLSHandshakeTimeout: silence,
		IdleConnTimeout:     time.Minute,
		Protocols:           protocols,
		// A connection that does not answer pings is closed with all its requests, which are
		// then made again on another one.
		HTTP2: &http.HTTP2Config{SendPingTimeout: c.KeepAlive, PingTimeout: silence - c.KeepAlive},
	}
}

// Client is a client of the agent API. Its methods are safe for concurrent use. It is a worker
// that ends when it is killed, or when the server refuses it. The error of Wait then satisfies
// errors.Is(err, ErrRefused).
type Client struct {
	config Config
	http   http.Client
	tomb   tomb.Tomb
	ctx    context.Context // ends when the client is dying

	mu sync.Mutex // guards what follows
	// server is the index of the URL that is in use.
	server int
	// session is the number of the current session on that server, or empty.
	session string
	// opened says that there has been a session.
	opened bool
	// generation is that of the state; 0 if no server has said it.
	generation uint64
	// stream is nil while there is no connection.
	stream *stream
	// reconnected is closed, and replaced, when a stream begins.
	reconnected chan struct{}
	watchers    map[uint64]*registration
	lastWatcher uint64
	ended       bool
	busy        sync.WaitGroup // calls and watchers
}

// Dial connects to a server, and tries until the context ends or the server refuses the agent.
// The context does not bound the client. It is an error if the server does not offer all
// accessors, with all optional capabilities. Close the client after use.
func Dial(ctx context.Context, config Config) (*Client, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	config = config.withDefaults()
	c := &Client{
		config:      config,
		http:        http.Client{Transport: config.transport, CheckRedirect: refuseRedirect},
		reconnected: make(chan struct{}),
		watchers:    make(map[uint64]*registration),
	}
	c.ctx = c.tomb.Context(context.Background())
	connected := c.reconnected
	c.tomb.Go(c.run)
	select {
	case <-connected:
		return c, nil
	case <-c.tomb.Dead():
		return nil, errors.Trace(c.failure())
	case <-ctx.Done():
		_ = c.Close()
		return nil, errors.Annotatef(context.Cause(ctx), "connecting to %s", strings.Join(config.URLs, ", "))
	}
}

func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Accessors returns the accessors of the agent's scope.
func (c *Client) Accessors() Accessors { return Accessors{c} }

// Kill implements worker.Worker. It ends calls in progress and watchers.
func (c *Client) Kill() { c.tomb.Kill(nil) }

// Wait implements worker.Worker. When it returns, all calls and watchers have ended.
func (c *Client) Wait() error { return c.tomb.Wait() }

// Dead returns a channel that is closed when Wait would return at once.
func (c *Client) Dead() <-chan struct{} { return c.tomb.Dead() }

// Close is Kill and Wait.
func (c *Client) Close() error {
	c.Kill()
	return c.Wait()
}

// failure returns the error of calls and watchers of a client that is dying.
func (c *Client) failure() error {
	if err := c.tomb.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// run keeps a stream open until the client ends.
func (c *Client) run() error {
	err := c.keepConnected()
	c.tomb.Kill(err)
	c.mu.Lock()
	c.ended = true
	var left []*registration
	for _, w := range c.watchers {
		left = append(left, w)
	}
	c.mu.Unlock()
	for _, w := range left {
		w.watcher.end(c.failure())
	}
	c.busy.Wait()
	c.http.CloseIdleConnections()
	return nil
}

func (c *Client) keepConnected() error {
	delays := c.newBackoff()
	logged := make(map[string]bool) // why the connection is lost, if it is
	for {
		connected, err := c.serveStream(func() {
			if len(logged) > 0 {
				c.config.Logger.Infof("connected to %s again", c.Server())
			}
		})
		switch {
		case c.ctx.Err() != nil:
			return nil
		case !isLost(err):
			return err
		case connected:
			delays = c.newBackoff()
			clear(logged)
		}
		if reason := fmt.Sprintf("no connection to %s: %s", c.Server(), err); !logged[reason] {
			c.config.Logger.Warningf("%s; trying again", reason)
			logged[reason] = true
		}
		if !connected {
			c.useNextServer()
		}
		if !c.wait(delays.next(), nil) {
			return nil
		}
	}
}

// Server returns the URL that is in use.
func (c *Client) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config.URLs[c.server]
}

// IsConnected reports whether the client has a stream at the moment.
func (c *Client) IsConnected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream != nil
}

// useNextServer makes further requests go to the next server. A session belongs to the server that
// has opened it: another one may not know yet what the agent has done before. So no call is
// answered until there is a new one.
func (c *Client) useNextServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.config.URLs) > 1 {
		c.server = (c.server + 1) % len(c.config.URLs)
		c.session = ""
	}
}

// wait waits for a delay, or until early is closed. It reports false if the client is dying.
func (c *Client) wait(delay time.Duration, early <-chan struct{}) bool {
	timer := c.config.Clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.Chan():
	case <-early:
	case <-c.tomb.Dying():
		return false
	}
	return true
}

// backoff computes delays between attempts.
type backoff struct{ upper, max time.Duration }

func (c *Client) newBackoff() *backoff { return &backoff{c.config.MinDelay, c.config.MaxDelay} }

func (b *backoff) next() time.Duration {
	delay := rand.N(b.upper) + 1
	b.upper = min(2*b.upper, b.max)
	return delay
}

// begin counts a call, unless the client has ended.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.busy.Add(1)
	}
	return !c.ended
}

// nextConnection returns a channel that is closed when the next stream begins.
func (c *Client) nextConnection() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reconnected
}

// call makes a call, and makes it again until it has an answer.
func call[R any](c *Client, method string, body []byte) (result R, err error) {
	if !c.begin() {
		return result, errors.Annotate(c.failure(), method)
	}
	defer c.busy.Done()
	for delays := c.newBackoff(); ; {
		reconnected := c.nextConnection()
		data, err := c.attempt(c.ctx, method, body)
		switch {
		case err == nil:
			return decode[R](data)
		case c.ctx.Err() != nil:
			return result, errors.Annotate(c.failure(), method)
		case !isLost(err):
			if errors.Is(err, ErrRefused) {
				c.tomb.Kill(err)
			}
			return result, err
		}
		if !c.wait(delays.next(), reconnected) {
			return result, errors.Annotate(c.failure(), method)
		}
	}
}

// attempt makes a call once, and returns the body of the answer.
func (c *Client) attempt(ctx context.Context, method string, body []byte) ([]byte, error) {
	response, err := c.post(ctx, method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return readAnswer(response)
}

// post sends a request. The status of the response is 200.
func (c *Client) post(ctx context.Context, method string, body io.Reader) (*http.Response, error) {
	return c.postTo(ctx, agentwire.Prefix+method, body)
}

func (c *Client) postTo(ctx context.Context, path string, body io.Reader) (*http.Response, error) {
	c.mu.Lock()
	server, session := c.config.URLs[c.server], c.session
	c.mu.Unlock()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server+path, body)
	if err != nil {
		return nil, errors.Trace(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if session != "" {
		request.Header.Set(agentwire.SessionHeader, session)
	}
	response, err := c.http.Do(request)
	if err != nil {
		var outer *url.Error // it repeats the URL
		if errors.As(err, &outer) {
			err = outer.Err
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &lostError{trust.ClockError(err, c.config.Clock.Now())}
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	return nil, statusError(response)
}

// readAnswer reads the body of an answer.
func readAnswer(response *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(response.Body, agentwire.MaxAnswer+1))
	switch {
	case err != nil:
		return nil, &lostError{err}
	case len(data) > agentwire.MaxAnswer:
		return nil, errors.NotValidf("the server's answer of more than %d bytes", agentwire.MaxAnswer)
	}
	return data, nil
}

// statusError returns the error for a response with a status other than 200: the accessor was
// not called. If the body is not an answer of the protocol, something between client and server
// has sent it, and the attempt is lost.
func statusError(response *http.Response) error {
	var sent *params.Error
	data, err := readAnswer(response)
	if err == nil {
		_, err = decode[json.RawMessage](data)
	}
	switch {
	case !errors.As(err, &sent):
		return &lostError{errors.Errorf("answer with status %d", response.StatusCode)}
	case response.StatusCode == http.StatusUnauthorized:
		return errors.WithType(err, ErrRefused)
	case response.StatusCode == http.StatusForbidden:
		return errors.WithType(errors.WithType(err, ErrRefused), errForbidden)
	case response.StatusCode == http.StatusServiceUnavailable:
		return &lostError{err}
	}
	return err
}

// decode returns the result or the error of an answer.
func decode[R any](data []byte) (R, error) {
	var answer agentwire.Answer[R]
	if err := json.Unmarshal(data, &answer); err != nil {
		return answer.Result, errors.NewNotValid(err, "reading the server's answer")
	}
	if answer.Error != nil {
		var none R
		return none, params.TranslateWellKnownError(answer.Error)
	}
	return answer.Result, nil
}

// lostError is the error of an attempt without an answer. It may have been carried out.
type lostError struct{ cause error }

// Error implements error.
func (e *lostError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *lostError) Unwrap() error { return e.cause }

func isLost(err error) bool {
	var lost *lostError
	return errors.As(err, &lost)
}

// encode returns the body of a request.
func encode[A any](args []A) ([]byte, error) {
	body, err := json.Marshal(agentwire.Call[A]{Args: args})
	if err != nil {
		return nil, errors.Trace(err)
	}
	if len(body) > agentwire.MaxRequest {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("request of %d bytes is too large: the server accepts at most %d", len(body), agentwire.MaxRequest))
	}
	return body, nil
}

const (
	// maxBatch bounds the number of arguments in one request, batchBytes their size unless
	// there is only one.
	maxBatch   = 1000
	batchBytes = 1 << 20
)

// batches calls do with the bodies of requests that together have all arguments, each with its
// number of arguments.
func batches[A any](args []A, do func(body []byte, n int) error) error {
	var batch []json.RawMessage
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		body, err := encode(batch)
		if err != nil {
			return err
		}
		n := len(batch)
		batch, size = nil, 0
		return do(body, n)
	}
	for _, arg := range args {
		data, err := json.Marshal(arg)
		if err != nil {
			return errors.Trace(err)
		}
		if len(batch) == maxBatch || size+len(data) > batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, size = append(batch, data), size+len(data)
	}
	return flush()
}
