//go:build linux

package provider

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	jujuerrors "github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// The tests in this file reproduce the incidents of docs/history/pains.md, which users of
// other systems had.

const namespaceEnv = "STOWAGE_TEST_NAMESPACE"

// inNamespace reports whether the test runs in a process with a mount namespace of its
// own. Otherwise it runs the test in such a process, and the caller returns.
func inNamespace(t *testing.T) bool {
	t.Helper()
	devicetest.RequireRoot(t)
	if os.Getenv(namespaceEnv) == t.Name() {
		// A copy of another test's mounts would keep them busy.
		for _, m := range devicetest.Mounts(t, os.TempDir()) {
			if m.Mountpoint == os.TempDir() {
				continue
			}
			if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), namespaceEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// juju #22798, #23146: after a reboot two disks had swapped names, and each was mounted
// at the other's path.
// Story D1.
func TestPainSwappedNamesMountTheWrongDisk(t *testing.T) {
	mt := newManagedTest(t)
	files := []string{filepath.Join(mt.Top, "disk0"), filepath.Join(mt.Top, "disk1")}
	var params []storage.FilesystemParams
	var attachments []storage.FilesystemAttachmentParams
	for i, file := range files {
		sourcetest.Run(t, "truncate", "--size", fmt.Sprint(sourcetest.ManagedExt4Size), file)
		tag := names.NewFilesystemTag(fmt.Sprintf("0/%d", i))
		params = append(params, storage.FilesystemParams{Tag: tag, Volume: sourcetest.Volume(i)})
		attachments = append(attachments, storage.FilesystemAttachmentParams{
			Filesystem: tag, FilesystemId: tag.String(), Path: filepath.Join(mt.Top, "srv", fmt.Sprint(i)),
		})
	}
	paths, unplug := plugPair(t, files)
	for i, path := range paths {
		mt.Blocks[sourcetest.Volume(i)] = storage.BlockDevice{
			DeviceName: filepath.Base(path), BusAddress: sourcetest.BusAddress(t, &devicetest.Loop{File: files[i]}),
		}
	}
	if made, err := mt.Source().CreateFilesystems(mt.CallContext(), params); err != nil || made[0].Error != nil || made[1].Error != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	use := func(f func(path string, whose []byte)) {
		t.Helper()
		got, err := mt.Source().AttachFilesystems(mt.CallContext(), attachments)
		if err != nil || got[0].Error != nil || got[1].Error != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		for i, a := range attachments {
			f(filepath.Join(a.Path, "whose"), []byte{byte(i)})
		}
		if got, err := mt.Source().DetachFilesystems(mt.CallContext(), attachments); err != nil || got[0] != nil || got[1] != nil {
			t.Fatalf("%v, %v", got, err)
		}
	}
	use(func(path string, whose []byte) {
		if err := os.WriteFile(path, whose, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	// What the machine knows of the devices is outdated like their names.
	unlock := lockLoopDevices(t)
	unplug()
	plugAt(t, paths, []string{files[1], files[0]})
	unlock()
	use(func(path string, whose []byte) {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whose) {
			t.Errorf("%s is of disk %v, want %v: %v", path, got, whose, err)
		}
	})
}

// lockLoopDevices keeps agents from taking a free loop device, until unlock or the end of the
// test.
func lockLoopDevices(t *testing.T) (unlock func()) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { control.Close() })
	t.Cleanup(unlock)
	if err := unix.Flock(int(control.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return unlock
}

// plugPair attaches two files to loop devices until unplug or the end of the test, and leaves free
// devices with lower numbers: a program that looks for a free device gets the one with the lowest
// number, and not one of the two while it is free.
func plugPair(t *testing.T, files []string) (paths []string, unplug func()) {
	t.Helper()
	defer lockLoopDevices(t)()
	const spare = 8
	for number := 900; number < 1000; number += len(files) {
		paths = nil
		for i := range files {
			addLoopDevice(t, number+i)
			paths = append(paths, fmt.Sprintf("/dev/loop%d", number+i))
		}
		if exec.Command("losetup", paths[0]).Run() != nil && exec.Command("losetup", paths[1]).Run() != nil {
			for i := range spare {
				addLoopDevice(t, 900-spare+i)
			}
			return paths, plugAt(t, paths, files)
		}
	}
	t.Fatal("the loop devices from 900 on are taken")
	return nil, nil
}

// addLoopDevice has the kernel make a loop device, unless it is there. A free device costs nothing,
// so it stays.
func addLoopDevice(t *testing.T, number int) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number); err != nil && err != unix.EEXIST {
		t.Fatal(err)
	}
}

// plugAt attaches files to devices, until unplug or the end of the test.
func plugAt(t *testing.T, paths, files []string) (unplug func()) {
	t.Helper()
	var plugged []*devicetest.Loop
	// Only once: afterwards the devices may be somebody else's.
	unplug = sync.OnceFunc(func() {
		for _, device := range plugged {
			device.Detach(t)
		}
	})
	t.Cleanup(unplug)
	for i, path := range paths {
		sourcetest.Run(t, "losetup", path, files[i])
		plugged = append(plugged, &devicetest.Loop{Path: path, File: files[i]})
	}
	return unplug
}

// juju #22218, #21073; k8s #29076, #43291, #95183, #140376; k3s #1902: a newly attached
// device with data, with partitions, or not readable yet, was formatted.
// Story D2.
func TestPainNewlyAttachedDeviceFormatted(t *testing.T) {
	for _, test := range []struct {
		name  string
		put   func(t *testing.T, loop *devicetest.Loop)
		final bool
		words string
	}{
		{"with data", func(t *testing.T, loop *devicetest.Loop) {
			sourcetest.Command(t, "mkfs.ext4", "-q", "-L", "precious", loop.Path)
		}, true, "precious"},
		{"with partitions", func(t *testing.T, loop *devicetest.Loop) {
			sourcetest.WriteAt(t, loop.Path, 0, sourcetest.Gpt(sourcetest.ManagedExt4Size))
		}, true, "gpt"},
		{"with data of an unknown kind", func(t *testing.T, loop *devicetest.Loop) {
			sourcetest.WriteAt(t, loop.Path, sourcetest.ManagedExt4Size-4096, sourcetest.RandomBytes(4096))
		}, true, "unknown"},
		{"not readable yet", func(t *testing.T, loop *devicetest.Loop) {
			if err := os.Truncate(loop.File, sourcetest.ManagedExt4Size/2); err != nil {
				t.Fatal(err)
			}
		}, false, "cannot be proven blank"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.Loop(sourcetest.ManagedExt4Size)
			test.put(t, loop)
			before, err := os.ReadFile(loop.File)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := mt.TryCreate("ext4")
				mt.CheckError(err, test.final, loop.Path, test.words)
			}
			if after, err := os.ReadFile(loop.File); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the device was written to: %v", err)
			}
		})
	}
}

