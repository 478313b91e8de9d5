package storageprovisioner_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// fakeProvider is a provider whose sources are one [fakeSource].
type fakeProvider struct {
	// The methods that a provisioner has no business with are missing.
	storage.Provider

	scope   storage.Scope
	dynamic bool
	source  *fakeSource
}

func (p *fakeProvider) Scope() storage.Scope              { return p.scope }
func (p *fakeProvider) Dynamic() bool                     { return p.dynamic }
func (p *fakeProvider) Releasable() bool                  { return true }
func (p *fakeProvider) Supports(storage.StorageKind) bool { return true }

func (p *fakeProvider) VolumeSource(cfg *storage.Config) (storage.VolumeSource, error) {
	p.source.opened(cfg)
	return p.source, nil
}

func (p *fakeProvider) FilesystemSource(cfg *storage.Config) (storage.FilesystemSource, error) {
	p.source.opened(cfg)
	return p.source, nil
}

// fakeSource is a source of volumes and filesystems. Volume "0" gets the id
// "vol-0", filesystem "0" the id "fs-0"; all succeeds unless the script says
// otherwise.
type fakeSource struct {
	*journal
	*script

	// prefix goes before the names of calls in the journal.
	prefix string
	rules  *rules

	mu       sync.Mutex
	configs  []*storage.Config
	contexts []envcontext.ProviderCallContext
	// attaches has CreateVolumes return attachments; tagless has it leave out
	// what they are of.
	attaches, tagless bool
}

var (
	_ storage.VolumeSource     = (*fakeSource)(nil)
	_ storage.FilesystemSource = (*fakeSource)(nil)
)

func newSource(j *journal, r *rules, prefix string) *fakeSource {
	return &fakeSource{journal: j, script: newScript(), rules: r, prefix: prefix}
}

func (s *fakeSource) opened(cfg *storage.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configs = append(s.configs, cfg)
}

// batch makes a source's bulk call. The work on each entity begins and ends as
// the rules say.
func batch[P, R any](
	s *fakeSource, ctx envcontext.ProviderCallContext, name string, args []P,
	subject func(P) string, one func(P) R, fail func(error) R, fails func(R) error,
) ([]R, error) {
	subjects := make([]string, len(args))
	for i, p := range args {
		subjects[i] = subject(p)
	}
	s.mu.Lock()
	s.contexts = append(s.contexts, ctx)
	s.mu.Unlock()
	s.record(s.prefix+name, slices.Clone(args), subjects)
	for i := range args {
		s.rules.begin(name, subjects[i])
	}
	results := make([]R, len(args))
	err := s.enter(ctx, name)
	for i, p := range args {
		itemErr := err
		if itemErr == nil {
			itemErr = s.item(name, subjects[i])
		}
		if itemErr != nil {
			results[i] = fail(itemErr)
		} else {
			results[i] = one(p)
		}
		s.rules.end(name, subjects[i], fails(results[i]))
	}
	if err != nil {
		return nil, err
	}
	if s.isShort(name) {
		results = results[:len(results)-1]
	}
	return results, nil
}

func itself(err error) error { return err }

func subjectOfVolumeId(id string) string {
	return names.NewVolumeTag(strings.TrimPrefix(id, "vol-")).String()
}

func subjectOfFilesystemId(id string) string {
	return names.NewFilesystemTag(strings.TrimPrefix(id, "fs-")).String()
}

func subjectOfVolumeAttachment(p storage.VolumeAttachmentParams) string {
	return p.Volume.String() + " " + p.Machine.String()
}

func subjectOfFilesystemAttachment(p storage.FilesystemAttachmentParams) string {
	return p.Filesystem.String() + " " + p.Machine.String()
}

func (s *fakeSource) ValidateVolumeParams(p storage.VolumeParams) error {
	return s.validate("ValidateVolumeParams", p.Tag, p)
}

func (s *fakeSource) ValidateFilesystemParams(p storage.FilesystemParams) error {
	return s.validate("ValidateFilesystemParams", p.Tag, p)
}

