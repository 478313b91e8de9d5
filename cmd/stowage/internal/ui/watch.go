package ui

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// writeTimeout bounds how long a browser may take to read a line.
const writeTimeout = 30 * time.Second

// row is storage with what a table says of it.
type row struct {
	user.Storage
	Shown table.Cells `json:"shown"`
}

// line is a line of the stream: a change, an error, which is the last, or a heartbeat, which has nothing.
type line struct {
	Storage []row    `json:"storage,omitempty"`
	Gone    []string `json:"gone,omitempty"`
	// First says that the line has all storage.
	First bool   `json:"first,omitempty"`
	Error string `json:"error,omitempty"`
}

// lines writes lines. Its methods may be called concurrently.
type lines struct {
	mu         sync.Mutex
	encoder    *json.Encoder
	controller *http.ResponseController
}

func (l *lines) send(next line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.controller.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errors.Trace(err)
	}
	if err := l.encoder.Encode(next); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(l.controller.Flush())
}

// watch serves a stream of lines, until the browser has gone or the agent or server does not answer.
func (p *Page) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := &lines{encoder: json.NewEncoder(w), controller: http.NewResponseController(w)}
	if err := out.controller.Flush(); err != nil { // the page need not wait for the first line to know that it may have it
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	var beats sync.WaitGroup
	beats.Go(func() {
		if err := p.beat(ctx, out); err != nil {
			cancel(err)
		}
	})
	first := true
	err := p.config.Reader.Watch(ctx, nil, func(changed user.Event) error {
		next := line{Gone: changed.Gone, First: first, Storage: make([]row, len(changed.Storage))}
		for i, s := range changed.Storage {
			next.Storage[i] = row{s, table.CellsOf(s)}
		}
		first = false
		return out.send(next)
	})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	beats.Wait()
	if err != nil && r.Context().Err() == nil {
		_ = out.send(line{Error: err.Error()}) // best effort: without it, the page says only that the stream has ended
	}
}

// beat sends heartbeats until the context ends, or the agent or server does not answer: a connection can be
// lost without an end of its stream.
func (p *Page) beat(ctx context.Context, out *lines) error {
	ticker := time.NewTicker(p.config.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := p.ask(ctx); err != nil {
			return err
		}
		if err := out.send(line{}); err != nil {
			return err
		}
	}
}

// ask makes a request that costs little.
func (p *Page) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, maxHeartbeat/2, errors.Errorf("no answer for %s", maxHeartbeat/2))
	defer cancel()
	_, err := p.config.Reader.Pools(ctx)
	return err
}
