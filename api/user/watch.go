package user

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/juju/errors"
)

// ErrGone is the error of a request to watch from a position that the server does not know: the client
// watches from the beginning.
const ErrGone = errors.ConstError("gone")

// errLost is the type of errors of the connection.
const errLost = errors.ConstError("connection lost")

// Watch calls each with all of the named storage (without names, with all storage), then with
// changes, until the context ends, each fails, or the connection does. It never returns nil.
func (c *Client) Watch(ctx context.Context, names []string, each func(Event) error) error {
	return c.watch(ctx, WatchArgs{Names: names}, each)
}

func (c *Client) watch(ctx context.Context, args WatchArgs, each func(Event) error) error {
	response, err := c.do(ctx, http.MethodPost, "watch", args)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	decoder := json.NewDecoder(response.Body)
	for {
		var line Line
		err := decoder.Decode(&line)
		var syntax *json.SyntaxError
		var wrong *json.UnmarshalTypeError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errors.WithType(errors.Errorf("the agent at %s has stopped", c.config.Name), errLost)
		case errors.As(err, &syntax), errors.As(err, &wrong):
			return errors.Annotate(err, "reading the agent's answer")
		case err != nil:
			return errors.WithType(errors.Annotate(err, "reading the agent's answer"), errLost)
		case line.Error != nil:
			return line.Error.err()
		}
		if err := each(line.Event); err != nil {
			return err
		}
	}
}

// Follow is Watch, but goes on when the connection is lost: it connects again, and each gets what has
// changed since, including that storage is gone. It returns the last error if that does not succeed in
// time (Config.ReconnectTimeout), or if it could not connect at first.
func (c *Client) Follow(ctx context.Context, names []string, each func(Event) error) error {
	f := follower{client: c, args: WatchArgs{Names: names}, each: each, known: map[string]struct{}{}}
	return f.run(ctx)
}

// follower follows storage over several connections.
type follower struct {
	client *Client
	args   WatchArgs
	each   func(Event) error
	// known are the names of the storage that there was at the last event.
	known map[string]struct{}
	// heard says that an event was received on this connection, and begun on any.
	heard, begun bool
}

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

func (f *follower) run(ctx context.Context) error {
	var lost time.Time // when the connection was; zero while there is one
	var pause time.Duration
	for {
		f.heard = false
		err := f.client.watch(ctx, f.args, f.take)
		if f.heard {
			lost, pause = time.Time{}, 0
		}
		switch {
		case ctx.Err() != nil || !f.begun:
			return err
		case f.args.From != "" && (errors.Is(err, ErrGone) || errors.Is(err, errors.NotValid)):
			f.args.From = "" // another server, perhaps an older one
			continue
		case !errors.Is(err, errLost) && !errors.Is(err, errors.NotYetAvailable):
			return err
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if time.Since(lost) >= f.client.config.ReconnectTimeout {
			return err
		}
		if pause > 0 { // not before the first attempt
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(pause/2 + rand.N(pause/2)):
			}
		}
		pause = min(max(2*pause, firstPause), maxPause)
	}
}

// take passes an event on. The first one of a connection that does not go on from a position has all
// storage, and says by that what is gone.
func (f *follower) take(event Event) error {
	if f.begun && !f.heard && f.args.From == "" {
		for _, s := range event.Storage {
			delete(f.known, s.Name)
		}
		for name := range f.known {
			event.Gone = append(event.Gone, name)
		}
		slices.Sort(event.Gone)
	}
	f.heard, f.begun = true, true
	for _, s := range event.Storage {
		f.known[s.Name] = struct{}{}
	}
	for _, name := range event.Gone {
		delete(f.known, name)
	}
	f.args.From = event.Position
	return f.each(event)
}
