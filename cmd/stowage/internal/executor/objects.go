package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/storage"
)

// maxPart bounds the objects of one part of a scan, in bytes of JSON. One object is much smaller.
const maxPart = task.MaxResult / 2

// scan lists the objects that the state may not have, in the order of their references.
func (x *Executor) scan(ctx context.Context, args task.Scan) (*task.Scanned, error) {
	objects, err := x.list(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	slices.SortFunc(objects, func(a, b inventory.Object) int { return strings.Compare(position(a), position(b)) })
	part, size := &task.Scanned{Objects: []task.Object{}}, 0
	last := args.After
	for _, o := range objects {
		at := position(o)
		if at <= args.After {
			continue
		}
		encoded, err := json.Marshal(o.Task())
		if err != nil {
			return nil, errors.Trace(err)
		}
		if size += len(encoded); size > maxPart && len(part.Objects) > 0 {
			part.Next = last
			break
		}
		part.Objects, last = append(part.Objects, o.Task()), at
	}
	return part, nil
}

// position orders objects.
func position(o inventory.Object) string { return string(o.Provider) + "/" + o.Kind + "/" + o.ID }

// list returns the objects of all providers, without those that the state has, as far as that is known
// here.
func (x *Executor) list(ctx context.Context) ([]inventory.Object, error) {
	inv, err := x.inventory()
	if err != nil {
		return nil, errors.Trace(err)
	}
	objects, err := inv.List(ctx)
	if err != nil || x.config.Owners == nil {
		return objects, errors.Trace(err)
	}
	owners, err := x.config.Owners(objects)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var unknown []inventory.Object
	for n, o := range objects {
		if owners[n] == (storage.Owner{}) || owners[n] != o.Owner() {
			unknown = append(unknown, o)
		}
	}
	return unknown, nil
}

// tag replaces the resource tags of objects.
func (x *Executor) tag(ctx context.Context, args task.Tag) error {
	inv, err := x.inventory()
	if err != nil {
		return errors.Trace(err)
	}
	objects, err := inv.List(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	var tags []inventory.Tags
	for _, wanted := range args.Objects {
		if o, err := find(objects, wanted.Owned); err == nil {
			tags = append(tags, inventory.Tags{Object: o, Tags: wanted.ResourceTags})
		}
	}
	return errors.Trace(inv.Tag(ctx, tags))
}

// delete destroys an object that is not attached. Data on this machine is moved to the trash, unless
// args.Now is set.
func (x *Executor) delete(ctx context.Context, args task.Delete) (*task.Deleted, error) {
	inv, err := x.inventory()
	if err != nil {
		return nil, errors.Trace(err)
	}
	objects, err := inv.List(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	o, err := find(objects, args.Owned)
	switch {
	case err != nil:
		return nil, errors.Trace(err)
	case o.Attached:
		return nil, errors.NewNotValid(nil, fmt.Sprintf("%s %s is in use: adopt it with `stowage adopt`, and detach it", o.Kind, o.ID))
	}
	for _, directory := range x.config.Dir.StorageDirectories() {
		switch {
		case directory.Provider != o.Provider || o.Kind == inventory.SnapshotKind: // only volumes and filesystems are kept
		case args.Now:
			return &task.Deleted{}, errors.Trace(directory.Delete(ctx, o.ID, o.Owner()))
		default:
			kept := &task.Deleted{KeptSeconds: int64(process.TrashRetention.Seconds())}
			return kept, errors.Trace(directory.Trash(ctx, o.ID, o.Owner(), x.config.Clock.Now()))
		}
	}
	return &task.Deleted{}, errors.Trace(inv.Destroy(ctx, o))
}

// setMountOptions replaces the mount options of a filesystem.
func (x *Executor) setMountOptions(ctx context.Context, args task.MountOptions) error {
	inv, err := x.inventory()
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(inv.SetMountOptions(ctx, storage.ProviderType(args.Filesystem.Provider), args.Filesystem.ID, args.Options))
}
