package control_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
)

// FuzzAnswer makes an agent send arbitrary answers. A client returns the answer's result, or
// an error if it cannot read the answer. Watch always returns an error when the answer ends.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		`{"result": {"storage": [{"name": "a", "size-mib": 5, "since": "2026-01-02T03:04:05Z"}]}}`,
		`{"error": {"message": "no", "code": "not found"}}`, `{"error": {}}`, `{"result": {"storage": [{"name": "a"}]}}{"result":`,
		`{"result": {"storage": [{"since": "now"}]}}`, `null`, ``, `<html>`, `{"result": {"gone": ["\u001b"]}}`,
	} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		path := filepath.Join(t.TempDir(), "s.sock")
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		agent := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(answer)) // a client may end before it has read all
		})}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = agent.Serve(listener) // it ends with Close
		}()
		client := control.NewClient(path)
		defer func() {
			client.Close()
			_ = agent.Close()
			<-served
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()

		var response struct {
			Error  *struct{ Message, Code string }
			Result struct{ Storage []control.Storage }
		}
		found, err := client.Storage(ctx, nil)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			t.Error("the client waits after the answer has ended")
		case err == nil && (json.NewDecoder(strings.NewReader(answer)).Decode(&response) != nil || response.Error != nil || !reflect.DeepEqual(found, response.Result.Storage)):
			t.Errorf("%q is read as %+v", answer, found)
		}
		events := 0
		err = client.Watch(ctx, nil, func(control.Event) error { events++; return nil })
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the answer ended after %d events; got error %v", events, err)
		}
	})
}
