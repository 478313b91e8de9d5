package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/agentwire"
)

// hostile is a server that answers the first call, and the first watcher of its first stream,
// with given texts, and refuses everything after that.
type hostile struct {
	status         int
	answer, stream string

	mu             sync.Mutex
	called, opened bool
	streams        sync.WaitGroup
}

// RoundTrip implements http.RoundTripper.
func (h *hostile) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	respond := func(status int, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: body, Request: r}, nil
	}
	isStream := strings.HasSuffix(r.URL.Path, agentwire.StreamMethod)
	switch {
	case isStream && !h.opened:
		h.opened = true
		in, out := io.Pipe()
		h.streams.Go(func() { h.serveStream(r, out) })
		return respond(http.StatusOK, in)
	case !isStream && !h.called:
		h.called = true
		return respond(h.status, io.NopCloser(strings.NewReader(h.answer)))
	}
	return respond(http.StatusUnauthorized, io.NopCloser(strings.NewReader(`{"error":{"message":"refused"}}`)))
}

func (h *hostile) serveStream(r *http.Request, out *io.PipeWriter) {
	defer out.Close()
	defer r.Body.Close()
	stop := context.AfterFunc(r.Context(), func() { out.Close(); r.Body.Close() })
	defer stop()
	if json.NewEncoder(out).Encode(agentwire.Message{Type: agentwire.Hello, Methods: api.AccessorMethods}) != nil {
		return
	}
	for reader := agentwire.NewReader(r.Body, agentwire.MaxMessage); ; {
		message, err := reader.Next()
		if err != nil {
			return
		}
		if message.Type == agentwire.Start {
			_, _ = io.WriteString(out, h.stream) // the client may have enough
			return
		}
	}
}

// FuzzAnswer makes a server send arbitrary answers and messages. A call returns a result for
// each argument or an error, and a watcher ends with an error when the server refuses the agent.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		`{"result":[{"life":"alive"}]}`, `{"result":[]}`, `{"result":null}`, `{"result":[{},{}]}`, `{"result":{}}`,
		`{"error":{"message":"m","code":"not found"}}`, `{"error":{}}`, `null`, ``, `<html>`, strings.Repeat("[", 20000),
	} {
		f.Add(uint16(200), answer, `{"type":"started","watcher":1}{"type":"event","watcher":1,"event":["0"]}`)
	}
	for _, status := range []uint16{100, 204, 301, 307, 400, 401, 403, 404, 413, 429, 500, 503, 999} {
		f.Add(status, `{"error":{"message":"m","code":"c"}}`, `{"type":"ended","watcher":1}`)
	}
	for _, stream := range []string{
		`{"type":"started","watcher":1}{"type":"event","watcher":1,"event":{}}`, `{"type":"event","watcher":1}`, `{"type":"hello"}`,
		`{"type":"ended","watcher":1,"error":{"message":"m"}}`, `{"type":"event","watcher":2,"event":["0"]}{"type":`, `[]`, `x`,
	} {
		f.Add(uint16(200), `{}`, stream)
	}
	f.Fuzz(func(t *testing.T, status uint16, answer, stream string) {
		h := &hostile{status: int(status), answer: answer, stream: stream}
		config := api.Config{URLs: []string{"https://server"}, Logger: &world{}, MinDelay: time.Nanosecond, MaxDelay: time.Nanosecond}
		client, err := api.Dial(context.Background(), api.WithTransport(config, h))
		if err != nil {
			t.Fatal(err)
		}
		lives, err := client.Accessors().Life([]names.Tag{machine0})
		if err == nil && (status != http.StatusOK || len(lives) != 1 || !json.Valid([]byte(answer))) {
			t.Errorf("%d %q is read as %+v", status, answer, lives)
		}
		volumes, err := client.Accessors().WatchVolumes()
		if err == nil {
			for range volumes.Changes() {
			}
			err = volumes.Wait()
		}
		if err == nil {
			t.Errorf("%q: the watcher ends without an error", stream)
		}
		client.Kill()
		if err := client.Wait(); err != nil && !errors.Is(err, api.ErrRefused) {
			t.Error(err)
		}
		h.streams.Wait()
	})
}

// dialHostile returns a client of a server that answers one call. The client ends with the test.
func dialHostile(t *testing.T, answer string) api.Accessors {
	t.Helper()
	h := &hostile{status: http.StatusOK, answer: answer}
	config := api.Config{URLs: []string{"https://server"}, Logger: &world{}}
	client, err := api.Dial(context.Background(), api.WithTransport(config, h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		h.streams.Wait()
	})
	return client.Accessors()
}

// An answer of any size costs a client a bounded amount of memory.
func TestHugeAnswer(t *testing.T) {
	accessors := dialHostile(t, `{"result":["`+strings.Repeat("x", agentwire.MaxAnswer)+`"]}`)
	if _, err := accessors.Life([]names.Tag{machine0}); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "answer of more than") {
		t.Errorf("a huge answer: %v", err)
	}
}

// An error page of a proxy is not an answer: the call is made again.
func TestErrorPage(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound, http.StatusBadGateway} {
		h := &hostile{status: status, answer: "<html>"}
		client, err := api.Dial(context.Background(), api.WithTransport(api.Config{URLs: []string{"https://server"}, Logger: &world{}, MinDelay: 1, MaxDelay: 1}, h))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Accessors().EnvironConfig(); !errors.Is(err, api.ErrRefused) || err.Error() != "refused" {
			t.Errorf("the second answer, which refuses, is read as %v", err)
		}
		if err := client.Wait(); !errors.Is(err, api.ErrRefused) {
			t.Error(err)
		}
		h.streams.Wait()
	}
}

// No results mean that all writes have succeeded, but are not enough for a call that reads.
func TestAnswerWithoutResults(t *testing.T) {
	const answer = `{"result":null}`
	results, err := dialHostile(t, answer).SetVolumeInfo([]params.Volume{{}, {}})
	if err != nil || len(results) != 2 || results[0].Error != nil || results[1].Error != nil {
		t.Errorf("writing: %+v, %v", results, err)
	}
	if results, err := dialHostile(t, answer).Life([]names.Tag{machine0}); err == nil || !strings.Contains(err.Error(), "0 results for 1 arguments") {
		t.Errorf("reading: %+v, %v", results, err)
	}
}
