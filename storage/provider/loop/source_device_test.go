//go:build linux

package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func (t *loopTest) record(tag names.VolumeTag) record {
	t.Helper()
	var rec record
	store := t.Store()
	defer store.Close() // the disk may be unmounted before the test ends
	if err := store.Load(tag.String(), &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

func (t *loopTest) saveRecord(tag names.VolumeTag, rec record) {
	t.Helper()
	store := t.Store()
	defer store.Close() // the disk may be unmounted before the test ends
	if err := store.Save(tag.String(), rec); err != nil {
		t.Fatal(err)
	}
}

func TestLoopLifecycle(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	var st unix.Stat_t
	if err := unix.Stat(lt.File(tag), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != sourcetest.VolumeSize<<20 || st.Blocks*512 < sourcetest.VolumeSize<<20 || st.Mode&0o777 != 0o600 {
		t.Errorf("file of %d bytes, %d blocks, mode %o", st.Size, st.Blocks, st.Mode)
	}
	device := lt.Attach(tag, false)
	sourcetest.WriteDevice(t, device, "precious")
	lt.Detach(tag)
	lt.CheckLoops(0)
	device = lt.Attach(tag, false)
	sourcetest.CheckDevice(t, device, "precious")

	ids, err := lt.Source.ListVolumes(lt.Ctx)
	if err != nil || !slices.Equal(ids, []string{"volume-0-1"}) {
		t.Errorf("listed %v, %v", ids, err)
	}
	described, err := lt.Source.DescribeVolumes(lt.Ctx, []string{"volume-0-1", "volume-0-2"})
	if err != nil || len(described) != 2 {
		t.Fatalf("described %v, %v", described, err)
	}
	if want := (storage.VolumeInfo{VolumeId: "volume-0-1", Size: sourcetest.VolumeSize}); described[0].Error != nil || *described[0].VolumeInfo != want {
		t.Errorf("described %+v, %v", described[0].VolumeInfo, described[0].Error)
	}
	if !errors.Is(described[1].Error, errors.NotFound) {
		t.Errorf("described a missing volume: %v", described[1].Error)
	}
	lt.Detach(tag)
	lt.Destroy(tag)
}

// One call names a volume more than once. It is attached once.
func TestLoopDuplicateVolumeInOneCall(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	params := append(lt.Attachment(tag, false), lt.Attachment(tag, false)...)
	results, err := lt.Source.AttachVolumes(lt.Ctx, append(params, lt.Attachment(tag, true)...))
	if err != nil || results[0].Error != nil || results[1].Error != nil {
		t.Fatalf("%+v, %v", results, err)
	}
	if !reflect.DeepEqual(results[0], results[1]) {
		t.Errorf("attached as %+v and %+v", results[0].VolumeAttachment, results[1].VolumeAttachment)
	}
	sourcetest.CheckError(t, results[2].Error, true, "read-write", "wanted read-only")
	lt.CheckLoops(1)
	if failures, err := lt.Source.DetachVolumes(lt.Ctx, params); err != nil || failures[0] != nil || failures[1] != nil {
		t.Errorf("detaching: %v, %v", failures, err)
	}
	lt.Destroy(tag)
}

func TestLoopRestart(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	sourcetest.WriteDevice(t, device, "precious")
	for range 2 {
		lt.Restart()
		lt.Create(tag)
		if again := lt.Attach(tag, false); again != device {
			t.Errorf("attached as %s and as %s", device, again)
		}
		lt.CheckLoops(1)
	}
	sourcetest.CheckDevice(t, device, "precious")
	lt.Restart()
	lt.Detach(tag)
	lt.Restart()
	lt.Destroy(tag)
}

// The record is of an earlier boot, in which the disk may have had another number.
func TestLoopReboot(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	rec := lt.record(tag)
	rec.Phase, rec.BootID, rec.Dev, rec.Device, rec.DiskSeq = object.PhaseAttached, "earlier", rec.Dev+1, "loop0", 1
	lt.saveRecord(tag, rec)
	lt.Detach(tag)
	lt.Attach(tag, false)
	if got := lt.record(tag); got.BootID == "earlier" || got.Dev == rec.Dev {
		t.Errorf("record still says %+v", got)
	}
	lt.Detach(tag)
	lt.Destroy(tag)
}

func TestLoopAdoptsExistingDevice(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	sourcetest.Run(t, "losetup", "--find", lt.File(tag))
	before := devicetest.Loops(t, lt.Dir)
	if got := lt.Attach(tag, false); !slices.Equal(before, []string{filepath.Base(got)}) {
		t.Errorf("attached as %s, was %v", got, before)
	}
	lt.CheckLoops(1)
	lt.Detach(tag)
	lt.Destroy(tag)
}

func TestLoopRefusesDifferentAttachment(t *testing.T) {
	for _, test := range []struct {
		about string
		args  []string
		words []string
	}{
		{"read-only", []string{"--read-only"}, []string{"read-only", "wanted read-write", "detach it first"}},
		{"part of the file", []string{"--offset", "4096"}, []string{"a part of it", "detach it first"}},
	} {
		t.Run(test.about, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			sourcetest.Run(t, "losetup", append([]string{"--find"}, append(test.args, lt.File(tag))...)...)
			_, err := lt.TryAttach(tag, false)
			sourcetest.CheckError(t, err, true, append(test.words, "attaching volume 0/1")...)
			lt.CheckLoops(1)
			lt.detachForeign(tag)
			lt.Destroy(tag)
		})
	}
}

// Story D8.
func TestLoopAttachedTwiceRefused(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.Attach(tag, false)
	sourcetest.Run(t, "losetup", "--find", lt.File(tag))
	_, err := lt.TryAttach(tag, false)
	sourcetest.CheckError(t, err, true, "more than once")
	lt.detachForeign(tag)
	lt.Detach(tag)
	lt.CheckLoops(0)
	lt.Destroy(tag)
}

func TestLoopReadOnly(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, true)
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		f.Close()
	}
	if err == nil {
		t.Error("wrote to a read-only volume")
	}
	_, err = lt.TryAttach(tag, false)
	sourcetest.CheckError(t, err, true, "read-only", "wanted read-write")
	lt.Detach(tag)
	lt.Destroy(tag)
}

