package csi

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

var (
	_ storage.VolumeImporter           = (*volumeSource)(nil)
	_ storage.VolumeParamsImporter     = (*volumeSource)(nil)
	_ storage.FilesystemImporter       = (*filesystemSource)(nil)
	_ storage.FilesystemParamsImporter = (*filesystemSource)(nil)
)

// ImportVolume implements [storage.VolumeImporter].
func (s *volumeSource) ImportVolume(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (storage.VolumeInfo, error) {
	return s.ImportVolumeWithParams(ctx, storage.VolumeImportParams{VolumeId: id, ResourceTags: resourceTags})
}

// ImportVolumeWithParams implements [storage.VolumeParamsImporter].
func (s *volumeSource) ImportVolumeWithParams(ctx envcontext.ProviderCallContext, p storage.VolumeImportParams) (storage.VolumeInfo, error) {
	if p.Copy {
		return storage.VolumeInfo{}, errCannotCopy()
	}
	v, err := s.importByID(ctx, p.VolumeId, p.ResourceTags, p.Attributes, true)
	if err != nil {
		return storage.VolumeInfo{}, errors.Annotatef(err, "importing volume %q", p.VolumeId)
	}
	return volumeInfo(v), nil
}

// ImportFilesystem implements [storage.FilesystemImporter].
func (s *filesystemSource) ImportFilesystem(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (storage.FilesystemInfo, error) {
	return s.ImportFilesystemWithParams(ctx, storage.FilesystemImportParams{FilesystemId: id, ResourceTags: resourceTags})
}

// ImportFilesystemWithParams implements [storage.FilesystemParamsImporter].
func (s *filesystemSource) ImportFilesystemWithParams(ctx envcontext.ProviderCallContext, p storage.FilesystemImportParams) (storage.FilesystemInfo, error) {
	v, err := s.importByID(ctx, p.FilesystemId, p.ResourceTags, p.Attributes, false)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Annotatef(err, "importing filesystem %q", p.FilesystemId)
	}
	return filesystemInfo(v), nil
}

// importByID takes over the volume with an ID: the driver's, or that of released storage here.
func (s *source) importByID(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string, attrs map[string]any, block bool) (*volume, error) {
	if err := checkImportID(id); err != nil {
		return nil, errors.Trace(err)
	}
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer c.End()
	unlock, err := c.LockObject("imports") // no other import finds the same volume
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer unlock()
	known, err := c.withVolume(id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if known == "" {
		if err := s.checkNotOther(ctx, id); err != nil {
			return nil, errors.Trace(err)
		}
		return c.importNew(id, resourceTags, attrs, block)
	}
	unlockKnown, err := c.LockObject(known)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer unlockKnown()
	v, err := c.load(known)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return v, v.takeBack(resourceTags)
}

func checkImportID(id string) error {
	if len(id) > maxID || id == "" {
		return errors.NotValidf("ID of %d bytes", len(id))
	}
	return nil
}

func errCannotCopy() error {
	return errors.NewNotSupported(nil, "a CSI driver's volume cannot be copied while it is imported: import it, and make a snapshot")
}

// withVolume returns the ID of the record of a volume with an ID, or "".
func (c *bulk) withVolume(id string) (string, error) {
	all, err := c.Records.List()
	if err != nil {
		return "", errors.Trace(err)
	}
	for _, known := range all {
		v, err := c.load(known)
		switch {
		case errors.Is(err, errors.NotFound), errors.Is(err, errors.NotValid):
			continue // a damaged record is listed elsewhere
		case err != nil:
			return "", errors.Trace(err)
		case known == id, v.rec.VolumeID == id:
			return known, nil
		}
	}
	return "", nil
}

// checkNotOther returns an error if the volume is recorded as storage of the other kind.
func (s *source) checkNotOther(ctx envcontext.ProviderCallContext, id string) error {
	other := "filesystems"
	if filepath.Base(s.dir) == other {
		other = "volumes"
	}
	c, err := begin(ctx, s.config, filepath.Join(filepath.Dir(s.dir), other))
	if err != nil {
		return errors.Trace(err)
	}
	defer c.End()
	known, err := c.withVolume(id)
	if err == nil && known != "" {
		err = errors.NewNotValid(nil, fmt.Sprintf("it is here already, as %s, one of the %s", known, other))
	}
	return errors.Trace(err)
}

// takeBack gives a volume that is recorded already to an importer, if it was released or is the importer's.
func (v *volume) takeBack(resourceTags map[string]string) error {
	switch {
	case v.rec.Phase == object.PhaseReleased:
		v.rec.Phase = object.PhaseReady
		v.rec.Adopt(resourceTags)
		return errors.Trace(v.Save())
	case v.rec.Phase == object.PhaseReady && v.rec.Owner() == storage.OwnerOf(resourceTags):
		return nil
	}
	return errors.NewNotValid(nil, fmt.Sprintf("it is here already, as %s: release it first, or import another one", v.id))
}

// importNew takes over a volume that is not recorded.
func (c *bulk) importNew(volumeID string, resourceTags map[string]string, attrs map[string]any, block bool) (*volume, error) {
	parsed, err := c.config.parse(attrs)
	if err != nil {
		return nil, errors.Trace(err)
	}
	id, err := c.NewImportID(resourceTags, "volume")
	if err != nil {
		return nil, errors.Trace(err)
	}
	// The driver has made no volume_context, so it gets what the pool says, as that of a static
	// PersistentVolume in Kubernetes.
	v := &volume{bulk: c, id: id, rec: record{
		Imported: true, Phase: object.PhaseReady, VolumeID: volumeID, Context: parsed.parameters,
		Request: request{Block: block}, Ownership: object.Ownership{ResourceTags: resourceTags},
	}}
	if !block {
		v.rec.Request.Filesystem, v.rec.Request.Flags = parsed.filesystem, parsed.flags
	}
	d, err := c.driver()
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := d.validate(volumeID, v.rec.Request, parsed.parameters); err != nil {
		return nil, mark(err)
	}
	if v.rec.Size, err = d.sizeOf(volumeID); err != nil {
		return nil, mark(err)
	}
	return v, errors.Trace(v.Save())
}

// validate returns an error unless a volume exists and can be used, as far as the driver says that. The error
// satisfies errors.IsNotFound if it does not exist.
func (d *driver) validate(id string, r request, volumeContext map[string]string) error {
	services, err := d.plugin()
	if err != nil {
		return err
	}
	if !slices.Contains(services, csi.PluginCapability_Service_CONTROLLER_SERVICE) {
		return nil
	}
	answer, err := call(d, "ValidateVolumeCapabilities", d.controller.ValidateVolumeCapabilities, &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: id, VolumeContext: volumeContext, VolumeCapabilities: []*csi.VolumeCapability{r.capability()}, Secrets: d.secrets,
	})
	var failed *callError
	switch {
	case errors.As(err, &failed) && failed.code == codes.Unimplemented:
		return nil
	case err != nil && outcomeOf(err) == gone:
		return errors.NewNotFound(nil, err.Error())
	case err != nil:
		return err
	case answer.GetConfirmed() == nil:
		return errors.NewNotValid(nil, "the driver does not confirm that it can be used so: "+answer.GetMessage())
	}
	return nil
}

// release gives up a volume, which stays as it is at the driver. The record stays too, so that the volume can be
// imported again.
func (v *volume) release() error {
	if v.rec.Phase == object.PhaseReleased {
		return nil
	}
	if v.rec.Staged {
		return errAttached()
	}
	if v.rec.Phase != object.PhaseReady {
		return errors.New("it is incomplete: create it again, or destroy it")
	}
	v.rec.Phase, v.rec.ResourceTags = object.PhaseReleased, nil
	return errors.Trace(object.IgnoreNoSpace(v.Save()))
}

// releaseEach releases volumes or filesystems.
func (s *source) releaseEach(ctx envcontext.ProviderCallContext, objects string, ids []string) ([]error, error) {
	return object.DoEach(ctx, s.bulkOf("releasing", objects), s.begin, ids, func(c *bulk, id string) error {
		return c.withExisting(id, (*volume).release)
	})
}

// sizeOf returns the size of a volume in bytes; 0 if the driver does not say.
func (d *driver) sizeOf(id string) (uint64, error) {
	if can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_GET_VOLUME); err != nil || can {
		if err != nil {
			return 0, err
		}
		answer, err := call(d, "ControllerGetVolume", d.controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: id})
		return uint64(max(0, answer.GetVolume().GetCapacityBytes())), err
	}
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	if err != nil || !can {
		return 0, err
	}
	for token := ""; ; {
		page, err := call(d, "ListVolumes", d.controller.ListVolumes, &csi.ListVolumesRequest{StartingToken: token})
		if err != nil {
			return 0, err
		}
		for _, e := range page.GetEntries() {
			if e.GetVolume().GetVolumeId() == id {
				return uint64(max(0, e.GetVolume().GetCapacityBytes())), nil
			}
		}
		if token = page.GetNextToken(); token == "" {
			return 0, nil
		}
	}
}
