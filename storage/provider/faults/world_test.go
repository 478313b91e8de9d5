//go:build linux && faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
	"github.com/stowage-io/stowage/storage/provider/loop"
)

// world is the storage of one case. It is plain data, so that it can be passed to child
// processes.
type world struct {
	// Kind is loop, tmpfs, rootfs or the type of a filesystem on a loop volume.
	Kind string
	// Base is the filesystem that holds everything.
	Base string
	// Disk holds the volumes. Empty: Base does.
	Disk string
	// Count is the number of objects in each call.
	Count int
	// Size of an object in MiB.
	Size uint64
	// Imported is set where the objects are imported and not created.
	Imported bool
	// Released is set where another owner imports the objects after their release.
	Released bool
	// Copied is set where the directory is a copy whose original is in use.
	Copied bool
	// Requested is set where a user has asked to format the volumes, whatever they hold.
	Requested bool
}

// grown is the size in MiB that objects are made to grow to.
func (w world) grown() uint64 { return 2 * w.Size }

// small is the size of an object in MiB where no type needs more.
const small = 8

// sizes are the sizes in MiB that filesystem types need.
var sizes = map[string]uint64{"xfs": 300, "btrfs": 128}

func newWorld(kind, base string, count int) world {
	w := world{Kind: kind, Base: base, Count: count, Size: small}
	if size, ok := sizes[kind]; ok {
		w.Size = size
	}
	return w
}

func (w world) isVolumes() bool  { return w.Kind == "loop" }
func (w world) onVolumes() bool  { return !w.isVolumes() && w.Kind != "tmpfs" && w.Kind != "rootfs" }
func (w world) isVolatile() bool { return w.Kind == "tmpfs" }

// backing is the world of the volumes with the filesystems.
func (w world) backing() world {
	w.Kind, w.Imported, w.Released = "loop", false, false
	if w.Disk != "" {
		w.Base = w.Disk
	}
	return w
}

// dir is the storage directory of the source.
func (w world) dir() string { return filepath.Join(w.Base, "storage", w.Kind+w.suffix()) }

// suffix is the end of the names that belong to a copy.
func (w world) suffix() string {
	if w.Copied {
		return "-copy"
	}
	return ""
}

// original is the world from which a copy was made, or whose objects were released before
// the import.
func (w world) original() world {
	w.Copied, w.Released = false, false
	return w
}

// The owners of objects: the first one creates them, and the next one gets them.
const (
	firstOwner = "first"
	nextOwner  = "next"
)

// tags returns the resource tags of an object of an owner. The UUIDs are those of this run: the kernel
// mounts no filesystem whose UUID another one has that is mounted.
func (w world) tags(i int, owner string) map[string]string {
	run := uuid.NewSHA1(uuid.Nil, []byte(os.Getenv(insideEnv)))
	return map[string]string{
		storage.ModelUUIDTag:  uuid.NewSHA1(run, []byte(owner)).String(),
		storage.EntityUUIDTag: uuid.NewSHA1(run, fmt.Appendf(nil, "%s %s %d", owner, w.Kind, i)).String(),
	}
}

// id returns the ID of an object that was created here.
func (w world) id(i int) string {
	var tag names.Tag = w.filesystem(i)
	if w.isVolumes() {
		tag = w.volume(i)
	}
	return tag.String() + "-" + w.tags(i, firstOwner)[storage.EntityUUIDTag]
}

// volume returns the tag of a volume, and filesystem that of the filesystem on it.
func (w world) volume(i int) names.VolumeTag {
	return names.NewVolumeTag("0/" + strconv.Itoa(i))
}

func (w world) filesystem(i int) names.FilesystemTag {
	return names.NewFilesystemTag("0/" + strconv.Itoa(i))
}

// path is the mount point of a filesystem. The first two share a directory that does not
// exist before.
func (w world) path(i int) string {
	return filepath.Join(w.Base, "srv", "shared"+w.suffix(), "data"+strconv.Itoa(i))
}

// freezeLimit is longer than any copy of a mounted volume takes, so that a busy machine causes no
// refusal.
const freezeLimit = 30 * time.Second

// snapshotTags returns the resource tags of the snapshot of an object, and snapshotID its ID.
func (w world) snapshotTags(i int) map[string]string { return w.tags(i, "snapshot") }

func (w world) snapshotID(i int) string {
	return "snapshot-" + w.snapshotTags(i)[storage.EntityUUIDTag]
}

// file is the file of a volume.
func (w world) file(i int) string { return filepath.Join(w.dir(), "volumes", w.id(i)) }

// toImport is the path of a file or directory before its import.
func (w world) toImport(i int) string {
	return filepath.Join(w.Base, "imports", strconv.Itoa(i))
}

