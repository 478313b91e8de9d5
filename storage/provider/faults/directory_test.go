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

// isOfDirectory reports whether an operation is on a storage directory.
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

// trashedAt is the time at which the objects were moved to the trash.
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
		// A missing object was deleted before.
		if !errors.Is(err, jujuerrors.NotFound) {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// switchOff does what remains of a machine that was switched off while its storage was
// attached: no mounts and no loop devices, and no detach.
func (s stepTest) switchOff() {
	s.Helper()
	unix.Sync()
	s.clear()
	if s.onVolumes() {
		s.must(s.backing(), "attach")
	}
}

// moveDir replaces all files and directories of the storage directory by copies, as
// moving it to another disk does.
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

// copyDir copies a storage directory in use, and that of the volumes with its
// filesystems. The copied volumes are attached.
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

// copyTree copies a directory with all attributes of its files, and replaces an existing
// copy.
func (s stepTest) copyTree(from, to string) {
	s.Helper()
	if err := os.RemoveAll(to); err != nil {
		s.Fatal(err)
	}
	command(s, "cp", "-a", from, to)
}

// inUse describes all mounts and loop devices. The text is equal as long as nobody
// changes any.
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
	for name, file := range loops {
		seq, err := os.ReadFile(filepath.Join("/sys/block", name, "diskseq"))
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s, the disk %s, of %s", name, strings.TrimSpace(string(seq)), file))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// checkOriginal checks that the mounts and devices of the original of a copy are
// unchanged.
func (s stepTest) checkOriginal() {
	s.Helper()
	if !s.Copied {
		return
	}
	if now := s.inUse(); now != s.used {
		s.Fatalf("mounts and devices are\n%s\nwant\n%s", now, s.used)
	}
	if s.isVolatile() {
		original := s
		original.world = s.original()
		for i := range s.Count {
			checkContents(s, original.data(i), i)
		}
	}
}

// attachOriginal attaches the original of a copy again, after a power cut has detached
// it.
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

// trashed lists the records and the objects in the trash.
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

// checkAndPurgeTrash checks the contents of the objects in the trash, and purges it.
func (s stepTest) checkAndPurgeTrash() {
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
