//go:build linux

package managed

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	recordstore "github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func (t *managedTest) record() record { return t.recordOf(sourcetest.ManagedID) }

func (t *managedTest) recordOf(id string) record {
	t.Helper()
	var rec record
	t.editRecordOf(id, func(r *record) { rec = *r })
	return rec
}

// editRecord changes the record, for example to what a crash leaves.
func (t *managedTest) editRecord(edit func(*record)) { t.editRecordOf(sourcetest.ManagedID, edit) }

func (t *managedTest) editRecordOf(id string, edit func(*record)) {
	t.Helper()
	store, err := recordstore.Open(filepath.Join(t.Dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	unlock, err := store.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	var rec record
	if err := store.Load(id, &rec); err != nil {
		t.Fatal(err)
	}
	edit(&rec)
	if err := store.Save(id, rec); err != nil {
		t.Fatal(err)
	}
}

// forEachType runs a test for each filesystem type.
func forEachType(t *testing.T, test func(t *managedTest, fs string)) {
	for fs := range sourcetest.ManagedSizes {
		t.Run(fs, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+fs)
			test(newManagedTest(t), fs)
		})
	}
}

func TestManagedLifecycle(t *testing.T) {
	for fs, size := range sourcetest.ManagedSizes {
		t.Run(fs, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+fs)
			mt := newManagedTest(t)
			loop := mt.Loop(size)
			got, err := mt.TryCreate(fs)
			if err != nil {
				t.Fatal(err)
			}
			want := storage.Filesystem{
				Tag: sourcetest.ManagedTag, Volume: sourcetest.ManagedVolume,
				FilesystemInfo: storage.FilesystemInfo{FilesystemId: "filesystem-0-2", Size: uint64(size) >> 20},
			}
			if *got != want {
				t.Errorf("got %+v, want %+v", *got, want)
			}
			mt.Attach()
			table, err := mount.ReadTable()
			if err != nil {
				t.Fatal(err)
			}
			m := table.At(mt.Path())
			if m == nil || m.FSType != fs || m.Source != loop.Path ||
				!strings.Contains(m.Options, "nosuid") || !strings.Contains(m.Options, "nodev") {
				t.Errorf("got mount %+v", m)
			}
			mt.WriteData()
			mt.Detach()
			if _, err := os.Stat(filepath.Dir(mt.Path())); !os.IsNotExist(err) {
				t.Errorf("directories made for the mount are left: %v", err)
			}
			mt.Attach()
			mt.CheckData()
			mt.Detach()
			if err := mt.TryDestroy(); err != nil {
				t.Fatal(err)
			}
			// The data are still on the device.
			sourcetest.Command(t, "mount", "--mkdir", loop.Path, mt.Path())
			mt.CheckData()
			mt.UnmountExternally()
			if names, err := filepath.Glob(mt.Dir + "/*/*"); err != nil || len(names) > 0 {
				t.Errorf("left: %q, %v", names, err)
			}
		})
	}
}

