package csi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// bulk is one bulk call.
type bulk struct {
	*object.MountCall
	config Config
	dir    string
	// driver connects to the driver when it is first called.
	driver func() (*driver, error)
	end    func()
}

// begin begins a bulk call. The files of the call are what the driver publishes.
func begin(ctx context.Context, config Config, dir string) (*bulk, error) {
	c, err := object.BeginMounts(ctx, dir, "published", object.EachObject)
	if err != nil {
		return nil, errors.Trace(err)
	}
	connect, disconnect := connecting(ctx, config)
	return &bulk{MountCall: c, config: config, dir: dir, driver: connect, end: func() {
		disconnect()
		c.End()
	}}, nil
}

// connecting returns a function that connects to the driver when it is first called, and one that
// disconnects from it.
func connecting(ctx context.Context, config Config) (driverOf func() (*driver, error), disconnect func()) {
	var connected *driver
	driverOf = sync.OnceValues(func() (*driver, error) {
		var err error
		connected, err = connect(ctx, config)
		return connected, err
	})
	return driverOf, func() {
		if connected != nil {
			connected.close()
		}
	}
}

// End ends the bulk call.
func (c *bulk) End() { c.end() }

// volume is a volume of the driver, with or without a filesystem, during one bulk call that has
// locked it.
type volume struct {
	*bulk
	id  string
	rec record
}

// load returns a volume that was made, completely or in part. The error satisfies errors.IsNotFound
// if the volume has no record.
func (c *bulk) load(id string) (*volume, error) {
	v := &volume{bulk: c, id: id}
	return v, errors.Trace(c.Records.Load(id, &v.rec))
}

// withExisting calls do with a volume. It succeeds if the volume does not exist.
func (c *bulk) withExisting(id string, do func(*volume) error) error {
	unlock, err := c.LockObject(id)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	v, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	return do(v)
}

// withMade calls do with a volume that must be complete.
func (c *bulk) withMade(id string, do func(*volume) error) error {
	unlock, err := c.LockObject(id)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	v, err := c.load(id)
	if errors.Is(err, errors.NotFound) {
		return storage.Permanent(errors.Annotate(err, "it was not made here"))
	} else if err != nil {
		return errors.Trace(err)
	}
	if v.rec.Phase != object.PhaseReady {
		return errors.New("it is incomplete: create it again, or destroy it")
	}
	return do(v)
}

// Save records the volume durably.
func (v *volume) Save() error { return v.Records.Save(v.id, v.rec) }

// Note records the volume.
func (v *volume) Note() error { return v.Records.Note(v.id, v.rec) }

// wanted is a volume that is to be made.
type wanted struct {
	tag          names.Tag
	size         uint64 // MiB
	attributes   map[string]any
	resourceTags map[string]string
	block        bool
	// contents returns whose contents a new volume gets. It is nil for an empty volume.
	contents func() (contents, error)
}

// contents are what a volume is made from.
type contents struct {
	fromSnapshot, fromVolume string // one is the driver's ID, and the other is empty
	size                     uint64 // bytes
}

// create returns a volume: a new one, or what an earlier call has made.
func (c *bulk) create(w wanted) (*volume, error) {
	size, err := object.SizeInBytes(w.size)
	if err != nil {
		return nil, errors.Trace(err)
	}
	owner := storage.OwnerOf(w.resourceTags)
	if err := checkOwner(owner); err != nil {
		return nil, errors.Trace(err)
	}
	id, err := object.NewID(w.tag.String(), owner)
	if err != nil {
		return nil, errors.Trace(err)
	}
	unlock, err := c.LockObject(id)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer unlock()
	if _, err := c.Resolve(w.tag.String(), w.resourceTags); err != nil {
		return nil, errors.Trace(err)
	}
	v, err := c.load(id)
	if err == nil && v.rec.Phase == object.PhaseDestroying {
		if err = v.destroy(); err == nil {
			err = errors.NotFound
		}
	}
	if errors.Is(err, errors.NotFound) {
		if v, err = c.note(id, size, w); err == nil {
			err = v.make(true)
		}
		return v, errors.Trace(err)
	}
	if err == nil && v.rec.Phase == object.PhaseCreating {
		if err := v.make(false); err != nil {
			return nil, errors.Trace(err)
		}
	}
	if err == nil {
		err = v.fit(size)
	}
	return v, errors.Trace(afterEarlier(err))
}

// fit makes a volume that an earlier call has made at least size bytes large.
func (v *volume) fit(size uint64) error {
	if size > v.rec.Size {
		return v.resize(size)
	}
	return v.rec.CheckSize(v.rec.Size, size)
}

// afterEarlier returns the error of a creation after an earlier call that may have made something. A
// permanent error would say that the earlier call has made nothing, too.
func afterEarlier(err error) error {
	if storage.IsPermanent(err) {
		return errors.New(err.Error())
	}
	return err
}

