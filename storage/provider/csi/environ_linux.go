package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

var (
	_ storage.ContextSource = (*environSource)(nil)
	_ storage.VolumeResizer = (*environSource)(nil)

	_ storage.VolumeImporter       = (*environSource)(nil)
	_ storage.VolumeParamsImporter = (*environSource)(nil)
)

// environSource is the source of volumes that any machine can have, block devices or filesystems. It keeps no
// records: the ID of a volume is the driver's, and the caller records its context. The caller notes that a volume
// is made before it calls, and repeats the call with the same parameters.
type environSource struct {
	config Config

	mu sync.Mutex
	// contexts are those of volumes that were created, until the caller asks for them.
	contexts map[string]map[string]string
}

func newEnvironSource(config Config) (storage.VolumeSource, error) {
	config.NodeSocket = config.Socket // the node services are elsewhere
	return &environSource{config: config, contexts: make(map[string]map[string]string)}, nil
}

// controllerCall is one bulk call of the controller service.
type controllerCall struct {
	ctx    context.Context
	config Config
	driver func() (*driver, error)
	end    func()
}

// End ends the bulk call.
func (c *controllerCall) End() { c.end() }

func (s *environSource) begin(ctx context.Context) (*controllerCall, error) {
	connect, disconnect := connecting(ctx, s.config)
	return &controllerCall{ctx, s.config, connect, disconnect}, nil
}

// MaxConcurrentCalls implements [storage.ConcurrentSource].
func (s *environSource) MaxConcurrentCalls() int { return s.config.AtOnce }

// ValidateVolumeParams implements [storage.VolumeSource].
func (s *environSource) ValidateVolumeParams(p storage.VolumeParams) error {
	return (&volumeSource{source{config: s.config}}).ValidateVolumeParams(p)
}

// CreateVolumes implements [storage.VolumeSource].
func (s *environSource) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	creating := object.Bulk[storage.VolumeParams]{
		Verb: "creating", Objects: "volumes", Key: volumeKey, AtOnce: s.config.AtOnce,
		Name: func(p storage.VolumeParams) string { return "volume " + p.Tag.Id() },
	}
	return object.Do(ctx, creating, s.begin, params, (*controllerCall).create, s.created)
}

// created returns the result of making a volume, and keeps its context.
func (s *environSource) created(p storage.VolumeParams, v *csi.Volume, err error) storage.CreateVolumesResult {
	if err != nil {
		return storage.CreateVolumesResult{Error: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contexts[v.GetVolumeId()] = s.config.contextOf(p.Attributes, v.GetVolumeContext())
	return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: storage.VolumeInfo{
		VolumeId: v.GetVolumeId(), Size: uint64(v.GetCapacityBytes()) >> 20, Persistent: true,
	}}}
}

func (c *controllerCall) create(p storage.VolumeParams) (*csi.Volume, error) { return c.make(p, "") }

// make returns a volume for a tag, with the contents of a snapshot if that has an ID: a new one, or what an
// earlier call has made. Its errors do not say that nothing exists, as an earlier call may have made it, with
// one exception: a driver that has no such snapshot has no volume of the name either.
func (c *controllerCall) make(p storage.VolumeParams, snapshot string) (*csi.Volume, error) {
	d, r, err := c.request(p)
	if err == nil && snapshot != "" {
		r.FromSnapshot = snapshot
		err = d.mustSnapshot()
	}
	if err != nil {
		return nil, storage.Refused(beforeCreation(c.ctx, err))
	}
	made, err := d.createVolume(nameOf(p.ResourceTags), r)
	if err != nil && snapshot != "" && outcomeOf(err) == gone {
		return nil, storage.NothingMade(ofOrigin(err))
	}
	if err != nil {
		return nil, ofCreation(err)
	}
	if err := checkID(made.GetVolumeId()); err != nil {
		return nil, err
	}
	if made.GetCapacityBytes() == 0 { // the driver does not know it
		made.CapacityBytes = r.Bytes
	}
	if capacity := made.GetCapacityBytes(); capacity < r.Bytes {
		if err := d.deleteVolume(made.GetVolumeId()); err != nil {
			return nil, storage.InProgress(errors.Annotatef(err, "removing a volume that is too small"))
		}
		return nil, storage.NothingMade(storage.Permanent(errors.Errorf(
			"CreateVolume: the driver made %d bytes, and %d were requested: choose another size or pool", capacity, r.Bytes)))
	}
	return made, nil
}

