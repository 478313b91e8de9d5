package userapi

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
)

var problemType = reflect.TypeFor[user.Problem]()

func (h *Handler) registerWatch() {
	operation := h.operation(http.MethodPost, "watch", toRead, "Follow storage")
	operation.Description += " The answer has a line for each event. The first has all of the named storage (without names, all " +
		"storage), the others what has changed. A line with an error is the last. With \"from\", the position of an event " +
		"of an earlier answer, the first line has what has changed since then, or is gone; if the server does not know, the " +
		"answer has status 410: watch again without it, and take what is not in the first line as gone."
	lines := h.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[user.Line](), true, "")
	operation.Responses["200"] = &huma.Response{
		Description: "A stream of JSON objects, one a line",
		Content:     map[string]*huma.MediaType{"application/x-ndjson": {Schema: lines}},
	}
	huma.Register(h.api, operation, func(ctx context.Context, args *body[user.WatchArgs]) (*huma.StreamResponse, error) {
		end, err := h.streams.begin(callerOf(ctx))
		if err != nil {
			return nil, problemOf(err)
		}
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			defer end()
			r, w := humago.Unwrap(ctx)
			h.watch(w, r, args.Body)
		}}, nil
	})
}

// streams counts the requests that follow storage.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by the name of the user
}

// begin counts another request, until end is called.
func (s *streams) begin(caller Caller) (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.all == maxStreams:
		return nil, errors.Errorf("%d clients are watching already: try again when one has ended", maxStreams)
	case caller.Name != "" && s.of[caller.Name] == maxStreamsOfUser:
		return nil, errors.Errorf("%d clients of user %s are watching already: try again when one has ended", maxStreamsOfUser, caller.Name)
	}
	if s.of == nil {
		s.of = map[string]int{}
	}
	s.all++
	s.of[caller.Name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.of[caller.Name]--; s.of[caller.Name] == 0 {
			delete(s.of, caller.Name)
		}
	}, nil
}

func (h *Handler) watch(w http.ResponseWriter, r *http.Request, args user.WatchArgs) {
	controller, encoder := http.NewResponseController(w), json.NewEncoder(w)
	begun := false
	send := func(line user.Line) error {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		if err := encoder.Encode(line); err != nil {
			return errors.Trace(err)
		}
		return errors.Trace(controller.Flush())
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	var checks sync.WaitGroup
	checks.Go(func() { h.checkCaller(ctx, cancel, r) })
	err := h.config.Backend.Watch(ctx, args, func(event user.Event) error {
		return send(user.Line{Event: event})
	})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	checks.Wait()
	switch {
	case err == nil || r.Context().Err() != nil: // a client that has disconnected needs no answer
	case begun:
		_ = send(user.Line{Error: user.NewProblem(err)})
	default:
		writeProblem(w, err)
	}
}

// checkCaller ends a request when its caller may not make it any more.
func (h *Handler) checkCaller(ctx context.Context, end context.CancelCauseFunc, r *http.Request) {
	ticker := time.NewTicker(h.config.CheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			caller, err := h.config.Caller(r)
			if err == nil {
				err = toRead.check(caller)
			}
			if err != nil {
				end(err)
				return
			}
		}
	}
}
