package providertest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// findSnapshot returns the snapshot of the owner that the resource tags name.
func (s *memorySource) findSnapshot(tags map[string]string) *object {
	for _, id := range slices.Sorted(maps.Keys(s.snapshots)) {
		o := s.snapshots[id]
		found := o.tags[storage.EntityUUIDTag] == tags[storage.EntityUUIDTag]
		switch {
		case o.kind != s.kind, s.flaw == makesAnotherSnapshot, s.flaw == forgetsSnapshots && !s.own[id]:
		case found, s.flaw == sharesSnapshots:
			return o
		}
	}
	return nil
}

// snapshot makes a snapshot, or finds the existing one.
func (s *memorySource) snapshot(id string, tags map[string]string) (*object, error) {
	if tags[storage.EntityUUIDTag] == "" && s.flaw != makesSnapshotsForNobody {
		return nil, errors.NotValidf("snapshot without an owner")
	}
	if err := s.start("making snapshot " + tags[storage.EntityUUIDTag]); err != nil {
		return nil, errors.Trace(err)
	}
	origin, found := s.existing(id), s.findSnapshot(tags)
	if found != nil {
		switch {
		case found.tags[storage.ModelUUIDTag] != tags[storage.ModelUUIDTag] && s.flaw != sharesSnapshotsAmongStates:
			return nil, errors.AlreadyExistsf("snapshot %s of another state", found.id)
		case origin == nil && s.flaw == needsOriginsAgain:
			return nil, errors.NotFoundf("%s", id)
		case origin != nil && s.flaw == makesSnapshotsAgain:
			found.data = bytes.Clone(origin.data)
		}
		return found, nil
	}
	if origin == nil {
		if s.flaw != makesSnapshotsOfTheGone {
			return nil, storage.NothingMade(errors.NotFoundf("%s", id))
		}
		origin = &object{id: id, data: make([]byte, 1024)}
	}
	s.last++
	o := &object{
		kind: s.kind, id: fmt.Sprintf("snapshot-%03d", s.last), origin: id, size: origin.size, taken: time.Now(),
		data: bytes.Clone(origin.data), tags: maps.Clone(tags),
	}
	if s.flaw == snapshotsSeeLaterWrites {
		o.data = origin.data
	}
	s.snapshots[o.id], s.own[o.id] = o, true
	return o, nil
}

func (s *memorySource) createSnapshots(ctx envcontext.ProviderCallContext, params []snapshotParams) ([]storage.CreateSnapshotsResult, error) {
	return memoryCall(s, ctx, params, func(p snapshotParams) (storage.CreateSnapshotsResult, error) {
		o, err := s.snapshot(p.id, p.resourceTags)
		if err != nil {
			return storage.CreateSnapshotsResult{}, errors.Trace(err)
		}
		return storage.CreateSnapshotsResult{Snapshot: &storage.SnapshotInfo{SnapshotId: o.id, Size: o.size, TakenAt: o.taken}}, nil
	}, func(err error) storage.CreateSnapshotsResult { return storage.CreateSnapshotsResult{Error: err} })
}

func (s *memorySource) destroySnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return memoryEach(s, ctx, ids, func(id string) error {
		if s.snapshots[id] == nil && s.flaw == doesNotDestroySnapshotsTwice {
			return errors.NotFoundf("%s", id)
		}
		delete(s.snapshots, id)
		for name, o := range s.objects {
			if s.flaw == clonesGoWithSnapshots && o.origin == id {
				delete(s.objects, name)
			}
		}
		return nil
	})
}

func (s *memorySource) listSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer end()
	var all []storage.OwnedObject
	for _, id := range slices.Sorted(maps.Keys(s.snapshots)) {
		o := s.snapshots[id]
		if o.kind != s.kind {
			continue
		}
		owned := storage.OwnedObject{ID: id, Size: o.size, ResourceTags: maps.Clone(o.tags)}
		if s.flaw == listsSnapshotsWithoutTags {
			owned.ResourceTags = nil
		}
		all = append(all, owned)
	}
	for n := 1; n <= s.last && s.flaw == listsDestroyedSnapshots; n++ {
		if id := fmt.Sprintf("snapshot-%03d", n); s.snapshots[id] == nil {
			all = append(all, storage.OwnedObject{ID: id})
		}
	}
	if s.flaw == listsSnapshotsOddly {
		slices.Reverse(all)
	}
	return all, nil
}

// originOf returns the object or snapshot whose contents a clone gets.
func (s *memorySource) originOf(of storage.Origin) (*object, error) {
	if err := of.Validate(); err != nil {
		if s.flaw == clonesAnyOrigin {
			return nil, errors.New("origin")
		}
		return nil, errors.Trace(err)
	}
	o := s.existing(of.Id)
	if of.SnapshotId != "" {
		o = s.snapshots[of.SnapshotId]
	}
	switch {
	case o == nil && s.flaw == clonesNothing:
		return &object{data: make([]byte, 1024)}, nil
	case o == nil:
		return nil, storage.NothingMade(errors.NotFoundf("origin %+v", of))
	}
	return o, nil
}