func TestLoopAttachedVolumeNotRemoved(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := filepath.Base(lt.Attach(tag, false))
	for what, remove := range map[string]func(envcontext.ProviderCallContext, []string) ([]error, error){
		"destroying": lt.Source.DestroyVolumes, "releasing": lt.Source.ReleaseVolumes,
	} {
		results, err := remove(lt.Ctx, []string{tag.String()})
		if err != nil {
			t.Fatal(err)
		}
		sourcetest.CheckError(t, results[0], false, what+" volume-0-1: it is attached as "+device+": detach it first")
	}
	lt.Restart()
	lt.Attach(tag, false)
	lt.CheckLoops(1)
	lt.Detach(tag)
	lt.Destroy(tag)
}

// The agent attached a device and crashed before it recorded that. The device does not
// block later calls. Unlike a device that somebody else attached, it is detached when its
// volume is removed.
func TestLoopCrashBeforeAttachmentRecorded(t *testing.T) {
	for _, then := range []string{"destroy", "release"} {
		for _, earlier := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, attached before: %v", then, earlier), func(t *testing.T) {
				lt := newLoopTest(t)
				tag := sourcetest.Volume(1)
				lt.Create(tag)
				before := lt.record(tag)
				if earlier {
					lt.Attach(tag, false)
					before = lt.record(tag)
					lt.Detach(tag)
					before.BootID = "earlier"
				}
				device := lt.Attach(tag, false)
				lt.saveRecord(tag, before)
				lt.Restart()
				remove := lt.Source.DestroyVolumes
				if then == "release" {
					remove = lt.Source.ReleaseVolumes
				}
				holder, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
				if err != nil {
					t.Fatal(err)
				}
				results, err := remove(lt.Ctx, []string{tag.String()})
				if err != nil {
					t.Fatal(err)
				}
				sourcetest.CheckError(t, results[0], false, filepath.Base(device), "has open "+device)
				lt.CheckLoops(1)
				holder.Close()
				if results, err := remove(lt.Ctx, []string{tag.String()}); err != nil || results[0] != nil {
					t.Errorf("%v, %v", results, err)
				}
				lt.CheckLoops(0)
				if err := os.Remove(lt.File(tag)); (err == nil) != (then == "release") {
					t.Errorf("the file: %v", err)
				}
				lt.Destroy(tag)
			})
		}
	}
	t.Run("foreign device", func(t *testing.T) {
		lt := newLoopTest(t)
		tag := sourcetest.Volume(1)
		lt.Create(tag)
		sourcetest.Run(t, "losetup", "--find", lt.File(tag))
		sourcetest.CheckError(t, lt.TryDestroy(tag), false, "it is attached as loop", "detach it first")
		lt.CheckLoops(1)
		lt.detachForeign(tag)
		lt.Destroy(tag)
	})
}

