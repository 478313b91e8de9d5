package userapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
)

// OfSnapshot is a request about a snapshot. It is exported for the same reason as Named.
type OfSnapshot struct {
	Name string `path:"name" doc:"The name of the snapshot"`
	Waiting
}

type snapshotArgs struct {
	OfSnapshot
	Body user.SnapshotRequest
}

type deleteSnapshotArgs struct {
	OfSnapshot
	Force bool `query:"force" doc:"Delete a snapshot that a program has asked for, too"`
}

// registerSnapshots adds the operations on snapshots.
func (h *Handler) registerSnapshots() {
	b := h.config.Backend
	read(h, "snapshots", "List the snapshots", func(ctx context.Context) (user.SnapshotList, error) {
		all, err := b.Snapshots(ctx, nil)
		return user.SnapshotList{Snapshots: all}, err
	})
	one := func(method, id string, needed access, summary string) huma.Operation {
		operation := h.operation(method, "snapshots/{name}", needed, summary)
		operation.OperationID = id
		return operation
	}
	huma.Register(h.api, one(http.MethodGet, "get-snapshot", toRead, "Show a snapshot"), func(ctx context.Context, args *OfSnapshot) (*body[user.Snapshot], error) {
		return h.settleSnapshot(ctx, args)
	})
	put := one(http.MethodPut, "put-snapshot", toChange, "Make sure that there is a snapshot of storage")
	huma.Register(h.api, put, func(ctx context.Context, args *snapshotArgs) (*body[user.Snapshot], error) {
		_, err := args.wait() // before anything is changed
		if err == nil {
			err = b.CreateSnapshot(ctx, args.Name, args.Body)
		}
		if err != nil {
			return nil, problemOf(err)
		}
		return h.settleSnapshot(ctx, &args.OfSnapshot)
	})
	remove := one(http.MethodDelete, "delete-snapshot", toChange, "Delete a snapshot; the answer has it if something is left")
	huma.Register(h.api, remove, func(ctx context.Context, args *deleteSnapshotArgs) (*body[user.SnapshotList], error) {
		_, err := args.wait()
		if err == nil {
			err = b.DeleteSnapshot(ctx, args.Name, args.Force)
		}
		if err != nil {
			return nil, problemOf(err)
		}
		left, err := h.awaitSnapshot(ctx, &args.OfSnapshot)
		if errors.Is(err, errors.NotFound) {
			left, err = []user.Snapshot{}, nil
		}
		return &body[user.SnapshotList]{user.SnapshotList{Snapshots: left}}, problemOf(err)
	})
}

// settleSnapshot waits as awaitSnapshot does, and returns the snapshot as it is then.
func (h *Handler) settleSnapshot(ctx context.Context, args *OfSnapshot) (*body[user.Snapshot], error) {
	found, err := h.awaitSnapshot(ctx, args)
	if err != nil {
		return nil, problemOf(err)
	}
	return &body[user.Snapshot]{found[0]}, nil
}

// awaitSnapshot waits, as long as the request says, until a snapshot is made, has failed or is gone.
func (h *Handler) awaitSnapshot(ctx context.Context, args *OfSnapshot) ([]user.Snapshot, error) {
	wait, err := args.wait()
	if err == nil && wait > 0 {
		waiting, cancel := context.WithTimeout(ctx, wait)
		err = h.config.Backend.AwaitSnapshot(waiting, args.Name)
		cancel()
	}
	if err != nil {
		return nil, err
	}
	return h.config.Backend.Snapshots(ctx, []string{args.Name})
}