// request returns the driver, and what it is asked for.
func (c *controllerCall) request(p storage.VolumeParams) (*driver, request, error) {
	size, err := object.SizeInBytes(p.Size)
	if err != nil {
		return nil, request{}, errors.Trace(err)
	}
	parsed, err := c.config.parse(p.Attributes)
	if err != nil {
		return nil, request{}, errors.Trace(err)
	}
	r := request{Bytes: int64(size), Block: parsed.block, Filesystem: parsed.filesystem, Flags: parsed.flags, Parameters: parsed.parameters}
	d, err := c.driver()
	if err != nil || p.Attachment == nil {
		return d, r, errors.Trace(err)
	}
	hasTopology, err := d.hasTopology()
	if err != nil || !hasTopology {
		return d, r, mark(err)
	}
	on, err := c.machine(p.Attachment.Machine)
	if err != nil {
		return nil, r, c.waitForMachine(err, p.Attachment.Machine)
	}
	r.Topology = on.Topology
	return d, r, nil
}

// filesystemContext is the key in the recorded context of a volume that is a filesystem. Its value is a
// [mountedAs] in JSON. The driver does not see it.
const filesystemContext = "stowage.io/csi-filesystem"

// mountedAs is how a driver makes and mounts a filesystem.
type mountedAs struct {
	Type  string   `json:"type,omitempty"`
	Flags []string `json:"flags,omitempty"`
}

// contextOf returns the context of a volume that is to be recorded, given that of the driver.
func (c Config) contextOf(attrs map[string]any, ofDriver map[string]string) map[string]string {
	parsed, err := c.parse(attrs)
	if err != nil || parsed.block {
		return ofDriver
	}
	text, _ := json.Marshal(mountedAs{parsed.filesystem, parsed.flags}) // of strings
	context := map[string]string{filesystemContext: string(text)}
	maps.Copy(context, ofDriver)
	return context
}

// requestIn returns how a volume with a recorded context is used, and the context for the driver.
func requestIn(recorded map[string]string) (r request, forDriver map[string]string, err error) {
	text, ok := recorded[filesystemContext]
	if !ok {
		return request{Block: true}, recorded, nil
	}
	forDriver = maps.Clone(recorded)
	delete(forDriver, filesystemContext)
	r, err = requestOf(text)
	return r, forDriver, errors.Annotate(err, "context of the volume")
}

// requestOf returns how a volume that is a filesystem is used, given a [mountedAs] in JSON.
func requestOf(text string) (request, error) {
	var as mountedAs
	if err := json.Unmarshal([]byte(text), &as); err != nil {
		return request{}, errors.NewNotValid(nil, "it does not say how to mount the filesystem: not a JSON object with type and flags")
	}
	return request{Filesystem: as.Type, Flags: as.Flags}, nil
}

// ofCreation marks the error of a call that makes a volume.
func ofCreation(err error) error {
	switch outcomeOf(err) {
	case goesOn, unknown:
		return mark(err)
	}
	return storage.Refused(mark(err))
}

// machine returns what the driver there says about a machine.
func (c *controllerCall) machine(tag names.Tag) (machine.Driver, error) {
	at, ok := tag.(names.MachineTag)
	if !ok {
		return machine.Driver{}, errors.NotSupportedf("volumes of a CSI driver on %v", tag)
	}
	if c.config.Orchestrator == nil {
		return machine.Driver{}, errors.NotSupportedf("volumes of a CSI driver without an orchestrator")
	}
	orchestrator, err := c.config.Orchestrator.Orchestrator(c.ctx)
	if err != nil {
		return machine.Driver{}, storage.Transient(err)
	}
	drivers, ok := orchestrator.(storage.MachineDrivers)
	if !ok {
		return machine.Driver{}, errors.NotSupportedf("volumes of a CSI driver with orchestrator %s", orchestrator.Name())
	}
	found, err := drivers.MachineDriver(at, c.config.Name)
	return found, errors.Trace(err)
}

// waitForMachine makes the error of machine wait if the driver has said nothing about the machine yet.
func (c *controllerCall) waitForMachine(err error, tag names.Tag) error {
	if !errors.Is(err, errors.NotFound) {
		return err
	}
	return storage.Transient(errors.New(fmt.Sprintf(
		"node_id of machine %s is not known: run CSI driver %s there, and start the agent with a file that describes provider %s",
		c.nameOf(tag), c.config.Driver, c.config.Name)))
}