// No device is left when the attachment cannot be recorded.
func TestLoopAttachmentRecordError(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	record := filepath.Join(lt.Dir, "records", tag.String()+".json")
	// Not even root can write the record now.
	sourcetest.Run(t, "chattr", "+i", record)
	_, err := lt.TryAttach(tag, false)
	sourcetest.Run(t, "chattr", "-i", record)
	sourcetest.CheckError(t, err, false, "saving record "+tag.String())
	lt.CheckLoops(0)
	lt.Destroy(tag)
}

func TestLoopBusyDetachNamesTheHolder(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	device := lt.Attach(tag, false)
	before := lt.record(tag)
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckError(t, lt.TryDetach(tag), false, "detaching volume 0/1", fmt.Sprintf("process %d", os.Getpid()), "has open "+device)
	f.Close()
	if after := lt.record(tag); !reflect.DeepEqual(after, before) {
		t.Errorf("the record became %+v", after)
	}
	if again := lt.Attach(tag, false); again != device {
		t.Errorf("attached as %s and as %s", device, again)
	}
	lt.Detach(tag)
	lt.Destroy(tag)
}

// juju #3366: the file of one volume is gone. The others are not affected.
func TestLoopMissingFile(t *testing.T) {
	lt := newLoopTest(t)
	missing, other := sourcetest.Volume(1), sourcetest.Volume(2)
	lt.Create(missing)
	lt.Create(other)
	if err := os.Remove(lt.File(missing)); err != nil {
		t.Fatal(err)
	}
	results, err := lt.Source.AttachVolumes(lt.Ctx, append(lt.Attachment(missing, false), lt.Attachment(other, false)...))
	if err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckError(t, results[0].Error, true, "attaching volume 0/1", lt.File(missing)+" is missing")
	if results[1].Error != nil {
		t.Error(results[1].Error)
	}
	sourcetest.CheckError(t, lt.TryCreate(missing, sourcetest.VolumeSize), true, "missing")
	if ids, err := lt.Source.ListVolumes(lt.Ctx); err != nil || !slices.Equal(ids, []string{other.String()}) {
		t.Errorf("listed %v, %v", ids, err)
	}
	lt.Detach(other)
	lt.Detach(missing)
	if err := lt.TryDestroy(missing); err != nil {
		t.Error(err)
	}
	lt.Destroy(other)
}

// The file was deleted while a loop device shows it.
func TestLoopDeletedFileStillAttached(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	lt.Attach(tag, false)
	if err := os.Remove(lt.File(tag)); err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckError(t, lt.TryDestroy(tag), false, "detach it first")
	lt.Detach(tag)
	lt.CheckLoops(0)
	lt.Destroy(tag)
}

