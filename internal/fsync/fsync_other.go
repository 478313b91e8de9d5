//go:build !linux

package fsync

import "os"

func syncData(f *os.File) error { return f.Sync() }
