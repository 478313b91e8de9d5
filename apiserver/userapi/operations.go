package userapi

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stowage-io/stowage/api/user"
)

// body is a request or an answer with a JSON object.
type body[T any] struct {
	Body T
}

// nothing is a request without a body, or an answer without one.
type nothing struct{}

// ofMachine is a request about one machine, or about all.
type ofMachine struct {
	Machine string `query:"machine" doc:"Only what the machine with this name has"`
}

// register adds all operations.
func (h *Handler) register() {
	b := h.config.Backend
	h.registerStorage()
	h.registerClaims()
	h.registerSnapshots()
	tellNames(h, "offer", "Let claims get storage that was retained from deleted claims", b.Offer)
	ask(h, "find", toRead, "List the named storage", func(ctx context.Context, args user.Names) (user.StorageList, error) {
		found, err := b.Storage(ctx, args.Names)
		return user.StorageList{Storage: found}, err
	})
	ask(h, "look", toRead, "Show what machines have of the named storage, and what is done for it", func(ctx context.Context, args user.Names) (user.LookList, error) {
		looks, err := b.Look(ctx, args.Names)
		return user.LookList{Storage: looks}, err
	})
	ask(h, "usage", toRead, "Measure how much of the named storage is used", func(ctx context.Context, args user.Names) (user.UsageList, error) {
		return b.Usage(ctx, args.Names)
	})
	ask(h, "events", toRead, "List what happened to storage", func(ctx context.Context, args user.EventsArgs) (user.StorageEventList, error) {
		found, err := b.Events(ctx, args)
		return user.StorageEventList{Events: found}, err
	})
	h.registerWatch()
	ask(h, "apply", toChange, "Converge to a file", b.Apply)
	ask(h, "attach", toChange, "Attach storage", b.Attach)
	tellNames(h, "detach", "Detach storage", b.Detach)
	tell(h, "remove", "Detach and destroy storage", b.Remove)
	tell(h, "release", "Detach storage and remove it from the state, with its data left in place", b.Release)
	tellNames(h, "retry", "Retry failed operations of storage at once; without names, of all storage", b.Retry)
	tellNames(h, "format", "Make filesystems, whatever their volumes contain; each must be named in full", b.Format)
	ask(h, "resize", toChange, "Let storage grow", b.Resize)
	ask(h, "rename", toChange, "Give storage another name", b.Rename)
	ask(h, "move", toChange, "Detach storage, and attach it to another machine", b.Move)
	ask(h, "import", toChange, "Take over an existing object of a machine as storage", b.Import)
	huma.Register(h.api, h.operation(http.MethodGet, "orphans", toRead, "List the objects of providers that belong to no storage"),
		func(ctx context.Context, args *ofMachine) (*body[user.OrphanList], error) {
			list, err := b.Orphans(ctx, args.Machine)
			return &body[user.OrphanList]{list}, problemOf(err)
		})
	ask(h, "adopt", toChange, "Add storage for an orphan, detached", b.Adopt)
	ask(h, "delete-orphan", toChange, "Destroy an orphan", b.DeleteOrphan)
	ask(h, "backup", onHost, "Write the state to a new file on the host", b.Backup)
	read(h, "pools", "List the pools", func(ctx context.Context) (user.PoolList, error) {
		pools, err := b.Pools(ctx)
		return user.PoolList{Pools: pools}, err
	})
	tell(h, "pools", "Create or replace a pool", b.AddPool)
	tellNames(h, "remove-pools", "Remove pools, all or none", b.RemovePools)
	read(h, "machines", "List the machines", func(ctx context.Context) (user.MachineList, error) {
		machines, err := b.Machines(ctx)
		return user.MachineList{Machines: machines}, err
	})
	read(h, "servers", "List the servers that keep the state together", func(ctx context.Context) (user.ServerList, error) {
		servers, err := b.Servers(ctx)
		return user.ServerList{Servers: servers}, err
	})
	tell(h, "remove-server", "Remove a server from those that keep the state together", b.RemoveServer)
	ask(h, "drain-machine", toChange, "Keep a machine from getting storage, and move its storage to others", b.DrainMachine)
	tell(h, "undrain-machine", "Let a machine get storage again", b.UndrainMachine)
	tell(h, "label-machine", "Change the labels of a machine", b.LabelMachine)
	tell(h, "fence-machine", "Say that a machine is off, or has been restarted, or let the server see to it", b.FenceMachine)
	tell(h, "remove-machine", "Remove a machine, with the storage that is lost with it", b.RemoveMachine)
	ask(h, "tokens", toChange, "Create a token", func(ctx context.Context, args user.CreateTokenArgs) (user.TokenText, error) {
		token, err := b.CreateToken(ctx, args)
		return user.TokenText{Token: token}, err
	})
	read(h, "tokens", "List the tokens that can be used", func(ctx context.Context) (user.TokenList, error) {
		tokens, err := b.Tokens(ctx)
		return user.TokenList{Tokens: tokens}, err
	})
	tellNames(h, "remove-tokens", "Remove tokens, each named by its ID", b.RemoveTokens)
	read(h, "users", "List the users with a certificate", func(ctx context.Context) (user.UserList, error) {
		users, err := b.Users(ctx)
		return user.UserList{Users: users}, err
	})
	tellNames(h, "remove-users", "Remove users, all or none", b.RemoveUsers)
	read(h, "report", "Show what the workers are doing", func(ctx context.Context) (user.Report, error) {
		report, err := b.Report(ctx)
		return user.Report{Report: report}, err
	})
}