// importID is the ID by which an object is imported, and importTags are the tags that it
// gets.
func (w world) importID(i int) (string, error) {
	switch {
	case !w.Released:
		return w.toImport(i), nil
	case !w.onVolumes():
		return w.id(i), nil
	}
	devices, err := w.devices()
	if err != nil {
		return "", err
	}
	block, ok := devices.blocks[w.volume(i)]
	if !ok {
		_, err := os.Stat(w.backing().file(i)) // XFS says nothing about its files once it has failed
		return "", fmt.Errorf("looking for the device of volume %d: %w", i, err)
	}
	device, err := os.Open("/dev/" + block.DeviceName)
	if err != nil {
		return "", err
	}
	defer device.Close()
	found, err := signature.ReadSuperblock(device)
	return found.UUID, err
}

func (w world) importTags(i int) map[string]string {
	if w.Released {
		return w.tags(i, nextOwner)
	}
	return w.tags(i, firstOwner)
}

func (w world) config() *storage.Config {
	config, err := storage.NewConfig("faults", storage.ProviderType(w.Kind), storage.Attrs{storage.ConfigStorageDir: w.dir()})
	if err != nil {
		panic(err)
	}
	return config
}

func (w world) volumeSource() (storage.VolumeSource, error) {
	return provider.NewLoopProvider(provider.LoopOptions{}).VolumeSource(w.config())
}

func (w world) filesystemSource() (storage.FilesystemSource, error) {
	switch w.Kind {
	case "tmpfs":
		return provider.NewTmpfsProvider(provider.TmpfsOptions{}).FilesystemSource(w.config())
	case "rootfs":
		return provider.NewRootfsProvider(provider.RootfsOptions{}).FilesystemSource(w.config())
	}
	devices, err := w.devices()
	return provider.NewManagedFilesystemSource(w.dir(), devices), err
}

// known are the block devices of volumes and the files behind them, as a caller of a
// source knows them.
type known struct {
	blocks map[names.VolumeTag]storage.BlockDevice
	files  map[names.VolumeTag]string
	// consent applies to all volumes.
	consent storage.FormatConsent
}

// BlockDevice implements [storage.BackingDevices].
func (k known) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	device, ok := k.blocks[tag]
	return device, ok
}

// BackingFile implements [storage.BackingFiles].
func (k known) BackingFile(tag names.VolumeTag) (string, bool) {
	file, ok := k.files[tag]
	return file, ok
}

// FormatConsent implements [storage.FormatConsents].
func (k known) FormatConsent(names.VolumeTag) storage.FormatConsent { return k.consent }

// Filesystem implements [storage.BackingDevices].
func (k known) Filesystem(tag names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{Volume: names.NewVolumeTag(tag.Id())}, true
}

// devices looks up the loop devices of the volumes by their files.
func (w world) devices() (known, error) {
	loops, err := loopsOf(w.backing().dir())
	if err != nil {
		return known{}, err
	}
	devices := known{blocks: make(map[names.VolumeTag]storage.BlockDevice), files: make(map[names.VolumeTag]string)}
	if w.Requested {
		devices.consent = storage.ConsentAnything
	}
	for i := range w.Count {
		tag := w.backing().volume(i)
		file := w.backing().file(i)
		var st unix.Stat_t
		if name := loops.of(file); name != "" && unix.Stat(file, &st) == nil {
			devices.files[tag] = file
			devices.blocks[tag] = storage.BlockDevice{DeviceName: name, BusAddress: storage.LoopBusAddress(st.Dev, st.Ino)}
		}
	}
	return devices, nil
}

// loopDevices are the files of loop devices, by the devices' names.
type loopDevices map[string]string

// loopsOf returns the loop devices that are attached to files in a directory.
func loopsOf(dir string) (loopDevices, error) {
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	loops := make(loopDevices)
	for _, attribute := range backing {
		file, err := os.ReadFile(attribute)
		if path := strings.TrimSuffix(string(file), "\n"); err == nil && strings.HasPrefix(path, dir+"/") {
			loops[filepath.Base(filepath.Dir(filepath.Dir(attribute)))] = path
		}
	}
	return loops, err
}

// of returns the name of a device that is attached to a file, or "".
func (l loopDevices) of(file string) string {
	for name, path := range l {
		if path == file {
			return name
		}
	}
	return ""
}

// do carries out one bulk call on all objects.
func (w world) do(ctx context.Context, op string) error {
	if isOfDirectory(op) {
		return w.doDirectory(ctx, op)
	}
	if w.isVolumes() {
		return w.doVolumes(envcontext.New(ctx), op)
	}
	return w.doFilesystems(envcontext.New(ctx), op)
}

func isImport(op string) bool { return op == "import" || op == "import released" }