func TestManagedKeepsExistingDirectory(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	if err := os.MkdirAll(mt.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	mt.Create("ext4")
	mt.Attach()
	mt.Detach()
	if _, err := os.Stat(mt.Path()); err != nil {
		t.Error(err)
	}
}

// edges returns the first and last 4 MiB of a file.
func edges(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	both := make([]byte, 8<<20)
	if _, err := io.ReadFull(f, both[:4<<20]); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(-4<<20, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(f, both[4<<20:]); err != nil {
		t.Fatal(err)
	}
	return both
}

// Story D2.
func TestManagedNeverFormatsNonBlank(t *testing.T) {
	for _, test := range []struct {
		name, found string
		size        int64
		put         func(t *testing.T, path string, size int64)
	}{
		{"ext4", `ext4 labelled "precious" with UUID 1`, sourcetest.ManagedExt4Size, func(t *testing.T, path string, _ int64) {
			sourcetest.Command(t, "mkfs.ext4", "-q", "-L", "precious", "-U", "11111111-2222-3333-4444-555555555555", path)
		}},
		{"xfs", `xfs labelled "precious" with UUID`, sourcetest.ManagedXFSSize, func(t *testing.T, path string, _ int64) {
			sourcetest.Command(t, "mkfs.xfs", "-q", "-L", "precious", path)
		}},
		{"btrfs", `btrfs labelled "precious" with UUID`, sourcetest.ManagedBtrfsSize, func(t *testing.T, path string, _ int64) {
			sourcetest.Command(t, "mkfs.btrfs", "-q", "-L", "precious", path)
		}},
		{"btrfs without its beginning", `btrfs labelled "precious" with UUID`, sourcetest.ManagedBtrfsSize, func(t *testing.T, path string, _ int64) {
			sourcetest.Command(t, "mkfs.btrfs", "-q", "-L", "precious", path)
			sourcetest.WriteAt(t, path, 0, make([]byte, 4<<20))
		}},
		{"swap", "swap with UUID", sourcetest.ManagedExt4Size, func(t *testing.T, path string, _ int64) {
			sourcetest.Command(t, "mkswap", path)
		}},
		{"GPT", "gpt", sourcetest.ManagedExt4Size, func(t *testing.T, path string, size int64) {
			sourcetest.WriteAt(t, path, 0, sourcetest.Gpt(size))
		}},
		{"random bytes at the beginning", "data of an unknown kind", sourcetest.ManagedExt4Size, func(t *testing.T, path string, _ int64) {
			sourcetest.WriteAt(t, path, 3<<20, sourcetest.RandomBytes(4096))
		}},
		{"one byte in the middle", "data of an unknown kind (byte 16778240 is not zero)", sourcetest.ManagedExt4Size, func(t *testing.T, path string, size int64) {
			sourcetest.WriteAt(t, path, size/2+1024, []byte{1})
		}},
		{"random bytes at the end", "data of an unknown kind", sourcetest.ManagedExt4Size, func(t *testing.T, path string, size int64) {
			sourcetest.WriteAt(t, path, size-4096, sourcetest.RandomBytes(4096))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.Loop(test.size)
			test.put(t, loop.Path, test.size)
			before := edges(t, loop.File)
			for _, fs := range []string{"ext4", "ext4", "xfs", "btrfs"} {
				if test.size < sourcetest.ManagedSizes[fs] {
					continue
				}
				_, err := mt.TryCreate(fs)
				mt.CheckError(err, true, "creating filesystem 0/2", loop.Path, test.found, "blkdiscard")
			}
			if !bytes.Equal(before, edges(t, loop.File)) {
				t.Error("the device was written to")
			}
			if names, _ := filepath.Glob(mt.Dir + "/*/*"); len(names) > 0 {
				t.Errorf("the refused call left %q", names)
			}
		})
	}
}

func TestManagedNeverFormatsUnreadable(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	if err := os.Truncate(loop.File, sourcetest.ManagedExt4Size/2); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(loop.File)
	if err != nil {
		t.Fatal(err)
	}
	_, err = mt.TryCreate("ext4")
	mt.CheckError(err, false, "cannot be proven blank", "input/output error")
	after, err := os.ReadFile(loop.File)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the device was written to: %v", err)
	}
}

func TestManagedNeverFormatsInUse(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	fd, err := unix.Open(loop.Path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = mt.TryCreate("ext4")
	unix.Close(fd)
	mt.CheckError(err, false, loop.Path, "in use", filepath.Base(os.Args[0]))
	mt.Create("ext4")
}

func TestManagedNeverFormatsWrongSize(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Plug(loop, 2*sourcetest.ManagedExt4Size)
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, false, loop.Path+" has 32 MiB", "32 MiB, not 64 MiB")
}

func TestManagedCreateFindsTheDeviceWithoutUdev(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Blocks[sourcetest.ManagedVolume] = storage.BlockDevice{
		WWN: "0x500", HardwareId: "nobody-made-this-link", DeviceLinks: []string{"relative", filepath.Join(mt.Top, "none")},
		DeviceName: loop.Name(), Size: sourcetest.ManagedExt4Size >> 20,
	}
	mt.Create("ext4")
}

func TestManagedCreateWaitsForTheDevice(t *testing.T) {
	mt := newManagedTest(t)
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, false, "block device of volume 0/1")
	if !errors.Is(err, errors.NotFound) {
		t.Errorf("got %v", err)
	}
	mt.Blocks[sourcetest.ManagedVolume] = storage.BlockDevice{DeviceLinks: []string{filepath.Join(mt.Top, "none")}}
	_, err = mt.TryCreate("ext4")
	mt.CheckError(err, false, "block device of volume 0/1", filepath.Join(mt.Top, "none"))
}

