package machine

// Space is the space that a machine has for the storage of one of its providers, in MiB.
type Space struct {
	// SizeMiB is the size of what the provider keeps storage on, such as a filesystem or the memory.
	SizeMiB uint64 `json:"size-mib" cbor:"1,keyasint,omitempty"`
	// FreeMiB is how much of it is free.
	FreeMiB uint64 `json:"free-mib" cbor:"2,keyasint,omitempty"`
}