func TestLoopReplacedFileIsNotTouched(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	// Both files exist at the same time, so that their inodes differ.
	foreign := lt.File(tag) + ".foreign"
	if err := os.WriteFile(foreign, make([]byte, sourcetest.VolumeSize<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(foreign, lt.File(tag)); err != nil {
		t.Fatal(err)
	}
	_, err := lt.TryAttach(tag, false)
	sourcetest.CheckError(t, err, true, "was replaced")
	sourcetest.CheckError(t, lt.TryDestroy(tag), true, "was replaced", "move it away")
	if err := os.Remove(lt.File(tag)); err != nil {
		t.Errorf("the other file: %v", err)
	}
	lt.Destroy(tag)
}

// A new file of the same size has the inode number of the deleted one, which ext4 reuses
// at once. Only its time of birth or generation differs.
func TestLoopRecreatedFileIsNotTouched(t *testing.T) {
	for _, test := range []struct {
		about, inodeSize, word string
	}{
		{"birth times", "256", "made at 2"},
		{"generations only", "128", "generation"},
	} {
		t.Run(test.about, func(t *testing.T) {
			lt := newLoopTestOnExt4(t, "-I", test.inodeSize)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			lt.Attach(tag, false)
			lt.Detach(tag)
			before := lt.record(tag)
			if (before.Born == 0) == (before.Generation == 0) {
				t.Errorf("recorded %+v", before.Identity)
			}
			recreateFile(t, lt.File(tag), before.Identity)
			for range 2 {
				lt.Restart()
				_, err := lt.TryAttach(tag, false)
				sourcetest.CheckError(t, err, true, "attaching volume 0/1", lt.File(tag), "was replaced", "inode", test.word)
				sourcetest.CheckError(t, lt.TryDestroy(tag), true, "was replaced", "move it away")
			}
			// A device that somebody else attached stays.
			foreign := devicetest.AttachLoop(t, lt.File(tag))
			lt.Detach(tag)
			lt.CheckLoops(1)
			foreign.Detach(t)

			// A record of an older version, without birth time and generation, is enough.
			old := before
			old.Born, old.Generation = 0, 0
			lt.saveRecord(tag, old)
			lt.Attach(tag, false)
			if got := lt.record(tag); got.Born == 0 && got.Generation == 0 {
				t.Errorf("attaching did not add the birth time or generation: %+v", got)
			}
			lt.Detach(tag)
			lt.Destroy(tag)
		})
	}
}

// recreateFile deletes a file and makes one of the same size with the same inode number
// and another time of birth. Two files made in the same tick of the clock have the same
// time of birth.
func recreateFile(t *testing.T, path string, before object.Identity) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Statx_t
	for range 1000 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, info.Size()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
			t.Fatal(err)
		}
		if st.Ino == before.Ino && (before.Born == 0 || st.Btime.Sec*1e9+int64(st.Btime.Nsec) != before.Born) {
			return
		}
	}
	t.Fatalf("no other file has the inode number %d", before.Ino)
}

// Something other than a regular file is in the place of a backing file.
func TestLoopFileNotRegular(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"a symbolic link": func(path string) error { return os.Symlink(path+".away", path) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
	} {
		t.Run(what, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			if err := os.Rename(lt.File(tag), lt.File(tag)+".away"); err != nil {
				t.Fatal(err)
			}
			if err := put(lt.File(tag)); err != nil {
				t.Fatal(err)
			}
			_, err := lt.TryAttach(tag, false)
			sourcetest.CheckError(t, err, true, lt.File(tag)+" is not a regular file: move it away")
			sourcetest.CheckError(t, lt.TryDestroy(tag), true, "was replaced", "move it away")
			if err := os.Remove(lt.File(tag)); err != nil {
				t.Error(err)
			}
			if err := os.Rename(lt.File(tag)+".away", lt.File(tag)); err != nil {
				t.Error(err)
			}
			lt.Attach(tag, false)
			lt.Detach(tag)
			lt.Destroy(tag)
		})
	}
}

