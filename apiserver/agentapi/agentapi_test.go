package agentapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/agentapi"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

const patience = time.Minute

var machine0 = names.NewMachineTag("0")

type logger struct{ testing.TB }

func (l logger) Warningf(format string, args ...any) { l.Logf(format, args...) }

func openState(t testing.TB) *state.State {
	st, err := state.Open(state.Config{Store: kvtest.NewMemory(), Clock: clock.WallClock, Registry: storage.StaticProviderRegistry{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := st.EnsureMachine(machine0); err != nil {
		t.Fatal(err)
	}
	return st
}

// newHandler returns a handler of an agent, which is killed at the end of the test.
func newHandler(t testing.TB, agent storageprovisioner.Accessors, keepAlive time.Duration) *agentapi.Handler {
	handler, err := agentapi.New(agentapi.Config{
		Authenticate: func(*http.Request) (storageprovisioner.Accessors, error) { return agent, nil },
		Logger:       logger{t},
		KeepAlive:    keepAlive,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		handler.Kill()
		if err := handler.Wait(); err != nil {
			t.Error(err)
		}
	})
	return handler
}

// server is an HTTP/2 server, and requests to it.
type server struct {
	t    testing.TB
	http *httptest.Server
}

func newServer(t testing.TB, handler http.Handler) *server {
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return &server{t, s}
}

func (s *server) post(method string, body io.Reader) *http.Response {
	s.t.Helper()
	response, err := s.http.Client().Post(s.http.URL+agentwire.Prefix+method, "application/json", body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { response.Body.Close() })
	return response
}

// testStream is the agent's side of a stream.
type testStream struct {
	t        testing.TB
	out      *io.PipeWriter
	messages chan agentwire.Message
}

// open opens a stream. The channel of messages is closed at its end.
func (s *server) open() *testStream {
	s.t.Helper()
	in, out := io.Pipe()
	response := s.post(agentwire.StreamMethod, in)
	stream := &testStream{s.t, out, make(chan agentwire.Message)}
	done := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(stream.messages)
		for reader := agentwire.NewReader(response.Body, agentwire.MaxAnswer); ; {
			message, err := reader.Next()
			if err != nil {
				return
			}
			select {
			case stream.messages <- message:
			case <-done:
				return
			}
		}
	})
	s.t.Cleanup(func() {
		close(done)
		out.Close()
		response.Body.Close()
		reading.Wait()
	})
	stream.want(agentwire.Hello)
	return stream
}

func (s *testStream) send(messages ...agentwire.Message) {
	s.t.Helper()
	for _, message := range messages {
		if err := json.NewEncoder(s.out).Encode(message); err != nil {
			s.t.Fatal(err)
		}
	}
}

// next returns the next message that is not a keep-alive; ok is false at the end of the stream.
func (s *testStream) next() (message agentwire.Message, ok bool) {
	s.t.Helper()
	for {
		select {
		case message, ok = <-s.messages:
			if message.Type != agentwire.Alive {
				return message, ok
			}
		case <-time.After(patience):
			s.t.Fatal("no message")
		}
	}
}

func (s *testStream) want(kind agentwire.Type) agentwire.Message {
	s.t.Helper()
	message, ok := s.next()
	if !ok || message.Type != kind {
		s.t.Fatalf("message %+v, %v, want %q", message, ok, kind)
	}
	return message
}

// An agent that sends nothing is gone, and its watchers end.
func TestSilentAgentIsCut(t *testing.T) {
	a := newWatched(t)
	handler := newHandler(t, a, 50*time.Millisecond)
	s := newServer(t, handler).open()
	s.send(agentwire.Message{Type: agentwire.Start, Watcher: 1, Method: "WatchVolumes"})
	s.want(agentwire.Started)
	s.want(agentwire.Event)
	if message, ok := s.next(); ok {
		t.Errorf("the stream goes on with %+v", message)
	}
	a.wantEnded(t)
}

// watched are accessors that report the ends of their watchers of volumes.
type watched struct {
	*state.Accessor
	ended chan struct{}
}

func newWatched(t testing.TB) watched {
	return watched{openState(t).ForMachine(machine0), make(chan struct{}, 1)}
}

func (a watched) WatchVolumes() (watcher.StringsWatcher, error) {
	w, err := a.Accessor.WatchVolumes()
	return reportingWatcher{w, a.ended}, err
}

type reportingWatcher struct {
	watcher.StringsWatcher
	ended chan struct{}
}

func (w reportingWatcher) Wait() error {
	defer func() { w.ended <- struct{}{} }()
	return w.StringsWatcher.Wait()
}

func (a watched) wantEnded(t testing.TB) {
	t.Helper()
	select {
	case <-a.ended:
	case <-time.After(patience):
		t.Fatal("the watcher is still running")
	}
}

// Killing the handler ends streams, and turns later requests away.
func TestKillEndsStreams(t *testing.T) {
	handler := newHandler(t, openState(t).ForMachine(machine0), time.Hour)
	server := newServer(t, handler)
	s := server.open()
	s.send(agentwire.Message{Type: agentwire.Start, Watcher: 1, Method: "WatchMachine", Args: []string{"machine-0"}})
	s.want(agentwire.Started)
	s.want(agentwire.Event)
	handler.Kill()
	if err := handler.Wait(); err != nil {
		t.Error(err)
	}
	if message, ok := s.next(); ok {
		t.Errorf("the stream goes on with %+v", message)
	}
	if response := server.post("EnvironConfig", strings.NewReader("{}")); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a later request is answered with %s", response.Status)
	}
}

