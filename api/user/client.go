package user

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/juju/errors"
)

// MaxRequest bounds the body of a request, in bytes. It is enough for the largest file, with a
// margin.
const MaxRequest = 4 << 20

const defaultReconnectTimeout = 30 * time.Second

// Config configures a [Client].
type Config struct {
	// URL is that of the agent or server, without a path. Required.
	URL string
	// Name is what the client calls the agent or server in errors, after "at"; empty: URL.
	Name string
	// Transport makes the requests. The client closes its idle connections. Required.
	Transport *http.Transport
	// ReconnectTimeout is how long [Client.Follow] tries to connect again once the connection is
	// lost. Zero means 30 seconds.
	ReconnectTimeout time.Duration
	// ConnectError returns the error for one that was met while connecting; nil, or if it returns
	// nil, the client describes it.
	ConnectError func(error) error
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch {
	case c.Transport == nil:
		return errors.NotValidf("nil Transport")
	case c.ReconnectTimeout < 0:
		return errors.NotValidf("negative ReconnectTimeout")
	case !strings.HasPrefix(c.URL, "http://") && !strings.HasPrefix(c.URL, "https://"):
		return errors.NotValidf("URL %q", c.URL)
	}
	return nil
}

// Client makes requests to an agent or a server. Errors of the server keep their kind:
// errors.IsNotFound and the like recognize them. Its methods may be called concurrently.
type Client struct {
	config Config
	http   http.Client
}

// NewClient returns a client. It connects on the first request. Close it after use.
func NewClient(config Config) (*Client, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Name == "" {
		config.Name = config.URL
	}
	if config.ReconnectTimeout == 0 {
		config.ReconnectTimeout = defaultReconnectTimeout
	}
	return &Client{config: config, http: http.Client{
		Transport: config.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the server redirects to another address")
		},
	}}, nil
}

// Name returns what errors call the agent or server: [Config].Name.
func (c *Client) Name() string { return c.config.Name }

// Close ends the client's idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Apply converges the agent to a file.
func (c *Client) Apply(ctx context.Context, args ApplyArgs) (ApplyResult, error) {
	return post[ApplyResult](ctx, c, "apply", args)
}

// Storage returns the named storage, or all storage without names.
func (c *Client) Storage(ctx context.Context, names []string) ([]Storage, error) {
	if len(names) > 0 {
		result, err := post[StorageList](ctx, c, "find", Names{names})
		return result.Storage, err
	}
	result, err := get[StorageList](ctx, c, "storage")
	return result.Storage, err
}

// Look returns what machines have of the named storage, and what workers do for it.
func (c *Client) Look(ctx context.Context, names []string) ([]StorageLook, error) {
	result, err := post[LookList](ctx, c, "look", Names{names})
	return result.Storage, err
}

// Usage measures how much of the named storage is used. At most [MaxUsages] instances can be named.
func (c *Client) Usage(ctx context.Context, names []string) (UsageList, error) {
	return post[UsageList](ctx, c, "usage", Names{names})
}

// Events returns what happened to storage, the oldest first.
func (c *Client) Events(ctx context.Context, args EventsArgs) ([]StorageEvent, error) {
	result, err := post[StorageEventList](ctx, c, "events", args)
	return result.Events, err
}

// Create requests new storage, and returns it. If there is storage of that name, the error satisfies
// errors.Is(err, [ErrPrecondition]).
func (c *Client) Create(ctx context.Context, name string, wanted Declaration) ([]Storage, error) {
	result, err := call[StorageList](ctx, c, http.MethodPut, storagePath(name), wanted, "If-None-Match", "*")
	return result.Storage, err
}

func storagePath(name string) string {
	return "storage/" + strings.ReplaceAll(url.PathEscape(name), "%2F", "/")
}

// Declare makes sure that storage exists and is attached, as applying a file with the declaration does, and
// returns it.
func (c *Client) Declare(ctx context.Context, name string, wanted Declaration) ([]Storage, error) {
	result, err := call[StorageList](ctx, c, http.MethodPut, storagePath(name), wanted)
	return result.Storage, err
}

// Attach requests that storage be attached. The result has the storage that had failed, and is tried
// again; a server of an older version leaves it empty. It, Detach, Remove and Release return when the
// agent has recorded the request.
func (c *Client) Attach(ctx context.Context, args AttachArgs) (ChangesResult, error) {
	return post[ChangesResult](ctx, c, "attach", args)
}

