package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/fsync"
)

// datum is data that was written and synced.
type datum struct {
	seed   uint64
	offset int64
	length int
}

func (d datum) contents() []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], d.seed)
	data := make([]byte, d.length)
	rand.NewChaCha8(seed).Read(data)
	return data
}

const (
	// mostFiles and mostLength keep the data on a filesystem well below the smallest size.
	mostFiles  = 8
	mostLength = 384 << 10
	// slot is the part of a block device that is written at once.
	slot = 1 << 20
)

// writer writes to attached storage as a user does who needs the data to be durable.
type writer struct {
	*soak
	rand    *rand.Rand
	written int64
}

// write writes data to the instance, which must be settled and attached. It first forgets data
// that may be overwritten.
func (w *writer) write(i *instance) error {
	d := datum{seed: w.rand.Uint64(), length: 1 + w.rand.IntN(mostLength)}
	i.written++
	var name, path string
	flags := os.O_WRONLY
	if i.block() {
		d.offset = w.rand.Int64N(int64(i.settled.SizeMiB)) * slot
		name, path = fmt.Sprintf("MiB %d", d.offset/slot), i.settled.Location
	} else {
		name = fmt.Sprintf("file-%d", i.written%mostFiles)
		path = filepath.Join(i.mount, name)
		flags |= os.O_CREATE | os.O_TRUNC
	}
	delete(i.data, name)
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if i.block() {
		if err := w.isOurs(i, path); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(d.contents(), d.offset); err != nil {
		return err
	}
	if err := fsync.File(f); err != nil {
		return err
	}
	if !i.block() {
		if err := fsync.Dir(i.mount); err != nil {
			return err
		}
	}
	i.data[name] = d
	w.written += int64(d.length)
	return nil
}

// isOurs verifies, now that the device is open, that it is not another program's.
func (s *soak) isOurs(i *instance, device string) error {
	loops, err := kernel.Loops(s.boundStorage())
	if err != nil {
		return err
	}
	ours := slices.Contains(loops, kernel.Loop{Path: device, File: s.volumeFile(i)})
	if i.provider == driverName {
		if loops, err = kernel.Loops(s.driver.stowage.DataDir); err != nil {
			return err
		}
		ours = slices.ContainsFunc(loops, func(l kernel.Loop) bool { return l.Path == device })
	}
	if !ours {
		return fmt.Errorf("%s is at %s, which is another's: %v", i.name, device, loops)
	}
	return nil
}

// checkData reads all data that was written to the instance, at the device or mount point
// where it is attached.
func (s *soak) checkData(i *instance, location string) error {
	for _, name := range slices.Sorted(maps.Keys(i.data)) {
		d := i.data[name]
		path := location
		if !i.block() {
			path = filepath.Join(location, name)
		}
		got, err := read(path, d)
		if err != nil {
			return fmt.Errorf("data of %s is lost, %s: %w", i.name, name, err)
		}
		if want := d.contents(); !bytes.Equal(got, want) {
			at := 0
			for at < len(got) && got[at] == want[at] {
				at++
			}
			return fmt.Errorf("data of %s is lost, %s: %d of %d bytes are there, and byte %d is another", i.name, name, len(got), len(want), at)
		}
		s.figures.checked += int64(d.length)
	}
	return nil
}

func read(path string, d datum) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	got := make([]byte, d.length)
	n, err := f.ReadAt(got, d.offset)
	if err == io.EOF {
		err = nil // the comparison reports that
	}
	// Drop the cache, so that the next read comes from the disk again, as far as possible.
	_ = unix.Fadvise(int(f.Fd()), d.offset, int64(d.length), unix.FADV_DONTNEED)
	return got[:n], err
}