func TestManagedCancelledCreateIsFinishedLater(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err := mt.Source().CreateFilesystems(envcontext.New(ctx), []storage.FilesystemParams{{Tag: sourcetest.ManagedTag, Volume: sourcetest.ManagedVolume}})
	if err == nil {
		err = results[0].Error
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	mt.Create("ext4")
}

// A filesystem that was made is not made again, whatever the device shows.
func TestManagedLostFilesystemNotReformatted(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, true, loop.Path, "not formatted again")
	if !bytes.Equal(edges(t, loop.File), make([]byte, 8<<20)) {
		t.Error("the device was written to")
	}
}

// corruptExt4 damages a filesystem like a killed mkfs does: mke2fs writes the superblock
// last.
func corruptExt4(t *testing.T, loop *devicetest.Loop) {
	sourcetest.WriteAt(t, loop.Path, 1024, make([]byte, 1024))
}

// destroyBtrfs erases all of a btrfs but its superblocks.
func destroyBtrfs(t *testing.T, loop *devicetest.Loop) {
	const first, second, end = 1 << 20, 64 << 20, sourcetest.ManagedBtrfsSize
	sourcetest.WriteAt(t, loop.Path, first, make([]byte, second-first))
	sourcetest.WriteAt(t, loop.Path, second+4<<10, make([]byte, end-(second+4<<10)))
}

