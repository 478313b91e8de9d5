package userapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/core/role"
)

// FuzzRequest sends arbitrary requests to a server. Its answers always have the format of the
// protocol, and an invalid request is refused before it reaches the backend.
func FuzzRequest(f *testing.F) {
	for _, verb := range []string{"apply", "resize", "rename", "import", "find", "attach", "detach", "remove", "release", "retry", "format", "adopt", "delete-orphan", "backup", "remove-pools", "pools", "offer"} {
		f.Add(http.MethodPost, verb, []byte(`{"names": ["a", "b/1"], "size-mib": 5, "more": true, "file": "f", "content": "storage: []", "dry-run": true}`))
	}
	for _, verb := range []string{"storage", "orphans", "pools", "machines", "tokens", "report", "claims", "claims/db"} {
		f.Add(http.MethodGet, verb, []byte(nil))
	}
	f.Add(http.MethodPut, "claims/db", []byte(`{"pool": "loop", "selector": "tier=fast", "size-mib": 5, "kind": "block"}`))
	f.Add(http.MethodDelete, "claims/db", []byte(nil))
	f.Add(http.MethodPost, "attach", []byte(`{"names": "a"}`))
	f.Add(http.MethodPost, "resize", []byte(`{"names": ["a"], "size-mib": -1}`))
	f.Add(http.MethodPost, "apply", []byte(`{"content": 1}`))
	f.Add(http.MethodPost, "find", []byte(`{"names": ["\u001b[2J\ud800"]} {}`))
	f.Add(http.MethodPost, "none", []byte(``))
	f.Add(http.MethodPost, "../attach", []byte(`null`))
	f.Fuzz(func(t *testing.T, method, verb string, body []byte) {
		if strings.HasPrefix(verb, "watch") || strings.HasPrefix(verb, "openapi") {
			t.Skip("the answer is no JSON object, or does not end")
		}
		request, err := http.NewRequest(method, "http://stowage/", strings.NewReader(string(body)))
		if err != nil {
			t.Skip("not a request")
		}
		b := &userapitest.Backend{Storages: []user.Storage{{Name: "data"}}, SnapshotList: []user.Snapshot{{Name: "a"}}, ClaimList: []user.Claim{{Name: "db", StorageName: "data"}}}
		request.URL.Path = "/v1/" + verb
		response := httptest.NewRecorder()
		handler(t, b, userapi.Caller{Role: role.Admin, Local: true}).ServeHTTP(deadlines{response}, request)
		calls := b.Calls()
		switch response.Code {
		case http.StatusNotFound, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusMethodNotAllowed:
			// The server has no such verb.
			if len(calls) > 0 {
				t.Errorf("%s %q is unknown, but calls the backend: %q", method, verb, calls)
			}
			return
		case http.StatusOK, http.StatusNoContent:
			if len(calls) == 0 {
				t.Errorf("%s %q %q is answered without a call of the backend", method, verb, body)
			}
			if response.Code == http.StatusOK && method != http.MethodHead && !json.Valid(response.Body.Bytes()) {
				t.Errorf("%s %q %q: the answer cannot be read: %q", method, verb, body, response.Body)
			}
			return
		}
		var problem user.Problem
		decoder := json.NewDecoder(response.Body)
		if err := decoder.Decode(&problem); err != nil {
			t.Fatalf("%s %q %q: the answer cannot be read: %v", method, verb, body, err)
		}
		invalid := response.Code == http.StatusBadRequest || response.Code == http.StatusUnprocessableEntity || response.Code == http.StatusUnsupportedMediaType
		if !invalid || problem.Status != response.Code || problem.Detail == "" || problem.Code == params.CodeNotFound {
			t.Errorf("%s %q %q is answered with %d and %+v", method, verb, body, response.Code, problem)
		}
		if len(calls) > 0 {
			t.Errorf("%s %q %q is refused, but calls the backend: %q", method, verb, body, calls)
		}
	})
}
