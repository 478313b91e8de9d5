package userapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/label"
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
	Labels  string `query:"labels" doc:"Only storage with all of these labels, such as tier=fast,zone=a"`

	selector map[string]string // as Labels says
}

// parse reads the labels of the filter.
func (f *filter) parse() (err error) {
	f.selector, err = label.ParseSelector(f.Labels)
	return errors.Trace(err)
}

func (f *filter) has(s user.Storage) bool {
	attachedTo := func(a user.Attachment) bool { return a.Machine == f.Machine }
	return (f.Machine == "" || slices.ContainsFunc(s.Attachments, attachedTo)) &&
		(f.Pool == "" || s.Pool == f.Pool) && label.Selects(f.selector, s.Labels) && (f.Status == "" || string(s.Status) == f.Status)
}

// Named is a request about the storage with a name. It is exported because huma fills in only the
// exported parts of a request.
type Named struct {
	Name string `path:"name" doc:"NAME, which stands for all its instances, or NAME/N for one"`
	Waiting
}

// Waiting is the part of a request by which it waits. It is exported for the same reason.
type Waiting struct {
	Wait string `query:"wait" doc:"How long to wait, such as 30s, for what was requested to be done, or to have failed. The answer shows the storage as it is then." example:"30s"`
}

func (w *Waiting) wait() (time.Duration, error) {
	if w.Wait == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(w.Wait)
	if err != nil || wait < 0 || wait > maxWait {
		return 0, errors.NewNotValid(nil, "wait: a time from 0s to 10m, such as 30s")
	}
	return wait, nil
}

// Conditional is the part of a request by which it depends on the revision of the storage. It is
// exported for the same reason as Named.
type Conditional struct {
	IfMatch string `header:"If-Match" doc:"Make the change only if the storage has one of these revisions, or, with *, if it exists: the value of ETag in an earlier answer" example:"\"1x2y3z4\""`
}

type removal struct {
	Named
	Conditional
}

type declaration struct {
	Named
	Conditional
	IfNoneMatch string `header:"If-None-Match" doc:"With *, make the change only if there is no such storage" enum:"*"`
	Body        user.Declaration
}

// resource is the storage with a name.
type resource struct {
	// ETag is its revision, in quotes.
	ETag string `header:"ETag" doc:"The revision of the storage, in quotes. It changes with what is wanted of the storage, and not with its status."`
	Body user.StorageList
}

func newResource(found []user.Storage) *resource {
	r := &resource{Body: user.StorageList{Storage: found}}
	if len(found) > 0 {
		r.ETag = strconv.Quote(user.RevisionOf(found))
	}
	return r
}

// condition returns the condition on the storage with the name.
func (m Conditional) condition(name string) (user.Condition, error) {
	on := user.Condition{Name: name}
	switch m.IfMatch {
	case "":
		return on, nil
	case "*":
		on.Exists = true
		return on, nil
	}
	for tag := range strings.SplitSeq(m.IfMatch, ",") {
		tag = strings.TrimSpace(tag)
		revision, quoted := strings.CutPrefix(tag, `"`)
		revision, ended := strings.CutSuffix(revision, `"`)
		if !quoted || !ended || strings.Contains(revision, `"`) {
			return on, errors.NewNotValid(nil, fmt.Sprintf("If-Match: %s is neither * nor a revision in quotes, as the header ETag of an answer has it", tag))
		}
		on.Revisions = append(on.Revisions, revision)
	}
	return on, nil
}

func (d *declaration) condition() (user.Condition, error) {
	on, err := d.Conditional.condition(d.Name)
	on.Absent = d.IfNoneMatch == "*"
	if err == nil && on.Absent && d.IfMatch != "" {
		err = errors.NewNotValid(nil, "If-Match and If-None-Match exclude each other: send one of them")
	}
	return on, err
}

// registerStorage adds the operations on storage as resources.
func (h *Handler) registerStorage() {
	b := h.config.Backend
	huma.Register(h.api, h.operation(http.MethodGet, "storage", toRead, "List storage"), func(ctx context.Context, args *filter) (*body[user.StorageList], error) {
		if err := args.parse(); err != nil {
			return nil, problemOf(err)
		}
		all, err := b.Storage(ctx, nil)
		return &body[user.StorageList]{user.StorageList{Storage: slices.DeleteFunc(all, func(s user.Storage) bool { return !args.has(s) })}}, problemOf(err)
	})
	one := func(method, id string, needed access, summary string) huma.Operation {
		operation := h.operation(method, "storage/{name...}", needed, summary)
		operation.OperationID = id
		return operation
	}
	huma.Register(h.api, one(http.MethodGet, "get-storage", toRead, "Show storage"), func(ctx context.Context, args *Named) (*resource, error) {
		return h.settle(ctx, args, settled)
	})
	put := one(http.MethodPut, "put-storage", toChange, "Make sure that storage exists and is attached, with the properties of the body, as applying a file does")
	huma.Register(h.api, put, func(ctx context.Context, args *declaration) (*resource, error) {
		if _, err := args.wait(); err != nil { // before anything is changed
			return nil, problemOf(err)
		}
		on, err := args.condition()
		if err == nil {
			err = b.Declare(ctx, on, args.Body)
		}
		if err != nil {
			return nil, problemOf(err)
		}
		return h.settle(ctx, &args.Named, settled)
	})
	huma.Register(h.api, one(http.MethodDelete, "delete-storage", toChange, "Detach and destroy storage"), func(ctx context.Context, args *removal) (*resource, error) {
		if _, err := args.wait(); err != nil {
			return nil, problemOf(err)
		}
		on, err := args.condition(args.Name)
		if err == nil {
			err = b.RemoveIf(ctx, on)
		}
		if err != nil {
			return nil, problemOf(err)
		}
		return h.settleRemoved(ctx, &args.Named)
	})
}

// settleRemoved waits, as long as the request says, until all of the named storage is gone. It returns
// what is left.
func (h *Handler) settleRemoved(ctx context.Context, args *Named) (*resource, error) {
	answer, err := h.settle(ctx, args, func(user.Storage) bool { return false })
	var problem *user.Problem
	if errors.As(err, &problem) && problem.Status == http.StatusNotFound { // it is gone
		return newResource([]user.Storage{}), nil
	}
	return answer, err
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
func (h *Handler) settle(ctx context.Context, args *Named, condition func(user.Storage) bool) (*resource, error) {
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
	return newResource(found), problemOf(err)
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
	err = h.config.Backend.Watch(limited, user.WatchArgs{Names: names}, func(event user.Event) error {
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