func TestLoopFileOfWrongSize(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	if err := os.Truncate(lt.File(tag), 1<<20); err != nil {
		t.Fatal(err)
	}
	_, err := lt.TryAttach(tag, false)
	sourcetest.CheckError(t, err, true, "has 1048576 bytes instead of 4194304")
	if _, err := os.Stat(lt.File(tag)); err != nil {
		t.Error(err)
	}
	lt.Destroy(tag)
}

func TestLoopCreateRefusals(t *testing.T) {
	lt := newLoopTest(t)
	lt.Create(sourcetest.Volume(1))
	sourcetest.CheckError(t, lt.TryCreate(sourcetest.Volume(1), sourcetest.VolumeSize-1), true, "creating volume 0/1", "exists with 4 MiB, not 3 MiB")
	sourcetest.CheckError(t, lt.TryCreate(sourcetest.Volume(2), 0), true, "creating volume 0/2", "0 MiB")
	sourcetest.CheckError(t, lt.TryCreate(sourcetest.Volume(2), 1<<40), false, "1099511627776 MiB needed", "MiB available")
	if err := lt.Source.ValidateVolumeParams(storage.VolumeParams{Tag: sourcetest.Volume(2)}); !errors.Is(err, errors.NotValid) {
		t.Errorf("validating a volume without a size: %v", err)
	}
	if err := lt.Source.ValidateVolumeParams(storage.VolumeParams{Tag: sourcetest.Volume(2), Size: 1}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(lt.File(sourcetest.Volume(3)), []byte("foreign"), 0o600); err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckError(t, lt.TryCreate(sourcetest.Volume(3), sourcetest.VolumeSize), true, "exists and has no record: move it away")
	if err := os.Remove(lt.File(sourcetest.Volume(3))); err != nil {
		t.Error(err)
	}
	_, err := lt.TryAttach(sourcetest.Volume(4), false)
	sourcetest.CheckError(t, err, true, "it was not made here")
	lt.Destroy(sourcetest.Volume(1))
}

// The filesystem has less space than it reports, so the allocation fails when a part of
// the file is allocated.
func TestLoopFullFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "full", dir, "8m")
	lt := loopTestIn(t, filepath.Join(dir, "storage"))
	lt.Restart()
	lt.Create(sourcetest.Volume(1))
	sourcetest.CheckError(t, lt.TryCreate(sourcetest.Volume(2), sourcetest.VolumeSize), false, "4 MiB needed", "3 MiB available")

	c, err := lt.Source.(*source).begin(lt.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = c.makeFile(sourcetest.Volume(2).String(), record{Size: sourcetest.VolumeSize << 20}, nil)
	if uerr := c.Files.Unlink(temporary(sourcetest.Volume(2).String())); uerr != nil {
		t.Error(uerr)
	}
	c.End()
	sourcetest.CheckError(t, err, false, "4 MiB needed", "available")
	lt.Destroy(sourcetest.Volume(1))
}

func TestLoopRelease(t *testing.T) {
	lt := newLoopTest(t)
	tag := sourcetest.Volume(1)
	lt.Create(tag)
	for range 2 {
		if results, err := lt.Source.ReleaseVolumes(lt.Ctx, []string{tag.String()}); err != nil || results[0] != nil {
			t.Fatalf("releasing: %v, %v", results, err)
		}
	}
	if ids, err := lt.Source.ListVolumes(lt.Ctx); err != nil || len(ids) != 0 {
		t.Errorf("listed %v, %v", ids, err)
	}
	sourcetest.CheckError(t, lt.TryDestroy(tag), true, "was released", "import it first")
	if err := os.Remove(lt.File(tag)); err != nil {
		t.Errorf("the released file: %v", err)
	}
	lt.Destroy(tag)
}

