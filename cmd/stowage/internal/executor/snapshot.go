package executor

import (
	"context"
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// snapshot makes or deletes a snapshot. What the provider refuses is in the result, and the error is about
// what prevents asking it.
func (x *Executor) snapshot(ctx context.Context, args task.Snapshot) (*task.Snapshotted, error) {
	p, err := x.config.Registry.StorageProvider(storage.ProviderType(args.Provider))
	if err != nil {
		return nil, errors.Trace(err)
	}
	config, err := SourceConfig(x.config.Dir, storage.ProviderType(args.Provider))
	if err != nil {
		return nil, errors.Trace(err)
	}
	source, err := openSnapshotter(p, config, args.FilesystemID != "")
	if errors.Is(err, errors.NotSupported) && args.Delete && args.SnapshotID == "" {
		return &task.Snapshotted{}, nil // nothing was made
	} else if errors.Is(err, errors.NotSupported) {
		return &task.Snapshotted{Failure: err.Error(), Final: true}, nil
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	callCtx := envcontext.New(ctx)
	if args.Delete {
		err := source.delete(callCtx, args)
		return snapshotFailure(err), nil
	}
	results, err := source.create(callCtx, args)
	switch {
	case err != nil:
	case len(results) != 1 || results[0].Error == nil && results[0].Snapshot == nil:
		err = errors.Errorf("provider %s returned %d results for one snapshot, or an empty one", args.Provider, len(results))
	default:
		err = results[0].Error
	}
	if err != nil {
		return snapshotFailure(err), nil
	}
	made := results[0].Snapshot
	return &task.Snapshotted{ID: made.SnapshotId, SizeMiB: made.Size, TakenAt: made.TakenAt}, nil
}

// snapshotter has the methods of a source that makes snapshots of its volumes or of its filesystems.
type snapshotter struct {
	create  func(envcontext.ProviderCallContext, task.Snapshot) ([]storage.CreateSnapshotsResult, error)
	destroy func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error)
	list    func(envcontext.ProviderCallContext) ([]storage.OwnedObject, error)
}

// openSnapshotter opens a source of a provider. The error satisfies errors.IsNotSupported if it makes no
// snapshots.
func openSnapshotter(p storage.Provider, config *storage.Config, filesystems bool) (*snapshotter, error) {
	none := errors.NewNotSupported(nil, fmt.Sprintf("provider %s cannot make snapshots", config.Provider()))
	if filesystems {
		source, err := p.FilesystemSource(config)
		if err != nil {
			return nil, errors.Trace(err)
		}
		s, ok := source.(storage.FilesystemSnapshotter)
		if !ok {
			return nil, none
		}
		create := func(ctx envcontext.ProviderCallContext, args task.Snapshot) ([]storage.CreateSnapshotsResult, error) {
			return s.CreateFilesystemSnapshots(ctx, []storage.FilesystemSnapshotParams{
				{FilesystemId: args.FilesystemID, Attributes: args.Attributes, ResourceTags: args.ResourceTags},
			})
		}
		return &snapshotter{create, s.DestroyFilesystemSnapshots, s.ListFilesystemSnapshots}, nil
	}
	source, err := p.VolumeSource(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	s, ok := source.(storage.VolumeSnapshotter)
	if !ok {
		return nil, none
	}
	create := func(ctx envcontext.ProviderCallContext, args task.Snapshot) ([]storage.CreateSnapshotsResult, error) {
		return s.CreateVolumeSnapshots(ctx, []storage.VolumeSnapshotParams{
			{VolumeId: args.VolumeID, Attributes: args.Attributes, ResourceTags: args.ResourceTags},
		})
	}
	return &snapshotter{create, s.DestroyVolumeSnapshots, s.ListVolumeSnapshots}, nil
}

// snapshotFailure returns the result of a call that has returned the error.
func snapshotFailure(err error) *task.Snapshotted {
	if err == nil {
		return &task.Snapshotted{}
	}
	final := storage.IsPermanent(err) || errors.Is(err, errors.NotFound) || errors.Is(err, errors.NotValid) || errors.Is(err, errors.NotSupported)
	return &task.Snapshotted{Failure: err.Error(), Final: final}
}

// repeat makes a snapshot again, to find what an interrupted call has made. It returns no ID if there is
// nothing.
func (s *snapshotter) repeat(ctx envcontext.ProviderCallContext, args task.Snapshot) ([]string, error) {
	results, err := s.create(ctx, args)
	switch {
	case err != nil:
		return nil, errors.Trace(err)
	case len(results) != 1:
		return nil, errors.Errorf("got %d results for one snapshot", len(results))
	case errors.Is(results[0].Error, errors.NotFound), errors.Is(results[0].Error, errors.NotSupported):
		return nil, nil
	case results[0].Error != nil:
		return nil, errors.Annotate(results[0].Error, "asking for what an interrupted creation may have made")
	case results[0].Snapshot == nil:
		return nil, errors.New("got neither a snapshot nor an error")
	}
	return []string{results[0].Snapshot.SnapshotId}, nil
}

// delete destroys the snapshot with the ID, and what an interrupted call has left with its UUID.
func (s *snapshotter) delete(ctx envcontext.ProviderCallContext, args task.Snapshot) error {
	var ids []string
	if args.SnapshotID != "" {
		ids = append(ids, args.SnapshotID)
	} else {
		all, err := s.list(ctx)
		if errors.Is(err, errors.NotSupported) {
			ids, err = s.repeat(ctx, args)
		}
		if err != nil {
			return errors.Trace(err)
		}
		for _, o := range all {
			if storage.OwnerOf(o.ResourceTags) == storage.OwnerOf(args.ResourceTags) {
				ids = append(ids, o.ID)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	errs, err := s.destroy(ctx, ids)
	for _, failed := range errs {
		if err == nil {
			err = failed
		}
	}
	return errors.Trace(err)
}
