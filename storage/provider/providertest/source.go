package providertest

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// kind contains the differences between volumes and filesystems, so that a rule for both is
// written once.
type kind struct {
	kind  storage.StorageKind
	group string
	noun  string
	// open opens a source of the kind for a pool.
	open func(storage.Provider, *storage.Config, time.Duration) (source, error)
}

func kinds() []kind {
	return []kind{{
		kind: storage.StorageKindBlock, group: "Volumes", noun: "volume",
		open: func(p storage.Provider, pool *storage.Config, patience time.Duration) (source, error) {
			s, err := p.VolumeSource(pool)
			return &volumes{VolumeSource: s, caller: caller{patience: patience}}, err
		},
	}, {
		kind: storage.StorageKindFilesystem, group: "Filesystems", noun: "filesystem",
		open: func(p storage.Provider, pool *storage.Config, patience time.Duration) (source, error) {
			s, err := p.FilesystemSource(pool)
			return &filesystems{FilesystemSource: s, caller: caller{patience: patience}}, err
		},
	}}
}

// source is a source of volumes or of filesystems.
type source interface {
	validate(*entity) error
	create(envcontext.ProviderCallContext, []*entity) ([]created, error)
	attach(envcontext.ProviderCallContext, []*entity) ([]attached, error)
	detach(envcontext.ProviderCallContext, []*entity) ([]error, error)
	destroy(envcontext.ProviderCallContext, []string) ([]error, error)
	release(envcontext.ProviderCallContext, []string) ([]error, error)

	// importer returns a function that imports, nil if the source cannot.
	importer() importer
	// ownerLister returns a function that lists owners, nil if the source cannot.
	ownerLister() ownerLister
	// tagger returns a function that replaces tags, nil if the source cannot.
	tagger() tagger
	// checker returns a function that checks attachments, nil if the source cannot.
	checker() checker
	// mountOptions returns a function that replaces mount options, nil if the source cannot.
	mountOptions() mountOptionsSetter
	// snapshotter returns the functions for snapshots, nil if the source has none.
	snapshotter() *snapshotter
	// cloner returns a function that makes what the entities' origins say, nil if the source
	// cannot.
	cloner() cloner
	// capacity returns the source as a CapacityReporter, nil if it is not one.
	capacity() storage.CapacityReporter
	// concurrent returns the source as a ConcurrentSource, nil if it is not one.
	concurrent() storage.ConcurrentSource
	// argumentsChanged returns the names of the calls that have changed their arguments.
	argumentsChanged() []string
}

// mountOptionsSetter replaces mount options.
type mountOptionsSetter func(envcontext.ProviderCallContext, []storage.FilesystemMountOptions) ([]error, error)

// checker checks attached volumes or filesystems by their IDs.
type checker func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error)

// snapshotter makes, removes and lists snapshots.
type snapshotter struct {
	create  func(ctx envcontext.ProviderCallContext, params []snapshotParams) ([]storage.CreateSnapshotsResult, error)
	destroy func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error)
	list    ownerLister
}

// snapshotParams says what to make a snapshot of, by its VolumeId or FilesystemId.
type snapshotParams struct {
	id           string
	attributes   map[string]any
	resourceTags map[string]string
}

// cloner makes entities with the contents of their origins.
type cloner func(envcontext.ProviderCallContext, []*entity) ([]created, error)