// TestLoopCrashes leaves records and files as a crash would, and repeats the interrupted
// call twice.
// Behaviour 34.
func TestLoopCrashes(t *testing.T) {
	tag := sourcetest.Volume(1)
	temp := func(lt *loopTest) string { return lt.File(tag) + ".tmp" }
	write := func(t *testing.T, path string, size int) {
		t.Helper()
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		about string
		crash func(t *testing.T, lt *loopTest)
		words string // of the error of the next creation; empty: it succeeds
	}{{
		about: "creation recorded",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, record{Size: sourcetest.VolumeSize << 20, Phase: object.PhaseCreating})
		},
	}, {
		about: "partially allocated",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, record{Size: sourcetest.VolumeSize << 20, Phase: object.PhaseCreating})
			write(t, temp(lt), 1<<20)
		},
	}, {
		about: "allocated and named",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, record{Size: sourcetest.VolumeSize << 20, Phase: object.PhaseCreating})
			write(t, lt.File(tag), sourcetest.VolumeSize<<20)
		},
	}, {
		about: "named with the wrong size",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, record{Size: sourcetest.VolumeSize << 20, Phase: object.PhaseCreating})
			write(t, lt.File(tag), 1<<20)
		},
		words: "has 1048576 bytes instead of 4194304",
	}, {
		about: "destruction recorded",
		crash: func(t *testing.T, lt *loopTest) {
			lt.Create(tag)
			rec := lt.record(tag)
			rec.Phase = object.PhaseDestroying
			lt.saveRecord(tag, rec)
		},
	}, {
		about: "file removed, record not removed",
		crash: func(t *testing.T, lt *loopTest) {
			lt.Create(tag)
			rec := lt.record(tag)
			rec.Phase = object.PhaseDestroying
			lt.saveRecord(tag, rec)
			if err := os.Remove(lt.File(tag)); err != nil {
				t.Fatal(err)
			}
		},
	}} {
		t.Run(test.about+", then create", func(t *testing.T) {
			lt := newLoopTest(t)
			lt.prepareDirs()
			test.crash(t, lt)
			lt.Restart()
			_, err := lt.TryAttach(tag, false)
			sourcetest.CheckError(t, err, false, "incomplete")
			if ids, err := lt.Source.ListVolumes(lt.Ctx); err != nil || len(ids) != 0 {
				t.Errorf("listed %v, %v", ids, err)
			}
			for range 2 {
				lt.Restart()
				if test.words != "" {
					sourcetest.CheckError(t, lt.TryCreate(tag, sourcetest.VolumeSize), true, test.words)
					continue
				}
				lt.Create(tag)
				lt.Attach(tag, false)
				lt.CheckLoops(1)
			}
			lt.Detach(tag)
			lt.Destroy(tag)
		})
		t.Run(test.about+", then destroy", func(t *testing.T) {
			lt := newLoopTest(t)
			lt.prepareDirs()
			test.crash(t, lt)
			lt.Restart()
			lt.Destroy(tag)
			lt.Destroy(tag)
		})
	}
}

// prepareDirs makes the directories that a source makes in its first call.
func (t *loopTest) prepareDirs() {
	t.Helper()
	if _, err := t.Source.ListVolumes(t.Ctx); err != nil {
		t.Fatal(err)
	}
}

// At each point where the record may differ from the device, the device is attached, or
// not.
func TestLoopCrashWhileAttachingAndDetaching(t *testing.T) {
	for _, test := range []struct {
		about    string
		phase    object.Phase
		attached bool
	}{
		{"attached but not recorded", object.PhaseReady, true},
		{"recorded but not attached", object.PhaseAttached, false},
		{"about to be detached", object.PhaseDetaching, true},
		{"detached but not recorded", object.PhaseDetaching, false},
	} {
		for _, then := range []string{"attach", "detach"} {
			t.Run(test.about+", then "+then, func(t *testing.T) {
				lt := newLoopTest(t)
				tag := sourcetest.Volume(1)
				lt.Create(tag)
				ready := lt.record(tag)
				lt.Attach(tag, false)
				rec := lt.record(tag)
				if test.phase == object.PhaseReady {
					rec = ready
				}
				if !test.attached {
					lt.Detach(tag)
				}
				rec.Phase = test.phase
				lt.saveRecord(tag, rec)
				for range 2 {
					lt.Restart()
					if then == "attach" {
						lt.Attach(tag, false)
						lt.CheckLoops(1)
						if got := lt.record(tag); got.Phase != object.PhaseAttached {
							t.Errorf("recorded as %s", got.Phase)
						}
					} else {
						lt.Detach(tag)
						lt.CheckLoops(0)
						want := ready
						want.SectorSize = rec.SectorSize
						if got := lt.record(tag); !reflect.DeepEqual(got, want) {
							t.Errorf("recorded %+v, want %+v", got, want)
						}
					}
				}
				lt.Detach(tag)
				lt.Destroy(tag)
			})
		}
	}
}

