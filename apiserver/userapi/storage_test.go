package userapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/core/status"
)

func storageRow(name string, s status.Status, machine string) user.Storage {
	row := user.Storage{Name: name, Pool: "loop", Life: life.Alive, Status: s}
	if s == status.Attached {
		row.Location = "/srv/" + name
	}
	if machine != "" {
		row.Attachments = []user.Attachment{{Machine: machine}}
	}
	return row
}

// names returns the names in a list of storage.
func names(t *testing.T, status int, answer string) string {
	t.Helper()
	if status != http.StatusOK {
		t.Fatalf("answered with %d %s", status, answer)
	}
	var all []string
	for _, part := range strings.Split(answer, `"name":"`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func TestStorageIsFiltered(t *testing.T) {
	all := []user.Storage{storageRow("a", status.Attached, "web"), storageRow("b", status.Error, "db"), storageRow("c", status.Detached, "")}
	all[2].Pool = "fast"
	all[0].Labels, all[1].Labels = map[string]string{"tier": "fast", "zone": "a"}, map[string]string{"tier": "fast"}
	for query, want := range map[string]string{
		"": "a b c", "?machine=web": "a", "?pool=loop": "a b", "?status=error": "b", "?machine=web&status=error": "", "?pool=fast": "c",
		"?labels=tier=fast": "a b", "?labels=tier=fast,zone=a": "a", "?labels=tier%3Dfast&status=error": "b", "?labels=tier=slow": "",
	} {
		b := &userapitest.Backend{Storages: slices.Clone(all)}
		status, answer := request(handler(t, b, userapi.Caller{Role: role.Viewer}), "GET", "/v1/storage"+query, "")
		if got := names(t, status, answer); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	if status, answer := request(handler(t, &userapitest.Backend{}, userapi.Caller{Role: role.Viewer}), "GET", "/v1/storage?labels=tier", ""); status != http.StatusBadRequest || !strings.Contains(answer, "write KEY=VALUE") {
		t.Errorf("a label without a value is answered with %d %s", status, answer)
	}
	if status, answer := request(handler(t, &userapitest.Backend{}, userapi.Caller{Role: role.Viewer}), "GET", "/v1/storage?machin=web", ""); status != http.StatusUnprocessableEntity {
		t.Errorf("an unknown filter is answered with %d %s", status, answer)
	}
}

// Storage is a resource: it is shown, declared and removed by its name.
func TestStorageResource(t *testing.T) {
	b := &userapitest.Backend{Storages: []user.Storage{storageRow("data/0", status.Attached, "web")}}
	h := handler(t, b, userapi.Caller{Role: role.Admin})
	status, answer := request(h, "GET", "/v1/storage/data/0", "")
	if got := names(t, status, answer); got != "data/0" {
		t.Errorf("shown: %s", got)
	}
	status, answer = request(h, "PUT", "/v1/storage/data", `{"directive": "loop,2G", "kind": "filesystem", "machine": "web", "mount": "/srv/\"data"}`)
	if got := names(t, status, answer); got != "data/0" {
		t.Errorf("declared: %s", got)
	}
	status, answer = request(h, "DELETE", "/v1/storage/data", "")
	if got := names(t, status, answer); got != "data/0" {
		t.Errorf("removed: %s", got)
	}
	want := []string{
		`storage ["data/0"]`,
		`declare {Name:data Revisions:[] Exists:false Absent:false} {Directive:loop,2G Kind:filesystem From: Asker: Attached:<nil> Labels:map[] Machine:web MachineLabels: Mount:/srv/"data Filesystem: MkfsOptions: MountOptions:}`, `storage ["data"]`,
		`remove if {Name:data Revisions:[] Exists:false Absent:false}`, `storage ["data"]`,
	}
	if !slices.Equal(b.Calls(), want) {
		t.Errorf("calls\n%q, want\n%q", b.Calls(), want)
	}
	b.Err = errors.NotFoundf("storage %q", "data")
	for _, method := range []string{"GET", "DELETE"} {
		if status, answer := request(h, method, "/v1/storage/data", ""); status != http.StatusNotFound {
			t.Errorf("%s of storage that does not exist: %d %s", method, status, answer)
		}
	}
}

// A request waits until the storage is as requested, or cannot become so.
func TestWait(t *testing.T) {
	attaching := user.Event{Storage: []user.Storage{storageRow("data", status.Attaching, "web")}}
	dying := storageRow("data", status.Attached, "web")
	dying.Life = life.Dying
	for _, test := range []struct {
		method string
		events []user.Event
	}{
		{"GET", []user.Event{attaching, {Storage: []user.Storage{storageRow("data", status.Attached, "web")}}}},
		{"PUT", []user.Event{attaching, {Storage: []user.Storage{storageRow("other", status.Attaching, "web")}}, {Gone: []string{"other"}}, {Storage: []user.Storage{storageRow("data", status.Error, "web")}}}},
		{"DELETE", []user.Event{{Storage: []user.Storage{dying}}, {Gone: []string{"data"}}}},
		{"GET", []user.Event{{}}}, // there is no such storage
	} {
		b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2), Storages: []user.Storage{storageRow("data", status.Attached, "web")}}
		h := handler(t, b, userapi.Caller{Role: role.Admin})
		done := make(chan string, 1)
		go func() {
			status, answer := request(h, test.method, "/v1/storage/data?wait=1m", `{}`)
			done <- fmt.Sprint(status, answer)
		}()
		for _, event := range test.events {
			select {
			case b.Watched <- event:
			case got := <-done:
				t.Fatalf("%s is answered with %s before %+v", test.method, got, event)
			}
		}
		if got := <-done; !strings.HasPrefix(got, "200") {
			t.Errorf("%s is answered with %s", test.method, got)
		}
	}
}

// What is not done in time is answered with the storage as it is.
func TestWaitEnds(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2), Storages: []user.Storage{storageRow("data", status.Attaching, "web")}}
	h := handler(t, b, userapi.Caller{Role: role.Admin})
	status, answer := request(h, "GET", "/v1/storage/data?wait=1ms", "")
	if got := names(t, status, answer); got != "data" || !strings.Contains(answer, `"status":"attaching"`) {
		t.Errorf("answered with %d %s", status, answer)
	}
	for _, wait := range []string{"1", "-1s", "11m", "x"} {
		b := &userapitest.Backend{}
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			status, answer := request(handler(t, b, userapi.Caller{Role: role.Admin}), method, "/v1/storage/data?wait="+wait, "{}")
			if status != http.StatusBadRequest || !strings.Contains(answer, "from 0s to 10m") || len(b.Calls()) > 0 {
				t.Errorf("%s with wait=%s is answered with %d %s, calls %q", method, wait, status, answer, b.Calls())
			}
		}
	}
}