// Detach requests that storage be detached.
func (c *Client) Detach(ctx context.Context, names []string) error {
	return c.change(ctx, "detach", names)
}

// Remove requests that storage be detached and destroyed.
func (c *Client) Remove(ctx context.Context, names []string) error {
	return c.change(ctx, "remove", names)
}

// RemoveStorage is Remove as the arguments say, and ReleaseStorage is Release.
func (c *Client) RemoveStorage(ctx context.Context, args RemoveArgs) error {
	_, err := post[struct{}](ctx, c, "remove", args)
	return err
}

func (c *Client) ReleaseStorage(ctx context.Context, args RemoveArgs) error {
	_, err := post[struct{}](ctx, c, "release", args)
	return err
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
	return post[ChangesResult](ctx, c, "resize", args)
}

// Rename gives storage another name. Its data and its history stay.
func (c *Client) Rename(ctx context.Context, args RenameArgs) (ChangesResult, error) {
	return post[ChangesResult](ctx, c, "rename", args)
}

// Import takes over an existing object. When it returns, the object belongs to the agent.
func (c *Client) Import(ctx context.Context, args ImportArgs) (ChangesResult, error) {
	return post[ChangesResult](ctx, c, "import", args)
}

// Claim makes a claim, or returns it if it was made before by the same request. wait is how long the
// answer may take for the storage to be attached, or to have failed; the claim is as it is then. Errors
// satisfy errors.IsAlreadyExists if there is a claim of another request, and errors.IsNotFound if no
// storage fits.
func (c *Client) Claim(ctx context.Context, name string, request ClaimRequest, wait time.Duration) (Claim, error) {
	return call[Claim](ctx, c, http.MethodPut, resource("claims", name, wait), request)
}

// GetClaim returns a claim. wait is as for Claim.
func (c *Client) GetClaim(ctx context.Context, name string, wait time.Duration) (Claim, error) {
	return get[Claim](ctx, c, resource("claims", name, wait))
}

// Claims returns all claims, sorted by name.
func (c *Client) Claims(ctx context.Context) ([]Claim, error) {
	result, err := get[ClaimList](ctx, c, "claims")
	return result.Claims, err
}

// Unclaim deletes a claim, with its storage or without, as it says. It returns what is left of the storage
// when that is destroyed, or after the wait.
func (c *Client) Unclaim(ctx context.Context, name string, wait time.Duration) ([]Storage, error) {
	result, err := call[StorageList](ctx, c, http.MethodDelete, resource("claims", name, wait), nil)
	return result.Storage, err
}

// Offer lets claims get storage that was retained from deleted claims.
func (c *Client) Offer(ctx context.Context, names []string) error {
	return c.change(ctx, "offer", names)
}

// CreateSnapshot requests a snapshot, or returns it if it was requested before. wait is how long the answer
// may take for the snapshot to be made, or to have failed; it is as it is then. Errors satisfy
// errors.IsAlreadyExists if there is a snapshot of that name of other storage, and errors.IsNotFound if the
// storage does not exist.
func (c *Client) CreateSnapshot(ctx context.Context, name string, request SnapshotRequest, wait time.Duration) (Snapshot, error) {
	return call[Snapshot](ctx, c, http.MethodPut, resource("snapshots", name, wait), request)
}

// GetSnapshot returns a snapshot. wait is as for CreateSnapshot.
func (c *Client) GetSnapshot(ctx context.Context, name string, wait time.Duration) (Snapshot, error) {
	return get[Snapshot](ctx, c, resource("snapshots", name, wait))
}

// Snapshots returns all snapshots, sorted by name.
func (c *Client) Snapshots(ctx context.Context) ([]Snapshot, error) {
	result, err := get[SnapshotList](ctx, c, "snapshots")
	return result.Snapshots, err
}

// DeleteSnapshot requests that a snapshot be deleted. force deletes one that a program has asked for, too. It
// returns what is left of the snapshot after the wait: nothing if it is gone.
func (c *Client) DeleteSnapshot(ctx context.Context, name string, force bool, wait time.Duration) ([]Snapshot, error) {
	path := resource("snapshots", name, wait)
	if force {
		separator := "?"
		if wait > 0 {
			separator = "&"
		}
		path += separator + "force=true"
	}
	result, err := call[SnapshotList](ctx, c, http.MethodDelete, path, nil)
	return result.Snapshots, err
}