// nameOf returns the name of a machine, or its number.
func (c *controllerCall) nameOf(tag names.Tag) string {
	at, _ := tag.(names.MachineTag)
	if orchestrator, err := c.config.Orchestrator.Orchestrator(c.ctx); err == nil {
		if node, err := orchestrator.NodeOf(c.ctx, at); err == nil {
			return node.Name
		}
	}
	return tag.Id()
}

// ListVolumes implements [storage.VolumeSource]. It is not supported: a driver does not say whose its
// volumes are.
func (s *environSource) ListVolumes(envcontext.ProviderCallContext) ([]string, error) {
	return nil, errors.NotSupportedf("listing the volumes of CSI driver %s", s.config.Driver)
}

// DescribeVolumes implements [storage.VolumeSource]. It is not supported.
func (s *environSource) DescribeVolumes(_ envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	results := make([]storage.DescribeVolumesResult, len(ids))
	for i, id := range ids {
		results[i].Error = errors.NotSupportedf("describing volume %s of CSI driver %s", id, s.config.Driver)
	}
	return results, nil
}

// DestroyVolumes implements [storage.VolumeSource].
func (s *environSource) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	destroying := object.Bulk[string]{Verb: "destroying", Objects: "volumes", Name: object.ByID, Key: object.ByID, AtOnce: s.config.AtOnce}
	return object.DoEach(ctx, destroying, s.begin, ids, func(c *controllerCall, id string) error {
		d, err := c.driver()
		if err != nil {
			return errors.Trace(err)
		}
		return mark(d.deleteVolume(id))
	})
}

// ResizeVolumes implements [storage.VolumeResizer]. The plan of a machine that has a volume attached does the
// rest ([plans.Resizer]).
func (s *environSource) ResizeVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	return object.Do(ctx, s.config.resizing(), s.begin, params, (*controllerCall).resize, resizedVolume)
}

// resize makes a volume larger, and returns its size in MiB.
func (c *controllerCall) resize(p storage.VolumeResizeParams) (uint64, error) {
	size, err := object.SizeInBytes(p.Size)
	if err != nil {
		return 0, errors.Trace(err)
	}
	d, err := c.driver()
	if err != nil {
		return 0, errors.Trace(err)
	}
	can, err := d.controllerCan(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	if err != nil {
		return 0, mark(err)
	}
	if !can {
		return 0, d.errCannotGrow()
	}
	got, _, err := d.controllerExpand(p.VolumeId, size, nil) // the caller does not say whether it is a filesystem
	return got >> 20, mark(err)
}

// ReleaseVolumes implements [storage.VolumeSource]. The driver knows nothing of owners.
func (s *environSource) ReleaseVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return make([]error, len(ids)), nil
}

// ImportVolume implements [storage.VolumeImporter].
func (s *environSource) ImportVolume(ctx envcontext.ProviderCallContext, id string, resourceTags map[string]string) (storage.VolumeInfo, error) {
	return s.ImportVolumeWithParams(ctx, storage.VolumeImportParams{VolumeId: id, ResourceTags: resourceTags})
}