func (s *fakeSource) validate(name string, tag names.Tag, args any) error {
	s.record(s.prefix+name, args, []string{tag.String()})
	return s.item(name, tag.String())
}

func (s *fakeSource) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	return batch(s, ctx, "CreateVolumes", params,
		func(p storage.VolumeParams) string { return p.Tag.String() },
		func(p storage.VolumeParams) storage.CreateVolumesResult {
			result := storage.CreateVolumesResult{Volume: &storage.Volume{
				Tag: p.Tag,
				VolumeInfo: storage.VolumeInfo{
					VolumeId: "vol-" + p.Tag.Id(), HardwareId: "hw-" + p.Tag.Id(), WWN: "wwn-" + p.Tag.Id(),
					Size: p.Size, Persistent: true,
				},
			}}
			if s.attaches {
				result.VolumeAttachment = attachedVolume(*p.Attachment)
				s.rules.attached(p.Tag.String() + " " + p.Attachment.Machine.String())
			}
			if s.tagless {
				result.Volume.Tag = names.VolumeTag{}
				result.VolumeAttachment.Volume, result.VolumeAttachment.Machine = names.VolumeTag{}, nil
			}
			return result
		},
		func(err error) storage.CreateVolumesResult { return storage.CreateVolumesResult{Error: err} },
		func(r storage.CreateVolumesResult) error { return r.Error },
	)
}

func attachedVolume(p storage.VolumeAttachmentParams) *storage.VolumeAttachment {
	return &storage.VolumeAttachment{
		Volume: p.Volume, Machine: p.Machine,
		VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
			DeviceName: "dev-" + p.Volume.Id(), DeviceLink: "/dev/link-" + p.Volume.Id(), BusAddress: "bus-" + p.Volume.Id(),
			ReadOnly: p.ReadOnly,
		},
	}
}

func (s *fakeSource) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	s.record(s.prefix+"ListVolumes", nil, nil)
	return nil, nil
}

func (s *fakeSource) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	s.record(s.prefix+"DescribeVolumes", ids, nil)
	return make([]storage.DescribeVolumesResult, len(ids)), nil
}

func (s *fakeSource) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(s, ctx, "DestroyVolumes", ids, subjectOfVolumeId, func(string) error { return nil }, itself, itself)
}

func (s *fakeSource) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(s, ctx, "ReleaseVolumes", ids, subjectOfVolumeId, func(string) error { return nil }, itself, itself)
}

func (s *fakeSource) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return batch(s, ctx, "AttachVolumes", params, subjectOfVolumeAttachment,
		func(p storage.VolumeAttachmentParams) storage.AttachVolumesResult {
			return storage.AttachVolumesResult{VolumeAttachment: attachedVolume(p)}
		},
		func(err error) storage.AttachVolumesResult { return storage.AttachVolumesResult{Error: err} },
		func(r storage.AttachVolumesResult) error { return r.Error },
	)
}

func (s *fakeSource) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	return batch(s, ctx, "DetachVolumes", params, subjectOfVolumeAttachment,
		func(storage.VolumeAttachmentParams) error { return nil }, itself, itself)
}

func (s *fakeSource) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return batch(s, ctx, "CreateFilesystems", params,
		func(p storage.FilesystemParams) string { return p.Tag.String() },
		func(p storage.FilesystemParams) storage.CreateFilesystemsResult {
			return storage.CreateFilesystemsResult{Filesystem: &storage.Filesystem{
				Tag: p.Tag, Volume: p.Volume,
				FilesystemInfo: storage.FilesystemInfo{FilesystemId: "fs-" + p.Tag.Id(), Size: p.Size},
			}}
		},
		func(err error) storage.CreateFilesystemsResult { return storage.CreateFilesystemsResult{Error: err} },
		func(r storage.CreateFilesystemsResult) error { return r.Error },
	)
}

func (s *fakeSource) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(s, ctx, "DestroyFilesystems", ids, subjectOfFilesystemId, func(string) error { return nil }, itself, itself)
}

