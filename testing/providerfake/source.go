package providerfake

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// batch makes a bulk call: one handles one argument, and failed returns the result for an
// argument with an error.
func batch[A, R any](
	p *Provider, ctx envcontext.ProviderCallContext, name string, args []A,
	subject func(A) string, one func(A) R, failed func(error) R,
) ([]R, error) {
	subjects := make([]string, len(args))
	for i, arg := range args {
		subjects[i] = subject(arg)
	}
	p.mu.Lock()
	p.contexts = append(p.contexts, ctx)
	p.mu.Unlock()
	for _, s := range subjects {
		p.Options.Rules.begin(name, s)
	}
	defer p.RecordBegin(p.Options.Prefix+name, slices.Clone(args), subjects...)()
	err := p.begin(ctx, name, subjects)
	results := make([]R, len(args))
	for i, arg := range args {
		itemErr := err
		if itemErr == nil {
			itemErr = p.Item(name, subjects[i])
		}
		if itemErr != nil {
			results[i] = failed(itemErr)
		} else {
			p.mu.Lock()
			results[i] = one(arg)
			p.mu.Unlock()
		}
		p.Options.Rules.end(name, subjects[i], itemErr)
	}
	if err != nil {
		return nil, err
	}
	if p.Short(name) && len(results) > 0 {
		results = results[:len(results)-1]
	}
	return results, nil
}

// begin begins a bulk call. If the script does not let the call return, its operations end.
func (p *Provider) begin(ctx context.Context, name string, subjects []string) error {
	returned := false
	defer func() {
		if returned {
			return
		}
		for _, s := range subjects {
			p.Options.Rules.end(name, s, errors.New("the call has not returned"))
		}
	}()
	err := p.Begin(ctx, name)
	returned = true
	return err
}

func itself(err error) error { return err }

func volumeTag(p storage.VolumeParams) string { return p.Tag.String() }

func filesystemTag(p storage.FilesystemParams) string { return p.Tag.String() }

func volumeAttachment(p storage.VolumeAttachmentParams) string {
	return p.Volume.String() + " " + p.Machine.String()
}

func filesystemAttachment(p storage.FilesystemAttachmentParams) string {
	return p.Filesystem.String() + " " + p.Machine.String()
}

// subjectOfVolume returns the subject of the volume with an ID that the provider assigns; any
// other ID is its own subject.
func subjectOfVolume(id string) string {
	if s, ok := strings.CutPrefix(id, "vol-"); ok && names.IsValidVolume(s) {
		return names.NewVolumeTag(s).String()
	}
	return id
}

func subjectOfFilesystem(id string) string {
	if s, ok := strings.CutPrefix(id, "fs-"); ok && names.IsValidFilesystem(s) {
		return names.NewFilesystemTag(s).String()
	}
	return id
}

// attach records an attachment of the object with the ID.
func (p *Provider) attach(subject, id string) error {
	if p.removed[id] {
		return errors.NotFoundf("%q", id)
	}
	if !slices.Contains(p.attached, subject) {
		p.attached = append(p.attached, subject)
	}
	return nil
}

// remove records the removal of the object with the ID, unless it is attached.
func (p *Provider) remove(tag, id string) error {
	for _, subject := range p.attached {
		if strings.HasPrefix(subject, tag+" ") {
			return errors.Errorf("%q is attached: %s", id, subject)
		}
	}
	p.removed[id] = true
	return nil
}

func (p *Provider) detach(subject string) error {
	p.attached = slices.DeleteFunc(p.attached, func(s string) bool { return s == subject })
	return nil
}

// ValidateVolumeParams implements storage.VolumeSource. The script can make it fail, for all
// calls or for an item.
func (p *Provider) ValidateVolumeParams(params storage.VolumeParams) error {
	defer p.RecordBegin(p.Options.Prefix+"ValidateVolumeParams", params, volumeTag(params))()
	if err := p.Begin(context.Background(), "ValidateVolumeParams"); err != nil {
		return err
	}
	return p.Item("ValidateVolumeParams", volumeTag(params))
}

// ValidateFilesystemParams implements storage.FilesystemSource. The script can make it fail,
// for all calls or for an item.
func (p *Provider) ValidateFilesystemParams(params storage.FilesystemParams) error {
	defer p.RecordBegin(p.Options.Prefix+"ValidateFilesystemParams", params, filesystemTag(params))()
	if err := p.Begin(context.Background(), "ValidateFilesystemParams"); err != nil {
		return err
	}
	return p.Item("ValidateFilesystemParams", filesystemTag(params))
}

