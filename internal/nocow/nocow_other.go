//go:build !linux

package nocow

import "os"

// Set does nothing: there is no btrfs.
func Set(*os.File) error { return nil }

// IsSet reports that the file is written in place.
func IsSet(*os.File) (bool, error) { return true, nil }

// Applies reports that the file is not on btrfs.
func Applies(*os.File) (bool, error) { return false, nil }