// An embedder ends a stream by the context of its request.
func TestContextEndsStream(t *testing.T) {
	handler := newHandler(t, openState(t).ForMachine(machine0), time.Hour)
	ctx, revoke := context.WithCancel(context.Background())
	s := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		handler.ServeHTTP(w, r.WithContext(request))
	})).open()
	revoke()
	if message, ok := s.next(); ok {
		t.Errorf("the stream goes on with %+v", message)
	}
}

// The next event of a watcher waits for the acknowledgement of the last one.
func TestEventsWaitForAcknowledgement(t *testing.T) {
	st := openState(t)
	s := newServer(t, newHandler(t, st.ForMachine(machine0), time.Hour)).open()
	watch := func(number uint64) {
		t.Helper()
		s.send(agentwire.Message{Type: agentwire.Start, Watcher: number, Method: "WatchBlockDevices", Args: []string{"machine-0"}})
		for _, kind := range []agentwire.Type{agentwire.Started, agentwire.Event} {
			if got := s.want(kind); got.Watcher != number {
				t.Errorf("message %+v, want one of watcher %d", got, number)
			}
		}
	}
	watch(1)
	for number := range uint64(20) {
		if err := st.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sda", Size: number + 1}}); err != nil {
			t.Fatal(err)
		}
		watch(number + 2)
	}
	s.send(agentwire.Message{Type: agentwire.Ack, Watcher: 1})
	if got := s.want(agentwire.Event); got.Watcher != 1 {
		t.Errorf("message %+v after the acknowledgement", got)
	}
}

func TestStreamProtocol(t *testing.T) {
	a := newWatched(t)
	server := newServer(t, newHandler(t, a, 0))
	s := server.open()
	for number, test := range []struct {
		method string
		args   []string
		code   string
	}{
		{"None", nil, params.CodeNotImplemented},
		{"WatchVolumes", []string{"x"}, params.CodeNotValid},
		{"WatchMachine", nil, params.CodeNotValid},
		{"WatchMachine", []string{"volume-0"}, params.CodeNotValid},
		{"WatchMachine", []string{"machine-1"}, params.CodeUnauthorized},
	} {
		s.send(agentwire.Message{Type: agentwire.Start, Watcher: uint64(number + 1), Method: test.method, Args: test.args})
		if got := s.want(agentwire.Ended); got.Watcher != uint64(number+1) || params.ErrCode(got.Error) != test.code {
			t.Errorf("%s(%q): %+v, want code %q", test.method, test.args, got, test.code)
		}
	}
	// These are about a watcher that has ended, and change nothing.
	s.send(agentwire.Message{Type: agentwire.Ack, Watcher: 1}, agentwire.Message{Type: agentwire.Stop, Watcher: 1}, agentwire.Message{Type: agentwire.Alive})
	s.send(agentwire.Message{Type: agentwire.Start, Watcher: 9, Method: "WatchVolumes"})
	s.want(agentwire.Started)
	if got := s.want(agentwire.Event); string(got.Event) != "[]" || got.Watcher != 9 {
		t.Errorf("event %+v", got)
	}
	s.send(agentwire.Message{Type: agentwire.Stop, Watcher: 9})
	a.wantEnded(t)

	for name, send := range map[string]string{
		"another type":       `{"type":"x"}`,
		"a number in use":    `{"type":"start","watcher":1,"method":"WatchVolumes"}{"type":"start","watcher":1,"method":"WatchVolumes"}`,
		"no JSON":            `watch`,
		"a message too long": `{"type":"` + strings.Repeat("x", agentwire.MaxMessage) + `"}`,
	} {
		s := server.open()
		if _, err := io.WriteString(s.out, send); err != nil && name != "a message too long" {
			t.Errorf("%s: %v", name, err)
		}
		for {
			message, ok := s.next()
			if !ok {
				break
			}
			if message.Type == agentwire.Ended {
				t.Errorf("%s: %+v", name, message)
				break
			}
		}
	}

	// HTTP/1 has no streams.
	request := httptest.NewRequest(http.MethodPost, agentwire.Prefix+agentwire.StreamMethod, nil)
	recorder := httptest.NewRecorder()
	newHandler(t, a, 0).ServeHTTP(deadlines{recorder}, request)
	if recorder.Code != http.StatusHTTPVersionNotSupported {
		t.Errorf("a stream over HTTP/1 is answered with %d", recorder.Code)
	}
}

