package agentwire_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/storage"
)

// The two sides may be built at different times, so the format must not change.
func TestWireFormat(t *testing.T) {
	failure := &params.Error{Message: "m", Code: "c"}
	for want, value := range map[string]any{
		`{"args":["volume-0"]}`: agentwire.Call[string]{Args: []string{"volume-0"}},
		`{"result":[1]}`:        agentwire.Answer[[]int]{Result: []int{1}},
		`{"error":{"message":"m","code":"c"},"result":null}`:        agentwire.Answer[any]{Error: failure},
		`{"changed":null,"gone":["sda"]}`:                           agentwire.BlockDeviceChanges{Changed: []storage.BlockDevice(nil), Gone: []string{"sda"}},
		`{"id":"a","claim":"b"}`:                                    agentwire.TaskBegin{ID: "a", Claim: "b"},
		`{"id":"a","error":{"message":"m","code":"c"},"result":{}}`: agentwire.TaskAnswer{ID: "a", Error: failure},
		`{"id":"a","result":{"delete":{"kept-seconds":1}}}`:         agentwire.TaskAnswer{ID: "a", Result: task.Result{Delete: &task.Deleted{KeptSeconds: 1}}},
		`{"type":"alive"}`:                                          agentwire.Message{Type: agentwire.Alive},
		`{"type":"hello","methods":["Life"]}`:                       agentwire.Message{Type: agentwire.Hello, Methods: []string{"Life"}},
		`{"type":"start","watcher":1,"method":"M","args":["a"]}`: agentwire.Message{
			Type: agentwire.Start, Watcher: 1, Method: "M", Args: []string{"a"},
		},
		`{"type":"started","watcher":1}`:             agentwire.Message{Type: agentwire.Started, Watcher: 1},
		`{"type":"event","watcher":1,"event":["0"]}`: agentwire.Message{Type: agentwire.Event, Watcher: 1, Event: json.RawMessage(`["0"]`)},
		`{"type":"ack","watcher":1}`:                 agentwire.Message{Type: agentwire.Ack, Watcher: 1},
		`{"type":"stop","watcher":1}`:                agentwire.Message{Type: agentwire.Stop, Watcher: 1},
		`{"type":"ended","watcher":1,"error":{"message":"m","code":"c"}}`: agentwire.Message{
			Type: agentwire.Ended, Watcher: 1, Error: failure,
		},
	} {
		if got, err := json.Marshal(value); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

func TestReaderLimitsMessages(t *testing.T) {
	const max = 100
	fits := `{"type":"alive","method":"` + strings.Repeat("x", 60) + `"}`
	r := agentwire.NewReader(strings.NewReader(strings.Repeat(fits+"\n", 10)), max)
	for range 10 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	r = agentwire.NewReader(strings.NewReader(`{"method":"`+strings.Repeat("x", 1000)+`"}`), max)
	if _, err := r.Next(); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a message that is too large: %v", err)
	}
}
