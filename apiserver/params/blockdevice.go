package params

import "github.com/stowage-io/stowage/storage"

// MachineBlockDevices holds all block devices of a machine.
type MachineBlockDevices struct {
	Machine      string                `json:"machine"`
	BlockDevices []storage.BlockDevice `json:"block-devices,omitempty"`
}

// BlockDeviceResult is a block device or an error.
type BlockDeviceResult struct {
	Result storage.BlockDevice `json:"result"`
	Error  *Error              `json:"error,omitempty"`
}

// BlockDeviceResults holds the results of a bulk call.
type BlockDeviceResults struct {
	Results []BlockDeviceResult `json:"results"`
}