// deadlines is a recorder that accepts deadlines.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error  { return nil }
func (deadlines) SetWriteDeadline(time.Time) error { return nil }

func TestStreamLimits(t *testing.T) {
	handler := newHandler(t, openState(t).ForMachine(machine0), 0)
	handler.SetLimits(1, 2)
	server := newServer(t, handler)
	s := server.open()
	for number := range uint64(2) {
		s.send(agentwire.Message{Type: agentwire.Start, Watcher: number + 1, Method: "WatchVolumes"})
		s.want(agentwire.Started)
		s.want(agentwire.Event)
	}
	s.send(agentwire.Message{Type: agentwire.Start, Watcher: 3, Method: "WatchVolumes"})
	if got := s.want(agentwire.Ended); got.Watcher != 3 || !strings.Contains(got.Error.Message, "2 watchers on one stream") {
		t.Errorf("a third watcher: %+v", got)
	}
	if response := server.post(agentwire.StreamMethod, strings.NewReader("")); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a second stream is answered with %s", response.Status)
	}
}

func TestRequestLimits(t *testing.T) {
	server := newServer(t, newHandler(t, openState(t).ForMachine(machine0), 0))
	for _, test := range []struct {
		method, body string
		status       int
		code         string
	}{
		{"Life", `{"args":["volume-0-0"]}`, http.StatusOK, ""},
		{"Life", `{"args":["volume-0-0","x"]}`, http.StatusBadRequest, params.CodeNotValid},
		{"Life", `{"args":{}}`, http.StatusBadRequest, params.CodeNotValid},
		{"Life", ``, http.StatusBadRequest, params.CodeNotValid},
		{"SetVolumeInfo", `{"args":[{"info":{"size":-1}}]}`, http.StatusBadRequest, params.CodeNotValid},
		{"Life", `{"args":["` + strings.Repeat("x", agentwire.MaxRequest) + `"]}`, http.StatusRequestEntityTooLarge, params.CodeNotValid},
		{"EnvironConfig", `{}`, http.StatusOK, params.CodeNotFound}, // an error of the accessor
		{"String", `{}`, http.StatusNotFound, params.CodeNotImplemented},
		{"../user/x", `{}`, http.StatusNotFound, params.CodeNotImplemented},
	} {
		response := server.post(test.method, strings.NewReader(test.body))
		var answer agentwire.Answer[json.RawMessage]
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			t.Errorf("%s %.40s: %v", test.method, test.body, err)
		}
		code := ""
		if answer.Error != nil {
			code = answer.Error.Code
		}
		if response.StatusCode != test.status || code != test.code {
			t.Errorf("%s %.40s: %s with code %q, want %d with %q", test.method, test.body, response.Status, code, test.status, test.code)
		}
	}
	response, err := server.http.Client().Get(server.http.URL + agentwire.Prefix + "Life")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET is answered with %s", response.Status)
	}
}

func TestValidate(t *testing.T) {
	good := agentapi.Config{Authenticate: func(*http.Request) (storageprovisioner.Accessors, error) { return nil, nil }, Logger: logger{t}}
	for want, change := range map[string]func(*agentapi.Config){
		"Authenticate": func(c *agentapi.Config) { c.Authenticate = nil },
		"Logger":       func(c *agentapi.Config) { c.Logger = nil },
		"KeepAlive":    func(c *agentapi.Config) { c.KeepAlive = -1 },
	} {
		config := good
		change(&config)
		if _, err := agentapi.New(config); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %s, got %v", want, err)
		}
	}
}

// copies is an agent with a volume and a filesystem that get the contents of others.
type copies struct{ storageprovisioner.Accessors }

func (copies) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return []params.VolumeParamsResult{
		{Result: params.VolumeParams{VolumeTag: "volume-0-0", Origin: &params.VolumeOrigin{SnapshotId: "a"}}}, {Result: params.VolumeParams{VolumeTag: "volume-0-1"}},
	}, nil
}

func (copies) FilesystemParams(tags []names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return []params.FilesystemParamsResult{
		{Result: params.FilesystemParams{FilesystemTag: "filesystem-0-0", Origin: &params.FilesystemOrigin{FilesystemId: "a"}}}, {Result: params.FilesystemParams{FilesystemTag: "filesystem-0-1"}},
	}, nil
}