// nextTags returns the tags of the next owner for each object.
func (w world) nextTags(ids []string) []storage.ObjectTags {
	var all []storage.ObjectTags
	for i, id := range ids {
		all = append(all, storage.ObjectTags{ID: id, ResourceTags: w.tags(i, nextOwner)})
	}
	return all
}

// makesSnapshots reports whether the source makes snapshots.
func (w world) makesSnapshots() bool { return w.Kind == "loop" || w.Kind == "rootfs" }

// source returns the source of the world, of volumes or of filesystems.
func (w world) source() (any, error) {
	if w.isVolumes() {
		return w.volumeSource()
	}
	return w.filesystemSource()
}

// snapshots lists the snapshots.
func (w world) snapshots(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	source, err := w.source()
	if err != nil {
		return nil, err
	}
	if volumes, ok := source.(storage.VolumeSnapshotter); ok {
		return volumes.ListVolumeSnapshots(ctx)
	}
	return source.(storage.FilesystemSnapshotter).ListFilesystemSnapshots(ctx)
}

// owned lists the objects with their owners.
func (w world) owned(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	source, err := w.source()
	if err != nil {
		return nil, err
	}
	if volumes, ok := source.(storage.VolumeOwnerLister); ok {
		return volumes.ListVolumeOwners(ctx)
	}
	return source.(storage.FilesystemOwnerLister).ListFilesystemOwners(ctx)
}

var errUnsupported = errors.New("operation not supported by this source")