func (s *fakeSource) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(s, ctx, "ReleaseFilesystems", ids, subjectOfFilesystemId, func(string) error { return nil }, itself, itself)
}

func (s *fakeSource) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	return batch(s, ctx, "AttachFilesystems", params, subjectOfFilesystemAttachment,
		func(p storage.FilesystemAttachmentParams) storage.AttachFilesystemsResult {
			return storage.AttachFilesystemsResult{FilesystemAttachment: &storage.FilesystemAttachment{
				Filesystem: p.Filesystem, Machine: p.Machine,
				FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: p.Path, ReadOnly: p.ReadOnly},
			}}
		},
		func(err error) storage.AttachFilesystemsResult { return storage.AttachFilesystemsResult{Error: err} },
		func(r storage.AttachFilesystemsResult) error { return r.Error },
	)
}

func (s *fakeSource) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	return batch(s, ctx, "DetachFilesystems", params, subjectOfFilesystemAttachment,
		func(storage.FilesystemAttachmentParams) error { return nil }, itself, itself)
}

// rules hold in all tests (behaviour 35): one operation on an entity at a time,
// nothing destroyed that is attached or being attached, no volume detached
// beneath a mounted filesystem, nothing created that is recorded.
type rules struct {
	state *fakeState

	mu sync.Mutex
	// busy holds the entities that are being worked on, and how.
	busy map[string]string
	// held holds the attachments that are attached, or being attached.
	held   map[string]bool
	broken []string
}

func newRules(state *fakeState) *rules {
	return &rules{state: state, busy: make(map[string]string), held: make(map[string]bool)}
}

func (r *rules) begin(name, subject string) {
	recorded, backing := r.state.recorded(subject)
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.busy[subject]; ok {
		r.breach("%s of %s during %s", name, subject, other)
	}
	r.busy[subject] = name
	switch name {
	case "CreateVolumes", "CreateFilesystems":
		if recorded {
			r.breach("%s of %s, which is recorded", name, subject)
		}
	case "DestroyVolumes", "ReleaseVolumes", "DestroyFilesystems", "ReleaseFilesystems":
		for attachment := range r.held {
			if strings.HasPrefix(attachment, subject+" ") {
				r.breach("%s of %s, which is attached", name, subject)
			}
		}
	case "AttachVolumes":
		r.held[subject] = true
	case "AttachFilesystems":
		r.held[subject] = true
		if backing != "" {
			// A mounted filesystem is an attachment to its volume, too.
			r.held[backing+" "+subject] = true
		}
	case "DetachVolumes":
		volume, machine, _ := strings.Cut(subject, " ")
		for attachment := range r.held {
			if strings.HasPrefix(attachment, volume+" filesystem-") && strings.HasSuffix(attachment, " "+machine) {
				r.breach("%s of %s beneath %s", name, subject, attachment)
			}
		}
	}
}

// end ends the work on an entity. What could not be attached for good is not.
func (r *rules) end(name, subject string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, subject)
	detached := err == nil && strings.HasPrefix(name, "Detach")
	unattached := storage.IsPermanent(err) && strings.HasPrefix(name, "Attach")
	if !detached && !unattached {
		return
	}
	delete(r.held, subject)
	for attachment := range r.held {
		if strings.HasSuffix(attachment, " "+subject) {
			delete(r.held, attachment)
		}
	}
}

// attached takes in an attachment that came with a creation.
func (r *rules) attached(subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[subject] = true
}

func (r *rules) breach(format string, args ...any) {
	r.broken = append(r.broken, fmt.Sprintf(format, args...))
}

func (r *rules) breaches() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.broken)
}

// recorded reports whether the state has info of a volume or filesystem, and
// which volume is beneath the filesystem, or the filesystem of an attachment.
func (s *fakeState) recorded(subject string) (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tag, _, _ := strings.Cut(subject, " ")
	if v, ok := s.volumes[tag]; ok {
		return v.info != nil, ""
	}
	if f, ok := s.filesystems[tag]; ok {
		return f.info != nil, f.params.VolumeTag
	}
	return false, ""
}