// An older agent, which would make an empty volume or filesystem instead of a copy, gets an error.
func TestOlderAgentMakesNoCopies(t *testing.T) {
	s := newServer(t, newHandler(t, copies{openState(t).ForMachine(machine0)}, 0))
	for kind, tags := range map[string]string{"Volume": `["volume-0-0","volume-0-1"]`, "Filesystem": `["filesystem-0-0","filesystem-0-1"]`} {
		for method, fails := range map[string]bool{kind + "Params": true, "New" + kind + "Params": false} {
			var answer agentwire.Answer[[]struct {
				Result map[string]any `json:"result"`
				Error  *params.Error  `json:"error"`
			}]
			if err := json.NewDecoder(s.post(method, strings.NewReader(`{"args":`+tags+`}`)).Body).Decode(&answer); err != nil || len(answer.Result) != 2 {
				t.Fatalf("%s: %+v, %v", method, answer, err)
			}
			copied, empty := answer.Result[0], answer.Result[1]
			if fails != (copied.Error != nil) || fails != (copied.Result["origin"] == nil) || empty.Error != nil {
				t.Errorf("%s: %+v", method, answer.Result)
			}
			if fails && !strings.Contains(copied.Error.Message, "install the version of the server") {
				t.Errorf("%s: %v", method, copied.Error)
			}
		}
	}
}

// FuzzRequest sends arbitrary requests. Every answer has the format of the protocol, and agrees
// with its status.
func FuzzRequest(f *testing.F) {
	for _, method := range []string{"Volumes", "Life", "SetVolumeInfo", "SetAttempts", "SetStatus", "Remove", "AttachmentLife", "EnvironConfig", "UpdateMachineBlockDevices", "None", "../x"} {
		f.Add(method, []byte(`{"args":["volume-0-0"]}`))
		f.Add(method, []byte(`{"args":[{"machine-tag":"machine-0","attachment-tag":"volume-0","volume-tag":"volume-0","tag":"volume-0","status":"error","info":{}}]}`))
		f.Add(method, []byte(`{"args":[null]}`))
	}
	f.Add("Life", []byte(`{"args":["machine-0","\ud800",""]} {}`))
	f.Add("Life", []byte(strings.Repeat("[", 20000)))
	f.Add("SetVolumeInfo", []byte(`{"args":[{"info":{"size":1e400}}]}`))
	f.Fuzz(func(t *testing.T, method string, body []byte) {
		st := openState(t)
		handler := newHandler(t, st.ForMachine(machine0), 0)
		request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		request.URL.Path = agentwire.Prefix + method
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(deadlines{recorder}, request)
		decoder := json.NewDecoder(recorder.Body)
		decoder.DisallowUnknownFields()
		var answer agentwire.Answer[json.RawMessage]
		if err := decoder.Decode(&answer); err != nil {
			t.Fatalf("%q %q: the answer cannot be read: %v", method, body, err)
		}
		if recorder.Code != http.StatusOK && answer.Error == nil {
			t.Errorf("%q %q: status %d without an error", method, body, recorder.Code)
		}
		if recorder.Code == http.StatusOK && !json.Valid(body) {
			t.Errorf("%q %q is answered with %+v", method, body, answer)
		}
	})
}

// FuzzStream sends arbitrary messages on a stream. The server's messages have the format of the
// protocol, and are about watchers that the agent has named.
func FuzzStream(f *testing.F) {
	f.Add([]byte(`{"type":"start","watcher":1,"method":"WatchVolumes"}` + "\n" + `{"type":"ack","watcher":1}` + "\n" + `{"type":"stop","watcher":1}`))
	f.Add([]byte(`{"type":"start","watcher":18446744073709551615,"method":"WatchMachine","args":["machine-0"]}{"type":"start","watcher":2,"method":"x"}`))
	f.Add([]byte(`{"type":"hello","methods":[]}`))
	f.Add([]byte(`{"type":"start"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		handler := newHandler(t, openState(t).ForMachine(machine0), 0)
		request := httptest.NewRequest(http.MethodPost, agentwire.Prefix+agentwire.StreamMethod, bytes.NewReader(body))
		request.ProtoMajor = 2
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(deadlines{recorder}, request)
		reader := agentwire.NewReader(recorder.Body, agentwire.MaxAnswer)
		if hello, err := reader.Next(); err != nil || hello.Type != agentwire.Hello {
			t.Fatalf("%q: the stream begins with %+v, %v", body, hello, err)
		}
		for {
			message, err := reader.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			named := message.Watcher == 0 || bytes.Contains(body, fmt.Append(nil, message.Watcher))
			if message.Type == agentwire.Hello || message.Type == agentwire.Start || !named {
				t.Errorf("%q: message %+v", body, message)
			}
		}
	})
}
