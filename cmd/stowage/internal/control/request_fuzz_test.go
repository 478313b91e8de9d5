package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
)

// FuzzRequest sends arbitrary requests to a server. Its answers always have the format of the
// protocol, and an invalid request is refused before it reaches the backend.
func FuzzRequest(f *testing.F) {
	for _, verb := range []string{"apply", "resize", "import", "storage", "attach", "detach", "remove", "release", "retry", "format", "orphans", "adopt", "delete-orphan", "backup", "remove-pools", "pools", "add-pool", "report"} {
		f.Add(verb, []byte(`{"names": ["a", "b/1"], "size-mib": 5, "more": true, "file": "f", "content": "c3RvcmFnZTogW10=", "dry-run": true}`))
	}
	f.Add("attach", []byte(`{"names": "a"}`))
	f.Add("resize", []byte(`{"size-mib": -1}`))
	f.Add("apply", []byte(`{"content": "?"}`))
	f.Add("storage", []byte(`{"names": ["\u001b[2J\ud800"]} {}`))
	f.Add("none", []byte(``))
	f.Add("../attach", []byte(`null`))
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		if verb == "watch" {
			t.Skip("its answer does not end")
		}
		b := &backend{storage: []control.Storage{{Name: "data"}}}
		_, path := serve(t, b, nil)
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequest(http.MethodPost, "http://stowage/", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.URL.Path = "/v1/" + verb
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		b.mu.Lock()
		calls := b.calls
		b.mu.Unlock()
		switch response.StatusCode {
		case http.StatusNotFound, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusMethodNotAllowed:
			// The server has no such verb.
			if len(calls) > 0 {
				t.Errorf("%q is unknown, but calls the backend: %q", verb, calls)
			}
			return
		}
		var answer struct {
			Error  *params.Error  `json:"error"`
			Result map[string]any `json:"result"`
		}
		decoder := json.NewDecoder(response.Body)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&answer); err != nil {
			t.Fatalf("%q %q: the answer cannot be read: %v", verb, body, err)
		}
		switch {
		case response.StatusCode == http.StatusOK:
			if answer.Error != nil || !json.Valid(body) {
				t.Errorf("%q %q is answered with %+v", verb, body, answer)
			}
			if len(calls) == 0 && verb != "pools" && verb != "report" {
				t.Errorf("%q %q is answered without a call of the backend", verb, body)
			}
		case response.StatusCode != http.StatusBadRequest || answer.Error == nil:
			t.Errorf("%q %q is answered with %s and %+v", verb, body, response.Status, answer)
		default:
			if answer.Error.Code != params.CodeNotValid || !strings.Contains(answer.Error.Message, "reading the request") {
				t.Errorf("%q %q is refused with %+v", verb, body, answer.Error)
			}
			if len(calls) > 0 {
				t.Errorf("%q %q is refused, but calls the backend: %q", verb, body, calls)
			}
		}
	})
}
