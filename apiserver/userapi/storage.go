package userapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// maxWait bounds the parameter wait.
const maxWait = 10 * time.Minute

// filter selects storage of a list.
type filter struct {
	Machine string `query:"machine" doc:"Only storage that is attached to the machine with this name"`
	Pool    string `query:"pool" doc:"Only storage of this pool"`
	Status  string `query:"status" doc:"Only storage with this status, such as attached or error"`
}

func (f *filter) has(s user.Storage) bool {
	attachedTo := func(a user.Attachment) bool { return a.Machine == f.Machine }
	return (f.Machine == "" || slices.ContainsFunc(s.Attachments, attachedTo)) &&
		(f.Pool == "" || s.Pool == f.Pool) && (f.Status == "" || string(s.Status) == f.Status)
}

// Named is a request about the storage with a name. It is exported because huma fills in only the
// exported parts of a request.
type Named struct {
	Name string `path:"name" doc:"NAME, which stands for all its instances, or NAME/N for one"`
	Wait string `query:"wait" doc:"How long to wait, such as 30s, for what was requested to be done, or to have failed. The answer shows the storage as it is then." example:"30s"`
}

func (n *Named) wait() (time.Duration, error) {
	if n.Wait == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(n.Wait)
	if err != nil || wait < 0 || wait > maxWait {
		return 0, errors.NewNotValid(nil, "wait: a time from 0s to 10m, such as 30s")
	}
	return wait, nil
}

type declaration struct {
	Named
	Body user.Declaration
}

// registerStorage adds the operations on storage as resources.
func (h *Handler) registerStorage() {
	b := h.config.Backend
	huma.Register(h.api, h.operation(http.MethodGet, "storage", toRead, "List storage"), func(ctx context.Context, args *filter) (*body[user.StorageList], error) {
		all, err := b.Storage(ctx, nil)
		return &body[user.StorageList]{user.StorageList{Storage: slices.DeleteFunc(all, func(s user.Storage) bool { return !args.has(s) })}}, problemOf(err)
	})
	one := func(method, id string, needed access, summary string) huma.Operation {
		operation := h.operation(method, "storage/{name...}", needed, summary)
		operation.OperationID = id
		return operation
	}
	huma.Register(h.api, one(http.MethodGet, "get-storage", toRead, "Show storage"), func(ctx context.Context, args *Named) (*body[user.StorageList], error) {
		return h.settle(ctx, args, settled)
	})
	put := one(http.MethodPut, "put-storage", toChange, "Make sure that storage exists and is attached, with the properties of the body, as applying a file does")
	huma.Register(h.api, put, func(ctx context.Context, args *declaration) (*body[user.StorageList], error) {
		if _, err := args.wait(); err != nil { // before anything is changed
			return nil, problemOf(err)
		}
		file, err := fileOf(args.Name, args.Body)
		if err != nil {
			return nil, problemOf(err)
		}
		if _, err := b.Apply(ctx, user.ApplyArgs{File: "request", Content: file}); err != nil {
			return nil, problemOf(err)
		}
		return h.settle(ctx, &args.Named, settled)
	})
	huma.Register(h.api, one(http.MethodDelete, "delete-storage", toChange, "Detach and destroy storage"), func(ctx context.Context, args *Named) (*body[user.StorageList], error) {
		if _, err := args.wait(); err != nil {
			return nil, problemOf(err)
		}
		if err := b.Remove(ctx, []string{args.Name}); err != nil {
			return nil, problemOf(err)
		}
		answer, err := h.settle(ctx, args, func(user.Storage) bool { return false })
		var problem *user.Problem
		if errors.As(err, &problem) && problem.Status == http.StatusNotFound { // it is gone
			return &body[user.StorageList]{user.StorageList{Storage: []user.Storage{}}}, nil
		}
		return answer, err
	})
}

// fileOf returns a file that declares storage. JSON is YAML.
func fileOf(name string, declared user.Declaration) (string, error) {
	type entry struct {
		Name string `json:"name"`
		user.Declaration
	}
	content, err := json.Marshal(struct {
		Storage []entry `json:"storage"`
	}{[]entry{{name, declared}}})
	return string(content), errors.Trace(err)
}

// settled reports whether nothing is being done for storage.
func settled(s user.Storage) bool {
	switch {
	case s.Life != life.Alive:
		return false
	case s.Status == status.Attached:
		return s.Location != "" && s.SizeMiB >= s.WantedMiB
	}
	return s.Status == status.Detached || s.Status == status.Error
}

// settle waits, as long as the request says, until all of the named storage satisfies the condition
// or is gone. It returns the storage as it is then.
func (h *Handler) settle(ctx context.Context, args *Named, condition func(user.Storage) bool) (*body[user.StorageList], error) {
	names := []string{args.Name}
	wait, err := args.wait()
	if err != nil {
		return nil, problemOf(err)
	}
	if wait > 0 {
		if err := h.await(ctx, names, wait, condition); err != nil {
			return nil, problemOf(err)
		}
	}
	found, err := h.config.Backend.Storage(ctx, names)
	return &body[user.StorageList]{user.StorageList{Storage: found}}, problemOf(err)
}

const errSettled = errors.ConstError("settled")

// await waits until all of the named storage satisfies the condition or is gone, at most for the time.
func (h *Handler) await(ctx context.Context, names []string, wait time.Duration, condition func(user.Storage) bool) error {
	end, err := h.streams.begin(callerOf(ctx))
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	pending := map[string]bool{}
	err = h.config.Backend.Watch(limited, names, func(event user.Event) error {
		for _, s := range event.Storage {
			pending[s.Name] = !condition(s)
		}
		for _, name := range event.Gone {
			delete(pending, name)
		}
		for _, is := range pending {
			if is {
				return nil
			}
		}
		return errSettled
	})
	if errors.Is(err, errSettled) || limited.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return errors.Trace(err)
}
