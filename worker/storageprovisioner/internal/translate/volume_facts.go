package translate

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// volumeReader reads volumes and volume attachments.
type volumeReader struct {
	*Reader
}

func volumeTags(facts []*plan.Fact) []names.VolumeTag {
	tags := make([]names.VolumeTag, len(facts))
	for i, f := range facts {
		tags[i] = f.Tag().(names.VolumeTag)
	}
	return tags
}

func (r volumeReader) infos(facts []*plan.Fact) error {
	results, err := CallAccessor(r.state.Guard, "reading volumes", r.state.Volumes.Volumes, volumeTags(facts))
	complete(facts, results, func(f *plan.Fact, result params.VolumeResult) error {
		if err := setRecorded(f, result.Error); !f.Recorded {
			return err
		}
		f.ID, f.Size = result.Result.Info.VolumeId, result.Result.Info.Size
		return checkSubject(f, result.Result.VolumeTag, "")
	})
	if err != nil {
		return err
	}
	if err := r.contexts(facts); err != nil {
		return err
	}
	return r.growths(facts, results)
}

// volumeGrowth holds the parameters for growing a volume, and what is recorded about it.
type volumeGrowth struct {
	storage.VolumeResizeParams
	recorded params.VolumeInfo
}

// growths completes the facts of volumes that are wanted larger than they are.
func (r volumeReader) growths(facts []*plan.Fact, recorded []params.VolumeResult) error {
	accessor, ok := r.state.Volumes.(volumeSizes)
	if !ok {
		return nil
	}
	growing, err := readWanted(r.state.Guard, "reading volume sizes", accessor.VolumeSizes, volumeTags, facts)
	if err != nil {
		return err
	}
	for i, f := range facts {
		if tag := f.Tag().(names.VolumeTag); grows(f) {
			f.Args = volumeGrowth{
				storage.VolumeResizeParams{Tag: tag, VolumeId: f.ID, Size: f.Wanted},
				recorded[i].Result.Info,
			}
		}
	}
	return r.params(growing, func(*plan.Fact, params.VolumeParams) error { return nil })
}

func (r volumeReader) params(facts []*plan.Fact, each func(*plan.Fact, params.VolumeParams) error) error {
	results, err := CallAccessor(r.state.Guard, "reading volume parameters", r.state.Volumes.VolumeParams, volumeTags(facts))
	complete(facts, results, func(f *plan.Fact, result params.VolumeParamsResult) error {
		if result.Error != nil {
			return paramsError(f, result.Error)
		}
		if err := checkSubject(f, result.Result.VolumeTag, ""); err != nil {
			return err
		}
		if err := r.setProvider(f, result.Result.Provider, result.Result.Pool); err != nil {
			return err
		}
		return each(f, result.Result)
	})
	return err
}

// volumeCreation holds the parameters for creating a volume: params without its attachment,
// and the attachment, if the volume is to be attached.
type volumeCreation struct {
	params     storage.VolumeParams
	origin     *storage.Origin // nil for an empty volume
	attached   bool
	attachment storage.AttachmentParams
}

func (r volumeReader) creations(facts []*plan.Fact) error {
	return r.params(facts, func(f *plan.Fact, p params.VolumeParams) error {
		args := volumeCreation{params: storage.VolumeParams{
			Tag:          f.Tag().(names.VolumeTag),
			Size:         p.Size,
			Provider:     storage.ProviderType(p.Provider),
			Attributes:   p.Attributes,
			ResourceTags: p.Tags,
		}}
		if p.Origin != nil {
			args.origin = &storage.Origin{SnapshotId: p.Origin.SnapshotId, Id: p.Origin.VolumeId}
		}
		switch {
		case p.Attachment != nil:
			if err := checkAttachmentParams(f, p.Attachment.VolumeTag, p.Attachment.Provider, p.Provider); err != nil {
				return err
			}
			attachment, ok, err := r.setAttachment(f, p.Provider, p.Attachment.MachineTag, p.Attachment.InstanceId, p.Attachment.ReadOnly)
			if !ok {
				return err
			}
			args.attached, args.attachment = true, attachment
		case f.Attempted:
			// Look for what may have been made, wherever it is to be attached now.
		case f.Life == plan.Alive && r.config.UnattachedVolumes:
		case f.Life == plan.Alive:
			r.config.Log.Warningf("%s has no attachment parameters: it is not created", f.Key())
			return nil
		default:
			return nil
		}
		f.Args = args
		return nil
	})
}

func (r volumeReader) providers(facts []*plan.Fact) error {
	return r.params(facts, func(*plan.Fact, params.VolumeParams) error { return nil })
}

