package userapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/apiserver/userapi/userapitest"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/core/status"
)

// claimed returns a claim db of storage data.
func claimed(s status.Status, policy user.ReclaimPolicy) []user.Claim {
	row := storageRow("data", s, "web")
	return []user.Claim{{
		Name: "db", Status: user.ClaimBound, StorageName: "data", Storage: &row,
		Request: user.ClaimRequest{Pool: "loop", SizeMiB: 64, Kind: "block", ReclaimPolicy: policy},
	}}
}

// A claim is a resource: it is made, shown and deleted by its name.
func TestClaimResource(t *testing.T) {
	b := &userapitest.Backend{ClaimList: claimed(status.Attached, "retain"), Storages: []user.Storage{storageRow("data", status.Attached, "web")}}
	h := handler(t, b, userapi.Caller{Role: role.Admin})
	for _, test := range []struct{ method, path, body, answer string }{
		{"PUT", "claims/db", `{"pool": "loop", "selector": "tier=fast", "size-mib": 64, "kind": "block"}`, `{"name":"db","request":{"pool":"loop","size-mib":64,"kind":"block","reclaim-policy":"retain"},"status":"bound","storage-name":"data","storage":{`},
		{"GET", "claims/db", "", `{"name":"db","request":{`},
		{"GET", "claims", "", `{"claims":[{"name":"db","request":{`},
		{"DELETE", "claims/db", "", `{"storage":[{"name":"data",`},
	} {
		if status, answer := request(h, test.method, "/v1/"+test.path, test.body); status != http.StatusOK || !strings.HasPrefix(answer, test.answer) {
			t.Errorf("%s %s is answered with %d %s", test.method, test.path, status, answer)
		}
	}
	want := []string{
		`claim db {Selector:tier=fast Pool:loop SizeMiB:64 Kind:block AccessMode: Machine: MachineLabels: Mount: ReclaimPolicy:}`, `claims ["db"]`,
		`claims ["db"]`, `claims []`, `claims ["db"]`, `unclaim db`, `storage ["data"]`,
	}
	if !slices.Equal(b.Calls(), want) {
		t.Errorf("calls\n%q, want\n%q", b.Calls(), want)
	}
	b.Err = errors.NewAlreadyExists(nil, "claim db was made with another request")
	if status, answer := request(h, "PUT", "/v1/claims/db", "{}"); status != http.StatusConflict || !strings.Contains(answer, "another request") {
		t.Errorf("answered with %d %s", status, answer)
	}
	b.Err = errors.NotFoundf("claim %q", "db")
	for _, method := range []string{"GET", "DELETE"} {
		if status, answer := request(h, method, "/v1/claims/db", ""); status != http.StatusNotFound {
			t.Errorf("%s of a claim that does not exist: %d %s", method, status, answer)
		}
	}
	if status, answer := request(h, "PUT", "/v1/claims/db", `{"size": 64}`); status != http.StatusUnprocessableEntity || !strings.Contains(answer, "body.size") {
		t.Errorf("an unknown field is answered with %d %s", status, answer)
	}
}

// A request waits until the storage of the claim can be used, or has failed, or is gone.
func TestClaimWaits(t *testing.T) {
	attaching := user.Event{Storage: []user.Storage{storageRow("data", status.Attaching, "web")}}
	attached := user.Event{Storage: []user.Storage{storageRow("data", status.Attached, "web")}}
	for _, test := range []struct {
		method string
		events []user.Event
	}{
		{"GET", []user.Event{attaching, attached}},
		{"PUT", []user.Event{attaching, {Storage: []user.Storage{storageRow("data", status.Error, "web")}}}},
		{"DELETE", []user.Event{attached, {Gone: []string{"data"}}}},
	} {
		b := &userapitest.Backend{
			ClaimList: claimed(status.Attached, "delete"), Watched: make(chan user.Event), Watching: make(chan string, 2),
			Storages: []user.Storage{storageRow("data", status.Attached, "web")},
		}
		h := handler(t, b, userapi.Caller{Role: role.Admin})
		done := make(chan string, 1)
		go func() {
			status, answer := request(h, test.method, "/v1/claims/db?wait=1m", `{}`)
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
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		b := &userapitest.Backend{ClaimList: claimed(status.Attached, "delete")}
		status, answer := request(handler(t, b, userapi.Caller{Role: role.Admin}), method, "/v1/claims/db?wait=11m", "{}")
		changed := slices.ContainsFunc(b.Calls(), func(call string) bool { return !strings.HasPrefix(call, "claims") })
		if status != http.StatusBadRequest || !strings.Contains(answer, "from 0s to 10m") || changed {
			t.Errorf("%s is answered with %d %s, calls %q", method, status, answer, b.Calls())
		}
	}
}

// Nothing has to be waited for if the storage stays, or is lost.
func TestClaimIsDeletedWithoutWaiting(t *testing.T) {
	lost := claimed(status.Attached, "delete")
	lost[0].Status, lost[0].Storage = user.ClaimLost, nil
	for _, test := range []struct {
		claims []user.Claim
		answer string
	}{
		{claimed(status.Attached, "retain"), `{"storage":[{"name":"data"`},
		{lost, `{"storage":[]}`}, // storage of the same name would be another
	} {
		b := &userapitest.Backend{ClaimList: test.claims, Storages: []user.Storage{storageRow("data", status.Attached, "web")}}
		status, answer := request(handler(t, b, userapi.Caller{Role: role.Admin}), "DELETE", "/v1/claims/db?wait=1m", "")
		if status != http.StatusOK || !strings.HasPrefix(answer, test.answer) {
			t.Errorf("answered with %d %s, want %s", status, answer, test.answer)
		}
	}
}
