//go:build linux

package managed

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// foreign makes a filesystem with foreignUUID, as by hand, with data.
func (t *managedTest) foreign(fs string) *devicetest.Loop {
	t.Helper()
	loop := t.Loop(sourcetest.ManagedSizes[fs])
	withUUID := map[string][]string{
		"ext4":  {"-U", t.foreignUUID},
		"xfs":   {"-m", "uuid=" + t.foreignUUID},
		"btrfs": {"-U", t.foreignUUID},
	}
	sourcetest.Command(t, "mkfs."+fs, append(withUUID[fs], "-q", loop.Path)...)
	sourcetest.Command(t, "mount", "--mkdir", loop.Path, t.Path())
	t.WriteData()
	t.UnmountExternally()
	return loop
}

func (t *managedTest) tryImport(id string) (storage.FilesystemInfo, error) {
	t.Helper()
	importer, ok := t.Source().(storage.FilesystemImporter)
	if !ok {
		t.Fatal("the source does not import filesystems")
	}
	return importer.ImportFilesystem(t.CallContext(), id, map[string]string{"owner": "me"})
}

func TestManagedCreateTakesOverByUUID(t *testing.T) {
	for _, typed := range []bool{true, false} {
		forEachType(t, func(mt *managedTest, fs string) {
			t := mt.T
			loop := mt.foreign(fs)
			before := edges(t, loop.File)
			mt.Attributes = map[string]any{"uuid": strings.ToUpper(mt.foreignUUID), "mount-options": "noatime"}
			attribute := fs
			if !typed {
				attribute = ""
			}
			for range 2 {
				got, err := mt.TryCreate(attribute)
				if err != nil {
					t.Fatal(err)
				}
				want := storage.FilesystemInfo{FilesystemId: sourcetest.ManagedID, Size: uint64(sourcetest.ManagedSizes[fs]) >> 20}
				if got.FilesystemInfo != want {
					t.Errorf("got %+v, want %+v", got.FilesystemInfo, want)
				}
			}
			if !bytes.Equal(before, edges(t, loop.File)) {
				t.Error("the device was written to")
			}
			mt.Attach()
			mt.CheckData()
			if m := mt.MountInfo(); m.FSType != fs || !strings.Contains(m.Options, "noatime") {
				t.Errorf("mounted %+v", m)
			}
			mt.resizeDevice(loop, 3*sourcetest.ManagedSizes[fs])
			if mt.checkGrowing(fs) {
				mt.resize(3 * sourcetest.ManagedSizes[fs])
			}
			mt.Detach()
			if err := mt.TryDestroy(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestManagedTakeOverRefusals(t *testing.T) {
	const (
		foreign = "FOREIGN" // stands for the UUID of the foreign filesystem
		other   = "11111111-2222-3333-4444-555555555555"
	)
	ext4 := func(mt *managedTest) *devicetest.Loop { return mt.foreign("ext4") }
	for _, test := range []struct {
		name, fs, uuid, options string
		put                     func(*managedTest) *devicetest.Loop
		permanent               bool
		words                   []string
	}{
		{"a blank device", "ext4", foreign, "", func(mt *managedTest) *devicetest.Loop { return mt.Loop(sourcetest.ManagedExt4Size) },
			true, []string{"data of an unknown kind", foreign, "nothing was written"}},
		{"another UUID", "ext4", other, "", ext4, true, []string{"ext4 with UUID " + foreign, other}},
		{"another type", "btrfs", foreign, "", ext4, true, []string{"holds ext4", "not btrfs", `set attribute "fs" to "ext4"`}},
		{"options of another type", "", foreign, "logbufs=8", ext4, true, []string{`"logbufs" is not an option for mounting ext4`}},
		{"unsupported type", "", foreign, "", func(mt *managedTest) *devicetest.Loop {
			loop := mt.Loop(sourcetest.ManagedExt4Size)
			sourcetest.Command(mt, "mkfs.ext2", "-q", "-U", mt.foreignUUID, loop.Path)
			return loop
		}, true, []string{"holds ext2", "only ext4, xfs, btrfs"}},
		{"mounted", "ext4", foreign, "", func(mt *managedTest) *devicetest.Loop {
			loop := mt.foreign("ext4")
			sourcetest.Command(mt, "mount", "--mkdir", "--read-only", loop.Path, filepath.Join(mt.Top, "elsewhere"))
			mt.Cleanup(func() {
				if err := unix.Unmount(filepath.Join(mt.Top, "elsewhere"), 0); err != nil {
					mt.Error(err)
				}
			})
			return loop
		}, false, []string{"in use", "elsewhere", "unmount it first"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := test.put(mt)
			before := edges(t, loop.File)
			words := []string{"creating filesystem 0/2"}
			for _, word := range test.words {
				words = append(words, strings.ReplaceAll(word, foreign, mt.foreignUUID))
			}
			mt.Attributes = map[string]any{"uuid": strings.ReplaceAll(test.uuid, foreign, mt.foreignUUID), "mount-options": test.options}
			_, err := mt.TryCreate(test.fs)
			mt.CheckError(err, test.permanent, words...)
			if !bytes.Equal(before, edges(t, loop.File)) {
				t.Error("the device was written to")
			}
			if names, _ := filepath.Glob(mt.Dir + "/*/*"); len(names) > 0 {
				t.Errorf("the refused call left %q", names)
			}
		})
	}
}

func TestManagedNotTakenOverTwice(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	made := mt.record().UUID
	_, err := mt.tryImport(made)
	mt.CheckError(err, true, "is already in use as filesystem-0-2", "remove that filesystem first")
	mt.Attributes = map[string]any{"uuid": mt.foreignUUID}
	_, err = mt.TryCreate("ext4")
	mt.CheckError(err, true, "already exists", made+", not "+mt.foreignUUID)
}

// tryAttachImported attaches the imported filesystem.
func (t *managedTest) tryAttachImported() error {
	t.Helper()
	p := t.Attachment(false)
	p.FilesystemId = t.foreignUUID
	results, err := t.Source().AttachFilesystems(t.CallContext(), []storage.FilesystemAttachmentParams{p})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[0].Error
}

func (t *managedTest) detachImported() {
	t.Helper()
	p := t.Attachment(false)
	p.FilesystemId = t.foreignUUID
	results, err := t.Source().DetachFilesystems(t.CallContext(), []storage.FilesystemAttachmentParams{p})
	if err != nil || len(results) != 1 || results[0] != nil {
		t.Fatalf("got %v, %v", results, err)
	}
}

func TestManagedImport(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.foreign(fs)
		before := edges(t, loop.File)
		want := storage.FilesystemInfo{FilesystemId: mt.foreignUUID, Size: uint64(sourcetest.ManagedSizes[fs]) >> 20}
		imported := func(id string) {
			t.Helper()
			if got, err := mt.tryImport(id); err != nil || got != want {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		}
		imported(strings.ToUpper(mt.foreignUUID))
		imported(mt.foreignUUID)
		if !bytes.Equal(before, edges(t, loop.File)) {
			t.Error("the device was written to")
		}
		mt.CheckError(mt.tryAttachImported(), false, "volume of filesystem 0/2")
		mt.Filesystems = map[names.FilesystemTag]storage.Filesystem{
			sourcetest.ManagedTag: {Tag: sourcetest.ManagedTag, Volume: sourcetest.ManagedVolume, FilesystemInfo: want},
		}
		if err := mt.tryAttachImported(); err != nil {
			t.Fatal(err)
		}
		mt.CheckData()
		// The import is idempotent even while the filesystem is mounted.
		imported(mt.foreignUUID)
		// The volume is known from now on.
		mt.Filesystems = nil
		if err := mt.tryAttachImported(); err != nil {
			t.Fatal(err)
		}
		mt.detachImported()
		if results, err := mt.Source().ReleaseFilesystems(mt.CallContext(), []string{mt.foreignUUID}); err != nil || results[0] != nil {
			t.Fatalf("got %v, %v", results, err)
		}
		imported(mt.foreignUUID)
	})
}

func TestManagedImportRefusals(t *testing.T) {
	refused := func(t *testing.T, mt *managedTest, id string, kind errors.ConstError, words ...string) {
		t.Helper()
		_, err := mt.tryImport(id)
		if !errors.Is(err, kind) {
			t.Errorf("got %v, want %v", err, kind)
		}
		for _, word := range append(words, "importing filesystem "+id) {
			if err != nil && !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not say %q", err, word)
			}
		}
		if names, _ := filepath.Glob(mt.Dir + "/records/*"); len(names) > 0 {
			t.Errorf("the refused call left %q", names)
		}
	}
	t.Run("invalid UUID", func(t *testing.T) {
		mt := newManagedTest(t)
		for _, id := range []string{"", "/dev/sda", "../../etc/passwd", "LABEL=data", mt.foreignUUID + "-x", "{" + mt.foreignUUID + "}"} {
			refused(t, mt, id, errors.NotValid, "is not the UUID")
		}
	})
	t.Run("not found", func(t *testing.T) {
		mt := newManagedTest(t)
		refused(t, mt, mt.foreignUUID, errors.NotFound, mt.foreignUUID)
	})
	t.Run("a copy", func(t *testing.T) {
		mt := newManagedTest(t)
		loop := mt.foreign("ext4")
		clone := filepath.Join(mt.Top, "clone")
		sourcetest.Command(t, "cp", "--sparse=always", loop.Path, clone)
		other := devicetest.AttachLoop(t, clone)
		refused(t, mt, mt.foreignUUID, storage.ErrPermanent, loop.Path, other.Path, "one is a copy")
	})
	t.Run("mounted", func(t *testing.T) {
		forEachType(t, func(mt *managedTest, fs string) {
			t := mt.T
			loop := mt.foreign(fs)
			elsewhere := filepath.Join(mt.Top, "elsewhere")
			sourcetest.Command(mt, "mount", "--mkdir", loop.Path, elsewhere)
			refused(t, mt, mt.foreignUUID, errors.NotValid, loop.Path, "in use", "mounted at "+elsewhere, "unmount it first")
			if err := unix.Unmount(elsewhere, 0); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("unsupported type", func(t *testing.T) {
		mt := newManagedTest(t)
		loop := mt.Loop(sourcetest.ManagedExt4Size)
		sourcetest.Command(t, "mkfs.ext2", "-q", "-U", mt.foreignUUID, loop.Path)
		refused(t, mt, mt.foreignUUID, errors.NotValid, loop.Path, "ext2", "only ext4, xfs, btrfs")
	})
	t.Run("no storage directory", func(t *testing.T) {
		mt := newManagedTest(t)
		mt.foreign("ext4")
		if err := os.WriteFile(mt.Dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := mt.tryImport(mt.foreignUUID); err == nil {
			t.Error("imported without a record")
		}
	})
}

// A filesystem has the UUID of its owner. When it comes back to a machine that it has left while the
// machine was off, it replaces the record of then; another owner does not.
func TestManagedFilesystemReturns(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	const owner = "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b"
	create := func(tag, entity, uuid string) (storage.FilesystemInfo, error) {
		t.Helper()
		attributes := map[string]any{}
		if uuid != "" {
			attributes["uuid"] = uuid
		}
		results, err := mt.Source().CreateFilesystems(mt.CallContext(), []storage.FilesystemParams{{
			Tag: names.NewFilesystemTag(tag), Volume: sourcetest.ManagedVolume, Size: uint64(sourcetest.ManagedExt4Size) >> 20, Provider: "managed", Attributes: attributes,
			ResourceTags: map[string]string{storage.ModelUUIDTag: "model", storage.EntityUUIDTag: entity},
		}})
		if err != nil || len(results) != 1 {
			t.Fatalf("got %v, %v", results, err)
		}
		if results[0].Error != nil {
			return storage.FilesystemInfo{}, results[0].Error
		}
		return results[0].Filesystem.FilesystemInfo, nil
	}
	first, err := create("0/7", owner, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = create("0/8", "11111111-2222-3333-4444-555555555555", owner)
	mt.CheckError(err, true, "already in use as "+first.FilesystemId)

	// As long as it is mounted, the record stays: it is what shows that the mount is ours.
	at := mt.Attachment(false)
	at.Filesystem, at.FilesystemId = names.NewFilesystemTag("0/7"), first.FilesystemId
	attached, err := mt.Source().AttachFilesystems(mt.CallContext(), []storage.FilesystemAttachmentParams{at})
	if err != nil || len(attached) != 1 || attached[0].Error != nil {
		t.Fatalf("attaching: %v, %v", attached, err)
	}
	_, err = create("0/9", owner, owner)
	mt.CheckError(err, false, "in use")
	detached, err := mt.Source().DetachFilesystems(mt.CallContext(), []storage.FilesystemAttachmentParams{at})
	if err != nil || len(detached) != 1 || detached[0] != nil {
		t.Fatalf("detaching: %v, %v", detached, err)
	}
	if n := mt.Mounts(); n != 0 {
		t.Errorf("%d mounts are left", n)
	}

	again, err := create("0/9", owner, owner)
	if err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(mt.Dir + "/records/*.json")
	if err != nil || len(records) != 1 || !strings.Contains(records[0], again.FilesystemId) || again.FilesystemId == first.FilesystemId {
		t.Errorf("records %q, %v; want that of %s", records, err, again.FilesystemId)
	}
}

// A machine has made the filesystem of a shared volume, and failed before that was recorded. The
// machine that has the volume next knows the filesystem by its entity's UUID, and formats nothing.
// Finding N39: it refused to use the volume.
func TestManagedTakesOverWhatAnotherMachineMade(t *testing.T) {
	const owner = "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b"
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		create := func(entity string) error {
			t.Helper()
			results, err := mt.Source().CreateFilesystems(mt.CallContext(), []storage.FilesystemParams{{
				Tag: sourcetest.ManagedTag, Volume: sourcetest.ManagedVolume, Size: uint64(sourcetest.ManagedSizes[fs]) >> 20, Provider: "managed",
				Attributes:   map[string]any{"fs": fs},
				ResourceTags: map[string]string{storage.ModelUUIDTag: "model", storage.EntityUUIDTag: entity},
			}})
			if err != nil || len(results) != 1 {
				t.Fatalf("got %v, %v", results, err)
			}
			return results[0].Error
		}
		forget := func() {
			t.Helper()
			if err := os.RemoveAll(filepath.Join(mt.Dir, "records")); err != nil {
				t.Fatal(err)
			}
		}
		if err := create(owner); err != nil {
			t.Fatal(err)
		}
		attached := func(use func()) {
			t.Helper()
			at := []storage.FilesystemAttachmentParams{mt.Attachment(false)}
			at[0].FilesystemId = sourcetest.ManagedID + "-" + owner
			results, err := mt.Source().AttachFilesystems(mt.CallContext(), at)
			if err != nil || results[0].Error != nil {
				t.Fatalf("attaching: %v, %+v", err, results)
			}
			use()
			if errs, err := mt.Source().DetachFilesystems(mt.CallContext(), at); err != nil || errs[0] != nil {
				t.Fatalf("detaching: %v, %v", err, errs)
			}
		}
		attached(mt.WriteData)
		forget()
		mt.CheckError(create("11111111-2222-3333-4444-555555555555"), true, "refusing to format", owner)
		if err := create(owner); err != nil {
			t.Fatal(err)
		}
		attached(mt.CheckData)
		mt.Check(fs, loop)

		// What is not complete may be anything, and is left to the user.
		if fs == "btrfs" {
			forget()
			destroyBtrfs(t, loop)
			mt.CheckError(create(owner), false, "cannot be mounted", "stowage format")
		}
	})
}
