package storage

import (
	"fmt"
	"maps"
	"slices"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
)

// Volume is a volume that exists.
type Volume struct {
	// Tag is the volume's identity in the model.
	Tag names.VolumeTag
	VolumeInfo
}

// VolumeInfo describes a volume as its provider made it.
type VolumeInfo struct {
	// VolumeId is the provider's own identity for the volume. It is unique
	// within the provider and stable for the life of the volume.
	VolumeId string

	// HardwareId is the name under /dev/disk/by-id that the volume has on any machine, or
	// empty if it is unknown.
	HardwareId string

	// WWN is the volume's World Wide Name, or empty.
	WWN string

	// Size is the actual size in MiB: at least the requested size.
	Size uint64

	// Persistent volumes outlive the machine that they are attached to. Volumes that are not
	// persistent are destroyed when the machine is removed from the state.
	Persistent bool
}

// VolumeParams says which volume to create.
type VolumeParams struct {
	// Tag identifies the volume permanently: a source that has already made a volume for this
	// tag returns that volume.
	Tag names.VolumeTag

	// Size is the least size, in MiB.
	Size uint64

	// Provider is the type of the provider that receives the call.
	Provider ProviderType

	// Attributes are the settings of the volume's pool.
	Attributes map[string]any

	// ResourceTags are the tags that the provider sets on everything that it makes.
	ResourceTags map[string]string

	// Attachment says which machine the volume will be attached to, so that the provider can
	// create the volume where that machine can attach it. A provider may attach the volume
	// right away. Attachment may be nil. It is nil, for example, when the volume may exist
	// from an earlier call and is no longer wanted anywhere: the caller then repeats the
	// creation to learn what exists.
	Attachment *VolumeAttachmentParams
}

// AttachmentParams holds the parameters common to volume and filesystem attachments.
type AttachmentParams struct {
	// Provider is the type of the provider that receives the call.
	Provider ProviderType

	// Machine is the host: a machine, or another kind of host, such as a unit, if the provider
	// supports it.
	Machine names.Tag

	// InstanceId is the machine's identity with the provider that runs it, or empty for a host
	// that is not provisioned.
	InstanceId instance.Id

	// ReadOnly asks for a read-only attachment. If the source cannot make one, the error
	// satisfies errors.IsNotSupported.
	ReadOnly bool
}

// VolumeAttachmentParams says which volume to attach or detach, and where.
type VolumeAttachmentParams struct {
	AttachmentParams

	// Volume is the volume's identity in the model.
	Volume names.VolumeTag

	// VolumeId is the provider's identity for the volume. It is empty only
	// within [VolumeParams], when the volume does not exist yet.
	VolumeId string
}

// VolumeAttachment is a volume that is attached to a host.
type VolumeAttachment struct {
	Volume  names.VolumeTag
	Machine names.Tag
	VolumeAttachmentInfo
}

// VolumeAttachmentInfo says how to find the volume's block device on the host. A provider
// fills in what it knows. The strongest identity that matches a device of the host wins.
type VolumeAttachmentInfo struct {
	// DeviceName is the device's name below /dev, without "/dev/".
	DeviceName string

	// DeviceLink is the path of a stable link to the device.
	DeviceLink string

	// BusAddress is where the device sits on its bus, such as "scsi@1:2.3.4".
	BusAddress string

	// ReadOnly is true if the device cannot be written.
	ReadOnly bool

	// PlanInfo says what the host itself must do to make the device appear. It is nil if the
	// host need not do anything after the provider's call.
	PlanInfo *VolumeAttachmentPlanInfo
}

// VolumeAttachmentPlan says what a machine must do to make an attached volume visible as a
// block device.
type VolumeAttachmentPlan struct {
	Volume  names.VolumeTag
	Machine names.MachineTag
	VolumeAttachmentPlanInfo
}

// VolumeAttachmentPlanInfo is the content of a [VolumeAttachmentPlan].
type VolumeAttachmentPlanInfo struct {
	// DeviceType chooses the plan.
	DeviceType DeviceType

	// DeviceAttributes are the plan's settings. They may hold secrets.
	DeviceAttributes map[string]string
}

// String shows only the names of the attributes, so that a plan can be logged without its
// secrets.
func (i VolumeAttachmentPlanInfo) String() string {
	return fmt.Sprintf("{%s %q}", i.DeviceType, slices.Sorted(maps.Keys(i.DeviceAttributes)))
}

// GoString is String, for %#v.
func (i VolumeAttachmentPlanInfo) GoString() string { return i.String() }

// String shows no secrets: see [VolumeAttachmentPlanInfo.String].
func (p VolumeAttachmentPlan) String() string {
	return fmt.Sprintf("{%s %s %s}", p.Volume, p.Machine, p.VolumeAttachmentPlanInfo)
}

// GoString is String, for %#v.
func (p VolumeAttachmentPlan) GoString() string { return p.String() }

// DeviceType says how the block device of an attached volume becomes visible on its machine.
type DeviceType string

const (
	// DeviceTypeLocal devices appear without any action of the machine.
	DeviceTypeLocal DeviceType = "local"
	// DeviceTypeISCSI devices appear after the machine has logged in to an iSCSI target.
	DeviceTypeISCSI DeviceType = "iscsi"
)