// CreateVolumes implements storage.VolumeSource.
func (p *Provider) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	return batch(p, ctx, "CreateVolumes", params, volumeTag,
		func(params storage.VolumeParams) storage.CreateVolumesResult {
			volume, err := p.volume(params)
			if err != nil {
				return storage.CreateVolumesResult{Error: err}
			}
			result := storage.CreateVolumesResult{Volume: &volume}
			if p.Options.AttachOnCreate && params.Attachment != nil {
				attachment := *params.Attachment
				attachment.VolumeId = volume.VolumeId
				// A volume that has just been made can be attached.
				result.VolumeAttachment, _ = p.attachVolume(attachment)
				p.Options.Rules.attached(volumeAttachment(*params.Attachment))
			}
			if p.Options.EditCreated != nil {
				p.Options.EditCreated(&result)
			}
			return result
		},
		func(err error) storage.CreateVolumesResult { return storage.CreateVolumesResult{Error: err} })
}

// mostMiB is the size of the largest volume or filesystem.
const mostMiB = 1 << 40

func checkSize(mib uint64) error {
	if mib > mostMiB {
		return errors.Errorf("%d MiB are more than the provider has", mib)
	}
	return nil
}

// volume returns the volume with the tag, and makes it if it does not exist.
func (p *Provider) volume(params storage.VolumeParams) (storage.Volume, error) {
	i := slices.IndexFunc(p.volumes, func(v storage.Volume) bool { return v.Tag == params.Tag })
	if i >= 0 {
		return p.volumes[i], p.checkOwner(params.Tag, p.volumes[i].VolumeId, params.ResourceTags)
	}
	if err := checkSize(params.Size); err != nil {
		return storage.Volume{}, err
	}
	id := params.Tag.Id()
	volume := storage.Volume{Tag: params.Tag, VolumeInfo: storage.VolumeInfo{
		VolumeId: "vol-" + id, HardwareId: "hw-" + id, WWN: "wwn-" + id, Size: params.Size, Persistent: true,
	}}
	p.volumes = append(p.volumes, volume)
	delete(p.removed, volume.VolumeId)
	p.tags[volume.VolumeId] = maps.Clone(params.ResourceTags)
	return volume, nil
}

func (p *Provider) attachVolume(params storage.VolumeAttachmentParams) (*storage.VolumeAttachment, error) {
	if err := p.attach(volumeAttachment(params), params.VolumeId); err != nil {
		return nil, err
	}
	id := params.Volume.Id()
	attachment := &storage.VolumeAttachment{
		Volume: params.Volume, Machine: params.Machine,
		VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
			DeviceName: "dev-" + id, DeviceLink: "/dev/link-" + id, BusAddress: "bus-" + id, ReadOnly: params.ReadOnly,
		},
	}
	if p.Options.EditAttached != nil {
		p.Options.EditAttached(attachment)
	}
	return attachment, nil
}

// ListVolumes implements storage.VolumeSource.
func (p *Provider) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	defer p.RecordBegin(p.Options.Prefix+"ListVolumes", nil)()
	if err := p.Begin(ctx, "ListVolumes"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]string, len(p.volumes))
	for i, v := range p.volumes {
		ids[i] = v.VolumeId
	}
	return ids, nil
}

// DescribeVolumes implements storage.VolumeSource. It changes nothing, so the rules do not
// restrict when it may be called.
func (p *Provider) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	defer p.RecordBegin(p.Options.Prefix+"DescribeVolumes", slices.Clone(ids))()
	if err := p.Begin(ctx, "DescribeVolumes"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make([]storage.DescribeVolumesResult, len(ids))
	for i, id := range ids {
		j := slices.IndexFunc(p.volumes, func(v storage.Volume) bool { return v.VolumeId == id })
		if j < 0 {
			results[i].Error = errors.NotFoundf("volume %q", id)
			continue
		}
		info := p.volumes[j].VolumeInfo
		results[i].VolumeInfo = &info
	}
	return results, nil
}

// DestroyVolumes implements storage.VolumeSource.
func (p *Provider) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(p, ctx, "DestroyVolumes", ids, subjectOfVolume, p.removeVolume, itself)
}