// ImportVolumeWithParams implements [storage.VolumeParamsImporter]. The context of the volume is what the pool
// says.
func (s *environSource) ImportVolumeWithParams(ctx envcontext.ProviderCallContext, p storage.VolumeImportParams) (storage.VolumeInfo, error) {
	if p.Copy {
		return storage.VolumeInfo{}, errCannotCopy()
	}
	size, parameters, err := s.look(ctx, p)
	if err != nil {
		return storage.VolumeInfo{}, errors.Annotatef(err, "importing volume %q", p.VolumeId)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contexts[p.VolumeId] = s.config.contextOf(p.Attributes, parameters)
	return storage.VolumeInfo{VolumeId: p.VolumeId, Size: size >> 20, Persistent: true}, nil
}

// look returns the size, in bytes, of a volume that is to be imported, and the context that it has.
func (s *environSource) look(ctx context.Context, p storage.VolumeImportParams) (size uint64, parameters map[string]string, err error) {
	if err := checkImportID(p.VolumeId); err != nil {
		return 0, nil, errors.Trace(err)
	}
	parsed, err := s.config.parse(p.Attributes)
	if err != nil {
		return 0, nil, errors.Trace(err)
	}
	c, err := s.begin(ctx)
	if err != nil {
		return 0, nil, errors.Trace(err)
	}
	defer c.End()
	d, err := c.driver()
	if err == nil {
		err = d.validate(p.VolumeId, request{Block: parsed.block, Filesystem: parsed.filesystem, Flags: parsed.flags}, parsed.parameters)
	}
	if err == nil {
		size, err = d.sizeOf(p.VolumeId)
	}
	return size, parsed.parameters, mark(err)
}

// VolumeContext implements [storage.ContextSource].
func (s *environSource) VolumeContext(id string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.contexts[id]
	delete(s.contexts, id)
	return found
}

// AttachVolumes implements [storage.VolumeSource]. It is not supported: see AttachVolumesIn.
func (s *environSource) AttachVolumes(_ envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	results := make([]storage.AttachVolumesResult, len(params))
	for i, p := range params {
		results[i].Error = errors.NotSupportedf("attaching volume %s without its context", p.Volume.Id())
	}
	return results, nil
}

// inContext is a volume to attach, with its context.
type inContext struct {
	storage.VolumeAttachmentParams
	context map[string]string
}

// AttachVolumesIn implements [storage.ContextSource]. The results have a plan, which the machine carries out.
func (s *environSource) AttachVolumesIn(
	ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams, contexts []map[string]string,
) ([]storage.AttachVolumesResult, error) {
	items := make([]inContext, len(params))
	for i, p := range params {
		items[i] = inContext{p, contexts[i]}
	}
	attaching := object.Bulk[inContext]{
		Verb: "attaching", Objects: "volumes", AtOnce: s.config.AtOnce,
		Name: func(p inContext) string { return attachedName(p.VolumeAttachmentParams) },
		Key:  func(p inContext) string { return attachedKey(p.VolumeAttachmentParams) },
	}
	return object.Do(ctx, attaching, s.begin, items, (*controllerCall).attach,
		func(p inContext, plan *storage.VolumeAttachmentPlanInfo, err error) storage.AttachVolumesResult {
			if err != nil {
				return storage.AttachVolumesResult{Error: err}
			}
			return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
				Volume: p.Volume, Machine: p.Machine, VolumeAttachmentInfo: storage.VolumeAttachmentInfo{PlanInfo: plan},
			}}
		})
}

// attach publishes a volume for a machine, if the controller service has to, and returns what the machine
// has to do.
func (c *controllerCall) attach(p inContext) (*storage.VolumeAttachmentPlanInfo, error) {
	r, volumeContext, err := requestIn(p.context)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if p.ReadOnly && r.Block {
		return nil, errNotReadOnly()
	}
	on, err := c.machine(p.Machine)
	if err != nil {
		return nil, c.waitForMachine(err, p.Machine)
	}
	d, err := c.driver()
	if err != nil {
		return nil, errors.Trace(err)
	}
	byController, err := d.controllerCan(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	if err != nil {
		return nil, mark(err)
	}
	var publishContext map[string]string
	if byController {
		publishContext, err = d.controllerPublish(p.VolumeId, on.NodeID, r, volumeContext)
		if err != nil {
			return nil, mark(err)
		}
	}
	attributes := map[string]string{providerAttribute: string(c.config.Name), volumeAttribute: p.VolumeId}
	deviceType := DeviceType
	if !r.Block {
		deviceType, attributes[filesystemAttribute] = FilesystemDeviceType, p.context[filesystemContext]
	}
	for name, context := range map[string]map[string]string{volumeContextAttribute: volumeContext, publishContextAttribute: publishContext} {
		if len(context) == 0 {
			continue
		}
		text, err := json.Marshal(context)
		if err != nil {
			return nil, errors.Trace(err)
		}
		attributes[name] = string(text)
	}
	return &storage.VolumeAttachmentPlanInfo{DeviceType: deviceType, DeviceAttributes: attributes}, nil
}

// DetachVolumes implements [storage.VolumeSource].
func (s *environSource) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	detaching := object.Bulk[storage.VolumeAttachmentParams]{
		Verb: "detaching", Objects: "volumes", Name: attachedName, Key: attachedKey, AtOnce: s.config.AtOnce,
	}
	return object.DoEach(ctx, detaching, s.begin, params, (*controllerCall).detach)
}

func (c *controllerCall) detach(p storage.VolumeAttachmentParams) error {
	on, err := c.machine(p.Machine)
	if errors.Is(err, errors.NotFound) {
		return nil // nothing was ever published for it
	} else if err != nil {
		return errors.Trace(err)
	}
	d, err := c.driver()
	if err != nil {
		return errors.Trace(err)
	}
	byController, err := d.controllerCan(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	if err != nil || !byController {
		return mark(err)
	}
	return mark(d.controllerUnpublish(p.VolumeId, on.NodeID))
}