func (w world) doVolumes(ctx envcontext.ProviderCallContext, op string) error {
	source, err := w.volumeSource()
	if err != nil {
		return err
	}
	var failures []error
	var attachments []storage.VolumeAttachmentParams
	var ids []string
	for i := range w.Count {
		id, err := w.volumeID(ctx, source, i, op)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		ids = append(ids, id)
		attachments = append(attachments, storage.VolumeAttachmentParams{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0"), ReadOnly: op == "attach read-only"},
			Volume:           w.volume(i), VolumeId: id,
		})
	}
	if isImport(op) {
		return errors.Join(failures...)
	}
	switch op {
	case "create":
		var params []storage.VolumeParams
		for i := range w.Count {
			params = append(params, storage.VolumeParams{Tag: w.volume(i), Size: w.Size, ResourceTags: w.tags(i, firstOwner)})
		}
		var results []storage.CreateVolumesResult
		results, err = source.CreateVolumes(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "attach", "attach read-only":
		var results []storage.AttachVolumesResult
		results, err = source.AttachVolumes(ctx, attachments)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "resize":
		resizer, ok := source.(storage.VolumeResizer)
		if !ok {
			return errUnsupported
		}
		var params []storage.VolumeResizeParams
		for i, id := range ids {
			params = append(params, storage.VolumeResizeParams{Tag: w.volume(i), VolumeId: id, Size: w.grown()})
		}
		var results []storage.ResizeVolumesResult
		results, err = resizer.ResizeVolumes(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
			if r.Error == nil && r.VolumeInfo.Size != w.grown() {
				failures = append(failures, fmt.Errorf("%d MiB after growing to %d", r.VolumeInfo.Size, w.grown()))
			}
		}
	case "detach":
		failures, err = source.DetachVolumes(ctx, attachments)
	case "snapshot":
		var params []storage.VolumeSnapshotParams
		for i, id := range ids {
			params = append(params, storage.VolumeSnapshotParams{
				VolumeId: id, ResourceTags: w.snapshotTags(i),
				Attributes: map[string]any{loop.FreezeLimitAttribute: freezeLimit.String()},
			})
		}
		var results []storage.CreateSnapshotsResult
		results, err = source.(storage.VolumeSnapshotter).CreateVolumeSnapshots(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "clone":
		var params []storage.VolumeCloneParams
		for i := range w.Count {
			params = append(params, storage.VolumeCloneParams{
				VolumeParams: storage.VolumeParams{Tag: w.volume(i), Size: w.Size, ResourceTags: w.tags(i, firstOwner)},
				Origin:       storage.Origin{SnapshotId: w.snapshotID(i)},
			})
		}
		var results []storage.CreateVolumesResult
		results, err = source.(storage.VolumeCloner).CloneVolumes(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "destroy snapshots":
		var snapshots []string
		for i := range w.Count {
			snapshots = append(snapshots, w.snapshotID(i))
		}
		failures, err = source.(storage.VolumeSnapshotter).DestroyVolumeSnapshots(ctx, snapshots)
	case "destroy":
		failures, err = source.DestroyVolumes(ctx, ids)
	case "release":
		failures, err = source.ReleaseVolumes(ctx, ids)
	case "tag":
		failures, err = source.(storage.VolumeTagger).TagVolumes(ctx, w.nextTags(ids))
	default:
		panic(op)
	}
	return errors.Join(append(failures, err)...)
}

// volumeID returns the ID of a volume. An imported volume is imported first.
func (w world) volumeID(ctx envcontext.ProviderCallContext, source storage.VolumeSource, i int, op string) (string, error) {
	if !w.Imported && !w.Released && !isImport(op) {
		return w.id(i), nil
	}
	importer, ok := source.(storage.VolumeImporter)
	if !ok {
		return "", errUnsupported
	}
	id, err := w.importID(i)
	if err != nil {
		return "", err
	}
	info, err := importer.ImportVolume(ctx, id, w.importTags(i))
	return info.VolumeId, err
}

func (w world) doFilesystems(ctx envcontext.ProviderCallContext, op string) error {
	source, err := w.filesystemSource()
	if err != nil {
		return err
	}
	var failures []error
	var attachments []storage.FilesystemAttachmentParams
	var ids []string
	for i := range w.Count {
		id, err := w.filesystemID(ctx, source, i, op)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		ids = append(ids, id)
		attachments = append(attachments, storage.FilesystemAttachmentParams{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0"), ReadOnly: op == "attach read-only"},
			Filesystem:       w.filesystem(i), FilesystemId: id, Path: w.path(i),
		})
	}
	if isImport(op) {
		return errors.Join(failures...)
	}
	switch op {
	case "create":
		var params []storage.FilesystemParams
		for i := range w.Count {
			params = append(params, w.params(i))
		}
		var results []storage.CreateFilesystemsResult
		results, err = source.CreateFilesystems(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "attach", "attach read-only":
		var results []storage.AttachFilesystemsResult
		results, err = source.AttachFilesystems(ctx, attachments)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "resize":
		resizer, ok := source.(storage.FilesystemResizer)
		if !ok {
			return errUnsupported
		}
		var params []storage.FilesystemResizeParams
		for i, id := range ids {
			params = append(params, storage.FilesystemResizeParams{Tag: w.filesystem(i), FilesystemId: id, Size: w.grown()})
		}
		var results []storage.ResizeFilesystemsResult
		results, err = resizer.ResizeFilesystems(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "detach":
		failures, err = source.DetachFilesystems(ctx, attachments)
	case "snapshot":
		var params []storage.FilesystemSnapshotParams
		for i, id := range ids {
			params = append(params, storage.FilesystemSnapshotParams{FilesystemId: id, ResourceTags: w.snapshotTags(i)})
		}
		var results []storage.CreateSnapshotsResult
		results, err = source.(storage.FilesystemSnapshotter).CreateFilesystemSnapshots(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "clone":
		var params []storage.FilesystemCloneParams
		for i := range w.Count {
			params = append(params, storage.FilesystemCloneParams{FilesystemParams: w.params(i), Origin: storage.Origin{SnapshotId: w.snapshotID(i)}})
		}
		var results []storage.CreateFilesystemsResult
		results, err = source.(storage.FilesystemCloner).CloneFilesystems(ctx, params)
		for _, r := range results {
			failures = append(failures, r.Error)
		}
	case "destroy snapshots":
		var snapshots []string
		for i := range w.Count {
			snapshots = append(snapshots, w.snapshotID(i))
		}
		failures, err = source.(storage.FilesystemSnapshotter).DestroyFilesystemSnapshots(ctx, snapshots)
	case "destroy":
		failures, err = source.DestroyFilesystems(ctx, ids)
	case "release":
		failures, err = source.ReleaseFilesystems(ctx, ids)
	case "tag":
		failures, err = source.(storage.FilesystemTagger).TagFilesystems(ctx, w.nextTags(ids))
	default:
		panic(op)
	}
	return errors.Join(append(failures, err)...)
}

// filesystemID returns the ID of a filesystem. An imported filesystem is imported first.
func (w world) filesystemID(ctx envcontext.ProviderCallContext, source storage.FilesystemSource, i int, op string) (string, error) {
	if !w.Imported && !w.Released && !isImport(op) {
		return w.id(i), nil
	}
	importer, ok := source.(storage.FilesystemImporter)
	if !ok {
		return "", errUnsupported
	}
	id, err := w.importID(i)
	if err != nil {
		return "", err
	}
	info, err := importer.ImportFilesystem(ctx, id, w.importTags(i))
	return info.FilesystemId, err
}

// params returns the creation parameters of a filesystem.
func (w world) params(i int) storage.FilesystemParams {
	p := storage.FilesystemParams{Tag: w.filesystem(i), Size: w.Size, ResourceTags: w.tags(i, firstOwner)}
	if w.onVolumes() {
		p.Volume = w.volume(i)
		p.Attributes = map[string]any{"fs": w.Kind}
	}
	return p
}