// juju #3366: an attach failed briefly, and the volume's file was deleted as a result.
// Then the attach was retried for ever without a file.
// Story D3.
func TestPainTransientAttachFailureDeletesFile(t *testing.T) {
	devicetest.RequireProgram(t, "chattr")
	lt := newLoopTest(t)
	mine, others := sourcetest.Volume(1), sourcetest.Volume(2)
	lt.Create(mine)
	lt.Create(others)
	sourcetest.WriteDevice(t, lt.Attach(mine, false), "precious")
	lt.Detach(mine)

	sourcetest.Run(t, "chattr", "+i", lt.File(mine))
	for range 3 {
		_, err := lt.TryAttach(mine, false)
		sourcetest.CheckError(t, err, false, lt.File(mine))
		lt.Restart()
	}
	sourcetest.Run(t, "chattr", "-i", lt.File(mine))
	sourcetest.CheckDevice(t, lt.Attach(mine, false), "precious")
	lt.Detach(mine)

	if err := os.Remove(lt.File(mine)); err != nil {
		t.Fatal(err)
	}
	results, err := lt.Source.AttachVolumes(lt.Ctx, append(lt.Attachment(mine, false), lt.Attachment(others, false)...))
	if err != nil || results[1].Error != nil {
		t.Fatalf("the other volume: %+v, %v", results, err)
	}
	sourcetest.CheckError(t, results[0].Error, true, lt.File(mine)+" is missing")
	if _, err := os.Lstat(lt.File(mine)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lost file was replaced: %v", err)
	}
	lt.Detach(others)
	if err := lt.TryDestroy(mine); err != nil {
		t.Error(err)
	}
	lt.Destroy(others)
}

