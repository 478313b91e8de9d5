package api

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/agentwire"
)

// Secrets keeps the secret of an agent's last session, in the agent's directory. Of two agents
// with the same secret, such as those of a directory and its copy, the server refuses one.
type Secrets interface {
	// Load returns the text that was stored last, or an empty one.
	Load() (string, error)
	// Store replaces the text, which is a line. When it returns nil, the text survives a crash.
	Store(secret string) error
}

// secretSeparator is between the secret of the last session and that which opened it.
const secretSeparator = ","

// openSession opens a session for a connection, if the client has sessions.
func (c *Client) openSession(ctx context.Context) error {
	if c.config.Secrets == nil {
		return nil
	}
	stored, err := c.config.Secrets.Load()
	if err != nil {
		return &lostError{errors.Annotate(err, "reading the secret of the last session")}
	}
	args := agentwire.OpenSessionRequest{BootID: c.config.BootID, Started: !c.hasOpened()}
	secret, opener, ok := strings.Cut(stored, secretSeparator)
	if args.Secret = secret; ok {
		args.Opener = &opener
	}
	opened, err := request[agentwire.OpenSessionResult](ctx, c, agentwire.OpenSessionPath, args)
	if errors.Is(err, errForbidden) {
		return errors.WithType(err, ErrFenced)
	}
	if err != nil {
		return errors.Trace(err)
	}
	if !opened.Reopened {
		opener = secret
	}
	if err := c.config.Secrets.Store(opened.Secret + secretSeparator + opener); err != nil {
		return &lostError{errors.Annotate(err, "storing the secret of the session")}
	}
	if _, err := request[struct{}](ctx, c, agentwire.ConfirmSessionPath, agentwire.ConfirmSessionRequest{Number: opened.Number}); err != nil {
		return errors.Trace(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != 0 && opened.Generation != 0 && c.generation != opened.Generation {
		return errors.Trace(ErrRestored)
	}
	c.session, c.opened, c.generation = strconv.FormatUint(opened.Number, 10), true, max(c.generation, opened.Generation)
	return nil
}

// hasOpened reports whether the client has had a session.
func (c *Client) hasOpened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opened
}

// request makes one attempt of a request that is not a call.
func request[R any](ctx context.Context, c *Client, path string, args any) (R, error) {
	var none R
	body, err := json.Marshal(args)
	if err != nil {
		return none, errors.Trace(err)
	}
	response, err := c.postTo(ctx, path, bytes.NewReader(body))
	if err != nil {
		return none, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := readAnswer(response)
	if err != nil {
		return none, err
	}
	return decode[R](data)
}