// resource returns the path of a resource, for a request that waits for a time.
func resource(kind, name string, wait time.Duration) string {
	path := kind + "/" + url.PathEscape(name)
	if wait > 0 {
		path += "?" + url.Values{"wait": {wait.String()}}.Encode()
	}
	return path
}

func (c *Client) change(ctx context.Context, verb string, names []string) error {
	_, err := post[struct{}](ctx, c, verb, Names{names})
	return err
}

// Orphans returns the orphans, and other objects of providers that belong to no storage: those of the
// named machine, or without a name those of all machines that are connected.
func (c *Client) Orphans(ctx context.Context, machine string) (OrphanList, error) {
	path := "orphans"
	if machine != "" {
		path += "?" + url.Values{"machine": {machine}}.Encode()
	}
	return get[OrphanList](ctx, c, path)
}

// Adopt adds storage for an orphan, detached.
func (c *Client) Adopt(ctx context.Context, args AdoptArgs) (ChangesResult, error) {
	return post[ChangesResult](ctx, c, "adopt", args)
}

// DeleteOrphan destroys an orphan.
func (c *Client) DeleteOrphan(ctx context.Context, args DeleteOrphanArgs) (DeleteOrphanResult, error) {
	return post[DeleteOrphanResult](ctx, c, "delete-orphan", args)
}

// Backup writes the agent's state to a new file.
func (c *Client) Backup(ctx context.Context, args BackupArgs) (BackupResult, error) {
	return post[BackupResult](ctx, c, "backup", args)
}

// Pools returns the pools that directives can name.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	result, err := get[PoolList](ctx, c, "pools")
	return result.Pools, err
}

// AddPool creates a pool, or replaces one.
func (c *Client) AddPool(ctx context.Context, args AddPoolArgs) error {
	_, err := post[struct{}](ctx, c, "pools", args)
	return err
}

// RemovePools removes the named pools, all or none.
func (c *Client) RemovePools(ctx context.Context, names []string) error {
	return c.change(ctx, "remove-pools", names)
}

// Machines returns all machines, sorted by name.
func (c *Client) Machines(ctx context.Context) ([]Machine, error) {
	result, err := get[MachineList](ctx, c, "machines")
	return result.Machines, err
}

// Move requests that storage be detached, and attached to another machine.
func (c *Client) Move(ctx context.Context, args MoveArgs) (MoveResult, error) {
	return post[MoveResult](ctx, c, "move", args)
}

// Servers returns the servers that keep the state together, sorted by name.
func (c *Client) Servers(ctx context.Context) ([]Server, error) {
	result, err := get[ServerList](ctx, c, "servers")
	return result.Servers, err
}

// RemoveServer removes another server.
func (c *Client) RemoveServer(ctx context.Context, args RemoveServerArgs) error {
	_, err := post[struct{}](ctx, c, "remove-server", args)
	return err
}

// DrainMachine keeps a machine from getting storage, and requests that its storage be moved to
// others.
func (c *Client) DrainMachine(ctx context.Context, args MachineArgs) (DrainMachineResult, error) {
	return post[DrainMachineResult](ctx, c, "drain-machine", args)
}

// UndrainMachine lets a machine get storage again.
func (c *Client) UndrainMachine(ctx context.Context, args MachineArgs) error {
	_, err := post[struct{}](ctx, c, "undrain-machine", args)
	return err
}

// LabelMachine changes the labels of a machine.
func (c *Client) LabelMachine(ctx context.Context, args LabelMachineArgs) error {
	_, err := post[struct{}](ctx, c, "label-machine", args)
	return err
}

// FenceMachine makes sure that a machine counts as off. The error satisfies errors.IsNotSupported if
// that is neither confirmed nor can be seen to by the server.
func (c *Client) FenceMachine(ctx context.Context, args FenceMachineArgs) error {
	_, err := post[struct{}](ctx, c, "fence-machine", args)
	return err
}

