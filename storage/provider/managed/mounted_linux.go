package managed

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// A volume may be a filesystem that its provider makes, and that the volume's attachment plan mounts at a
// path of its own (storage.MountedVolumes). Nothing is made on it. Its record says where it is bound, and
// identifies it by what that path shows.

// mountedType is the recorded type of such a filesystem, whose real type is the provider's business.
const mountedType = "mounted"

// isMounted reports whether the filesystem is that of a volume's provider.
func (f *filesystem) isMounted() bool { return f.rec.Type == mountedType }

// shows reports whether a mount at the filesystem's mount point may be of the filesystem, on a machine
// with this boot ID.
func (r *record) shows(m *mountinfo.Info, bootID string) bool {
	if r.Type == mountedType {
		return r.Shown.BootID == bootID && r.Shown.IsAt(m)
	}
	return m.FSType == r.Type
}

// createMounted records the filesystem of a volume's provider, unless it is recorded already.
func (c *call) createMounted(id string, p storage.FilesystemParams) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	f, err := c.load(id)
	if _, merr := c.mountedAt(p.Volume); errors.Is(err, errors.NotFound) && merr != nil {
		return none, storage.NothingMade(merr)
	} else if merr != nil {
		return none, errors.Trace(merr) // an earlier call has recorded it
	}
	switch {
	case err == nil && (!f.isMounted() || f.rec.Volume != p.Volume.String()):
		return none, storage.Permanent(errors.Errorf("it was made on %s, not on volume %s", f.rec.Volume, p.Volume.Id()))
	case err == nil:
		return f.info(), nil
	case !errors.Is(err, errors.NotFound):
		return none, errors.Trace(err)
	}
	f = &filesystem{id: id, call: c, rec: record{
		Volume: p.Volume.String(), Type: mountedType, UUID: storage.OwnerOf(p.ResourceTags).EntityUUID,
		Phase: object.PhaseReady, Size: int64(p.Size) << 20, Ownership: object.Ownership{ResourceTags: p.ResourceTags},
	}}
	if f.rec.UUID == "" {
		f.rec.UUID = uuid.NewString()
	}
	return f.info(), errors.Trace(f.Save())
}

// mountedAt returns where the machine has mounted a volume.
func (c *call) mountedAt(volume names.VolumeTag) (string, error) {
	entry, ok := c.devices.BlockDevice(volume)
	if !ok {
		return "", errors.NotFoundf("mount of volume %s", volume.Id())
	}
	if !entry.IsMountedVolume() {
		return "", errors.NewNotValid(nil, fmt.Sprintf("volume %s is the block device %q, and not a filesystem of its provider", volume.Id(), entry.DeviceName))
	}
	return entry.MountPoint, errors.Trace(mount.ValidatePath(entry.MountPoint))
}

// bind returns the filesystem as it is bound at its mount point, or is to be at a path.
func (f *filesystem) bind(path string) *object.Bind {
	return &object.Bind{Bindable: f, Call: f.call.MountCall, Shown: f.rec.Shown, Path: path}
}

// attachMounted binds the filesystem at a path.
func (f *filesystem) attachMounted(path string, readOnly bool) (storage.FilesystemAttachmentInfo, error) {
	none := storage.FilesystemAttachmentInfo{}
	from := f.entry.MountPoint
	at, err := mount.OpenTarget(from)
	if err == nil && !at.IsMount() {
		at.Close()
		err = errors.NotFoundf("mount")
	}
	if errors.Is(err, errors.NotFound) {
		// Soon after the machine starts, the plan is carried out again.
		return none, storage.Transient(errors.Errorf("nothing is mounted at %s, where the plan of %s mounts it", from, f.rec.Volume))
	} else if err != nil {
		return none, errors.Trace(err)
	}
	if at.IsDead() {
		at.Close()
		return none, storage.Permanent(errors.Errorf("the filesystem at %s does not respond: see that its driver runs, detach it, and attach it again", from))
	}
	shown, err := f.call.ShownAt(at)
	at.Close()
	if err != nil {
		return none, errors.Trace(err)
	}
	if f.rec.Shown != shown {
		f.rec.Shown = shown
		if err := f.Note(); err != nil {
			return none, errors.Trace(err)
		}
	}
	bind := f.bind(path)
	bind.Source = from
	return f.call.Attach(bind, path, readOnly)
}

// resizeMounted records that the filesystem has grown with its volume, by the volume's plan.
func (f *filesystem) resizeMounted(size uint64) (storage.FilesystemInfo, error) {
	none := storage.FilesystemInfo{}
	if grown := int64(size) << 20; grown > f.rec.Size {
		f.rec.Size = grown
		if err := f.Save(); err != nil {
			return none, errors.Trace(err)
		}
	}
	return f.info(), nil
}
