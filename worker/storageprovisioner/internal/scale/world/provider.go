package world

import (
	"strconv"
	"sync/atomic"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// providerType returns the type of the provider with a number.
func providerType(number int) string { return "instant-" + strconv.Itoa(number) }

// size is the size of all storage, in MiB.
const size = 1024

// VolumeSource returns the first provider's source of volumes.
func (w *World) VolumeSource() storage.VolumeSource {
	return volumeSource{source: w.Volumes.sources[0]}
}

// FilesystemSource returns the first provider's source of filesystems.
func (w *World) FilesystemSource() storage.FilesystemSource {
	return filesystemSource{source: w.Filesystems.sources[0]}
}

// providers returns all providers.
func (w *World) providers() map[storage.ProviderType]storage.Provider {
	all := make(map[storage.ProviderType]storage.Provider)
	for i := range w.options.Providers {
		all[storage.ProviderType(providerType(i))] = &provider{world: w, number: i}
	}
	return all
}

// provider is a provider whose sources act at once.
type provider struct {
	storage.Provider // nil: no worker calls its other methods
	world            *World
	number           int
}

func (p *provider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return volumeSource{source: p.world.Volumes.sources[p.number]}, nil
}

func (p *provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return filesystemSource{source: p.world.Filesystems.sources[p.number]}, nil
}

func (p *provider) Scope() storage.Scope {
	if p.world.options.Backed {
		return storage.ScopeMachine
	}
	return storage.ScopeEnviron
}

func (*provider) Dynamic() bool { return true }

// source is a provider's source of one kind of storage.
type source struct {
	storage *Storage
	calls   exclusive
	block   atomic.Pointer[Block]
	flaky   bool
}

// made is what a provider knows about one volume or filesystem.
type made struct {
	made, attached               bool
	failedCreation, failedAttach bool
}

func newSource(s *Storage) *source {
	return &source{
		storage: s,
		calls:   exclusive{name: "source of " + s.kind + "s", fail: s.world.fail},
		flaky:   s.world.options.Flaky,
	}
}

// call serves one call of a source.
func call[P, R any](s *source, args []P, one func(P) R) ([]R, error) {
	s.calls.enter()
	defer s.calls.leave()
	results := make([]R, len(args))
	for i, arg := range args {
		results[i] = one(arg)
	}
	return results, s.storage.world.Err()
}

var errFirstAttempt = errors.New("the first attempt fails")

// mustFail reports whether an attempt must fail: the first attempt on one item in ten.
func (s *source) mustFail(number, digit int, failed *bool) bool {
	if !s.flaky || number%10 != digit || *failed {
		return false
	}
	*failed = true
	return true
}

// create makes the storage with a tag.
func (s *source) create(tag string) error {
	number := s.storage.number(tag)
	if number < 0 {
		return errors.NotValidf("%q", tag)
	}
	item := &s.storage.made[number]
	if s.mustFail(number, 3, &item.failedCreation) {
		return errFirstAttempt
	}
	if item.made {
		s.storage.world.fail("%s is created a second time", tag)
	}
	item.made = true
	return nil
}

// attach attaches the storage with a tag, which is also its provider's ID.
func (s *source) attach(tag, id string, host storage.AttachmentParams) error {
	number := s.storage.number(tag)
	if number < 0 {
		return errors.NotValidf("%q", tag)
	}
	item := &s.storage.made[number]
	if s.mustFail(number, 7, &item.failedAttach) {
		return errFirstAttempt
	}
	switch {
	case id != tag:
		s.storage.world.fail("%s is attached by the id %q", tag, id)
	case host.InstanceId == "":
		s.storage.world.fail("%s is attached to a machine without an instance", tag)
	case !item.made:
		s.storage.world.fail("%s is attached before it is made", tag)
	}
	item.attached = true
	return nil
}

func (s *source) detach(tag string) error {
	if number := s.storage.number(tag); number >= 0 {
		s.storage.made[number].attached = false
	}
	return nil
}

func (s *source) destroy(id string) error {
	number := s.storage.number(id)
	if number < 0 {
		return errors.NotValidf("%q", id)
	}
	item := &s.storage.made[number]
	switch {
	case item.attached:
		s.storage.world.fail("%s is destroyed while it is attached", id)
	case !item.made:
		s.storage.world.fail("%s is destroyed but does not exist", id)
	}
	item.made = false
	return nil
}

// volumeSource is a source of volumes.
type volumeSource struct {
	storage.VolumeSource // nil: no worker calls its other methods here
	*source
}

func (volumeSource) ValidateVolumeParams(storage.VolumeParams) error { return nil }

func (s volumeSource) CreateVolumes(ctx envcontext.ProviderCallContext, args []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	if err := s.block.Swap(nil).pass(ctx); err != nil {
		return nil, err
	}
	return call(s.source, args, func(p storage.VolumeParams) storage.CreateVolumesResult {
		id := p.Tag.String()
		if err := s.create(id); err != nil {
			return storage.CreateVolumesResult{Error: err}
		}
		return storage.CreateVolumesResult{Volume: &storage.Volume{
			Tag:        p.Tag,
			VolumeInfo: storage.VolumeInfo{VolumeId: id, Size: p.Size},
		}}
	})
}

func (s volumeSource) AttachVolumes(_ envcontext.ProviderCallContext, args []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return call(s.source, args, func(p storage.VolumeAttachmentParams) storage.AttachVolumesResult {
		if err := s.attach(p.Volume.String(), p.VolumeId, p.AttachmentParams); err != nil {
			return storage.AttachVolumesResult{Error: err}
		}
		return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
			Volume:               p.Volume,
			Machine:              p.Machine,
			VolumeAttachmentInfo: storage.VolumeAttachmentInfo{DeviceName: deviceName},
		}}
	})
}