// importer imports the storage with an ID, and returns its ID and size after that.
type importer func(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (info, error)

// ownerLister lists the storage of a source with its owners.
type ownerLister func(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error)

// tagger replaces resource tags.
type tagger func(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error)

// info is the ID and the size in MiB of a volume or filesystem.
type info struct {
	id   string
	size uint64
}

// entity is a requested volume or filesystem, and its attachment.
type entity struct {
	tag        names.Tag
	volume     storage.VolumeParams     // if it is a volume
	filesystem storage.FilesystemParams // if it is a filesystem

	host storage.AttachmentParams
	path string // mount point, if it is a filesystem

	origin storage.Origin // if it is made from something

	// id is empty until the entity has been made.
	id string
}

// resize changes the requested size, in MiB.
func (e *entity) resize(size uint64) {
	e.volume.Size, e.filesystem.Size = size, size
}

// attributes returns the requested attributes.
func (e *entity) attributes() map[string]any {
	if e.volume.Attributes != nil {
		return e.volume.Attributes
	}
	return e.filesystem.Attributes
}

// resourceTags returns the requested resource tags.
func (e *entity) resourceTags() map[string]string {
	if e.volume.ResourceTags != nil {
		return e.volume.ResourceTags
	}
	return e.filesystem.ResourceTags
}

// retag changes the requested resource tags.
func (e *entity) retag(tags map[string]string) {
	e.volume.ResourceTags, e.filesystem.ResourceTags = tags, tags
}

func (e *entity) size() uint64 {
	return max(e.volume.Size, e.filesystem.Size)
}

// isBacked reports whether the entity is a filesystem on a volume.
func (e *entity) isBacked() bool {
	return e.filesystem.Volume != (names.VolumeTag{})
}

func (e *entity) volumeParams() storage.VolumeParams {
	p := e.volume
	a := e.volumeAttachment()
	p.Attachment = &a
	return p
}

func (e *entity) volumeAttachment() storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{AttachmentParams: e.host, Volume: e.volume.Tag, VolumeId: e.id}
}

func (e *entity) filesystemParams() storage.FilesystemParams {
	p := e.filesystem
	a := e.filesystemAttachment()
	p.Attachment = &a
	return p
}

func (e *entity) filesystemAttachment() storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{AttachmentParams: e.host, Filesystem: e.filesystem.Tag, FilesystemId: e.id, Path: e.path}
}

// created is the result of one creation.
type created struct {
	made bool // there is a result
	err  error

	tag     names.Tag
	backing names.VolumeTag
	info
	attachment *attachment
}

// attached is the result of one attachment.
type attached struct {
	*attachment
	err error
}

// attachment is an attached volume or filesystem.
type attachment struct {
	tag      names.Tag
	host     names.Tag
	readOnly bool

	volume     storage.VolumeAttachment     // if it is a volume
	filesystem storage.FilesystemAttachment // if it is a filesystem
}

func volumeAttachment(a *storage.VolumeAttachment) *attachment {
	if a == nil {
		return nil
	}
	return &attachment{tag: a.Volume, host: a.Machine, readOnly: a.ReadOnly, volume: *a}
}

func filesystemAttachment(a *storage.FilesystemAttachment) *attachment {
	if a == nil {
		return nil
	}
	return &attachment{tag: a.Filesystem, host: a.Machine, readOnly: a.ReadOnly, filesystem: *a}
}

// caller makes the calls of a source, and records which of them have changed their arguments.
type caller struct {
	patience time.Duration

	mu      sync.Mutex
	changed []string
}

func (c *caller) check(call string, before, after any) {
	if reflect.DeepEqual(before, after) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, call)
}

func (c *caller) argumentsChanged() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.changed)
}

// maxWait is the maximum delay between repetitions of a call that is in progress.
const maxWait = time.Second

// bulk makes a bulk call. It repeats the call while an operation is in progress, until the
// patience ends.
func bulk[P, R any](c *caller, name string, call func(envcontext.ProviderCallContext, []P) ([]R, error),
	ctx envcontext.ProviderCallContext, params []P, clone func(P) P, failure func(R) error,
) ([]R, error) {
	before := mapSlice(params, clone)
	giveUp := time.Now().Add(c.patience)
	for wait := time.Millisecond; ; wait = min(2*wait, maxWait) {
		results, err := call(ctx, params)
		c.check(name, before, params)
		goesOn := slices.ContainsFunc(append(mapSlice(results, failure), err), func(err error) bool {
			return errors.Is(err, storage.ErrInProgress)
		})
		if !goesOn || time.Now().After(giveUp) {
			return results, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return results, err
		}
	}
}

// validate calls a function that validates parameters.
func validate[P any](c *caller, name string, call func(P) error, params P, clone func(P) P) error {
	before := clone(params)
	err := call(params)
	c.check(name, before, params)
	return err
}

// volumes is a source of volumes.
type volumes struct {
	storage.VolumeSource
	caller
}

