package machine

// Driver is what the CSI driver of a provider says about a machine on which its node service runs.
type Driver struct {
	// NodeID identifies the machine at the driver's controller service.
	NodeID string `json:"node-id" cbor:"1,keyasint,omitempty"`
	// Topology says from where the machine can use volumes. It is empty if that does not matter.
	Topology map[string]string `json:"topology,omitempty" cbor:"2,keyasint,omitempty"`
	// MaxVolumes is how many volumes of the driver the machine can have. 0: it is not limited.
	MaxVolumes int64 `json:"max-volumes,omitempty" cbor:"3,keyasint,omitempty"`
}
