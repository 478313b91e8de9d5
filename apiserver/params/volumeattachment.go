package params

import (
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// VolumeAttachment is a volume that is attached to a host.
type VolumeAttachment struct {
	VolumeTag  string               `json:"volume-tag"`
	MachineTag string               `json:"machine-tag"`
	Info       VolumeAttachmentInfo `json:"info"`
}

// VolumeAttachmentInfo says how to find the volume's block device on its host.
type VolumeAttachmentInfo struct {
	DeviceName string `json:"device-name,omitempty"`
	DeviceLink string `json:"device-link,omitempty"`
	BusAddress string `json:"bus-address,omitempty"`
	ReadOnly   bool   `json:"read-only,omitempty"`

	// PlanInfo is what the host itself must do before the device appears; nil if nothing.
	PlanInfo *VolumeAttachmentPlanInfo `json:"plan-info,omitempty"`
}

// VolumeAttachments holds the attachments that a bulk call is about.
type VolumeAttachments struct {
	VolumeAttachments []VolumeAttachment `json:"volume-attachments"`
}

// VolumeAttachmentParams describes an attachment of a volume to make or undo.
type VolumeAttachmentParams struct {
	VolumeTag  string `json:"volume-tag"`
	MachineTag string `json:"machine-tag"`

	// VolumeId is empty until the volume is provisioned.
	VolumeId string `json:"volume-id,omitempty"`

	// InstanceId is empty until the machine is provisioned.
	InstanceId string `json:"instance-id,omitempty"`

	Provider string `json:"provider"`
	ReadOnly bool   `json:"read-only,omitempty"`

	// Pool is the volume's pool, nil if it is not known.
	Pool *Pool `json:"pool,omitempty"`
}

// VolumeAttachmentPlan is what a machine must do, or has done, to make an
// attached volume visible as a block device.
type VolumeAttachmentPlan struct {
	VolumeTag  string                   `json:"volume-tag"`
	MachineTag string                   `json:"machine-tag"`
	Life       life.Value               `json:"life,omitempty"`
	PlanInfo   VolumeAttachmentPlanInfo `json:"plan-info"`

	// BlockDevice is the resulting device.
	BlockDevice storage.BlockDevice `json:"block-device,omitempty"`
}

// VolumeAttachmentPlanInfo is the content of a plan. Its attributes may hold
// secrets.
type VolumeAttachmentPlanInfo struct {
	DeviceType       storage.DeviceType `json:"device-type,omitempty"`
	DeviceAttributes map[string]string  `json:"device-attributes,omitempty"`
}

// String returns the type and only the names of the attributes, so that a logged plan reveals
// no secret.
func (i VolumeAttachmentPlanInfo) String() string {
	return storage.VolumeAttachmentPlanInfo(i).String()
}

// GoString is String, for %#v.
func (i VolumeAttachmentPlanInfo) GoString() string { return i.String() }

// VolumeAttachmentPlans holds the plans that a bulk call is about.
type VolumeAttachmentPlans struct {
	VolumeAttachmentPlans []VolumeAttachmentPlan `json:"volume-plans"`
}

// VolumeAttachmentResult is a volume attachment or an error.
type VolumeAttachmentResult struct {
	Result VolumeAttachment `json:"result"`
	Error  *Error           `json:"error,omitempty"`
}

// VolumeAttachmentResults holds the results of a bulk call.
type VolumeAttachmentResults struct {
	Results []VolumeAttachmentResult `json:"results"`
}

// VolumeAttachmentParamsResult is the parameters of an attachment, or an error.
type VolumeAttachmentParamsResult struct {
	Result VolumeAttachmentParams `json:"result"`
	Error  *Error                 `json:"error,omitempty"`
}

// VolumeAttachmentParamsResults holds the results of a bulk call.
type VolumeAttachmentParamsResults struct {
	Results []VolumeAttachmentParamsResult `json:"results"`
}

// VolumeAttachmentPlanResult is a volume attachment plan or an error.
type VolumeAttachmentPlanResult struct {
	Result VolumeAttachmentPlan `json:"result"`
	Error  *Error               `json:"error,omitempty"`
}

// VolumeAttachmentPlanResults holds the results of a bulk call.
type VolumeAttachmentPlanResults struct {
	Results []VolumeAttachmentPlanResult `json:"results"`
}
