package translate

import (
	"path/filepath"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// filesystemReader reads filesystems and filesystem attachments.
type filesystemReader struct {
	*Reader
}

func filesystemTags(facts []*plan.Fact) []names.FilesystemTag {
	tags := make([]names.FilesystemTag, len(facts))
	for i, f := range facts {
		tags[i] = f.Tag().(names.FilesystemTag)
	}
	return tags
}

func (r filesystemReader) infos(facts []*plan.Fact) error {
	recorded, err := r.recorded(facts, func(f *plan.Fact, wire params.Filesystem) error {
		volume, err := r.setBacking(f, wire.VolumeTag)
		f.ID, f.Size = wire.Info.FilesystemId, wire.Info.Size
		r.Filesystems = append(r.Filesystems, storage.Filesystem{
			Tag: f.Tag().(names.FilesystemTag), Volume: volume,
			FilesystemInfo: storage.FilesystemInfo{FilesystemId: f.ID, Size: f.Size},
		})
		return err
	})
	if err != nil {
		return err
	}
	return r.growths(facts, recorded)
}

// filesystemGrowth holds the parameters for growing a filesystem, and what is recorded about
// it.
type filesystemGrowth struct {
	storage.FilesystemResizeParams
	recorded FilesystemInfo
}

// FilesystemInfo is what is recorded about a filesystem.
type FilesystemInfo struct {
	storage.Filesystem
	pool string
}

// growths completes the facts of filesystems that are wanted larger than they are.
func (r filesystemReader) growths(facts []*plan.Fact, results []params.FilesystemResult) error {
	accessor, ok := r.state.Filesystems.(filesystemSizes)
	if !ok {
		return nil
	}
	growing, err := readWanted(r.state.Guard, "reading filesystem sizes", accessor.FilesystemSizes, filesystemTags, facts)
	if err != nil {
		return err
	}
	for i, f := range facts {
		if !grows(f) {
			continue
		}
		tag := f.Tag().(names.FilesystemTag)
		recorded := FilesystemInfo{pool: results[i].Result.Info.Pool}
		recorded.Tag, recorded.FilesystemId = tag, f.ID
		if f.Backing != "" {
			recorded.Volume = names.NewVolumeTag(f.Backing)
		}
		f.Args = filesystemGrowth{
			storage.FilesystemResizeParams{Tag: tag, FilesystemId: f.ID, Size: f.Wanted}, recorded,
		}
	}
	return r.params(growing, func(*plan.Fact, params.FilesystemParams) error { return nil })
}

// recorded notes in facts which filesystems are recorded, and calls each for those that are.
func (r filesystemReader) recorded(
	facts []*plan.Fact, each func(*plan.Fact, params.Filesystem) error,
) ([]params.FilesystemResult, error) {
	results, err := CallAccessor(r.state.Guard, "reading filesystems", r.state.Filesystems.Filesystems, filesystemTags(facts))
	complete(facts, results, func(f *plan.Fact, result params.FilesystemResult) error {
		if err := setRecorded(f, result.Error); !f.Recorded {
			return err
		}
		if err := checkSubject(f, result.Result.FilesystemTag, ""); err != nil {
			return err
		}
		return each(f, result.Result)
	})
	return results, err
}

// setBacking adds the volume that backs a filesystem, if any, to a fact.
func (r filesystemReader) setBacking(f *plan.Fact, volumeTag string) (names.VolumeTag, error) {
	if volumeTag == "" {
		return names.VolumeTag{}, nil
	}
	volume, id, err := parseVolumeTag(volumeTag)
	f.Backing = id
	return volume, errors.Annotatef(err, "volume of %s", f.Key())
}

func (r filesystemReader) params(facts []*plan.Fact, each func(*plan.Fact, params.FilesystemParams) error) error {
	results, err := CallAccessor(r.state.Guard, "reading filesystem parameters", r.state.Filesystems.FilesystemParams, filesystemTags(facts))
	complete(facts, results, func(f *plan.Fact, result params.FilesystemParamsResult) error {
		if result.Error != nil {
			return paramsError(f, result.Error)
		}
		if err := checkSubject(f, result.Result.FilesystemTag, ""); err != nil {
			return err
		}
		if err := r.setProvider(f, result.Result.Provider, result.Result.Pool); err != nil {
			return err
		}
		return each(f, result.Result)
	})
	return err
}

// filesystemCreation holds the parameters for creating a filesystem: params without its
// attachment, and the attachment, if the filesystem is to be attached.
type filesystemCreation struct {
	params     storage.FilesystemParams
	origin     *storage.Origin // nil for an empty filesystem, and for one on a volume
	attached   bool
	attachment filesystemAttachment
}

// filesystemAttachment holds the parameters for attaching or detaching a filesystem, without
// what its fact has.
type filesystemAttachment struct {
	storage.AttachmentParams
	path string
}

func (r filesystemReader) creations(facts []*plan.Fact) error {
	return r.params(facts, func(f *plan.Fact, p params.FilesystemParams) error {
		volume, err := r.setBacking(f, p.VolumeTag)
		if err != nil {
			return err
		}
		if p.VolumeNew && f.Backing != "" {
			r.NewVolumes = append(r.NewVolumes, f.Backing)
		}
		args := filesystemCreation{params: storage.FilesystemParams{
			Tag:          f.Tag().(names.FilesystemTag),
			Volume:       volume,
			Size:         p.Size,
			Provider:     storage.ProviderType(p.Provider),
			Attributes:   p.Attributes,
			ResourceTags: p.Tags,
		}}
		if p.Origin != nil {
			args.origin = &storage.Origin{SnapshotId: p.Origin.SnapshotId, Id: p.Origin.FilesystemId}
		}
		if p.Attachment != nil {
			if err := checkAttachmentParams(f, p.Attachment.FilesystemTag, p.Attachment.Provider, p.Provider); err != nil {
				return err
			}
			attachment, ok, err := r.setAttachment(f, p.Provider, p.Attachment.MachineTag, p.Attachment.InstanceId, p.Attachment.ReadOnly)
			if !ok {
				return err
			}
			args.attached = true
			args.attachment = filesystemAttachment{attachment, r.mountPoint(f, p.Attachment.MountPoint)}
		}
		f.Args = args
		return nil
	})
}

func (r filesystemReader) providers(facts []*plan.Fact) error {
	return r.params(facts, func(*plan.Fact, params.FilesystemParams) error { return nil })
}

func (r filesystemReader) removals(facts []*plan.Fact) error {
	accessor, ok := r.state.Filesystems.(filesystemRemovals)
	if !ok {
		return r.providers(facts)
	}
	results, err := CallAccessor(r.state.Guard, "reading filesystem removal parameters", accessor.RemoveFilesystemParams, filesystemTags(facts))
	complete(facts, results, func(f *plan.Fact, result params.RemoveFilesystemParamsResult) error {
		if result.Error != nil {
			return result.Error
		}
		return r.setRemoval(f, result.Result.Provider, result.Result.Pool, result.Result.FilesystemId, result.Result.Destroy)
	})
	return err
}

func (r filesystemReader) attachments(facts []*plan.Fact) error {
	results, err := CallAccessor(r.state.Guard, "reading filesystem attachments",
		r.state.Filesystems.FilesystemAttachments, attachmentIDs(facts))
	complete(facts, results, func(f *plan.Fact, result params.FilesystemAttachmentResult) error {
		if err := setRecorded(f, result.Error); !f.Recorded {
			return err
		}
		if !settled(f) {
			f.Args = recordedPath(result.Result.Info.MountPoint)
		}
		return checkSubject(f, result.Result.FilesystemTag, result.Result.MachineTag)
	})
	return err
}

// recordedPath is the mount point of a recorded attachment. It stands in the fact's Args until
// the attachment's parameters are read.
type recordedPath string

// mountPoint returns where a filesystem is to be mounted: at the wanted path of its parameters
// if they have one; else where a recorded attachment is mounted; else in the worker's storage
// directory, if it has one.
func (r filesystemReader) mountPoint(f *plan.Fact, wanted string) string {
	if wanted != "" {
		return wanted
	}
	if recorded, ok := f.Args.(recordedPath); ok {
		return string(recorded)
	}
	if r.config.StorageDir == "" {
		return ""
	}
	return filepath.Join(r.config.StorageDir, f.Key().ID)
}

func (r filesystemReader) attaching(facts []*plan.Fact) error {
	results, err := CallAccessor(r.state.Guard, "reading filesystem attachment parameters",
		r.state.Filesystems.FilesystemAttachmentParams, attachmentIDs(facts))
	complete(facts, results, func(f *plan.Fact, result params.FilesystemAttachmentParamsResult) error {
		if result.Error != nil {
			return paramsError(f, result.Error)
		}
		p := result.Result
		path := r.mountPoint(f, p.MountPoint)
		f.Args = nil
		if err := checkSubject(f, p.FilesystemTag, ""); err != nil {
			return err
		}
		if err := r.setProvider(f, p.Provider, p.Pool); err != nil {
			return err
		}
		f.ID = p.FilesystemId
		attachment, ok, err := r.setAttachment(f, p.Provider, p.MachineTag, p.InstanceId, p.ReadOnly)
		if !ok {
			return err
		}
		f.Args = filesystemAttachment{attachment, path}
		return nil
	})
	if err != nil {
		return err
	}
	return r.readBackings(selectFacts(facts, func(f *plan.Fact) bool {
		return f.Life == plan.Dying || f.Life == plan.Dead
	}))
}

// readBackings completes the facts of dying and dead attachments with the volumes that back
// their filesystems. These attachments are removed even if this worker does not know their
// filesystems: a watcher may report the filesystems later, or no longer.
func (r filesystemReader) readBackings(attachments []*plan.Fact) error {
	filesystems := make([]*plan.Fact, len(attachments))
	for i, a := range attachments {
		filesystems[i] = &plan.Fact{Subject: a.Storage(), Life: plan.Alive}
	}
	_, err := r.recorded(filesystems, func(f *plan.Fact, wire params.Filesystem) error {
		_, err := r.setBacking(f, wire.VolumeTag)
		return err
	})
	if err != nil {
		return err
	}
	err = r.params(selectFacts(filesystems, func(f *plan.Fact) bool {
		return present(f) && !f.Recorded
	}), func(f *plan.Fact, wire params.FilesystemParams) error {
		_, err := r.setBacking(f, wire.VolumeTag)
		return err
	})
	for i, f := range filesystems {
		attachments[i].Backing, attachments[i].BackingKnown = f.Backing, f.Err == nil
	}
	return err
}

// filesystemOnWire returns a filesystem as the state records it.
func filesystemOnWire(s plan.Subject, fs FilesystemInfo) params.Filesystem {
	wire := params.Filesystem{
		FilesystemTag: s.TagText(),
		Info:          params.FilesystemInfo{FilesystemId: fs.FilesystemId, Pool: fs.pool, Size: fs.Size},
	}
	if fs.Volume != (names.VolumeTag{}) {
		wire.VolumeTag = fs.Volume.String()
	}
	return wire
}

// filesystemAttachmentOnWire returns the info of a filesystem attachment as the state records
// it.
func filesystemAttachmentOnWire(s plan.Subject, a storage.FilesystemAttachment) params.FilesystemAttachment {
	return params.FilesystemAttachment{
		FilesystemTag: s.TagText(),
		MachineTag:    s.Key().Host,
		Info:          params.FilesystemAttachmentInfo{MountPoint: a.Path, ReadOnly: a.ReadOnly},
	}
}