// juju #21897: "cannot find an unused loop device" in a container, for ever.
// Story D4.
func TestPainContainerWithoutLoopDevices(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	lt := newLoopTest(t)
	lt.Create(sourcetest.Volume(1))
	if err := unix.Mount("none", "/dev", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	_, attaching := lt.TryAttach(sourcetest.Volume(1), false)
	for what, err := range map[string]error{"creating": lt.TryCreate(sourcetest.Volume(2), sourcetest.VolumeSize), "attaching": attaching} {
		if !jujuerrors.Is(err, jujuerrors.NotSupported) || !strings.Contains(err.Error(), "/dev/loop-control") {
			t.Errorf("%s: got %v, want not supported and the name of the missing device", what, err)
		}
	}
	if err := unix.Unmount("/dev", 0); err != nil {
		t.Fatal(err)
	}
	lt.Destroy(sourcetest.Volume(1))
}

// juju #22198, #23291: the volume was attached, its device never appeared, and no error
// said what was missing. The worker has tests of its own for this.
// Story D5.
func TestPainLocationNeverAppears(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	entry := mt.Blocks[sourcetest.ManagedVolume]
	delete(mt.Blocks, sourcetest.ManagedVolume)
	_, err := mt.TryAttach(false)
	mt.CheckError(err, false, "block device of volume 0/1")
	if !errors.Is(err, jujuerrors.NotFound) {
		t.Errorf("got %v", err)
	}
	// The device may have another name than the machine knows.
	entry.DeviceName = "loop-that-was-here-before"
	entry.BusAddress = sourcetest.BusAddress(t, loop)
	mt.Blocks[sourcetest.ManagedVolume] = entry
	mt.Attach()
	mt.Detach()
}

// juju #21359, #22220, postgresql-operator #1827: a busy mount blocked the teardown, and
// the error did not name the process.
// Story D6.
func TestPainBusyMountHolderNotNamed(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	mt.WriteData()
	file := filepath.Join(mt.Path(), "data")
	cmd := exec.Command("sh", "-c", "exec <"+file+"; echo ready; exec sleep 1000")
	kill := sourcetest.Holder(t, cmd)
	for range 2 {
		mt.CheckError(mt.TryDetach(), false, mt.Path(), fmt.Sprintf("process %d (s", cmd.Process.Pid), "has open "+file)
		mt.CheckData()
		mt.Attach() // the detach changed nothing
	}
	kill()
	mt.Detach()
}

// k8s #106710, #120328: a volume was force-detached while it was mounted.
// Story D7.
func TestPainForceDetachOfAMountedVolume(t *testing.T) {
	lt := newLoopTest(t)
	lt.Create(sourcetest.Volume(1))
	device := lt.Attach(sourcetest.Volume(1), false)
	sourcetest.Run(t, "mkfs.ext4", "-q", device)
	path := filepath.Join(lt.Dir, "mounted")
	sourcetest.Run(t, "mount", "--mkdir", device, path)
	for range 2 {
		sourcetest.CheckError(t, lt.TryDetach(sourcetest.Volume(1)), false, "mounted at "+path)
		lt.Restart()
	}
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("precious"), 0o600); err != nil {
		t.Error(err)
	}
	sourcetest.Run(t, "umount", path)
	sourcetest.Run(t, "fsck.ext4", "-f", "-n", device)
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	lt.Detach(sourcetest.Volume(1))
	lt.Destroy(sourcetest.Volume(1))
}