func (s *volumes) validate(e *entity) error {
	return validate(&s.caller, "ValidateVolumeParams", s.ValidateVolumeParams, e.volumeParams(), cloneVolumeParams)
}

func (s *volumes) create(ctx envcontext.ProviderCallContext, entities []*entity) ([]created, error) {
	results, err := bulk(&s.caller, "CreateVolumes", s.CreateVolumes, ctx, mapSlice(entities, (*entity).volumeParams), cloneVolumeParams,
		func(r storage.CreateVolumesResult) error { return r.Error })
	return mapSlice(results, createdVolume), err
}

func createdVolume(r storage.CreateVolumesResult) created {
	c := created{err: r.Error, attachment: volumeAttachment(r.VolumeAttachment)}
	if v := r.Volume; v != nil {
		c.made, c.tag, c.info = true, v.Tag, info{v.VolumeId, v.Size}
	}
	return c
}

func (s *volumes) attach(ctx envcontext.ProviderCallContext, entities []*entity) ([]attached, error) {
	results, err := bulk(&s.caller, "AttachVolumes", s.AttachVolumes, ctx, mapSlice(entities, (*entity).volumeAttachment), itself,
		func(r storage.AttachVolumesResult) error { return r.Error })
	return mapSlice(results, func(r storage.AttachVolumesResult) attached {
		return attached{volumeAttachment(r.VolumeAttachment), r.Error}
	}), err
}

func (s *volumes) detach(ctx envcontext.ProviderCallContext, entities []*entity) ([]error, error) {
	return bulk(&s.caller, "DetachVolumes", s.DetachVolumes, ctx, mapSlice(entities, (*entity).volumeAttachment), itself, itself)
}

func (s *volumes) destroy(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return bulk(&s.caller, "DestroyVolumes", s.DestroyVolumes, ctx, ids, itself, itself)
}

func (s *volumes) release(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return bulk(&s.caller, "ReleaseVolumes", s.ReleaseVolumes, ctx, ids, itself, itself)
}

func (s *volumes) importer() importer {
	i, ok := s.VolumeSource.(storage.VolumeImporter)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, id string, tags map[string]string) (info, error) {
		v, err := i.ImportVolume(ctx, id, tags)
		return info{v.VolumeId, v.Size}, err
	}
}

func (s *volumes) ownerLister() ownerLister {
	lister, ok := s.VolumeSource.(storage.VolumeOwnerLister)
	if !ok {
		return nil
	}
	return lister.ListVolumeOwners
}

func (s *volumes) tagger() tagger {
	tagger, ok := s.VolumeSource.(storage.VolumeTagger)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
		return bulk(&s.caller, "TagVolumes", tagger.TagVolumes, ctx, tags, cloneObjectTags, itself)
	}
}

func (s *volumes) checker() checker {
	checker, ok := s.VolumeSource.(storage.VolumeChecker)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
		return bulk(&s.caller, "CheckVolumes", checker.CheckVolumes, ctx, ids, itself, itself)
	}
}

func (s *volumes) snapshotter() *snapshotter {
	source, ok := s.VolumeSource.(storage.VolumeSnapshotter)
	if !ok {
		return nil
	}
	return &snapshotter{
		create: func(ctx envcontext.ProviderCallContext, params []snapshotParams) ([]storage.CreateSnapshotsResult, error) {
			all := mapSlice(params, func(p snapshotParams) storage.VolumeSnapshotParams {
				return storage.VolumeSnapshotParams{VolumeId: p.id, Attributes: p.attributes, ResourceTags: p.resourceTags}
			})
			return bulk(&s.caller, "CreateVolumeSnapshots", source.CreateVolumeSnapshots, ctx, all, cloneVolumeSnapshotParams, snapshotFailure)
		},
		destroy: func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
			return bulk(&s.caller, "DestroyVolumeSnapshots", source.DestroyVolumeSnapshots, ctx, ids, itself, itself)
		},
		list: source.ListVolumeSnapshots,
	}
}