// Formatting that was interrupted is finished, on the device on which it began, and on no other.
// Finding N41.
func TestManagedRestartWhileFormatting(t *testing.T) {
	formatting := func(r *record) { r.Phase = phaseFormatting }
	for _, test := range []struct {
		name, fs string
		size     int64
		crash    func(t *testing.T, mt *managedTest, loop *devicetest.Loop)
		err      string
	}{{
		name: "mkfs was not started", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			sourcetest.Command(t, "blkdiscard", "--zeroout", loop.Path)
		},
	}, {
		name: "mkfs was killed", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) { corruptExt4(t, loop) },
	}, {
		name: "mkfs was killed and the machine restarted", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.editRecord(func(r *record) { r.Device.BootID = "another" })
			loop.Detach(t)
			mt.Plug(devicetest.AttachLoop(t, loop.File), sourcetest.ManagedExt4Size)
		},
	}, {
		name: "mkfs was killed, the machine restarted, and the disk has another number", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.editRecord(func(r *record) { r.Device.BootID, r.Device.BackingDev = "another", r.Device.BackingDev+1 })
			loop.Detach(t)
			mt.Plug(devicetest.AttachLoop(t, loop.File), sourcetest.ManagedExt4Size)
		},
	}, {
		name: "the same, with a copy of the file", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.editRecord(func(r *record) { r.Device.BootID, r.Device.BackingDev = "another", r.Device.BackingDev+1 })
			loop.Detach(t)
			copied := loop.File + "-copy"
			sourcetest.Command(t, "cp", "--sparse=always", loop.File, copied)
			mt.Plug(devicetest.AttachLoop(t, copied), sourcetest.ManagedExt4Size)
		},
		err: "may not be the one on which formatting began",
	}, {
		name: "mkfs was killed and the volume has grown", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.resizeDevice(loop, 2*sourcetest.ManagedExt4Size)
		},
	}, {
		name: "mkfs was killed and the volume has become smaller", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			corruptExt4(t, loop)
			mt.resizeDevice(loop, sourcetest.ManagedExt4Size/2)
		},
		err: "may not be the one on which formatting began",
	}, {
		name: "mkfs.btrfs was killed", fs: "btrfs", size: sourcetest.ManagedBtrfsSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			sourcetest.WriteAt(t, loop.Path, 64<<10+64, []byte("!")) // the first letter of its magic until all is done
		},
	}, {
		name: "the btrfs does not mount", fs: "btrfs", size: sourcetest.ManagedBtrfsSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) { destroyBtrfs(t, loop) },
	}, {
		name: "the btrfs does not mount and its superblock was being cleared", fs: "btrfs", size: sourcetest.ManagedBtrfsSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			destroyBtrfs(t, loop)
			sourcetest.WriteAt(t, loop.Path, 64<<10, make([]byte, 4<<10))
		},
	}, {
		name: "mkfs.btrfs was done", fs: "btrfs", size: sourcetest.ManagedBtrfsSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {},
	}, {
		name: "mkfs was done", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {},
	}, {
		name: "mkfs.xfs was done", fs: "xfs", size: sourcetest.ManagedXFSSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {},
	}, {
		name: "mkfs.xfs was killed", fs: "xfs", size: sourcetest.ManagedXFSSize,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			sourcetest.WriteAt(t, loop.Path, 126, []byte{1}) // sb_inprogress
		},
	}, {
		name: "somebody else formatted it since", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			sourcetest.Command(t, "mkfs.ext4", "-q", "-F", "-L", "precious", loop.Path)
		},
		err: `it holds ext4 labelled "precious"`,
	}, {
		name: "another device is there, with data of an unknown kind", fs: "ext4", size: sourcetest.ManagedExt4Size,
		crash: func(t *testing.T, mt *managedTest, loop *devicetest.Loop) {
			other := mt.Loop(sourcetest.ManagedExt4Size)
			sourcetest.WriteAt(t, other.Path, 1<<20, sourcetest.RandomBytes(4096))
		},
		err: "may not be the one on which formatting began",
	}} {
		t.Run(test.name, func(t *testing.T) {
			devicetest.RequireProgram(t, "mkfs."+test.fs)
			mt := newManagedTest(t)
			loop := mt.Loop(test.size)
			mt.Create(test.fs)
			mt.editRecord(formatting)
			_, err := mt.TryAttach(false)
			mt.CheckError(err, false, "incomplete")
			test.crash(t, mt, loop)
			_, err = mt.TryCreate(test.fs)
			if test.err != "" {
				mt.CheckError(err, true, test.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if phase := mt.record().Phase; phase != object.PhaseReady {
				t.Errorf("got phase %s", phase)
			}
			mt.Attach()
			mt.WriteData()
			mt.Detach()
		})
	}
}

// A filesystem is on disk before it is recorded as complete, whether mkfs syncs it or
// not.
func TestManagedSyncedBeforeRecordedComplete(t *testing.T) {
	if !devicetest.InOwnMounts(t) {
		return
	}
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	replaceMkfs(t, `#!/bin/sh -e
image=$(mktemp --tmpdir=/usr/src)
trap 'rm $image' EXIT
truncate --size=32M $image
for arg; do shift; set -- "$@" "$(test "$arg" = /proc/self/fd/3 && echo $image || echo "$arg")"; done
MKFS "$@"
cat $image 1<>/proc/self/fd/3 # without fsync
`)
	// While somebody has the device open, the kernel does not write what it caches of it
	// when somebody else closes it.
	other, err := os.Open(loop.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	mt.Create("ext4")
	file, err := os.Open(loop.File)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if found, err := signature.ReadSuperblock(file); err != nil || found.UUID != mt.record().UUID {
		t.Errorf("the file has %v, %v", found, err)
	}
}

// replaceMkfs replaces mkfs.ext4 by a script, in which MKFS is the original.
func replaceMkfs(t *testing.T, script string) {
	t.Helper()
	const program = "/usr/sbin/mkfs.ext4"
	dir := devicetest.VisibleDir(t)
	mkfs := filepath.Join(dir, "mkfs.ext4") // mke2fs behaves according to its name
	script = strings.ReplaceAll(script, "MKFS", mkfs)
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	replacement := filepath.Join(dir, "script")
	for path, content := range map[string][]byte{mkfs: binary, replacement: []byte(script)} {
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(replacement, program, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(program, 0); err != nil {
			t.Error(err)
		}
	})
}

// mkfs fails in the end, though the filesystem looks complete: it may lack a write.
// Fault F9.
// Finding N35.
func TestManagedFailedMkfsIsNotKept(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	t.Run("failing", func(t *testing.T) {
		replaceMkfs(t, `#!/bin/sh -e
MKFS -L failed "$@"
echo Lost a write >&2
exit 1
`)
		_, err := mt.TryCreate("ext4")
		mt.CheckError(err, false, loop.Path, "exit status 1: Lost a write")
	})
	mt.Create("ext4")
	f, err := os.Open(loop.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if found, err := signature.ReadSuperblock(f); err != nil || found.Label != "" || found.UUID != mt.record().UUID {
		t.Errorf("got %v, %v", found, err)
	}
}

// A filesystem that mkfs completed just before a crash is kept.
func TestManagedRestartKeepsACompleteFilesystem(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.editRecord(func(r *record) { r.Phase = phaseFormatting })
	// Another mkfs would remove the label.
	sourcetest.Command(t, "tune2fs", "-L", "the first", loop.Path)
	mt.Create("ext4")
	f, err := os.Open(loop.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if found, err := signature.ReadSuperblock(f); err != nil || found.Label != "the first" {
		t.Errorf("got %v, %v", found, err)
	}
}

func TestManagedRestartWhileAttachingOrDetaching(t *testing.T) {
	for _, test := range []struct {
		name  string
		crash func(*managedTest)
	}{
		{"mounted", func(*managedTest) {}},
		{"not mounted", (*managedTest).UnmountExternally},
		{"not mounted, directory removed", func(mt *managedTest) {
			mt.UnmountExternally()
			if err := os.Remove(mt.Path()); err != nil {
				mt.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			mt.Loop(sourcetest.ManagedExt4Size)
			mt.Create("ext4")
			mt.Attach()
			mt.WriteData()
			test.crash(mt)
			mt.Attach()
			if n := mt.Mounts(); n != 1 {
				t.Errorf("%d mounts", n)
			}
			mt.CheckData()

			test.crash(mt)
			mt.Detach()
			if n := mt.Mounts(); n != 0 {
				t.Errorf("%d mounts", n)
			}
			if rec := mt.record(); rec.Phase != object.PhaseReady || rec.MountPoint != "" {
				t.Errorf("got %+v", rec)
			}
			if _, err := os.Stat(filepath.Dir(mt.Path())); !os.IsNotExist(err) {
				t.Errorf("directories made for the mount are left: %v", err)
			}
		})
	}
}

// After a reboot the device has another name, and its old name may belong to another
// device.
func TestManagedAttachFindsDeviceByUUID(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		mt.Attach()
		mt.WriteData()
		mt.UnmountExternally()
		mt.Loop(sourcetest.ManagedSizes[fs])
		mt.editRecord(func(r *record) { r.Device.BootID = "another" })
		mt.Attach()
		mt.CheckData()
		table, err := mount.ReadTable()
		if err != nil {
			t.Fatal(err)
		}
		if m := table.At(mt.Path()); m == nil || m.Source != loop.Path {
			t.Errorf("mounted %+v", m)
		}
		mt.Detach()
	})
}

func TestManagedAttachRefusesTwoDevicesWithOneUUID(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		clone := filepath.Join(mt.Top, "clone")
		sourcetest.Command(t, "cp", "--sparse=always", loop.Path, clone)
		other := devicetest.AttachLoop(t, clone)
		_, err := mt.TryAttach(false)
		mt.CheckError(err, true, "attaching filesystem 0/2", loop.Path, other.Path, "one is a copy")
		if n := mt.Mounts(); n != 0 {
			t.Errorf("%d mounts", n)
		}
		other.Detach(t)
		mt.Attach()
		mt.Detach()
	})
}

// Volumes of a copied directory have the same filesystems, and are attached at the same
// time.
func TestManagedAttachDistinguishesCopy(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		clone := filepath.Join(mt.Top, "clone")
		sourcetest.Command(t, "cp", "--sparse=always", loop.Path, clone)
		other := devicetest.AttachLoop(t, clone)
		for _, its := range []*devicetest.Loop{other, loop} {
			entry := storage.BlockDevice{DeviceName: its.Name(), BusAddress: sourcetest.BusAddress(t, its)}
			mt.Blocks[sourcetest.ManagedVolume] = entry
			mt.Attach()
			table, err := mount.ReadTable()
			if err != nil {
				t.Fatal(err)
			}
			if m := table.At(mt.Path()); m == nil || m.Source != its.Path {
				t.Errorf("mounted %+v, want %s", m, its.Path)
			}
			mt.Detach()
		}
	})
}