// A client says with the revision that it has seen that nobody is to have changed the storage since.
func TestConditions(t *testing.T) {
	for _, test := range []struct {
		method, header, value string
		status                int
		want                  string // of the answer, or the condition
	}{
		{"PUT", "If-Match", `"r1"`, http.StatusOK, "{Name:data Revisions:[r1] Exists:false Absent:false}"},
		{"PUT", "If-Match", `"r1", "r2"`, http.StatusOK, "{Name:data Revisions:[r1 r2] Exists:false Absent:false}"},
		{"PUT", "If-Match", `*`, http.StatusOK, "{Name:data Revisions:[] Exists:true Absent:false}"},
		{"PUT", "If-None-Match", `*`, http.StatusOK, "{Name:data Revisions:[] Exists:false Absent:true}"},
		{"DELETE", "If-Match", `"r1"`, http.StatusOK, "{Name:data Revisions:[r1] Exists:false Absent:false}"},
		{"PUT", "If-Match", `r1`, http.StatusBadRequest, "If-Match: r1 is neither"},
		{"PUT", "If-Match", `W/"r1"`, http.StatusBadRequest, "is neither"},
		{"DELETE", "If-Match", `"`, http.StatusBadRequest, "is neither"},
		{"PUT", "If-None-Match", `"r1"`, http.StatusUnprocessableEntity, "If-None-Match"},
	} {
		b := &userapitest.Backend{Storages: []user.Storage{storageRow("data", status.Attached, "web")}}
		b.Storages[0].Revision = "r3"
		r := httptest.NewRequest(test.method, "http://stowage/v1/storage/data", strings.NewReader("{}"))
		r.Header.Set(test.header, test.value)
		response := httptest.NewRecorder()
		handler(t, b, userapi.Caller{Role: role.Admin}).ServeHTTP(deadlines{response}, r)
		got := response.Body.String()
		if test.status == http.StatusOK {
			got = strings.Join(b.Calls(), "\n")
			if tag := response.Header().Get("ETag"); tag != `"r3"` {
				t.Errorf("%s: ETag %s", test.method, tag)
			}
		} else if len(b.Calls()) > 0 {
			t.Errorf("%s with %s: %s: calls %q", test.method, test.header, test.value, b.Calls())
		}
		if response.Code != test.status || !strings.Contains(got, test.want) {
			t.Errorf("%s with %s: %s is answered with %d: %s", test.method, test.header, test.value, response.Code, got)
		}
	}
}

