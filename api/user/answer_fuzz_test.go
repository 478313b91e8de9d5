package user_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// FuzzAnswer makes an agent send arbitrary answers. A client returns the answer's result, or
// an error if it cannot read the answer. Watch always returns an error when the answer ends.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		`{"storage": [{"name": "a", "size-mib": 5, "since": "2026-01-02T03:04:05Z"}]}`, `{"storage": [{"name": "a"}]}{"storage":`,
		`{"storage": [{"since": "now"}]}`, `null`, ``, `<html>`, `{"gone": ["\u001b"]}`, `{"error": {"detail": "no", "code": "not found"}}`,
		`{"error": {}}`,
	} {
		f.Add(answer, http.StatusOK)
	}
	f.Add(`{"status": 404, "detail": "no", "code": "not found"}`, http.StatusNotFound)
	f.Add(`{"status": 422, "detail": "no", "errors": [{"location": "body"}]}`, http.StatusUnprocessableEntity)
	f.Add(`<html>`, http.StatusBadGateway)
	f.Fuzz(func(t *testing.T, answer string, status int) {
		if status < 200 || status > 599 {
			t.Skip("not the status of an answer")
		}
		agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(answer)) // a client may end before it has read all
		}))
		defer agent.Close()
		client, err := user.NewClient(user.Config{URL: agent.URL, Transport: new(http.Transport)})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()

		found, err := client.Storage(ctx, nil)
		var response user.StorageList
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			t.Error("the client waits after the answer has ended")
		case err != nil:
		case status >= 300:
			t.Errorf("%d %q is read as %+v", status, answer, found)
		case status == http.StatusNoContent:
		case json.NewDecoder(strings.NewReader(answer)).Decode(&response) != nil || !reflect.DeepEqual(found, response.Storage):
			t.Errorf("%q is read as %+v", answer, found)
		}
		events := 0
		err = client.Watch(ctx, nil, func(user.Event) error { events++; return nil })
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the answer ended after %d events; got error %v", events, err)
		}
	})
}