func (r volumeReader) removals(facts []*plan.Fact) error {
	accessor, ok := r.state.Volumes.(volumeRemovals)
	if !ok {
		return r.providers(facts)
	}
	results, err := CallAccessor(r.state.Guard, "reading volume removal parameters", accessor.RemoveVolumeParams, volumeTags(facts))
	complete(facts, results, func(f *plan.Fact, result params.RemoveVolumeParamsResult) error {
		if result.Error != nil {
			return result.Error
		}
		return r.setRemoval(f, result.Result.Provider, result.Result.Pool, result.Result.VolumeId, result.Result.Destroy)
	})
	return err
}

func (r volumeReader) attachments(facts []*plan.Fact) error {
	results, err := CallAccessor(r.state.Guard, "reading volume attachments", r.state.Volumes.VolumeAttachments, attachmentIDs(facts))
	complete(facts, results, func(f *plan.Fact, result params.VolumeAttachmentResult) error {
		if err := setRecorded(f, result.Error); !f.Recorded {
			return err
		}
		return checkSubject(f, result.Result.VolumeTag, result.Result.MachineTag)
	})
	return err
}

func (r volumeReader) attaching(facts []*plan.Fact) error {
	results, err := CallAccessor(r.state.Guard, "reading volume attachment parameters",
		r.state.Volumes.VolumeAttachmentParams, attachmentIDs(facts))
	complete(facts, results, func(f *plan.Fact, result params.VolumeAttachmentParamsResult) error {
		if result.Error != nil {
			return paramsError(f, result.Error)
		}
		p := result.Result
		if err := checkSubject(f, p.VolumeTag, ""); err != nil {
			return err
		}
		if err := r.setProvider(f, p.Provider, p.Pool); err != nil {
			return err
		}
		f.ID = p.VolumeId
		attachment, ok, err := r.setAttachment(f, p.Provider, p.MachineTag, p.InstanceId, p.ReadOnly)
		if !ok {
			return err
		}
		f.Args = attachment
		return nil
	})
	if err != nil {
		return err
	}
	return r.contexts(facts)
}

// contexts completes the facts of recorded volumes, or of their attachments, with the contexts.
func (r volumeReader) contexts(facts []*plan.Fact) error {
	accessor, ok := r.state.Volumes.(volumeContexts)
	if _, machine := r.config.Scope.(names.MachineTag); machine || !ok {
		return nil
	}
	recorded := selectFacts(facts, func(f *plan.Fact) bool { return f.ID != "" })
	results, err := CallAccessor(r.state.Guard, "reading the contexts of volumes", accessor.VolumeContexts, volumeTags(recorded))
	complete(recorded, results, func(f *plan.Fact, result params.VolumeContextResult) error {
		if result.Error != nil {
			return paramsError(f, result.Error)
		}
		f.Context = result.Result.Context
		return checkSubject(f, result.Result.VolumeTag, "")
	})
	return err
}

// volumeInfoOnWire returns the info of a volume as the state records it.
func volumeInfoOnWire(info storage.VolumeInfo) params.VolumeInfo {
	return params.VolumeInfo{
		VolumeId:   info.VolumeId,
		HardwareId: info.HardwareId,
		WWN:        info.WWN,
		Size:       info.Size,
		Persistent: info.Persistent,
	}
}

// volumeInContext is the info of a volume whose source needs a context to attach it.
type volumeInContext struct {
	params.VolumeInfo
	context map[string]string
}

// contextOnWire returns the context of a volume as the state records it.
func contextOnWire(s plan.Subject, v volumeInContext) params.VolumeContext {
	return params.VolumeContext{VolumeTag: s.TagText(), Context: v.context}
}

// volumeOnWire returns a volume as the state records it.
func volumeOnWire(s plan.Subject, info params.VolumeInfo) params.Volume {
	return params.Volume{VolumeTag: s.TagText(), Info: info}
}

// volumeAttachmentOnWire returns the info of a volume attachment as the state records it.
func volumeAttachmentOnWire(s plan.Subject, a storage.VolumeAttachment) params.VolumeAttachment {
	wire := params.VolumeAttachment{
		VolumeTag:  s.TagText(),
		MachineTag: s.Key().Host,
		Info: params.VolumeAttachmentInfo{
			DeviceName: a.DeviceName,
			DeviceLink: a.DeviceLink,
			BusAddress: a.BusAddress,
			ReadOnly:   a.ReadOnly,
		},
	}
	if info := a.PlanInfo; info != nil {
		wire.Info.PlanInfo = &params.VolumeAttachmentPlanInfo{
			DeviceType:       info.DeviceType,
			DeviceAttributes: info.DeviceAttributes,
		}
	}
	return wire
}