// ReleaseVolumes implements storage.VolumeSource.
func (p *Provider) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(p, ctx, "ReleaseVolumes", ids, subjectOfVolume, p.releasing(p.removeVolume), itself)
}

func (p *Provider) removeVolume(id string) error {
	if err := p.remove(subjectOfVolume(id), id); err != nil {
		return err
	}
	p.volumes = slices.DeleteFunc(p.volumes, func(v storage.Volume) bool { return v.VolumeId == id })
	delete(p.tags, id)
	return nil
}

// AttachVolumes implements storage.VolumeSource.
func (p *Provider) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return batch(p, ctx, "AttachVolumes", params, volumeAttachment,
		func(params storage.VolumeAttachmentParams) storage.AttachVolumesResult {
			attachment, err := p.attachVolume(params)
			return storage.AttachVolumesResult{VolumeAttachment: attachment, Error: err}
		},
		func(err error) storage.AttachVolumesResult { return storage.AttachVolumesResult{Error: err} })
}

// DetachVolumes implements storage.VolumeSource.
func (p *Provider) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	return batch(p, ctx, "DetachVolumes", params, volumeAttachment,
		func(params storage.VolumeAttachmentParams) error { return p.detach(volumeAttachment(params)) }, itself)
}

// CreateFilesystems implements storage.FilesystemSource.
func (p *Provider) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return batch(p, ctx, "CreateFilesystems", params, filesystemTag,
		func(params storage.FilesystemParams) storage.CreateFilesystemsResult {
			filesystem, err := p.filesystem(params)
			if err != nil {
				return storage.CreateFilesystemsResult{Error: err}
			}
			result := storage.CreateFilesystemsResult{Filesystem: &filesystem}
			if p.Options.EditCreatedFilesystem != nil {
				p.Options.EditCreatedFilesystem(&result)
			}
			return result
		},
		func(err error) storage.CreateFilesystemsResult { return storage.CreateFilesystemsResult{Error: err} })
}

// filesystem returns the filesystem with the tag, and makes it if it does not exist.
func (p *Provider) filesystem(params storage.FilesystemParams) (storage.Filesystem, error) {
	i := slices.IndexFunc(p.filesystems, func(f storage.Filesystem) bool { return f.Tag == params.Tag })
	if i >= 0 {
		return p.filesystems[i], p.checkOwner(params.Tag, p.filesystems[i].FilesystemId, params.ResourceTags)
	}
	if err := checkSize(params.Size); err != nil {
		return storage.Filesystem{}, err
	}
	filesystem := storage.Filesystem{Tag: params.Tag, Volume: params.Volume, FilesystemInfo: storage.FilesystemInfo{
		FilesystemId: "fs-" + params.Tag.Id(), Size: params.Size,
	}}
	p.filesystems = append(p.filesystems, filesystem)
	delete(p.removed, filesystem.FilesystemId)
	p.tags[filesystem.FilesystemId] = maps.Clone(params.ResourceTags)
	return filesystem, nil
}

// releasing wraps remove to return an error if the provider does not support releasing.
func (p *Provider) releasing(remove func(string) error) func(string) error {
	return func(id string) error {
		if p.Options.Unreleasable {
			return errors.NotSupportedf("releasing %q", id)
		}
		return remove(id)
	}
}

// DestroyFilesystems implements storage.FilesystemSource.
func (p *Provider) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(p, ctx, "DestroyFilesystems", ids, subjectOfFilesystem, p.removeFilesystem, itself)
}

// ReleaseFilesystems implements storage.FilesystemSource.
func (p *Provider) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return batch(p, ctx, "ReleaseFilesystems", ids, subjectOfFilesystem, p.releasing(p.removeFilesystem), itself)
}

func (p *Provider) removeFilesystem(id string) error {
	if err := p.remove(subjectOfFilesystem(id), id); err != nil {
		return err
	}
	p.filesystems = slices.DeleteFunc(p.filesystems, func(f storage.Filesystem) bool { return f.FilesystemId == id })
	delete(p.tags, id)
	return nil
}