func TestManagedAttachChoosesPath(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	p := mt.Attachment(false)
	p.Path = ""
	params := []storage.FilesystemAttachmentParams{p}
	attached, err := mt.Source().AttachFilesystems(mt.CallContext(), params)
	if err != nil || attached[0].Error != nil {
		t.Fatalf("got %+v, %v", attached, err)
	}
	path := attached[0].FilesystemAttachment.Path
	table, err := mount.ReadTable()
	if err != nil || table.At(path) == nil {
		t.Errorf("nothing is mounted at %q: %v", path, err)
	}
	if detached, err := mt.Source().DetachFilesystems(mt.CallContext(), params); err != nil || detached[0] != nil {
		t.Errorf("got %v, %v", detached, err)
	}
}

func TestManagedAttachWaitsForTheDevice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Blocks = nil
	_, err := mt.TryAttach(false)
	mt.CheckError(err, false, "block device of volume 0/1")

	mt.Blocks = map[names.VolumeTag]storage.BlockDevice{}
	mt.Plug(loop, sourcetest.ManagedExt4Size)
	loop.Detach(t)
	_, err = mt.TryAttach(false)
	mt.CheckError(err, false, "32 MiB", mt.record().UUID)
	if !errors.Is(err, storage.ErrTransient) {
		t.Errorf("the error is not transient: %v", err)
	}
}