// A condition that is not met is told from other errors by its status and code.
func TestFailedCondition(t *testing.T) {
	b := &userapitest.Backend{Err: user.Condition{Name: "data", Revisions: []string{"r1"}}.Check("r3")}
	status, answer := request(handler(t, b, userapi.Caller{Role: role.Admin}), "PUT", "/v1/storage/data", "{}")
	want := `{"status":412,"title":"Precondition Failed","detail":"storage \"data\" has revision r3: somebody has changed it; ` +
		`look at it again (GET /v1/storage/data), and send its revision in If-Match","code":"precondition failed"}`
	if status != http.StatusPreconditionFailed || answer != want {
		t.Errorf("answered with %d %s", status, answer)
	}
}

// The tag of several instances changes with each of them.
func TestTagOfSeveralInstances(t *testing.T) {
	tags := map[string]string{}
	for _, revisions := range []string{"r1", "r1 r2", "r1 r3", "r1 r2 r3", "r2 r1"} {
		b := &userapitest.Backend{}
		for i, revision := range strings.Fields(revisions) {
			b.Storages = append(b.Storages, user.Storage{Name: fmt.Sprintf("data/%d", i), Revision: revision})
		}
		response := httptest.NewRecorder()
		handler(t, b, userapi.Caller{Role: role.Viewer}).ServeHTTP(deadlines{response}, httptest.NewRequest("GET", "http://stowage/v1/storage/data", nil))
		tag := response.Header().Get("ETag")
		if same, ok := tags[tag]; ok || len(tag) < 3 {
			t.Errorf("%s has the tag %s, as %s", revisions, tag, same)
		}
		tags[tag] = revisions
	}
}

// A client that asks for changes since an unknown position gets an answer, not a stream.
func TestWatchFromUnknownPosition(t *testing.T) {
	b := &userapitest.Backend{Watched: make(chan user.Event), Watching: make(chan string, 2), Err: errors.WithType(errors.New("not known"), user.ErrGone)}
	close(b.Watched)
	status, answer := request(handler(t, b, userapi.Caller{Role: role.Viewer}), "POST", "/v1/watch", `{"from": "x-1"}`)
	if want := `{"status":410,"title":"Gone","detail":"not known","code":"gone"}`; status != http.StatusGone || answer != want {
		t.Errorf("answered with %d %s", status, answer)
	}
	if want := []string{"watch {Names:[] From:x-1}"}; !slices.Equal(b.Calls(), want) {
		t.Errorf("calls %q", b.Calls())
	}
}