// k8s #10462, #48953, #111799; democratic-csi #307: a volume was mounted twice,
// read-write, and corrupted.
// Story D8.
func TestPainMountedTwice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	// Several newly started agents attach it concurrently.
	var agents sync.WaitGroup
	for range 4 {
		agents.Go(func() {
			params := []storage.FilesystemAttachmentParams{mt.Attachment(false)}
			if got, err := mt.Source().AttachFilesystems(envcontext.New(t.Context()), params); err != nil || got[0].Error != nil {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	agents.Wait()
	if n := mt.Mounts(); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	// The same agent at another path, and an agent without the first one's records.
	elsewhere := mt.Attachment(false)
	elsewhere.Path = filepath.Join(mt.Top, "elsewhere")
	got, err := mt.Source().AttachFilesystems(mt.CallContext(), []storage.FilesystemAttachmentParams{elsewhere})
	if err != nil {
		t.Fatal(err)
	}
	mt.CheckError(got[0].Error, true, "it is mounted at "+mt.Path())
	other := &managedTest{T: t, Top: mt.Top, Dir: filepath.Join(mt.Top, "other"), NewSource: mt.NewSource, Blocks: mt.Blocks}
	_, err = other.TryCreate("ext4")
	mt.CheckError(err, false, loop.Path, "in use", "mounted at "+mt.Path())
	mt.Detach()
}

// k8s #72257, #7317: a clean-up deleted data that were in use or belonged to others.
// Story D9.
func TestPainCleanUpDeletedLiveData(t *testing.T) {
	lt := newLoopTest(t)
	lt.Create(sourcetest.Volume(1))
	device := lt.Attach(sourcetest.Volume(1), false)
	sourcetest.WriteDevice(t, device, "precious")
	foreign := filepath.Join(lt.Dir, "volumes", "volume-0-9")
	if err := os.WriteFile(foreign, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		lt.Restart()
		sourcetest.CheckError(t, lt.TryDestroy(sourcetest.Volume(1)), false, "detach it first")
		if err := lt.TryDestroy(sourcetest.Volume(9)); err != nil {
			t.Error(err)
		}
	}
	sourcetest.CheckDevice(t, device, "precious")
	if data, err := os.ReadFile(foreign); err != nil || string(data) != "not ours" {
		t.Errorf("the foreign file: %q, %v", data, err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Error(err)
	}
	lt.Detach(sourcetest.Volume(1))
	lt.Destroy(sourcetest.Volume(1))

	ft := newFilesystemTest(t, RootfsProviderType)
	ft.Create()
	ft.Attach()
	ft.Write()
	for range 2 {
		ft.Restart()
		sourcetest.CheckError(t, ft.TryDestroy(), false, "mounted at "+ft.Path)
	}
	ft.CheckWritten()
	ft.Detach()
	ft.Destroy()
}

// k8s #84169, #86281; aws-ebs #1302, #2029; longhorn #1463; zfs-localpv #79:
// hundreds of attachments collapsed under the checks made for each of them.
// Story D10.
func TestPainHundredsOfAttachments(t *testing.T) {
	const count = 100
	lt := newLoopTest(t)
	var params []storage.VolumeParams
	var attachments []storage.VolumeAttachmentParams
	var ids []string
	for i := range count {
		params = append(params, storage.VolumeParams{Tag: sourcetest.Volume(i), Size: 1})
		attachments = append(attachments, lt.Attachment(sourcetest.Volume(i), false)...)
		ids = append(ids, sourcetest.Volume(i).String())
	}
	created, err := lt.Source.CreateVolumes(lt.Ctx, params)
	if err != nil || created[count-1].Error != nil {
		t.Fatal(err, created[count-1].Error)
	}
	listsOnce := func(doing string, do func() error) {
		t.Helper()
		opens := devicetest.Opens(t, func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		})
		if n := opens["block"]; n != 1 {
			t.Errorf("%s %d volumes listed all devices %d times", doing, count, n)
		}
	}
	listsOnce("attaching", func() error {
		attached, err := lt.Source.AttachVolumes(lt.Ctx, attachments)
		return errors.Join(append(errorsOf(attached, func(r storage.AttachVolumesResult) error { return r.Error }), err)...)
	})
	lt.CheckLoops(count)
	listsOnce("detaching", func() error {
		detached, err := lt.Source.DetachVolumes(lt.Ctx, attachments)
		return errors.Join(append(detached, err)...)
	})
	listsOnce("destroying", func() error {
		destroyed, err := lt.Source.DestroyVolumes(lt.Ctx, ids)
		return errors.Join(append(destroyed, err)...)
	})
	lt.CheckNothingLeft()
}

// juju 47d8d387: lines of /etc/fstab were lost. Nothing here reads or writes it.
// Story D12.
func TestPainFstabLostLines(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	fstab := filepath.Join(t.TempDir(), "fstab")
	const lines = "UUID=11111111-2222-3333-4444-555555555555 / ext4 defaults 0 1\n# by hand\n"
	if err := os.WriteFile(fstab, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	if f, err := os.OpenFile("/etc/fstab", os.O_CREATE|os.O_RDONLY, 0o644); err != nil {
		t.Fatal(err)
	} else {
		f.Close()
	}
	if err := unix.Mount(fstab, "/etc/fstab", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	var before, after unix.Stat_t
	if err := unix.Stat("/etc/fstab", &before); err != nil {
		t.Fatal(err)
	}
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Create("ext4")
	mt.Attach()
	mt.Detach()
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		ft.Detach()
		ft.Destroy()
	})
	if err := unix.Stat("/etc/fstab", &after); err != nil {
		t.Fatal(err)
	}
	// It was not written, replaced or read.
	if before.Ino != after.Ino || before.Mtim != after.Mtim || before.Ctim != after.Ctim || before.Atim != after.Atim {
		t.Errorf("/etc/fstab was %+v and is %+v", before, after)
	}
	if err := unix.Unmount("/etc/fstab", 0); err != nil {
		t.Error(err)
	}
}
