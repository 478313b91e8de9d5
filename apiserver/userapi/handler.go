package userapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/role"
)

// Caller is who makes a request.
type Caller struct {
	// Name is that of a user; empty for a caller on the host, who is the host's user UID.
	Name string
	UID  uint32
	Role role.Value
	// Local says that the caller is on the host of the server and may use its files.
	Local bool
}

// String identifies the caller.
func (c Caller) String() string {
	if c.Name == "" {
		return fmt.Sprintf("uid %d", c.UID)
	}
	return c.Name
}

// CallerOf returns who makes the request that a backend carries out, as Caller.String does; "" outside of
// a request.
func CallerOf(ctx context.Context) string {
	if caller, ok := ctx.Value(callerKey{}).(Caller); ok {
		return caller.String()
	}
	return ""
}

// Config configures a [Handler].
type Config struct {
	// Backend is required.
	Backend Backend
	// Caller returns who makes a request. An error refuses the request; one that satisfies
	// errors.IsUnauthorized is answered with status 403. It is called again while a request
	// watches, which ends with an error. Required.
	Caller func(*http.Request) (Caller, error)
	// RequestTimeout bounds the time for receiving a request. Zero means 10 seconds.
	RequestTimeout time.Duration
	// CheckInterval is how often the callers of requests that watch are checked. Zero means 5
	// seconds.
	CheckInterval time.Duration
}

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch {
	case c.Backend == nil:
		return errors.NotValidf("nil Backend")
	case c.Caller == nil:
		return errors.NotValidf("nil Caller")
	case c.RequestTimeout < 0:
		return errors.NotValidf("negative RequestTimeout")
	case c.CheckInterval < 0:
		return errors.NotValidf("negative CheckInterval")
	}
	return nil
}

const (
	// maxStreams bounds how many clients watch or wait for storage at the same time, and
	// maxStreamsOfUser how many of one user.
	maxStreams       = 64
	maxStreamsOfUser = 16
	// stallTimeout is how long a client may leave a response unread.
	stallTimeout          = 30 * time.Second
	defaultRequestTimeout = 10 * time.Second
	defaultCheckInterval  = 5 * time.Second
)

// Handler serves users.
type Handler struct {
	config  Config
	api     huma.API
	routes  http.ServeMux
	streams streams
}

// New returns a handler. Its errors satisfy errors.IsNotValid.
func New(config Config) (*Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.RequestTimeout == 0 {
		config.RequestTimeout = defaultRequestTimeout
	}
	if config.CheckInterval == 0 {
		config.CheckInterval = defaultCheckInterval
	}
	h := &Handler{config: config}
	h.api = newAPI(&h.routes)
	h.api.UseMiddleware(h.authorize)
	h.register()
	document(h.api.OpenAPI())
	return h, nil
}

// newAPI returns an API without operations.
func newAPI(mux *http.ServeMux) huma.API {
	config := huma.DefaultConfig("stowage", "1")
	config.Info.Description = "What users ask of a stowage agent or server."
	config.OpenAPIPath = "/v1/openapi"
	config.DocsPath, config.SchemasPath = "", ""
	config.CreateHooks, config.Transformers = nil, nil // no links to schemas in the answers
	format := huma.Format{Marshal: writeJSON, Unmarshal: json.Unmarshal}
	config.Formats = map[string]huma.Format{"application/json": format, "json": format} // the latter for problem+json
	config.DefaultFormat = "application/json"
	config.FieldsOptionalByDefault = true
	config.RejectUnknownQueryParameters = true
	return humago.New(mux, config)
}

// writeJSON ignores errors of writing, which mean that the client has disconnected.
func writeJSON(w io.Writer, v any) error {
	var out bytes.Buffer
	if err := json.NewEncoder(&out).Encode(withEmptyLists(v)); err != nil {
		return errors.Trace(err)
	}
	_, _ = w.Write(out.Bytes())
	return nil
}

// withEmptyLists returns an answer whose lists are empty rather than null, for clients whose lists
// cannot be null.
func withEmptyLists(answer any) any {
	value := reflect.ValueOf(answer)
	if value.Kind() != reflect.Struct {
		return answer
	}
	whole := reflect.New(value.Type()).Elem()
	whole.Set(value)
	for i := range value.NumField() {
		field := whole.Field(i)
		if field.Kind() == reflect.Slice && field.IsNil() && !strings.Contains(value.Type().Field(i).Tag.Get("json"), ",omitempty") {
			field.Set(reflect.MakeSlice(field.Type(), 0, 0))
		}
	}
	return whole.Interface()
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := &stallingWriter{w, http.NewResponseController(w)}
	caller, err := h.config.Caller(r)
	if err == nil {
		err = h.receive(w, r)
	}
	if err != nil {
		w.Header().Set("Connection", "close")
		writeProblem(answer, err)
		return
	}
	h.routes.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
}

type callerKey struct{}

// callerOf returns the caller of a request. It panics without one, so that no request goes unchecked.
func callerOf(ctx context.Context) Caller { return ctx.Value(callerKey{}).(Caller) }

// receive reads the body of a request to its end, and then lifts the read deadline: only then does
// the request's context end exactly when the client disconnects.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request) error {
	controller := http.NewResponseController(w)
	if err := controller.SetReadDeadline(time.Now().Add(h.config.RequestTimeout)); err != nil {
		return errors.Trace(err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, user.MaxRequest))
	if err != nil {
		return errors.NewNotValid(err, "reading the request")
	}
	if err := controller.SetReadDeadline(time.Time{}); err != nil {
		return errors.Trace(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// writeProblem answers a request that reaches no operation.
func writeProblem(w http.ResponseWriter, err error) {
	problem := user.NewProblem(err)
	w.Header().Set("Content-Type", problem.ContentType(""))
	w.WriteHeader(problem.Status)
	_ = writeJSON(w, problem) // a problem can be marshalled
}

// stallingWriter gives up when the client does not read.
type stallingWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
}

// Write implements http.ResponseWriter.
func (w *stallingWriter) Write(data []byte) (int, error) {
	if err := w.controller.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, errors.Trace(err)
	}
	return w.ResponseWriter.Write(data)
}

// Unwrap serves http.ResponseController.
func (w *stallingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// access says who may make a request.
type access int

const (
	// toRead is for all users.
	toRead access = iota
	// toChange is for administrators.
	toChange
	// onHost is for administrators on the host of the server, whose files the request names.
	onHost
)

const accessKey = "access"

// check returns an error that satisfies errors.IsUnauthorized unless the caller may make the
// request.
func (a access) check(by Caller) error {
	switch {
	case by.Role != role.Admin && by.Role != role.Viewer:
		return errors.NewUnauthorized(nil, fmt.Sprintf("role %s may not make requests of users", by.Role))
	case a != toRead && by.Role != role.Admin:
		return errors.NewUnauthorized(nil, fmt.Sprintf("role %s may only read: this needs role %s", by.Role, role.Admin))
	case a == onHost && !by.Local:
		return errors.NewUnauthorized(nil, "the request names files of the server's host: make it there, as root, with --data-dir")
	}
	return nil
}

// authorize passes on the requests that their callers may make.
func (h *Handler) authorize(ctx huma.Context, next func(huma.Context)) {
	caller := callerOf(ctx.Context())
	needed := ctx.Operation().Metadata[accessKey].(access)
	if err := needed.check(caller); err != nil {
		_, w := humago.Unwrap(ctx)
		writeProblem(w, err)
		return
	}
	next(ctx)
}