func TestLoopDamagedRecordAffectsOneVolume(t *testing.T) {
	lt := newLoopTest(t)
	lt.Create(sourcetest.Volume(1))
	path := filepath.Join(lt.Dir, "records", "volume-0-2.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	sourcetest.CheckError(t, lt.TryCreate(sourcetest.Volume(2), sourcetest.VolumeSize), true, path, "damaged")
	lt.Create(sourcetest.Volume(1))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	lt.Destroy(sourcetest.Volume(1))
}

func TestLoopInvalidIDs(t *testing.T) {
	lt := newLoopTest(t)
	for _, id := range []string{"", "../../x", "volume-0-1/../x", "volume-0-1.tmp"} {
		results, err := lt.Source.DestroyVolumes(lt.Ctx, []string{id})
		if err != nil || !errors.Is(results[0], errors.NotValid) {
			t.Errorf("destroying %q: %v, %v", id, results, err)
		}
		attachment := lt.Attachment(sourcetest.Volume(1), false)
		attachment[0].VolumeId = id
		attached, err := lt.Source.AttachVolumes(lt.Ctx, attachment)
		if err != nil || !errors.Is(attached[0].Error, errors.NotValid) {
			t.Errorf("attaching %q: %v, %v", id, attached, err)
		}
	}
}

// The context is cancelled between two volumes.
func TestLoopCancelled(t *testing.T) {
	lt := newLoopTest(t)
	c, err := lt.Source.(*source).begin(lt.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, failures := object.Collect(ctx, []int{1, 2}, func(n int) (storage.VolumeInfo, error) {
		defer cancel()
		return c.create(storage.VolumeParams{Tag: sourcetest.Volume(n), Size: sourcetest.VolumeSize})
	})
	if failures[0] != nil || !errors.Is(failures[1], context.Canceled) {
		t.Errorf("failures %v", failures)
	}
	c.Context = ctx
	if err := c.makeNew(sourcetest.Volume(3).String(), record{Size: sourcetest.VolumeSize << 20}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while a volume was made: %v", err)
	}
	c.End()
	if _, err := lt.Source.CreateVolumes(envcontext.New(ctx), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before the call: %v", err)
	}
	lt.Destroy(sourcetest.Volume(1))
}

// One call creates more volumes than there is space for. Those that fit are made.
func TestLoopBulkCreateFillsSpace(t *testing.T) {
	dir := devicetest.Dir(t)
	image := filepath.Join(dir, "image")
	sourcetest.Run(t, "truncate", "--size", "1T", image) // sparse, and it stays sparse
	sourcetest.Run(t, "mkfs.ext4", "-q", "-m", "0", image)
	fs := filepath.Join(dir, "fs")
	sourcetest.MountFile(t, image, fs, "ext4")
	t.Cleanup(func() { sourcetest.Unmount(t, fs) })
	lt := loopTestIn(t, filepath.Join(fs, "storage"))
	lt.Restart()
	const size = 190 << 10
	var params []storage.VolumeParams
	for n := range object.MaxAtOnce {
		params = append(params, storage.VolumeParams{Tag: sourcetest.Volume(n), Size: size, Provider: ProviderType})
	}
	results, err := lt.Source.CreateVolumes(lt.Ctx, params)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, result := range results {
		if result.Error == nil {
			made++
		} else {
			sourcetest.CheckError(t, result.Error, false, "194560 MiB needed", "MiB available")
		}
	}
	if made != 5 {
		t.Errorf("%d volumes of 190 GiB were made in 1 TiB, want 5", made)
	}
	for n := range object.MaxAtOnce {
		if err := lt.TryDestroy(sourcetest.Volume(n)); err != nil {
			t.Error(err)
		}
	}
	sourcetest.CheckNoFiles(t, lt.Dir)
}

// Destroying volumes is the only way to free space there.
func TestLoopDestroyOnFullFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	sourcetest.MountTmpfs(t, "full", dir, "8m")
	lt := loopTestIn(t, filepath.Join(dir, "storage"))
	lt.Restart()
	lt.Create(sourcetest.Volume(1))
	lt.Attach(sourcetest.Volume(1), false)
	if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling up: %v", err)
	}
	lt.Detach(sourcetest.Volume(1))
	lt.CheckLoops(0)
	lt.Destroy(sourcetest.Volume(1))
}