func TestManagedAttachUnknownFilesystem(t *testing.T) {
	mt := newManagedTest(t)
	_, err := mt.TryAttach(false)
	mt.CheckError(err, true, "not made here", sourcetest.ManagedID)
}

func TestManagedAttachKeepsForeignMount(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	sourcetest.Command(t, "mount", "--mkdir", "-t", "tmpfs", "foreign", mt.Path())
	_, err := mt.TryAttach(false)
	mt.CheckError(err, true, "tmpfs from foreign is mounted at "+mt.Path())
	// Detaching does not unmount a foreign mount.
	mt.Detach()
	if n := mt.Mounts(); n != 1 {
		t.Errorf("%d mounts", n)
	}
	mt.UnmountExternally()
	mt.Attach()
	mt.Detach()
}

func TestManagedDetachUnderForeignMount(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		mt.Attach()
		sourcetest.Command(t, "mount", "-t", "tmpfs", "foreign", mt.Path())
		mt.CheckError(mt.TryDetach(), false, "tmpfs from foreign is mounted over it")
		mt.CheckError(mt.TryDestroy(), false, "is mounted at "+mt.Path())
		mt.UnmountExternally()
		mt.Detach()
	})
}

func TestManagedAttachRefusesNonEmptyDirectory(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	if err := os.MkdirAll(mt.Path()+"/precious", 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := mt.TryAttach(false)
	mt.CheckError(err, true, mt.Path(), "not empty: empty it or choose another mount point")
	if err := os.Remove(mt.Path() + "/precious"); err != nil {
		t.Fatal(err)
	}
	mt.Attach()
	mt.Detach()
}

// Promise S12.
func TestManagedAttachRefusesSymlink(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	elsewhere := filepath.Join(mt.Top, "elsewhere")
	if err := os.Mkdir(elsewhere, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Dir(mt.Path())); err != nil {
		t.Fatal(err)
	}
	_, err := mt.TryAttach(false)
	mt.CheckError(err, true, "symbolic link")
}

func TestManagedAttachRefusesDeviceMountedElsewhere(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		elsewhere := filepath.Join(mt.Top, "elsewhere")
		sourcetest.Command(t, "mount", "--mkdir", loop.Path, elsewhere)
		_, err := mt.TryAttach(false)
		mt.CheckError(err, false, loop.Path, "in use", "mounted at "+elsewhere)
		if err := unix.Unmount(elsewhere, 0); err != nil {
			t.Fatal(err)
		}
		mt.Attach()
		mt.Detach()
	})
}