// checkOwner returns an error unless the owner has a UUID: the name at the driver is made from it.
func checkOwner(owner storage.Owner) error {
	if owner.EntityUUID == "" {
		return errors.NewNotValid(nil, fmt.Sprintf("resource tag %s is missing: volumes of a CSI driver are named by it", storage.EntityUUIDTag))
	}
	return nil
}

// note records the request for a new volume. After an error nothing was made.
func (c *bulk) note(id string, size uint64, w wanted) (*volume, error) {
	parsed, err := c.config.parse(w.attributes)
	if err != nil {
		return nil, storage.NothingMade(err)
	}
	var of contents
	if w.contents != nil {
		if of, err = w.contents(); err != nil {
			return nil, storage.NothingMade(err)
		}
		if size < of.size {
			return nil, storage.NothingMade(errors.NewNotValid(nil, fmt.Sprintf("size %d MiB: the original has %d MiB", size>>20, of.size>>20)))
		}
	}
	topology, err := c.topology()
	if err != nil {
		return nil, errors.Trace(err)
	}
	v := &volume{bulk: c, id: id, rec: record{
		Size:  size,
		Phase: object.PhaseCreating,
		Name:  nameOf(w.resourceTags),
		Request: request{
			Bytes: int64(size), Block: w.block, Parameters: parsed.parameters, Topology: topology,
			FromSnapshot: of.fromSnapshot, FromVolume: of.fromVolume,
		},
		// The filesystem in the contents may be smaller than the volume.
		ExpandNode: w.contents != nil && !w.block && size > of.size,
		Ownership:  object.Ownership{ResourceTags: w.resourceTags},
	}}
	if !w.block {
		v.rec.Request.Filesystem, v.rec.Request.Flags = parsed.filesystem, parsed.flags
	}
	return v, errors.Trace(v.Save())
}

// nameOf returns the name that a volume or snapshot of an owner has at the driver.
func nameOf(resourceTags map[string]string) string {
	return "stowage-" + storage.OwnerOf(resourceTags).EntityUUID
}

// topology returns from where the machine can use new volumes. After an error nothing was made.
func (c *bulk) topology() (map[string]string, error) {
	d, err := c.driver()
	var topology map[string]string
	if err == nil {
		topology, err = d.topology()
	}
	if err != nil {
		return nil, storage.NothingMade(beforeCreation(c.Context, err))
	}
	return topology, nil
}

// beforeCreation returns the error of what comes before the call that makes a volume. Whatever goes on
// at the driver then makes none.
func beforeCreation(ctx context.Context, err error) error {
	if ctx.Err() != nil || storage.IsPermanent(err) {
		return err
	}
	return storage.Transient(errors.New(err.Error()))
}

// make lets the driver make the volume that was recorded. If no earlier call can have made it, and
// this one has not, make removes the record.
func (v *volume) make(first bool) error {
	made, err := v.createAtDriver()
	if err == nil {
		return v.keep(made)
	}
	switch outcomeOf(err) {
	case goesOn, unknown:
		return mark(err)
	}
	return afterRefusal(err, first || v.missesOrigin(err), func() error { return v.Records.Remove(v.id) })
}

// missesOrigin reports whether the driver answers a creation by saying that what the volume was to get the
// contents of does not exist. Then it has no volume of the name either, which it would have returned.
func (v *volume) missesOrigin(err error) bool {
	return v.rec.Request.contentSource() != nil && outcomeOf(err) == gone
}

// afterRefusal returns the error of a creation that the driver has ended, and in which it has made nothing.
// If no earlier attempt can have made anything, nothing exists, and the record is removed.
func afterRefusal(err error, nothingExists bool, remove func() error) error {
	err = mark(err)
	if !nothingExists {
		return afterEarlier(err)
	}
	if rerr := remove(); rerr != nil {
		return afterEarlier(errors.Annotatef(err, "(removing its record: %v)", rerr))
	}
	return storage.NothingMade(err)
}

func (v *volume) createAtDriver() (*csi.Volume, error) {
	d, err := v.driver()
	if err != nil {
		return nil, err
	}
	return d.createVolume(v.rec.Name, v.rec.Request)
}

// keep records the volume that the driver has made.
func (v *volume) keep(made *csi.Volume) error {
	id := made.GetVolumeId()
	if err := checkID(id); err != nil {
		return err
	}
	crash.At("volume made")
	v.rec.VolumeID, v.rec.Context = id, made.GetVolumeContext()
	capacity := made.GetCapacityBytes()
	if capacity != 0 && capacity < v.rec.Request.Bytes {
		if err := v.destroy(); err != nil {
			return storage.InProgress(errors.Annotatef(err, "removing a volume that is too small"))
		}
		return storage.NothingMade(storage.Permanent(errors.Errorf(
			"CreateVolume: the driver made %d bytes, and %d were requested: choose another size or pool", capacity, v.rec.Request.Bytes)))
	}
	v.rec.Size = max(v.rec.Size, uint64(capacity))
	v.rec.Phase = object.PhaseReady
	return errors.Trace(v.Save())
}