// RemoveMachine removes a machine, with the storage that is lost with it.
func (c *Client) RemoveMachine(ctx context.Context, args RemoveMachineArgs) error {
	_, err := post[struct{}](ctx, c, "remove-machine", args)
	return err
}

// CreateToken creates a token, and returns its text.
func (c *Client) CreateToken(ctx context.Context, args CreateTokenArgs) (string, error) {
	result, err := post[TokenText](ctx, c, "tokens", args)
	return result.Token, err
}

// Tokens returns the tokens that can be used.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	result, err := get[TokenList](ctx, c, "tokens")
	return result.Tokens, err
}

// RemoveTokens removes tokens, each named by its ID.
func (c *Client) RemoveTokens(ctx context.Context, ids []string) error {
	return c.change(ctx, "remove-tokens", ids)
}

// Users returns the users with a certificate.
func (c *Client) Users(ctx context.Context) ([]User, error) {
	result, err := get[UserList](ctx, c, "users")
	return result.Users, err
}

// RemoveUsers removes users, all or none. Their certificates are worthless from then on.
func (c *Client) RemoveUsers(ctx context.Context, names []string) error {
	return c.change(ctx, "remove-users", names)
}

// Report returns the reports of the agent's workers.
func (c *Client) Report(ctx context.Context) (map[string]any, error) {
	result, err := get[Report](ctx, c, "report")
	return result.Report, err
}

func get[R any](ctx context.Context, c *Client, path string) (R, error) {
	return call[R](ctx, c, http.MethodGet, path, nil)
}

func post[R any](ctx context.Context, c *Client, path string, args any) (R, error) {
	return call[R](ctx, c, http.MethodPost, path, args)
}

func call[R any](ctx context.Context, c *Client, method, path string, args any, headers ...string) (R, error) {
	var result R
	response, err := c.do(ctx, method, path, args, headers...)
	if err != nil {
		return result, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusNoContent {
		return result, nil
	}
	return result, c.decode(ctx, response, &result)
}

func (c *Client) decode(ctx context.Context, response *http.Response, into any) error {
	err := json.NewDecoder(response.Body).Decode(into)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return c.noResponseError()
	}
	return errors.Annotate(err, "reading the agent's answer")
}

// noResponseError returns the error for a request that may have been carried out.
func (c *Client) noResponseError() error {
	return errors.WithType(errors.Errorf("the agent at %s stopped before it answered", c.config.Name), errLost)
}

// do makes a request. args is the body, nil for none. headers are names, each followed by its value. The
// error is that of the server, if it answers with one.
func (c *Client) do(ctx context.Context, method, path string, args any, headers ...string) (*http.Response, error) {
	var body []byte
	if args != nil {
		var err error
		if body, err = json.Marshal(args); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if len(body) > MaxRequest {
		// The server would return the same error, but the connection could break before it
		// arrives.
		return nil, errors.NewNotValid(nil, fmt.Sprintf("request of %d bytes is too large: the agent accepts at most %d", len(body), MaxRequest))
	}
	// net/http has many errors for a connection that ends, most of them without an exported
	// name.
	var connected, answered atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { connected.Store(true) },
		GotFirstResponseByte: func() { answered.Store(true) },
	})
	request, err := http.NewRequestWithContext(traced, method, c.config.URL+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, errors.Trace(err)
	}
	if args != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for ; len(headers) > 1; headers = headers[2:] {
		request.Header.Set(headers[0], headers[1])
	}
	response, err := c.http.Do(request)
	switch {
	case err == nil && response.StatusCode < http.StatusMultipleChoices:
		return response, nil
	case err == nil:
		defer func() { _ = response.Body.Close() }()
		var problem Problem
		if err := c.decode(ctx, response, &problem); err != nil {
			return nil, errors.Annotatef(err, "the agent at %s answers with %s", c.config.Name, response.Status)
		}
		return nil, problem.err()
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	if c.config.ConnectError != nil {
		if described := c.config.ConnectError(err); described != nil {
			return nil, errors.WithType(described, errLost)
		}
	}
	if connected.Load() && !answered.Load() {
		return nil, c.noResponseError()
	}
	return nil, errors.WithType(errors.Annotatef(cause(err), "asking the agent at %s", c.config.Name), errLost)
}

// cause returns the error of the operation that a request failed with, without the method, the URL
// and the address, which the messages here already have.
func cause(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
