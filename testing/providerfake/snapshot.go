package providerfake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// snapshot is a snapshot of a volume or filesystem.
type snapshot struct {
	storage.SnapshotInfo
	tags map[string]string
}

// snapshots are the snapshots of one kind of storage, in the order in which they were made.
type snapshots []snapshot

// snapshotID returns the ID of a snapshot, which is also its subject.
func snapshotID(tags map[string]string) string {
	return "snapshot-" + storage.OwnerOf(tags).EntityUUID
}

func (all *snapshots) index(id string) int {
	return slices.IndexFunc(*all, func(s snapshot) bool { return s.SnapshotId == id })
}

// create makes a snapshot, or finds the existing one. size returns the size of its origin.
func (all *snapshots) create(originID string, tags map[string]string, size func() (uint64, error)) storage.CreateSnapshotsResult {
	owner := storage.OwnerOf(tags)
	if owner.EntityUUID == "" {
		return storage.CreateSnapshotsResult{Error: errors.NotValidf("snapshot of %q without an owner", originID)}
	}
	i := all.index(snapshotID(tags))
	if i < 0 {
		mib, err := size()
		if err != nil {
			return storage.CreateSnapshotsResult{Error: storage.NothingMade(err)}
		}
		info := storage.SnapshotInfo{SnapshotId: snapshotID(tags), Size: mib, TakenAt: time.Now()}
		i = len(*all)
		*all = append(*all, snapshot{info, maps.Clone(tags)})
	}
	made := (*all)[i]
	if storage.OwnerOf(made.tags) != owner {
		return storage.CreateSnapshotsResult{Error: errors.AlreadyExistsf("snapshot %s of another state", made.SnapshotId)}
	}
	return storage.CreateSnapshotsResult{Snapshot: &made.SnapshotInfo}
}

func (all *snapshots) destroy(id string) error {
	*all = slices.DeleteFunc(*all, func(s snapshot) bool { return s.SnapshotId == id })
	return nil
}

func (all *snapshots) list(p *Provider, ctx context.Context, name string) ([]storage.OwnedObject, error) {
	defer p.RecordBegin(p.Options.Prefix+name, nil)()
	if err := p.Begin(ctx, name); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	objects := make([]storage.OwnedObject, len(*all))
	for i, s := range *all {
		objects[i] = storage.OwnedObject{ID: s.SnapshotId, Size: s.Size, ResourceTags: maps.Clone(s.tags)}
	}
	slices.SortFunc(objects, func(a, b storage.OwnedObject) int { return strings.Compare(a.ID, b.ID) })
	return objects, nil
}

// checkOrigin returns an error unless something of at most the given size can be made from the
// origin. sizeOf returns the size of the volume or filesystem with an ID.
func (all *snapshots) checkOrigin(of storage.Origin, size uint64, sizeOf func(id string) (uint64, error)) error {
	if err := of.Validate(); err != nil {
		return err
	}
	var least uint64
	if i := all.index(of.SnapshotId); i >= 0 {
		least = (*all)[i].Size
	} else if of.SnapshotId != "" {
		return storage.NothingMade(errors.NotFoundf("%q", of.SnapshotId))
	} else if mib, err := sizeOf(of.Id); err != nil {
		return storage.NothingMade(err)
	} else {
		least = mib
	}
	if size < least {
		return errors.NewNotValid(nil, fmt.Sprintf("%d MiB, and the origin has %d MiB", size, least))
	}
	return nil
}

// volumeSize returns the size of a volume that the provider has made.
func (p *Provider) volumeSize(id string) (uint64, error) {
	i := slices.IndexFunc(p.volumes, func(v storage.Volume) bool { return v.VolumeId == id })
	if i < 0 {
		return 0, errors.NotFoundf("%q", id)
	}
	return p.volumes[i].Size, nil
}

// filesystemSize returns the size of a filesystem that the provider has made.
func (p *Provider) filesystemSize(id string) (uint64, error) {
	i := slices.IndexFunc(p.filesystems, func(f storage.Filesystem) bool { return f.FilesystemId == id })
	if i < 0 {
		return 0, errors.NotFoundf("%q", id)
	}
	return p.filesystems[i].Size, nil
}

func failedSnapshot(err error) storage.CreateSnapshotsResult {
	return storage.CreateSnapshotsResult{Error: err}
}