// The disk with the storage directory is mounted again, with another device number.
func TestLoopStorageRemounted(t *testing.T) {
	dir := devicetest.Dir(t)
	image := filepath.Join(dir, "image")
	sourcetest.Run(t, "truncate", "--size", "64M", image)
	sourcetest.Run(t, "mkfs.ext4", "-q", image)
	fs := filepath.Join(dir, "fs")
	mounted := func() (unmount func()) {
		sourcetest.MountFile(t, image, fs, "ext4")
		return func() { sourcetest.Unmount(t, fs) }
	}
	unmount := mounted()
	lt := loopTestIn(t, filepath.Join(fs, "storage"))
	lt.Restart()
	lt.Create(sourcetest.Volume(1))
	sourcetest.WriteDevice(t, lt.Attach(sourcetest.Volume(1), false), "precious")
	lt.Detach(sourcetest.Volume(1))
	before := lt.record(sourcetest.Volume(1)).Dev
	for tries := 0; tries < 20 && lt.record(sourcetest.Volume(1)).Dev == before; tries++ {
		unmount()
		// This loop device, or another test's, takes the number that is free now.
		devicetest.NewLoop(t, 1<<20)
		unmount = mounted()
		sourcetest.CheckDevice(t, lt.Attach(sourcetest.Volume(1), false), "precious")
		lt.Detach(sourcetest.Volume(1))
	}
	if lt.record(sourcetest.Volume(1)).Dev == before {
		t.Error("the device number of the storage never changed")
	}
	lt.Destroy(sourcetest.Volume(1))
	unmount()
}

// Somebody attached the device when the file was shorter, or longer.
func TestLoopDeviceSizeDiffersFromFile(t *testing.T) {
	attachedWith := func(t *testing.T, size int64) *loopTest {
		lt := newLoopTest(t)
		lt.Create(sourcetest.Volume(1))
		if err := os.Truncate(lt.File(sourcetest.Volume(1)), size); err != nil {
			t.Fatal(err)
		}
		sourcetest.Run(t, "losetup", "--find", lt.File(sourcetest.Volume(1)))
		if err := os.Truncate(lt.File(sourcetest.Volume(1)), sourcetest.VolumeSize<<20); err != nil {
			t.Fatal(err)
		}
		return lt
	}
	t.Run("shorter", func(t *testing.T) {
		lt := attachedWith(t, 1<<20)
		lt.checkSize(lt.Attach(sourcetest.Volume(1), false), sourcetest.VolumeSize)
		lt.CheckLoops(1)
		lt.Detach(sourcetest.Volume(1))
		lt.Destroy(sourcetest.Volume(1))
	})
	t.Run("longer", func(t *testing.T) {
		lt := attachedWith(t, 8<<20)
		_, err := lt.TryAttach(sourcetest.Volume(1), false)
		sourcetest.CheckError(t, err, true, "8388608 bytes", "its file has 4194304", "detach it first")
		lt.detachForeign(sourcetest.Volume(1))
		lt.Attach(sourcetest.Volume(1), false)
		lt.Detach(sourcetest.Volume(1))
		lt.Destroy(sourcetest.Volume(1))
	})
}
