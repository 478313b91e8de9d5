package object

// Relocation is how a directory got to its present place.
type Relocation int

const (
	// Moved: the original no longer exists.
	Moved Relocation = iota

	// Copied: the original may be in use. Its attachments, mounts and mount points do not
	// belong to the copy.
	Copied
)