func (s *volumes) cloner() cloner {
	source, ok := s.VolumeSource.(storage.VolumeCloner)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, entities []*entity) ([]created, error) {
		all := mapSlice(entities, func(e *entity) storage.VolumeCloneParams {
			return storage.VolumeCloneParams{VolumeParams: e.volumeParams(), Origin: e.origin}
		})
		copied := func(p storage.VolumeCloneParams) storage.VolumeCloneParams {
			p.VolumeParams = cloneVolumeParams(p.VolumeParams)
			return p
		}
		results, err := bulk(&s.caller, "CloneVolumes", source.CloneVolumes, ctx, all, copied, func(r storage.CreateVolumesResult) error { return r.Error })
		return mapSlice(results, createdVolume), err
	}
}

func (s *volumes) capacity() storage.CapacityReporter {
	c, _ := s.VolumeSource.(storage.CapacityReporter)
	return c
}

func (s *volumes) concurrent() storage.ConcurrentSource {
	c, _ := s.VolumeSource.(storage.ConcurrentSource)
	return c
}

// filesystems is a source of filesystems.
type filesystems struct {
	storage.FilesystemSource
	caller
}

func (s *filesystems) validate(e *entity) error {
	return validate(&s.caller, "ValidateFilesystemParams", s.ValidateFilesystemParams, e.filesystemParams(), cloneFilesystemParams)
}

func (s *filesystems) create(ctx envcontext.ProviderCallContext, entities []*entity) ([]created, error) {
	results, err := bulk(&s.caller, "CreateFilesystems", s.CreateFilesystems, ctx, mapSlice(entities, (*entity).filesystemParams), cloneFilesystemParams,
		func(r storage.CreateFilesystemsResult) error { return r.Error })
	return mapSlice(results, createdFilesystem), err
}

func createdFilesystem(r storage.CreateFilesystemsResult) created {
	c := created{err: r.Error}
	if f := r.Filesystem; f != nil {
		c.made, c.tag, c.backing, c.info = true, f.Tag, f.Volume, info{f.FilesystemId, f.Size}
	}
	return c
}

func (s *filesystems) attach(ctx envcontext.ProviderCallContext, entities []*entity) ([]attached, error) {
	results, err := bulk(&s.caller, "AttachFilesystems", s.AttachFilesystems, ctx, mapSlice(entities, (*entity).filesystemAttachment), itself,
		func(r storage.AttachFilesystemsResult) error { return r.Error })
	return mapSlice(results, func(r storage.AttachFilesystemsResult) attached {
		return attached{filesystemAttachment(r.FilesystemAttachment), r.Error}
	}), err
}

func (s *filesystems) detach(ctx envcontext.ProviderCallContext, entities []*entity) ([]error, error) {
	return bulk(&s.caller, "DetachFilesystems", s.DetachFilesystems, ctx, mapSlice(entities, (*entity).filesystemAttachment), itself, itself)
}

func (s *filesystems) destroy(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return bulk(&s.caller, "DestroyFilesystems", s.DestroyFilesystems, ctx, ids, itself, itself)
}

func (s *filesystems) release(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return bulk(&s.caller, "ReleaseFilesystems", s.ReleaseFilesystems, ctx, ids, itself, itself)
}

func (s *volumes) mountOptions() mountOptionsSetter { return nil } // they are not mounted

func (s *filesystems) mountOptions() mountOptionsSetter {
	setter, ok := s.FilesystemSource.(storage.MountOptionsSetter)
	if !ok {
		return nil
	}
	return setter.SetMountOptions
}

func (s *filesystems) importer() importer {
	i, ok := s.FilesystemSource.(storage.FilesystemImporter)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, id string, tags map[string]string) (info, error) {
		f, err := i.ImportFilesystem(ctx, id, tags)
		return info{f.FilesystemId, f.Size}, err
	}
}

func (s *filesystems) ownerLister() ownerLister {
	lister, ok := s.FilesystemSource.(storage.FilesystemOwnerLister)
	if !ok {
		return nil
	}
	return lister.ListFilesystemOwners
}

func (s *filesystems) tagger() tagger {
	tagger, ok := s.FilesystemSource.(storage.FilesystemTagger)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
		return bulk(&s.caller, "TagFilesystems", tagger.TagFilesystems, ctx, tags, cloneObjectTags, itself)
	}
}

