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

// Client makes requests to the agent behind a socket. Errors of the agent keep their kind:
// errors.IsNotFound and the like recognize them.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a client for the agent that listens on a socket. It connects on the first
// request. It sends nothing to a socket of a user other than root and the user of this
// process: the error then satisfies errors.Is(err, errors.Unauthorized). Close it after use.
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

// untrustedServerError is the error for a socket on which a user who cannot be the agent's
// listens.
type untrustedServerError struct {
	path string
	uid  uint32
}

// Error implements error.
func (i *untrustedServerError) Error() string {
	return fmt.Sprintf("user %d, who is neither root nor you, listens on %s: the request was not sent", i.uid, i.path)
}

// checkServer returns an error if the listening user is not one that an agent may run as: in a
// directory that others can write to, they can replace the agent's socket with their own.
func checkServer(conn net.Conn, path string) error {
	uid, err := peerUID(conn)
	if err != nil {
		return errors.Annotatef(err, "finding the user who listens on %s", path)
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

// Storage returns the named storage, or all storage without names.
func (c *Client) Storage(ctx context.Context, names []string) ([]Storage, error) {
	result, err := call[storageResult](ctx, c, "storage", namesArgs{names})
	return result.Storage, err
}

// Attach requests that storage be attached. It, Detach, Remove and Release return when the
// agent has recorded the request.
func (c *Client) Attach(ctx context.Context, args AttachArgs) error {
	_, err := call[struct{}](ctx, c, "attach", args)
	return err
}

// Detach requests that storage be detached.
func (c *Client) Detach(ctx context.Context, names []string) error {
	return c.change(ctx, "detach", names)
}

// Remove requests that storage be detached and destroyed.
func (c *Client) Remove(ctx context.Context, names []string) error {
	return c.change(ctx, "remove", names)
}

// Release requests that storage be detached and removed from the state, with its data left in
// place.
func (c *Client) Release(ctx context.Context, names []string) error {
	return c.change(ctx, "release", names)
}

// Retry requests that failed operations of storage be retried at once; no names mean all
// storage.
func (c *Client) Retry(ctx context.Context, names []string) error {
	return c.change(ctx, "retry", names)
}

// Format requests that filesystems which could not be made be made whatever their volumes
// contain.
func (c *Client) Format(ctx context.Context, names []string) error {
	return c.change(ctx, "format", names)
}

// Resize requests that storage grow.
func (c *Client) Resize(ctx context.Context, args ResizeArgs) (ChangesResult, error) {
	return call[ChangesResult](ctx, c, "resize", args)
}

// Import takes over an existing object. When it returns, the object belongs to the agent.
func (c *Client) Import(ctx context.Context, args ImportArgs) (ChangesResult, error) {
	return call[ChangesResult](ctx, c, "import", args)
}

func (c *Client) change(ctx context.Context, verb string, names []string) error {
	_, err := call[struct{}](ctx, c, verb, namesArgs{names})
	return err
}

// Orphans returns the orphans, and other objects of providers that belong to no storage.
func (c *Client) Orphans(ctx context.Context) ([]Orphan, error) {
	result, err := call[orphansResult](ctx, c, "orphans", struct{}{})
	return result.Orphans, err
}

// Adopt adds storage for an orphan, detached.
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

// AddPool creates a pool, or replaces one.
func (c *Client) AddPool(ctx context.Context, args AddPoolArgs) error {
	_, err := call[struct{}](ctx, c, "add-pool", args)
	return err
}

// RemovePools removes the named pools, all or none.
func (c *Client) RemovePools(ctx context.Context, names []string) error {
	return c.change(ctx, "remove-pools", names)
}

// Machines returns all machines, sorted by name.
func (c *Client) Machines(ctx context.Context) ([]Machine, error) {
	result, err := call[machinesResult](ctx, c, "machines", struct{}{})
	return result.Machines, err
}

// Move requests that storage be detached, and attached to another machine.
func (c *Client) Move(ctx context.Context, args MoveArgs) (MoveResult, error) {
	return call[MoveResult](ctx, c, "move", args)
}

// FenceMachine says that a machine is off, or has been restarted.
func (c *Client) FenceMachine(ctx context.Context, machine string) error {
	_, err := call[struct{}](ctx, c, "fence-machine", RemoveMachineArgs{Machine: machine})
	return err
}

// RemoveMachine removes a machine, with the storage that is lost with it.
func (c *Client) RemoveMachine(ctx context.Context, args RemoveMachineArgs) error {
	_, err := call[struct{}](ctx, c, "remove-machine", args)
	return err
}

// CreateToken creates a token, and returns its text.
func (c *Client) CreateToken(ctx context.Context, args CreateTokenArgs) (string, error) {
	result, err := call[tokenResult](ctx, c, "create-token", args)
	return result.Token, err
}

// Tokens returns the tokens that can be used.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	result, err := call[tokensResult](ctx, c, "tokens", struct{}{})
	return result.Tokens, err
}

// RemoveTokens removes tokens, each named by its ID.
func (c *Client) RemoveTokens(ctx context.Context, ids []string) error {
	return c.change(ctx, "remove-tokens", ids)
}

// Report returns the reports of the agent's workers.
func (c *Client) Report(ctx context.Context) (map[string]any, error) {
	result, err := call[reportResult](ctx, c, "report", struct{}{})
	return result.Report, err
}

// Watch calls each with all of the named storage (without names, with all storage), then with
// changes, until the context ends, each fails, or the agent stops. It never returns nil.
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

// noResponseError returns the error for a request that may have been carried out.
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
		// The server would return the same error, but the connection could break before it
		// arrives.
		return nil, errors.NewNotValid(nil, fmt.Sprintf("request of %d bytes is too large: the agent accepts at most %d", len(body), maxRequest))
	}
	// net/http has many errors for a connection that ends, most of them without an exported
	// name.
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
		return nil, errors.Errorf("cannot reach the agent at %s: is `stowage run` or `stowage server` running?", c.path)
	case errors.Is(err, unix.EACCES):
		return nil, errors.Errorf("you may not use the agent at %s: run the command as root", c.path)
	case connected.Load() && !answered.Load():
		return nil, c.noResponseError()
	}
	return nil, errors.Annotatef(cause(err), "asking the agent at %s", c.path)
}
