package userapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// handler returns a handler whose requests are all those of a caller.
func handler(t testing.TB, b userapi.Backend, caller userapi.Caller) *userapi.Handler {
	t.Helper()
	h, err := userapi.New(userapi.Config{Backend: b, Caller: func(*http.Request) (userapi.Caller, error) { return caller, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// deadlines is a response that accepts deadlines and has no use for them.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error  { return nil }
func (deadlines) SetWriteDeadline(time.Time) error { return nil }

// request makes a request, and returns the status of the answer and its body.
func request(h http.Handler, method, path, body string) (int, string) {
	response := httptest.NewRecorder()
	r := httptest.NewRequest(method, "http://stowage"+path, strings.NewReader(body))
	h.ServeHTTP(deadlines{response}, r)
	return response.Code, strings.TrimSpace(response.Body.String())
}

// Every operation is for one of three kinds of callers, and reaches the backend only for them.
// Promise S28.
func TestRoles(t *testing.T) {
	const read, change, host = "read", "change", "host"
	for _, op := range []struct{ method, name, body, needs string }{
		{"GET", "storage", "", read}, {"GET", "storage/data/0", "", read}, {"PUT", "storage/data", "{}", change},
		{"GET", "claims", "", read}, {"GET", "claims/db", "", read}, {"PUT", "claims/db", "{}", change}, {"DELETE", "claims/db", "", change}, {"GET", "snapshots", "", read}, {"GET", "snapshots/a", "", read}, {"PUT", "snapshots/a", `{"storage":"b"}`, change}, {"DELETE", "snapshots/a", "", change},
		{"POST", "offer", "{}", change},
		{"DELETE", "storage/data", "", change}, {"POST", "find", "{}", read}, {"POST", "look", "{}", read}, {"POST", "usage", "{}", read}, {"POST", "events", "{}", read}, {"GET", "orphans", "", read}, {"GET", "orphans?machine=web", "", read}, {"GET", "pools", "", read},
		{"GET", "machines", "", read}, {"GET", "tokens", "", read}, {"GET", "report", "", read}, {"GET", "users", "", read}, {"GET", "servers", "", read}, {"POST", "remove-server", "{}", change},
		{"POST", "apply", "{}", change}, {"POST", "attach", "{}", change}, {"POST", "detach", "{}", change}, {"POST", "remove", "{}", change},
		{"POST", "release", "{}", change}, {"POST", "retry", "{}", change}, {"POST", "format", "{}", change}, {"POST", "resize", "{}", change},
		{"POST", "rename", "{}", change}, {"POST", "move", "{}", change}, {"POST", "adopt", "{}", change}, {"POST", "delete-orphan", "{}", change}, {"POST", "pools", "{}", change},
		{"POST", "remove-pools", "{}", change}, {"POST", "fence-machine", "{}", change}, {"POST", "label-machine", "{}", change},
		{"POST", "drain-machine", "{}", change}, {"POST", "undrain-machine", "{}", change}, {"POST", "remove-machine", "{}", change},
		{"POST", "tokens", "{}", change}, {"POST", "remove-tokens", "{}", change}, {"POST", "remove-users", "{}", change},
		{"POST", "import", "{}", change}, {"POST", "backup", "{}", host},
	} {
		for name, caller := range map[string]userapi.Caller{
			"viewer": {Role: role.Viewer}, "admin": {Role: role.Admin}, "admin on the host": {Role: role.Admin, Local: true},
			"viewer on the host": {Role: role.Viewer, Local: true}, "machine": {Role: role.Machine}, "server": {Role: role.Server}, "no role": {},
		} {
			allowed := caller.Role == role.Admin && (op.needs != host || caller.Local) || caller.Role == role.Viewer && op.needs == read
			b := &userapitest.Backend{ClaimList: []user.Claim{{Name: "db"}}, SnapshotList: []user.Snapshot{{Name: "a"}}}
			status, answer := request(handler(t, b, caller), op.method, "/v1/"+op.name, op.body)
			if (status < 300) != allowed || (len(b.Calls()) > 0) != allowed || !allowed && status != http.StatusForbidden {
				t.Errorf("%s: %s %s is answered with %d %s, calls %q", name, op.method, op.name, status, answer, b.Calls())
			}
		}
	}
}

// All operations are in TestRoles.
func TestRolesAreComplete(t *testing.T) {
	h := handler(t, &userapitest.Backend{}, userapi.Caller{})
	if got := len(h.Operations()); got != 50 { // one more: TestWatchEndsWithPermission
		t.Errorf("%d operations: add those that are new to TestRoles: %q", got, h.Operations())
	}
}

// What a viewer watches ends soon after the viewer may not watch any more.
// Promise S28.
func TestWatchEndsWithPermission(t *testing.T) {
	for _, by := range []struct {
		name string
		end  func() (userapi.Caller, error)
		want string
	}{
		{"removed", func() (userapi.Caller, error) { return userapi.Caller{}, errors.Unauthorizedf("user eve") }, "user eve"},
		{"another role", func() (userapi.Caller, error) { return userapi.Caller{Role: role.Machine}, nil }, "role machine may not"},
	} {
		b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2)}
		var ended atomic.Bool
		h, err := userapi.New(userapi.Config{Backend: b, CheckInterval: time.Millisecond, Caller: func(*http.Request) (userapi.Caller, error) {
			if ended.Load() {
				return by.end()
			}
			return userapi.Caller{Role: role.Viewer}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(h)
		client, err := user.NewClient(user.Config{URL: server.URL, Transport: new(http.Transport)})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		events := make(chan user.Event)
		go func() {
			done <- client.Watch(t.Context(), nil, func(e user.Event) error { events <- e; return nil })
		}()
		b.Watched <- user.Event{Gone: []string{"a"}}
		<-events
		ended.Store(true)
		if err := <-done; !errors.Is(err, errors.Unauthorized) || !strings.Contains(err.Error(), by.want) {
			t.Errorf("%s: the watch ended with %v", by.name, err)
		}
		client.Close()
		server.Close()
	}
}

// An error names the part of the request that is wrong, in the format that RFC 9457 defines.
func TestProblems(t *testing.T) {
	b := &userapitest.Backend{Err: errors.NotFoundf("storage %q", "x")}
	h := handler(t, b, userapi.Caller{Role: role.Admin})
	for _, test := range []struct{ method, path, body, want string }{
		{"POST", "/v1/detach", `{"names": ["x"]}`, `404 {"status":404,"title":"Not Found","detail":"storage \"x\" not found","code":"not found"}`},
		{"POST", "/v1/detach", `{"names": [1]}`, `422 {"title":"Unprocessable Entity","status":422,"detail":"validation failed","errors":[{"message":"expected string","location":"body.names[0]","value":1}]}`},
		{"POST", "/v1/detach", `{"name": ["x"]}`, `422 {"title":"Unprocessable Entity","status":422,"detail":"validation failed","errors":[{"message":"unexpected property","location":"body.name","value":{"name":["x"]}}]}`},
		{"POST", "/v1/detach", ``, `400 {"title":"Bad Request","status":400,"detail":"request body is required"}`},
		{"GET", "/v1/detach", ``, `405 Method Not Allowed`},
		{"GET", "/v1/none", ``, `404 404 page not found`},
	} {
		status, answer := request(h, test.method, test.path, test.body)
		if got := fmt.Sprintf("%d %s", status, answer); got != test.want {
			t.Errorf("%s %s %s:\n\t%s, want\n\t%s", test.method, test.path, test.body, got, test.want)
		}
	}
}

// A request whose caller is not known reaches nothing.
func TestUnknownCaller(t *testing.T) {
	b := &userapitest.Backend{}
	h, err := userapi.New(userapi.Config{Backend: b, Caller: func(*http.Request) (userapi.Caller, error) {
		return userapi.Caller{}, errors.NewUnauthorized(nil, "a certificate is needed")
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/storage", "/v1/openapi.yaml", "/"} {
		if status, answer := request(h, "GET", path, ""); status != http.StatusForbidden || !strings.Contains(answer, "a certificate is needed") {
			t.Errorf("%s is answered with %d %s", path, status, answer)
		}
	}
}

// emptyBackend answers with nothing.
type emptyBackend struct{ *userapitest.Backend }

func (emptyBackend) Orphans(context.Context, string) (user.OrphanList, error) {
	return user.OrphanList{}, nil
}

func (emptyBackend) Apply(context.Context, user.ApplyArgs) (user.ApplyResult, error) {
	return user.ApplyResult{}, nil
}

// Lists are never null, which clients in some languages could not read.
func TestListsAreEmptyRatherThanNull(t *testing.T) {
	caller := func(*http.Request) (userapi.Caller, error) { return userapi.Caller{Role: role.Admin}, nil }
	h, err := userapi.New(userapi.Config{Backend: emptyBackend{&userapitest.Backend{}}, Caller: caller})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ method, name, body, answer string }{
		{"GET", "storage", "", `{"storage":[]}`},
		{"GET", "orphans", "", `{"orphans":[]}`},
		{"POST", "find", "{}", `{"storage":[]}`},
		{"POST", "apply", "{}", `{"changes":[],"names":[]}`},
	} {
		if status, answer := request(h, want.method, "/v1/"+want.name, want.body); status != http.StatusOK || answer != want.answer {
			t.Errorf("%s %s is answered with %d %s, want %s", want.method, want.name, status, answer, want.answer)
		}
	}
}

// One user cannot keep the others from watching.
// Promise S4.
func TestUserHasSomeStreams(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 256), Storages: []user.Storage{}}
	caller := func(r *http.Request) (userapi.Caller, error) {
		return userapi.Caller{Name: r.Header.Get("User"), Role: role.Viewer}, nil
	}
	h, err := userapi.New(userapi.Config{Backend: b, Caller: caller})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// ask returns the status of a request that is refused, or 200 once the user watches.
	ask := func(name, method, path string) int {
		r, err := http.NewRequestWithContext(ctx, method, server.URL+"/v1/"+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("User", name)
		refused := make(chan int, 1)
		go func() {
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				return // the request was cancelled
			}
			refused <- response.StatusCode
			response.Body.Close()
		}()
		select {
		case <-b.Watching:
			return http.StatusOK
		case status := <-refused:
			return status
		}
	}
	for n := range 16 {
		if status := ask("ann", http.MethodPost, "watch"); status != http.StatusOK {
			t.Fatalf("stream %d of a user is refused with status %d", n+1, status)
		}
	}
	if status := ask("ann", http.MethodPost, "watch"); status == http.StatusOK {
		t.Error("a user has a stream too many")
	}
	if status := ask("ann", http.MethodGet, "storage/data?wait=1m"); status == http.StatusOK {
		t.Error("a user waits who may not watch any more")
	}
	if status := ask("bob", http.MethodPost, "watch"); status != http.StatusOK {
		t.Errorf("another user is refused with status %d", status)
	}
	cancel()
	for range 17 {
		<-b.Watching // they end
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	status := 0
	for i := 0; status != http.StatusOK && i < 1000; i++ { // a stream counts until its request has ended
		status = ask("ann", http.MethodGet, "storage/data?wait=1m")
	}
	if status != http.StatusOK {
		t.Errorf("a stream after the others have ended is refused with status %d", status)
	}
	cancel()
}