func errAttached() error { return errors.New("it is attached: detach it first") }

// destroy removes the volume and its record.
func (v *volume) destroy() error {
	if v.rec.Phase == object.PhaseReleased {
		return object.ErrReleased(v.id)
	}
	if v.rec.Staged {
		return errAttached()
	}
	if v.rec.VolumeID == "" {
		// What an interrupted creation has made can be found only by creating it.
		made, err := v.createAtDriver()
		if err != nil && v.missesOrigin(err) {
			return errors.Trace(v.Records.Remove(v.id))
		}
		if err == nil {
			err = checkID(made.GetVolumeId())
		}
		if err != nil {
			return errors.Annotate(mark(err), "asking for what an interrupted creation may have made")
		}
		v.rec.VolumeID = made.GetVolumeId()
	}
	d, err := v.driver()
	if err == nil {
		err = d.mustDelete()
	}
	if err != nil {
		return mark(err)
	}
	v.rec.Phase = object.PhaseDestroying
	if err := object.IgnoreNoSpace(v.Save()); err != nil {
		return errors.Trace(err)
	}
	if err := d.deleteVolume(v.rec.VolumeID); err != nil {
		return mark(err)
	}
	crash.At("volume deleted")
	return errors.Trace(v.Records.Remove(v.id))
}

// resize makes the volume at least size bytes large.
func (v *volume) resize(size uint64) error {
	if size > v.rec.Size {
		if err := v.expandAtController(size); err != nil {
			return errors.Trace(err)
		}
	}
	return v.expandOnNode()
}

func (v *volume) expandAtController(size uint64) error {
	d, err := v.driver()
	if err != nil {
		return errors.Trace(err)
	}
	byController, err := d.controllerCan(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	if err != nil {
		return mark(err)
	}
	byNode, err := d.nodeCan(csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	if err != nil {
		return mark(err)
	}
	got, nodeNext := size, byNode
	switch {
	case byController:
		if got, nodeNext, err = d.controllerExpand(v.rec.VolumeID, size, v.rec.Request.capability()); err != nil {
			return mark(err)
		}
		nodeNext = nodeNext && byNode
	case !byNode:
		return d.errCannotGrow()
	case !v.rec.Staged:
		return errors.New("CSI driver " + v.config.Driver + " grows only volumes that are attached: attach it first")
	}
	v.rec.Size, v.rec.ExpandNode = got, nodeNext || v.rec.ExpandNode
	return errors.Trace(v.Save())
}

// expandOnNode tells the node service that the volume has grown, if that is outstanding and the
// volume is on this machine.
func (v *volume) expandOnNode() error {
	if !v.rec.ExpandNode || !v.rec.Staged {
		return nil
	}
	d, err := v.driver()
	if err != nil {
		return errors.Trace(err)
	}
	byNode, err := d.nodeCan(csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	if err == nil && byNode {
		err = v.callNodeExpand(d)
	}
	if err != nil {
		return mark(err)
	}
	v.rec.ExpandNode = false
	return errors.Trace(v.Save())
}

func (v *volume) callNodeExpand(d *driver) error {
	at, err := v.publishedPath()
	if err != nil {
		return errors.Trace(err)
	}
	request := &csi.NodeExpandVolumeRequest{
		VolumeId: v.rec.VolumeID, VolumePath: at, VolumeCapability: v.rec.Request.capability(), Secrets: d.secrets,
	}
	if v.rec.Size > 0 { // that of a planned volume may be unknown
		request.CapacityRange = &csi.CapacityRange{RequiredBytes: int64(v.rec.Size)}
	}
	if request.StagingTargetPath, err = v.usedStaging(d); err != nil {
		return err
	}
	_, err = call(d, "NodeExpandVolume", d.node.NodeExpandVolume, request)
	return err
}

// publishedPath returns where the driver publishes the volume: a directory or a file.
func (v *volume) publishedPath() (string, error) {
	dir, err := v.Files.RealPath()
	return filepath.Join(dir, v.id), errors.Trace(err)
}

// stagingPath returns where the driver stages the volume.
func (v *volume) stagingPath() (string, error) {
	dir, err := v.Files.RealPath()
	return filepath.Join(filepath.Dir(dir), "staging", v.id), errors.Trace(err)
}

// usedStaging returns the staging path, or "" if the driver has no staging.
func (v *volume) usedStaging(d *driver) (string, error) {
	stages, err := d.nodeCan(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if err != nil || !stages {
		return "", err
	}
	return v.stagingPath()
}

// removeLeft removes a path at which nothing is mounted: what a driver was to remove, or what a
// restart of the machine has left.
func removeLeft(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Trace(err)
	}
	return nil
}
