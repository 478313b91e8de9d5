package userapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/core/role"
)

// A snapshot is a resource: it is made, shown and deleted by its name, and a request waits for it.
func TestSnapshotResource(t *testing.T) {
	b := &userapitest.Backend{SnapshotList: []user.Snapshot{{Name: "monday", StorageName: "data", Status: user.SnapshotReady}}}
	h := handler(t, b, userapi.Caller{Role: role.Admin})
	const monday = `{"name":"monday","uuid":"","storage-name":"data",`
	for _, test := range []struct{ method, path, body, answer string }{
		{"PUT", "snapshots/monday?wait=1s", `{"storage": "data"}`, monday},
		{"GET", "snapshots/monday", "", monday},
		{"GET", "snapshots", "", `{"snapshots":[` + monday},
		{"DELETE", "snapshots/monday?wait=1s&force=true", "", `{"snapshots":[` + monday},
	} {
		if status, answer := request(h, test.method, "/v1/"+test.path, test.body); status != http.StatusOK || !strings.HasPrefix(answer, test.answer) {
			t.Errorf("%s %s is answered with %d %s", test.method, test.path, status, answer)
		}
	}
	want := []string{
		`create snapshot monday {Storage:data}`, `await snapshot monday true`, `snapshots ["monday"]`, `snapshots ["monday"]`, `snapshots []`,
		`delete snapshot monday true`, `await snapshot monday true`, `snapshots ["monday"]`,
	}
	if !slices.Equal(b.Calls(), want) {
		t.Errorf("calls\n%q, want\n%q", b.Calls(), want)
	}
	b.Err = errors.NotFoundf("snapshot %q", "monday")
	for _, method := range []string{"GET", "DELETE"} {
		if status, answer := request(h, method, "/v1/snapshots/monday", ""); status != http.StatusNotFound {
			t.Errorf("%s of a snapshot that does not exist: %d %s", method, status, answer)
		}
	}
	viewer := handler(t, &userapitest.Backend{}, userapi.Caller{Role: role.Viewer})
	for _, method := range []string{"PUT", "DELETE"} {
		if status, answer := request(viewer, method, "/v1/snapshots/monday", `{"storage": "data"}`); status != http.StatusForbidden {
			t.Errorf("%s by a viewer is answered with %d %s", method, status, answer)
		}
	}
}