func (s volumeSource) DetachVolumes(_ envcontext.ProviderCallContext, args []storage.VolumeAttachmentParams) ([]error, error) {
	return call(s.source, args, func(p storage.VolumeAttachmentParams) error { return s.detach(p.Volume.String()) })
}

func (s volumeSource) DestroyVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return call(s.source, ids, s.destroy)
}

// filesystemSource is a source of filesystems.
type filesystemSource struct {
	storage.FilesystemSource // nil: no worker calls its other methods here
	*source
}

func (filesystemSource) ValidateFilesystemParams(storage.FilesystemParams) error { return nil }

func (s filesystemSource) CreateFilesystems(_ envcontext.ProviderCallContext, args []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return call(s.source, args, func(p storage.FilesystemParams) storage.CreateFilesystemsResult {
		id := p.Tag.String()
		if err := s.create(id); err != nil {
			return storage.CreateFilesystemsResult{Error: err}
		}
		return storage.CreateFilesystemsResult{Filesystem: &storage.Filesystem{
			Tag:            p.Tag,
			Volume:         p.Volume,
			FilesystemInfo: storage.FilesystemInfo{FilesystemId: id, Size: p.Size},
		}}
	})
}

func (s filesystemSource) AttachFilesystems(_ envcontext.ProviderCallContext, args []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	return call(s.source, args, func(p storage.FilesystemAttachmentParams) storage.AttachFilesystemsResult {
		if err := s.attach(p.Filesystem.String(), p.FilesystemId, p.AttachmentParams); err != nil {
			return storage.AttachFilesystemsResult{Error: err}
		}
		return storage.AttachFilesystemsResult{FilesystemAttachment: &storage.FilesystemAttachment{
			Filesystem:               p.Filesystem,
			Machine:                  p.Machine,
			FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: p.Path},
		}}
	})
}

func (s filesystemSource) DetachFilesystems(_ envcontext.ProviderCallContext, args []storage.FilesystemAttachmentParams) ([]error, error) {
	return call(s.source, args, func(p storage.FilesystemAttachmentParams) error { return s.detach(p.Filesystem.String()) })
}

func (s filesystemSource) DestroyFilesystems(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return call(s.source, ids, s.destroy)
}
