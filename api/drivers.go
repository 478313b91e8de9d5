package api

import (
	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

// SetMachineDrivers records what the CSI drivers of the agent's machine say about it. The error satisfies
// errors.IsNotImplemented if the server is too old for that.
func (c *Client) SetMachineDrivers(drivers map[storage.ProviderType]machine.Driver) error {
	return write(c, "SetMachineDrivers", []map[storage.ProviderType]machine.Driver{drivers})
}