// AttachFilesystems implements storage.FilesystemSource.
func (p *Provider) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	return batch(p, ctx, "AttachFilesystems", params, filesystemAttachment,
		func(params storage.FilesystemAttachmentParams) storage.AttachFilesystemsResult {
			if err := p.attach(filesystemAttachment(params), params.FilesystemId); err != nil {
				return storage.AttachFilesystemsResult{Error: err}
			}
			path := params.Path
			if path == "" {
				path = "/pretend/" + params.FilesystemId
			}
			attachment := &storage.FilesystemAttachment{
				Filesystem: params.Filesystem, Machine: params.Machine,
				FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: path, ReadOnly: params.ReadOnly},
			}
			if p.Options.EditMounted != nil {
				p.Options.EditMounted(attachment)
			}
			return storage.AttachFilesystemsResult{FilesystemAttachment: attachment}
		},
		func(err error) storage.AttachFilesystemsResult { return storage.AttachFilesystemsResult{Error: err} })
}

// DetachFilesystems implements storage.FilesystemSource.
func (p *Provider) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	return batch(p, ctx, "DetachFilesystems", params, filesystemAttachment,
		func(params storage.FilesystemAttachmentParams) error { return p.detach(filesystemAttachment(params)) }, itself)
}

func volumeResize(p storage.VolumeResizeParams) string { return p.Tag.String() }

func filesystemResize(p storage.FilesystemResizeParams) string { return p.Tag.String() }

// ResizeVolumes implements storage.VolumeResizer. For a volume that the provider has not made,
// it returns the requested size.
func (p *Provider) ResizeVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	return batch(p, ctx, "ResizeVolumes", params, volumeResize,
		func(params storage.VolumeResizeParams) storage.ResizeVolumesResult {
			info := storage.VolumeInfo{VolumeId: params.VolumeId, Size: params.Size}
			i := slices.IndexFunc(p.volumes, func(v storage.Volume) bool { return v.VolumeId == params.VolumeId })
			if err := p.checkResize(params.VolumeId, params.Size); err != nil {
				return storage.ResizeVolumesResult{Error: err}
			}
			if i >= 0 {
				p.volumes[i].Size = max(p.volumes[i].Size, params.Size)
				info = p.volumes[i].VolumeInfo
			}
			return storage.ResizeVolumesResult{VolumeInfo: &info}
		},
		func(err error) storage.ResizeVolumesResult { return storage.ResizeVolumesResult{Error: err} })
}

// ResizeFilesystems implements storage.FilesystemResizer in the same way as ResizeVolumes.
func (p *Provider) ResizeFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	return batch(p, ctx, "ResizeFilesystems", params, filesystemResize,
		func(params storage.FilesystemResizeParams) storage.ResizeFilesystemsResult {
			info := storage.FilesystemInfo{FilesystemId: params.FilesystemId, Size: params.Size}
			i := slices.IndexFunc(p.filesystems, func(f storage.Filesystem) bool { return f.FilesystemId == params.FilesystemId })
			if err := p.checkResize(params.FilesystemId, params.Size); err != nil {
				return storage.ResizeFilesystemsResult{Error: err}
			}
			if i >= 0 {
				p.filesystems[i].Size = max(p.filesystems[i].Size, params.Size)
				info = p.filesystems[i].FilesystemInfo
			}
			return storage.ResizeFilesystemsResult{FilesystemInfo: &info}
		},
		func(err error) storage.ResizeFilesystemsResult { return storage.ResizeFilesystemsResult{Error: err} })
}

// CheckVolumes implements storage.VolumeChecker.
func (p *Provider) CheckVolumes(ctx envcontext.ProviderCallContext, volumeIds []string) ([]error, error) {
	return check(p, ctx, "CheckVolumes", volumeIds, subjectOfVolume, p.Options.CheckVolume)
}

// CheckFilesystems implements storage.FilesystemChecker.
func (p *Provider) CheckFilesystems(ctx envcontext.ProviderCallContext, filesystemIds []string) ([]error, error) {
	return check(p, ctx, "CheckFilesystems", filesystemIds, subjectOfFilesystem, p.Options.CheckFilesystem)
}

func check(p *Provider, ctx envcontext.ProviderCallContext, name string, ids []string, subject func(string) string, one func(string) error) ([]error, error) {
	if one == nil {
		return make([]error, len(ids)), nil
	}
	return batch(p, ctx, name, ids, subject, one, itself)
}

// checkResize returns an error if the object with the ID cannot grow.
func (p *Provider) checkResize(id string, size uint64) error {
	if p.removed[id] {
		return errors.NotFoundf("%q", id)
	}
	return checkSize(size)
}