// prepareClone changes the parameters of a clone before it is made, as a creation, and returns a
// function that fills it. fill is nil if the clone exists.
func (s *memorySource) prepareClone(of storage.Origin, found *object, size *uint64, tags *map[string]string) (fill func(*object), err error) {
	if s.flaw == makesAnotherClone {
		*tags = maps.Clone(*tags)
		(*tags)[storage.EntityUUIDTag] = uuid.NewString()
		found = nil
	}
	if found != nil && s.flaw != needsOriginsOfClones {
		return nil, nil
	}
	origin, err := s.originOf(of)
	switch {
	case err != nil:
		return nil, errors.Trace(err)
	case found != nil:
		return nil, nil
	case *size < origin.size && s.flaw != clonesAnySize:
		return nil, errors.NotValidf("size %d MiB", *size)
	case s.flaw == makesSmallClones:
		*size = origin.size
	}
	return func(o *object) {
		o.origin, o.data = of.SnapshotId, bytes.Clone(origin.data)
		switch s.flaw {
		case makesEmptyClones:
			clear(o.data)
		case sharesData:
			o.data = origin.data
		}
	}, nil
}

// Capacity implements [storage.CapacityReporter].
func (s *memorySource) Capacity(ctx envcontext.ProviderCallContext, _ map[string]any) (uint64, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return 0, errors.Trace(err)
	}
	defer end()
	switch s.flaw {
	case reportsNoCapacity:
		return 0, nil
	case makesWhatItMeasures:
		s.leaked = append(s.leaked, fmt.Sprintf("%s that was measured", s.kind))
	}
	return 1 << 40, nil
}

// CreateVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *memoryVolumes) CreateVolumeSnapshots(ctx envcontext.ProviderCallContext, params []storage.VolumeSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	return s.createSnapshots(ctx, mapSlice(params, func(p storage.VolumeSnapshotParams) snapshotParams {
		return snapshotParams{p.VolumeId, p.Attributes, p.ResourceTags}
	}))
}

// DestroyVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *memoryVolumes) DestroyVolumeSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.destroySnapshots(ctx, ids)
}

// ListVolumeSnapshots implements [storage.VolumeSnapshotter].
func (s *memoryVolumes) ListVolumeSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.listSnapshots(ctx)
}

// CloneVolumes implements [storage.VolumeCloner].
func (s *memoryVolumes) CloneVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	return memoryCall(s.memorySource, ctx, params, func(p storage.VolumeCloneParams) (r storage.CreateVolumesResult, err error) {
		fill, err := s.prepareClone(p.Origin, s.find(p.Tag, p.ResourceTags), &p.Size, &p.ResourceTags)
		if err != nil {
			return r, errors.Trace(err)
		}
		o := s.objects[p.Origin.Id]
		if o == nil || s.flaw != returnsTheOrigin {
			if o, err = s.create(ctx, p.Tag, p.Size, p.ResourceTags); err != nil {
				return r, errors.Trace(err)
			}
		}
		if fill != nil {
			fill(o)
		}
		r.Volume = &storage.Volume{Tag: p.Tag, VolumeInfo: s.info(o)}
		return r, nil
	}, func(err error) storage.CreateVolumesResult { return storage.CreateVolumesResult{Error: err} })
}

// CreateFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *memoryFilesystems) CreateFilesystemSnapshots(ctx envcontext.ProviderCallContext, params []storage.FilesystemSnapshotParams) ([]storage.CreateSnapshotsResult, error) {
	return s.createSnapshots(ctx, mapSlice(params, func(p storage.FilesystemSnapshotParams) snapshotParams {
		return snapshotParams{p.FilesystemId, p.Attributes, p.ResourceTags}
	}))
}

// DestroyFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *memoryFilesystems) DestroyFilesystemSnapshots(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.destroySnapshots(ctx, ids)
}

// ListFilesystemSnapshots implements [storage.FilesystemSnapshotter].
func (s *memoryFilesystems) ListFilesystemSnapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.listSnapshots(ctx)
}

// CloneFilesystems implements [storage.FilesystemCloner].
func (s *memoryFilesystems) CloneFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemCloneParams) ([]storage.CreateFilesystemsResult, error) {
	return memoryCall(s.memorySource, ctx, params, func(p storage.FilesystemCloneParams) (r storage.CreateFilesystemsResult, err error) {
		fill, err := s.prepareClone(p.Origin, s.find(p.Tag, p.ResourceTags), &p.Size, &p.ResourceTags)
		if err != nil {
			return r, errors.Trace(err)
		}
		o := s.objects[p.Origin.Id]
		if o == nil || s.flaw != returnsTheOrigin {
			if o, err = s.create(ctx, p.Tag, p.Size, p.ResourceTags); err != nil {
				return r, errors.Trace(err)
			}
		}
		if fill != nil {
			fill(o)
		}
		r.Filesystem = &storage.Filesystem{
			Tag: p.Tag, Volume: p.Volume, FilesystemInfo: storage.FilesystemInfo{FilesystemId: o.id, Size: o.size},
		}
		return r, nil
	}, func(err error) storage.CreateFilesystemsResult { return storage.CreateFilesystemsResult{Error: err} })
}
