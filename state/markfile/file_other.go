//go:build !linux

package markfile

import "os"

const noFollow = 0

func syncData(file *os.File) error { return file.Sync() }
