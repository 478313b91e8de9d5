//go:build linux && faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	jujuerrors "github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// isOfDirectory tells whether an operation is one on a storage directory.
func isOfDirectory(op string) bool {
	return slices.Contains([]string{"reidentify moved", "reidentify copied", "trash", "delete", "purge"}, op)
}

func (w world) directory() provider.StorageDirectory {
	d := provider.StorageDirectory{Provider: storage.ProviderType(w.Kind), Path: w.dir()}
	if w.onVolumes() {
		d.Provider = provider.ManagedSourceType
	}
	return d
}

// trashedAt is when the objects are put in the trash.
var trashedAt = time.Unix(1700000000, 0)

func (w world) doDirectory(ctx context.Context, op string) error {
	d := w.directory()
	switch op {
	case "reidentify moved":
		return d.Reidentify(ctx, provider.Moved)
	case "reidentify copied":
		return d.Reidentify(ctx, provider.Copied)
	case "purge":
		return d.PurgeTrash(ctx, trashedAt.Add(time.Second))
	}
	var failures []error
	for i := range w.Count {
		owner := storage.OwnerOf(w.tags(i, firstOwner))
		var err error
		if op == "trash" {
			err = d.Trash(ctx, w.id(i), owner, trashedAt)
		} else {
			err = d.Delete(ctx, w.id(i), owner)
		}
		// One that is not there was deleted before.
		if !errors.Is(err, jujuerrors.NotFound) {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// switchOff is a machine that is switched off with all in use: no mount and no loop
// device is left, and nobody has detached them.
func (s stepTest) switchOff() {
	s.Helper()
	unix.Sync()
	s.clear()
	if s.onVolumes() {
		s.must(s.backing(), "attach")
	}
}

// moveDir makes all files and directories of the storage directory other ones, as moving
// it to another disk does.
func (s stepTest) moveDir() {
	s.Helper()
	before := s.world.dir() + "-before"
	if err := os.Rename(s.world.dir(), before); err != nil {
		s.Fatal(err)
	}
	s.copyTree(before, s.world.dir())
	if err := os.RemoveAll(before); err != nil {
		s.Fatal(err)
	}
	unix.Sync()
}

// copyDir makes a copy of a storage directory that is in use, and of that of the volumes
// that its filesystems are on. The copies of these are attached.
func (s stepTest) copyDir() {
	s.Helper()
	unix.Sync()
	if s.onVolumes() {
		s.copyTree(s.backing().original().dir(), s.backing().dir())
		s.must(s.backing(), "reidentify copied")
		s.must(s.backing(), "attach")
	}
	s.copyTree(s.original().dir(), s.world.dir())
	unix.Sync()
}

// copyTree copies a directory, with all that is kept of its files, to where another may
// have been.
func (s stepTest) copyTree(from, to string) {
	s.Helper()
	if err := os.RemoveAll(to); err != nil {
		s.Fatal(err)
	}
	command(s, "cp", "-a", from, to)
}

// inUse describes the mounts and loop devices that there are: the same text for those
// that nobody has touched.
func (b *base) inUse() string {
	b.Helper()
	var all []string
	for _, m := range devicetest.Mounts(b, b.dir) {
		all = append(all, fmt.Sprintf("mount %d of %s at %s with %s", m.ID, m.Source, m.Mountpoint, m.Options))
	}
	loops, err := loopsOf(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	for file, name := range loops {
		seq, err := os.ReadFile(filepath.Join("/sys/block", name, "diskseq"))
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s, the disk %s, of %s", name, strings.TrimSpace(string(seq)), file))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// checkOriginal makes sure that what is in use of the original of a copy is as it was.
func (s stepTest) checkOriginal() {
	s.Helper()
	if !s.Copied {
		return
	}
	if now := s.inUse(); now != s.used {
		s.Fatalf("in use is\n%s\nand was\n%s", now, s.used)
	}
	if s.isVolatile() {
		original := s
		original.world = s.original()
		for i := range s.Count {
			checkContents(s, original.data(i), i)
		}
	}
}

// attachOriginal attaches the original of a copy again, which a power cut has detached.
func (s *stepTest) attachOriginal() {
	s.Helper()
	if s.onVolumes() {
		s.must(s.original().backing(), "attach")
	}
	s.must(s.original(), "attach")
	if s.isVolatile() {
		original := *s
		original.world = s.original()
		original.write()
	}
	s.used = s.inUse()
}

// trashed lists what is in the trash: the records, and the objects.
func (s stepTest) trashed() (records, objects []string) {
	s.Helper()
	entries, err := filepath.Glob(filepath.Join(s.world.dir(), ".trash", "*"))
	if err != nil {
		s.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry, ".json") {
			records = append(records, entry)
		} else {
			objects = append(objects, entry)
		}
	}
	return records, objects
}

// takeTrashed takes what is in the trash out of it, with its contents.
func (s stepTest) takeTrashed() {
	s.Helper()
	_, objects := s.trashed()
	slices.Sort(objects)
	for i, path := range objects {
		if !s.isVolumes() {
			path = filepath.Join(path, "data")
		}
		checkContents(s, path, i)
	}
	s.must(s.world, "purge")
}
