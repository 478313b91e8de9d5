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

	// HardwareId is the name under /dev/disk/by-id that the volume has on any
	// machine, or empty if that is not known.
	HardwareId string

	// WWN is the volume's World Wide Name, or empty.
	WWN string

	// Size is what was really made, in MiB: at least what was asked for.
	Size uint64

	// Persistent volumes outlive the machine that they are attached to: when that is removed
	// from the state, those that are not persistent are destroyed.
	Persistent bool
}

// VolumeParams says which volume to create.
type VolumeParams struct {
	// Tag identifies the volume for good: a source that has made a volume for
	// this tag before returns that one.
	Tag names.VolumeTag

	// Size is the least size, in MiB.
	Size uint64

	// Provider is the type of the provider that is asked.
	Provider ProviderType

	// Attributes are the settings of the volume's pool.
	Attributes map[string]any

	// ResourceTags are to be set on whatever the provider makes.
	ResourceTags map[string]string

	// Attachment is the machine that the volume is wanted on, so that the
	// provider can create it where it can be attached. A provider may attach
	// it right away. It may be nil: so it is when the volume may have been made
	// before, and is asked for again to be known, though it is wanted nowhere now.
	Attachment *VolumeAttachmentParams
}

// AttachmentParams is what volume and filesystem attachments have in common.
type AttachmentParams struct {
	// Provider is the type of the provider that is asked.
	Provider ProviderType

	// Machine is the host: a machine, or another kind of host, such as a unit,
	// where the provider supports it.
	Machine names.Tag

	// InstanceId is the machine's identity to the provider that runs it, or
	// empty for a host that is not provisioned.
	InstanceId instance.Id

	// ReadOnly asks for an attachment that cannot be written through. Where
	// that is not to be had the error satisfies errors.IsNotSupported.
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

// VolumeAttachmentInfo says how to find the volume's block device on the host. A
// provider fills in what it knows; the strongest identity that matches a device
// of the host wins.
type VolumeAttachmentInfo struct {
	// DeviceName is the device's name below /dev, without "/dev/".
	DeviceName string

	// DeviceLink is the path of a stable link to the device.
	DeviceLink string

	// BusAddress is where the device sits on its bus, such as "scsi@1:2.3.4".
	BusAddress string

	// ReadOnly is true if the device cannot be written.
	ReadOnly bool

	// PlanInfo is what the host itself must do before the device shows, or nil
	// if the provider's call was all.
	PlanInfo *VolumeAttachmentPlanInfo
}

// VolumeAttachmentPlan is what a machine must do to make an attached volume
// visible as a block device.
type VolumeAttachmentPlan struct {
	Volume  names.VolumeTag
	Machine names.MachineTag
	VolumeAttachmentPlanInfo
}

// VolumeAttachmentPlanInfo is the content of a [VolumeAttachmentPlan].
type VolumeAttachmentPlanInfo struct {
	// DeviceType chooses the plan.
	DeviceType DeviceType

	// DeviceAttributes are that plan's own settings. They may hold secrets.
	DeviceAttributes map[string]string
}

// String shows only the names of the attributes, so that a plan can be logged without its
// secrets.
func (i VolumeAttachmentPlanInfo) String() string {
	return fmt.Sprintf("{%s %q}", i.DeviceType, slices.Sorted(maps.Keys(i.DeviceAttributes)))
}

// GoString is String, for %#v.
func (i VolumeAttachmentPlanInfo) GoString() string { return i.String() }

// String tells no secrets, as that of the content.
func (p VolumeAttachmentPlan) String() string {
	return fmt.Sprintf("{%s %s %s}", p.Volume, p.Machine, p.VolumeAttachmentPlanInfo)
}

// GoString is String, for %#v.
func (p VolumeAttachmentPlan) GoString() string { return p.String() }

// DeviceType says how the block device of an attached volume comes to be visible
// on its machine.
type DeviceType string

const (
	// DeviceTypeLocal devices show without the machine doing anything.
	DeviceTypeLocal DeviceType = "local"
	// DeviceTypeISCSI devices show when the machine has logged in to an iSCSI
	// target.
	DeviceTypeISCSI DeviceType = "iscsi"
)