// read adds an operation that returns something.
func read[R any](h *Handler, name, summary string, do func(context.Context) (R, error)) {
	huma.Register(h.api, h.operation(http.MethodGet, name, toRead, summary), func(ctx context.Context, _ *nothing) (*body[R], error) {
		result, err := do(ctx)
		return &body[R]{result}, problemOf(err)
	})
}

// ask adds an operation that has arguments and returns something.
func ask[A, R any](h *Handler, name string, needed access, summary string, do func(context.Context, A) (R, error)) {
	huma.Register(h.api, h.operation(http.MethodPost, name, needed, summary), func(ctx context.Context, args *body[A]) (*body[R], error) {
		result, err := do(ctx, args.Body)
		return &body[R]{result}, problemOf(err)
	})
}

// tell adds an operation that changes something and returns nothing.
func tell[A any](h *Handler, name, summary string, do func(context.Context, A) error) {
	huma.Register(h.api, h.operation(http.MethodPost, name, toChange, summary), func(ctx context.Context, args *body[A]) (*nothing, error) {
		return nil, problemOf(do(ctx, args.Body))
	})
}

func tellNames(h *Handler, name, summary string, do func(context.Context, []string) error) {
	tell(h, name, summary, func(ctx context.Context, args user.Names) error { return do(ctx, args.Names) })
}

// problemOf returns the form of an error on the wire, or nil.
func problemOf(err error) error {
	if err == nil {
		return nil
	}
	return user.NewProblem(err)
}

// operation describes an operation.
func (h *Handler) operation(method, name string, needed access, summary string) huma.Operation {
	id := name
	if method == http.MethodGet {
		id = "list-" + name
	}
	problem := h.api.OpenAPI().Components.Schemas.Schema(problemType, true, "")
	return huma.Operation{
		OperationID:     id,
		Method:          method,
		Path:            "/v1/" + name,
		Summary:         summary,
		Description:     needed.String(),
		Metadata:        map[string]any{accessKey: needed},
		MaxBodyBytes:    -1, // the body was received before
		BodyReadTimeout: -1,
		Responses: map[string]*huma.Response{"default": {
			Description: "Error",
			Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: problem}},
		}},
	}
}

// String says who may make a request, for the document.
func (a access) String() string {
	return [...]string{"For roles admin and viewer.", "For role admin.", "For role admin, on the socket of the server's host."}[a]
}

// document completes the description of the API.
func document(api *huma.OpenAPI) {
	for path, item := range api.Paths {
		if fixed := strings.ReplaceAll(path, "...}", "}"); fixed != path {
			delete(api.Paths, path)
			api.Paths[fixed] = item
		}
	}
	schemas := api.Components.Schemas.Map()
	for _, unused := range []string{"ErrorModel", "ErrorDetail"} { // of the framework: errors are problems of package user
		delete(schemas, unused)
	}
	for name, schema := range schemas {
		t := api.Components.Schemas.TypeFromRef("#/components/schemas/" + name)
		schema.Description = descriptions[t.Name()]
		for _, field := range reflect.VisibleFields(t) {
			owner := t // or the embedded type that the field is from
			if n := len(field.Index); n > 1 {
				owner = t.FieldByIndex(field.Index[:n-1]).Type
			}
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if property, ok := schema.Properties[key]; ok {
				property.Description = descriptions[owner.Name()+"."+field.Name]
			}
		}
	}
}

// Operations returns the requests that the handler serves, sorted, such as "GET /v1/storage".
func (h *Handler) Operations() []string {
	var all []string
	for path, item := range h.api.OpenAPI().Paths {
		for method, operation := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodDelete: item.Delete,
		} {
			if operation != nil {
				all = append(all, method+" "+path)
			}
		}
	}
	slices.Sort(all)
	return all
}