func (s *filesystems) checker() checker {
	checker, ok := s.FilesystemSource.(storage.FilesystemChecker)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
		return bulk(&s.caller, "CheckFilesystems", checker.CheckFilesystems, ctx, ids, itself, itself)
	}
}

func (s *filesystems) snapshotter() *snapshotter {
	source, ok := s.FilesystemSource.(storage.FilesystemSnapshotter)
	if !ok {
		return nil
	}
	return &snapshotter{
		create: func(ctx envcontext.ProviderCallContext, params []snapshotParams) ([]storage.CreateSnapshotsResult, error) {
			all := mapSlice(params, func(p snapshotParams) storage.FilesystemSnapshotParams {
				return storage.FilesystemSnapshotParams{FilesystemId: p.id, Attributes: p.attributes, ResourceTags: p.resourceTags}
			})
			return bulk(&s.caller, "CreateFilesystemSnapshots", source.CreateFilesystemSnapshots, ctx, all, cloneFilesystemSnapshotParams, snapshotFailure)
		},
		destroy: func(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
			return bulk(&s.caller, "DestroyFilesystemSnapshots", source.DestroyFilesystemSnapshots, ctx, ids, itself, itself)
		},
		list: source.ListFilesystemSnapshots,
	}
}

func (s *filesystems) cloner() cloner {
	source, ok := s.FilesystemSource.(storage.FilesystemCloner)
	if !ok {
		return nil
	}
	return func(ctx envcontext.ProviderCallContext, entities []*entity) ([]created, error) {
		all := mapSlice(entities, func(e *entity) storage.FilesystemCloneParams {
			return storage.FilesystemCloneParams{FilesystemParams: e.filesystemParams(), Origin: e.origin}
		})
		copied := func(p storage.FilesystemCloneParams) storage.FilesystemCloneParams {
			p.FilesystemParams = cloneFilesystemParams(p.FilesystemParams)
			return p
		}
		results, err := bulk(&s.caller, "CloneFilesystems", source.CloneFilesystems, ctx, all, copied, func(r storage.CreateFilesystemsResult) error { return r.Error })
		return mapSlice(results, createdFilesystem), err
	}
}

func (s *filesystems) capacity() storage.CapacityReporter {
	c, _ := s.FilesystemSource.(storage.CapacityReporter)
	return c
}

func (s *filesystems) concurrent() storage.ConcurrentSource {
	c, _ := s.FilesystemSource.(storage.ConcurrentSource)
	return c
}

func cloneVolumeParams(p storage.VolumeParams) storage.VolumeParams {
	p.Attributes, p.ResourceTags, p.Attachment = maps.Clone(p.Attributes), maps.Clone(p.ResourceTags), clone(p.Attachment)
	return p
}

func cloneFilesystemParams(p storage.FilesystemParams) storage.FilesystemParams {
	p.Attributes, p.ResourceTags, p.Attachment = maps.Clone(p.Attributes), maps.Clone(p.ResourceTags), clone(p.Attachment)
	return p
}

func cloneVolumeSnapshotParams(p storage.VolumeSnapshotParams) storage.VolumeSnapshotParams {
	p.Attributes, p.ResourceTags = maps.Clone(p.Attributes), maps.Clone(p.ResourceTags)
	return p
}

func cloneFilesystemSnapshotParams(p storage.FilesystemSnapshotParams) storage.FilesystemSnapshotParams {
	p.Attributes, p.ResourceTags = maps.Clone(p.Attributes), maps.Clone(p.ResourceTags)
	return p
}

func snapshotFailure(r storage.CreateSnapshotsResult) error { return r.Error }

func cloneObjectTags(t storage.ObjectTags) storage.ObjectTags {
	t.ResourceTags = maps.Clone(t.ResourceTags)
	return t
}

func clone[T any](p *T) *T {
	v := *p
	return &v
}

func itself[T any](v T) T { return v }

// mapSlice returns the result of f for each item, or nil if items is nil.
func mapSlice[T, R any](items []T, f func(T) R) []R {
	if items == nil {
		return nil
	}
	results := make([]R, len(items))
	for i, item := range items {
		results[i] = f(item)
	}
	return results
}