// CreateVolumeSnapshots implements storage.VolumeSnapshotter. The subject of a snapshot, and its
// ID, is "snapshot-" and the UUID of its owner.
func (p *Provider) CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []storage.VolumeSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	return batch(p, ctx, "CreateVolumeSnapshots", params,
		func(params storage.VolumeSnapshotParams) string { return snapshotID(params.ResourceTags) },
		func(params storage.VolumeSnapshotParams) storage.CreateSnapshotsResult {
			return p.volumeSnapshots.create(params.VolumeId, params.ResourceTags, func() (uint64, error) { return p.volumeSize(params.VolumeId) })
		}, failedSnapshot)
}

// DestroyVolumeSnapshots implements storage.VolumeSnapshotter.
func (p *Provider) DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(p, ctx, "DestroyVolumeSnapshots", ids, func(id string) string { return id }, p.volumeSnapshots.destroy, itself)
}

// ListVolumeSnapshots implements storage.VolumeSnapshotter.
func (p *Provider) ListVolumeSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return p.volumeSnapshots.list(p, ctx, "ListVolumeSnapshots")
}

// CloneVolumes implements storage.VolumeCloner.
func (p *Provider) CloneVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	failed := func(err error) storage.CreateVolumesResult { return storage.CreateVolumesResult{Error: err} }
	return batch(p, ctx, "CloneVolumes", params,
		func(params storage.VolumeCloneParams) string { return volumeTag(params.VolumeParams) },
		func(params storage.VolumeCloneParams) storage.CreateVolumesResult {
			if !slices.ContainsFunc(p.volumes, func(v storage.Volume) bool { return v.Tag == params.Tag }) {
				if err := p.volumeSnapshots.checkOrigin(params.Origin, params.Size, p.volumeSize); err != nil {
					return failed(err)
				}
			}
			volume, err := p.volume(params.VolumeParams)
			if err != nil {
				return failed(err)
			}
			return storage.CreateVolumesResult{Volume: &volume}
		}, failed)
}

// CreateFilesystemSnapshots implements storage.FilesystemSnapshotter. Subjects and IDs are as with
// CreateVolumeSnapshots.
func (p *Provider) CreateFilesystemSnapshots(ctx envcontext.ProviderCallContext, params []storage.FilesystemSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	return batch(p, ctx, "CreateFilesystemSnapshots", params,
		func(params storage.FilesystemSnapshotParams) string { return snapshotID(params.ResourceTags) },
		func(params storage.FilesystemSnapshotParams) storage.CreateSnapshotsResult {
			return p.filesystemSnapshots.create(params.FilesystemId, params.ResourceTags, func() (uint64, error) { return p.filesystemSize(params.FilesystemId) })
		}, failedSnapshot)
}

// DestroyFilesystemSnapshots implements storage.FilesystemSnapshotter.
func (p *Provider) DestroyFilesystemSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(p, ctx, "DestroyFilesystemSnapshots", ids, func(id string) string { return id }, p.filesystemSnapshots.destroy, itself)
}

// ListFilesystemSnapshots implements storage.FilesystemSnapshotter.
func (p *Provider) ListFilesystemSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return p.filesystemSnapshots.list(p, ctx, "ListFilesystemSnapshots")
}

// CloneFilesystems implements storage.FilesystemCloner.
func (p *Provider) CloneFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemCloneParams) ([]storage.CreateFilesystemsResult, error) {
	failed := func(err error) storage.CreateFilesystemsResult {
		return storage.CreateFilesystemsResult{Error: err}
	}
	return batch(p, ctx, "CloneFilesystems", params,
		func(params storage.FilesystemCloneParams) string { return filesystemTag(params.FilesystemParams) },
		func(params storage.FilesystemCloneParams) storage.CreateFilesystemsResult {
			if !slices.ContainsFunc(p.filesystems, func(f storage.Filesystem) bool { return f.Tag == params.Tag }) {
				if err := p.filesystemSnapshots.checkOrigin(params.Origin, params.Size, p.filesystemSize); err != nil {
					return failed(err)
				}
			}
			filesystem, err := p.filesystem(params.FilesystemParams)
			if err != nil {
				return failed(err)
			}
			return storage.CreateFilesystemsResult{Filesystem: &filesystem}
		}, failed)
}

// Capacity implements storage.CapacityReporter. There is always space for one more volume or
// filesystem of the greatest size.
func (p *Provider) Capacity(ctx envcontext.ProviderCallContext, _ map[string]any) (uint64, error) {
	defer p.RecordBegin(p.Options.Prefix+"Capacity", nil)()
	return mostMiB, p.Begin(ctx, "Capacity")
}
