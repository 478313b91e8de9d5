package api

import (
	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

// SetMachineSpace records the space that the agent's machine has for the storage of its providers. The
// error satisfies errors.IsNotImplemented if the server is too old for that.
func (c *Client) SetMachineSpace(space map[storage.ProviderType]machine.Space) error {
	return write(c, "SetMachineSpace", []map[storage.ProviderType]machine.Space{space})
}