func TestManagedMountOfSubdirectoryIsForeign(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		elsewhere := filepath.Join(mt.Top, "elsewhere")
		sourcetest.Command(t, "mount", "--mkdir", loop.Path, elsewhere)
		if err := os.MkdirAll(elsewhere+"/part", 0o755); err != nil {
			t.Fatal(err)
		}
		sourcetest.Command(t, "mount", "--mkdir", "--bind", elsewhere+"/part", mt.Path())
		_, err := mt.TryAttach(false)
		mt.CheckError(err, true, fs+" from "+loop.Path+" is mounted at "+mt.Path())
		mt.UnmountExternally()
		if err := unix.Unmount(elsewhere, 0); err != nil {
			t.Fatal(err)
		}
	})
}

func TestManagedReadOnly(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		mt.Attach()
		mt.WriteData()
		_, err := mt.TryAttach(true)
		mt.CheckError(err, true, "wanted read-only", "detach it first")
		mt.Detach()
		got, err := mt.TryAttach(true)
		if err != nil {
			t.Fatal(err)
		}
		if !got.ReadOnly {
			t.Errorf("got %+v", got)
		}
		mt.CheckData()
		if err := os.WriteFile(filepath.Join(mt.Path(), "data"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing gives %v", err)
		}
		if err := unix.Mount("", mt.Path(), "", unix.MS_REMOUNT|unix.MS_BIND, ""); err == nil {
			if err := os.WriteFile(filepath.Join(mt.Path(), "data"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("writing after the mount was made writable gives %v", err)
			}
		}
		mt.Detach()
	})
}

func TestManagedBusyDetachNamesTheHolder(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		mt.Attach()
		mt.WriteData()
		cmd := exec.Command("sh", "-c", "echo ready; read line")
		cmd.Dir = mt.Path()
		kill := sourcetest.Holder(t, cmd)
		mt.CheckError(mt.TryDetach(), false, "detaching filesystem 0/2", mt.Path(), "(sh): working directory")
		mt.CheckData()
		mt.CheckError(mt.TryDestroy(), false, "mounted at "+mt.Path())
		// The refused calls changed nothing.
		mt.Attach()
		mt.CheckData()
		kill()
		mt.Detach()
	})
}

// A mount namespace that was copied while the filesystem was mounted keeps it alive after
// umount has succeeded.
func TestManagedDetachSeesOtherMountNamespaces(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Create(fs)
		mt.Attach()
		devicetest.RequireProgram(t, "unshare")
		kill := sourcetest.Holder(t, exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; read line"))
		for range 2 {
			err := mt.TryDetach()
			mt.CheckError(err, false, loop.Path, "in use", "(sh): mounted at "+mt.Path())
			if !errors.Is(err, storage.ErrTransient) {
				t.Errorf("the error is not transient: %v", err)
			}
		}
		kill()
		mt.Detach()
	})
}

func TestManagedBulkCallsAnswerInOrder(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	second := names.NewVolumeTag("0/9")
	loop := devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	mt.Blocks[second] = storage.BlockDevice{DeviceName: loop.Name(), Size: sourcetest.ManagedExt4Size >> 20}

	tags := []names.FilesystemTag{sourcetest.ManagedTag, names.NewFilesystemTag("0/8"), names.NewFilesystemTag("0/9")}
	created, err := mt.Source().CreateFilesystems(mt.CallContext(), []storage.FilesystemParams{
		{Tag: tags[0], Volume: sourcetest.ManagedVolume}, {Tag: tags[1], Volume: names.NewVolumeTag("0/8")}, {Tag: tags[2], Volume: second},
	})
	if err != nil {
		t.Fatal(err)
	}
	attach := make([]storage.FilesystemAttachmentParams, len(tags))
	for i, tag := range tags {
		good := i != 1
		if (created[i].Error == nil) != good || good && created[i].Filesystem.Tag != tag {
			t.Errorf("creating %d: got %+v", i, created[i])
		}
		attach[i] = storage.FilesystemAttachmentParams{
			Filesystem: tag, FilesystemId: tag.String(), Path: filepath.Join(mt.Top, "srv", tag.String()),
		}
	}
	attached, err := mt.Source().AttachFilesystems(mt.CallContext(), attach)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tags {
		good := i != 1
		if (attached[i].Error == nil) != good || good && attached[i].FilesystemAttachment.Path != attach[i].Path {
			t.Errorf("attaching %d: got %+v", i, attached[i])
		}
	}
	detached, err := mt.Source().DetachFilesystems(mt.CallContext(), attach)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range detached {
		if err != nil {
			t.Errorf("detaching %d: %v", i, err)
		}
	}
}

