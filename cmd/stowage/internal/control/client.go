package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/apiserver/params"
)

// Client asks the agent behind a socket. Errors of the agent keep their kind:
// errors.IsNotFound and the like tell.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a client for the agent that listens on a socket. It connects
// when asked for something, and tells nothing to a socket of another user than root and
// the one of this process: such an error satisfies errors.Is(err, errors.Unauthorized).
// Close it after use.
func NewClient(socketPath string) *Client {
	var dialer net.Dialer
	return &Client{
		path: socketPath,
		http: http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, "unix", socketPath)
				if err != nil {
					return nil, err
				}
				if err := checkServer(conn, socketPath); err != nil {
					_ = conn.Close()
					return nil, err
				}
				return conn, nil
			},
		}},
	}
}

// untrustedServerError is the error for a socket on which another user than the agent's
// listens.
type untrustedServerError struct {
	path string
	uid  uint32
}

// Error implements error.
func (i *untrustedServerError) Error() string {
	return fmt.Sprintf("what listens on %s is user %d's, and neither root's nor your own: it is told nothing", i.path, i.uid)
}

// checkServer returns an error if another user than one that an agent may run as
// listens: in a directory that others can write to, they can put a socket of theirs in
// the place of the agent's.
func checkServer(conn net.Conn, path string) error {
	uid, err := peerUID(conn)
	if err != nil {
		return errors.Annotatef(err, "finding out who listens on %s", path)
	}
	if !isRootOrSelf(uid) {
		return &untrustedServerError{path, uid}
	}
	return nil
}

// Close ends the client's idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Apply converges the agent to a file.
func (c *Client) Apply(ctx context.Context, args ApplyArgs) (ApplyResult, error) {
	return call[ApplyResult](ctx, c, "apply", args)
}

// Storage returns the named storage, or all there is.
func (c *Client) Storage(ctx context.Context, names []string) ([]Storage, error) {
	result, err := call[storageResult](ctx, c, "storage", namesArgs{names})
	return result.Storage, err
}

// Attach, and the two that follow it, return when the agent has noted the wish.
func (c *Client) Attach(ctx context.Context, names []string) error {
	return c.change(ctx, "attach", names)
}

// Detach asks that storage be detached.
func (c *Client) Detach(ctx context.Context, names []string) error {
	return c.change(ctx, "detach", names)
}

// Remove asks that storage be detached and destroyed.
func (c *Client) Remove(ctx context.Context, names []string) error {
	return c.change(ctx, "remove", names)
}

// Release asks that storage be detached and forgotten, with its data left in place.
func (c *Client) Release(ctx context.Context, names []string) error {
	return c.change(ctx, "release", names)
}

// Retry asks that what has failed of storage be tried again at once; no names mean all.
func (c *Client) Retry(ctx context.Context, names []string) error {
	return c.change(ctx, "retry", names)
}

// Format asks that filesystems which could not be made be made whatever is on their volumes.
func (c *Client) Format(ctx context.Context, names []string) error {
	return c.change(ctx, "format", names)
}

// Resize asks that storage grow.
func (c *Client) Resize(ctx context.Context, args ResizeArgs) (ChangesResult, error) {
	return call[ChangesResult](ctx, c, "resize", args)
}

// Import takes over what is there. When it returns, it is the agent's.
func (c *Client) Import(ctx context.Context, args ImportArgs) (ChangesResult, error) {
	return call[ChangesResult](ctx, c, "import", args)
}

func (c *Client) change(ctx context.Context, verb string, names []string) error {
	_, err := call[struct{}](ctx, c, verb, namesArgs{names})
	return err
}

// Orphans returns what providers have and no storage has.
func (c *Client) Orphans(ctx context.Context) ([]Orphan, error) {
	result, err := call[orphansResult](ctx, c, "orphans", struct{}{})
	return result.Orphans, err
}

// Adopt makes an orphan storage again, detached.
func (c *Client) Adopt(ctx context.Context, args AdoptArgs) (ChangesResult, error) {
	return call[ChangesResult](ctx, c, "adopt", args)
}

