package object

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Snapshots are the objects of a storage directory of their own, within the storage directory of
// what they are snapshots of. They have the same records as other objects, and are never attached.

// snapshotName begins the ID of a snapshot.
const snapshotName = "snapshot"

// SnapshotsDir returns the storage directory of the snapshots of a storage directory's objects.
func SnapshotsDir(dir string) string { return filepath.Join(dir, "snapshots") }

// DirOf returns the storage directory that has an object, given that of objects which are no
// snapshots.
func DirOf(dir, id string) string {
	if strings.HasPrefix(id, snapshotName+"-") {
		return SnapshotsDir(dir)
	}
	return dir
}

// HasSnapshots reports whether a call has ever made a snapshot of a storage directory's objects.
func HasSnapshots(dir string) (bool, error) {
	_, err := os.Lstat(SnapshotsDir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, errors.Trace(err)
}

// WithSnapshots makes a call on the objects of a storage directory, and one on their snapshots if
// there are any. It returns the errors of both.
func WithSnapshots[C interface{ End() }](ctx context.Context, dir string, begin func(ctx context.Context, dir string) (C, error), do func(C) error) error {
	dirs := []string{dir}
	if has, err := HasSnapshots(dir); err != nil {
		return errors.Trace(err)
	} else if has {
		dirs = append(dirs, SnapshotsDir(dir))
	}
	var failures Failures
	for _, dir := range dirs {
		c, err := begin(ctx, dir)
		if err != nil {
			return errors.Trace(err)
		}
		if err := do(c); err != nil {
			failures = append(failures, err)
		}
		c.End()
	}
	if len(failures) > 0 {
		return failures
	}
	return nil
}

// CopyCall is one bulk call on objects and their snapshots. It holds the locks of both, so nobody
// attaches, changes or destroys what is being copied.
type CopyCall[C interface{ End() }] struct {
	Objects, Snapshots C
}

// BeginCopy begins a call on objects and on their snapshots.
func BeginCopy[C interface{ End() }](ctx context.Context, objects, snapshots func(context.Context) (C, error)) (*CopyCall[C], error) {
	o, err := objects(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	s, err := snapshots(ctx)
	if err != nil {
		o.End()
		return nil, errors.Trace(err)
	}
	return &CopyCall[C]{o, s}, nil
}

// End ends the call.
func (c *CopyCall[C]) End() {
	c.Snapshots.End()
	c.Objects.End()
}

// CreatingSnapshots describes the bulk call that makes snapshots: one after another, since they
// wait for the same disk. of returns the ID of the original.
func CreatingSnapshots[T any](of func(T) string) Bulk[T] {
	return Bulk[T]{Verb: "creating", Objects: "snapshots", Name: func(p T) string { return "a snapshot of " + of(p) }}
}

// DestroyingSnapshots is the bulk call that destroys snapshots.
var DestroyingSnapshots = Bulk[string]{Verb: "destroying", Objects: "snapshots", Name: ByID, Key: ByID}

// CreatedSnapshot returns the result of making a snapshot.
func CreatedSnapshot[T any](_ T, info storage.SnapshotInfo, err error) storage.CreateSnapshotsResult {
	if err != nil {
		return storage.CreateSnapshotsResult{Error: err}
	}
	return storage.CreateSnapshotsResult{Snapshot: &info}
}

// ResolveSnapshot returns the ID of the snapshot that resource tags identify: see [Call.Resolve].
func (c *Call) ResolveSnapshot(resourceTags map[string]string) (string, error) {
	if storage.OwnerOf(resourceTags).EntityUUID == "" {
		return "", errors.NewNotValid(nil, "resource tag "+storage.EntityUUIDTag+" is missing: it identifies a snapshot")
	}
	return c.Resolve(snapshotName, resourceTags)
}

// Copying are the functions with which a source copies an object. They are for one ID.
type Copying struct {
	// Finish completes what has its name: its contents are complete.
	Finish func() error
	// Make makes the copy. If it is complete, as an earlier call has made it, Make only checks it.
	Make func(complete bool) error
	// Destroy removes the copy, complete or not.
	Destroy func() error
}

// Copy makes a copy, or finds the one that an earlier call has made. What an interrupted call has
// left is removed unless it has its name: it would be older than the rest. A failure destroys what
// Make has made: see [Creation.Failed].
func (c *Call) Copy(id string, how Copying) error {
	complete, err := c.finishCopy(id, how)
	if err != nil {
		return errors.Trace(err)
	}
	creation := c.BeginCreation(id)
	if err := how.Make(complete); err != nil {
		return creation.Failed(errors.Trace(err), how.Destroy)
	}
	return nil
}

// finishCopy completes what can be completed of a copy without its original, and reports whether
// it is complete.
func (c *Call) finishCopy(id string, how Copying) (complete bool, err error) {
	var rec ownedRecord
	err = c.Records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) {
		return false, nil
	} else if err != nil {
		return false, errors.Trace(err)
	}
	switch rec.Phase {
	case PhaseCreating:
		has, err := c.Files.Has(id)
		if err == nil && has {
			return true, errors.Trace(how.Finish())
		}
		if err == nil {
			err = how.Destroy()
		}
		return false, errors.Trace(err)
	case PhaseDestroying:
		return false, errors.Trace(how.Destroy())
	}
	return rec.Phase.Exists(), nil
}