// What the machine knows of the volume's device may be outdated: another device, equally
// blank and large, has its name now.
// Story D1.
func TestManagedNeverFormatsAnotherVolumesDevice(t *testing.T) {
	mt := newManagedTest(t)
	mine, others := devicetest.NewLoop(t, sourcetest.ManagedExt4Size), devicetest.NewLoop(t, sourcetest.ManagedExt4Size)
	entry := storage.BlockDevice{DeviceName: others.Name(), Size: sourcetest.ManagedExt4Size >> 20, BusAddress: sourcetest.BusAddress(t, mine)}
	mt.Blocks[sourcetest.ManagedVolume] = entry
	before := edges(t, others.Path)
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, false, "block device of volume 0/1", sourcetest.BusAddress(t, others), sourcetest.BusAddress(t, mine))
	if !bytes.Equal(edges(t, others.Path), before) {
		t.Error("the other volume's device was written to")
	}
	entry.DeviceName = mine.Name()
	mt.Blocks[sourcetest.ManagedVolume] = entry
	mt.Create("ext4")
	mt.Attach()
	mt.Detach()
}

// A copy that somebody attached must not be mounted while the volume itself is missing.
func TestManagedAttachRefusesCopy(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	entry := mt.Blocks[sourcetest.ManagedVolume]
	entry.BusAddress = sourcetest.BusAddress(t, loop)
	mt.Blocks[sourcetest.ManagedVolume] = entry
	mt.Create("ext4")
	clone := filepath.Join(mt.Top, "clone")
	sourcetest.Command(t, "cp", "--sparse=always", loop.Path, clone)
	loop.Detach(t)
	other := devicetest.AttachLoop(t, clone)
	_, err := mt.TryAttach(false)
	mt.CheckError(err, false, "not on the block device of volume-0-1", other.Path)
	if n := mt.Mounts(); n != 0 {
		t.Errorf("%d mounts", n)
	}
}

// After a reboot two disks may have swapped their names.
// Story D1.
func TestManagedChecksDiskWWN(t *testing.T) {
	for _, test := range []struct {
		hardware, wwn string
		ok            bool
	}{
		{"naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d4", true},
		{"naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d5", false},
		{"eui.0025388b01b2c3d4", "eui.0025388b01b2c3d4", true},
		{"eui.0025388b01b2c3d4", "eui.0025388b01b2c3d5", false},
		{"t10.ATA     QEMU HARDDISK", "0x5000c500a1b2c3d4", true},
		{"", "0x5000c500a1b2c3d4", true},
		{"naa.5000c500a1b2c3d4", "", true},
	} {
		dev := &blockdev.Device{Name: "sda", Identity: blockdev.Identity{Hardware: test.hardware}}
		err := checkIdentity(dev, storage.BlockDevice{DeviceName: "sda", WWN: test.wwn, BusAddress: "scsi@0:0.0.0"})
		if (err == nil) != test.ok {
			t.Errorf("%q for WWN %q: %v", test.hardware, test.wwn, err)
		}
	}
}

func TestManagedDestroyWithFullFilesystem(t *testing.T) {
	mt := newManagedTest(t)
	mt.Dir = filepath.Join(mt.Top, "small", "managed")
	sourcetest.Command(t, "mkdir", filepath.Dir(mt.Dir))
	sourcetest.MountTmpfs(t, "full", filepath.Dir(mt.Dir), "1m")
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	if err := os.WriteFile(filepath.Join(mt.Top, "small", "other"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling up: %v", err)
	}
	mt.Detach()
	if err := mt.TryDestroy(); err != nil {
		t.Error(err)
	}
}
