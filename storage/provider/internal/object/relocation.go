package object

// Relocation says how a directory came to be where it is.
type Relocation int

const (
	// Moved: what the directory was moved from is gone.
	Moved Relocation = iota

	// Copied: the original may be in use. What is attached or mounted there, and its
	// mount points, are not the copy's.
	Copied
)