// DeleteOrphan destroys an orphan.
func (c *Client) DeleteOrphan(ctx context.Context, args DeleteOrphanArgs) (DeleteOrphanResult, error) {
	return call[DeleteOrphanResult](ctx, c, "delete-orphan", args)
}

// Backup writes the agent's state to a new file.
func (c *Client) Backup(ctx context.Context, args BackupArgs) (BackupResult, error) {
	return call[BackupResult](ctx, c, "backup", args)
}

// Pools returns the pools that directives can name.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	result, err := call[poolsResult](ctx, c, "pools", struct{}{})
	return result.Pools, err
}

// AddPool makes a pool, or replaces one.
func (c *Client) AddPool(ctx context.Context, args AddPoolArgs) error {
	_, err := call[struct{}](ctx, c, "add-pool", args)
	return err
}

// RemovePools removes the named pools, all or none.
func (c *Client) RemovePools(ctx context.Context, names []string) error {
	return c.change(ctx, "remove-pools", names)
}

// Report returns what the agent's workers say of themselves.
func (c *Client) Report(ctx context.Context) (map[string]any, error) {
	result, err := call[reportResult](ctx, c, "report", struct{}{})
	return result.Report, err
}

// Watch calls each with all of the named storage (none named: with all there
// is), then with what changes, until the context ends, each fails, or the agent
// goes away. It never returns nil.
func (c *Client) Watch(ctx context.Context, names []string, each func(Event) error) error {
	response, err := c.post(ctx, "watch", namesArgs{names})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	decoder := json.NewDecoder(response.Body)
	for {
		event, err := decode[Event](decoder)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.Errorf("the agent at %s has stopped", c.path)
		}
		if err != nil {
			return err
		}
		if err := each(event); err != nil {
			return err
		}
	}
}

func call[R any](ctx context.Context, c *Client, verb string, args any) (R, error) {
	response, err := c.post(ctx, verb, args)
	if err != nil {
		var none R
		return none, err
	}
	defer func() { _ = response.Body.Close() }()
	result, err := decode[R](json.NewDecoder(response.Body))
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return result, c.noResponseError()
	}
	return result, err
}

// noResponseError returns the error of a request that may have been carried out.
func (c *Client) noResponseError() error {
	return errors.Errorf("the agent at %s stopped before it answered", c.path)
}

func decode[R any](decoder *json.Decoder) (R, error) {
	var a envelope[R]
	if err := decoder.Decode(&a); err != nil {
		return a.Result, errors.Annotate(err, "reading the agent's answer")
	}
	if a.Error != nil {
		return a.Result, params.TranslateWellKnownError(a.Error)
	}
	return a.Result, nil
}

func (c *Client) post(ctx context.Context, verb string, args any) (*http.Response, error) {
	body, err := json.Marshal(args)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if len(body) > maxRequest {
		// The server would say so too, if it were heard before the connection breaks.
		return nil, errors.NewNotValid(nil, fmt.Sprintf("request of %d bytes is too large: at most %d are taken", len(body), maxRequest))
	}
	// net/http has many errors for a connection that ends, most of them without a name.
	var connected, answered atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { connected.Store(true) },
		GotFirstResponseByte: func() { answered.Store(true) },
	})
	request, err := http.NewRequestWithContext(traced, http.MethodPost, "http://stowage/v1/"+verb, bytes.NewReader(body))
	if err != nil {
		return nil, errors.Trace(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	var untrusted *untrustedServerError
	switch {
	case err == nil:
		return response, nil
	case errors.As(err, &untrusted):
		return nil, errors.NewUnauthorized(nil, untrusted.Error())
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return nil, errors.Errorf("cannot reach the agent at %s: is `stowage run` running?", c.path)
	case errors.Is(err, unix.EACCES):
		return nil, errors.Errorf("may not use the agent at %s: run the command as root", c.path)
	case connected.Load() && !answered.Load():
		return nil, c.noResponseError()
	}
	return nil, errors.Annotatef(cause(err), "asking the agent at %s", c.path)
}
