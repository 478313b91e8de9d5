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
)

// The stories in this file are those of docs/pains.md: what happened to users of
// other systems, made to happen here.

const namespaceEnv = "STOWAGE_TEST_NAMESPACE"

// inNamespace tells whether the test runs in a process with a mount namespace of its
// own. Where it does not, such a process runs it, and nothing is left to do.
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

// juju #22798, #23146: after a reboot two disks had each other's names, and were
// mounted on each other's paths.
func TestPainSwappedNamesMountTheWrongDisk(t *testing.T) {
	mt := newManagedTest(t)
	files := []string{filepath.Join(mt.top, "disk0"), filepath.Join(mt.top, "disk1")}
	var params []storage.FilesystemParams
	var attachments []storage.FilesystemAttachmentParams
	for i, file := range files {
		run(t, "truncate", "--size", fmt.Sprint(managedExt4Size), file)
		tag := names.NewFilesystemTag(fmt.Sprintf("0/%d", i))
		params = append(params, storage.FilesystemParams{Tag: tag, Volume: volume(i)})
		attachments = append(attachments, storage.FilesystemAttachmentParams{
			Filesystem: tag, FilesystemId: tag.String(), Path: filepath.Join(mt.top, "srv", fmt.Sprint(i)),
		})
	}
	paths, unplug := plugPair(t, files)
	defer func() { unplug() }()
	for i, path := range paths {
		mt.blocks[volume(i)] = storage.BlockDevice{
			DeviceName: filepath.Base(path), BusAddress: busAddress(t, &devicetest.Loop{File: files[i]}),
		}
	}
	if made, err := mt.source().CreateFilesystems(mt.callContext(), params); err != nil || made[0].Error != nil || made[1].Error != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	use := func(f func(path string, whose []byte)) {
		t.Helper()
		got, err := mt.source().AttachFilesystems(mt.callContext(), attachments)
		if err != nil || got[0].Error != nil || got[1].Error != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		for i, a := range attachments {
			f(filepath.Join(a.Path, "whose"), []byte{byte(i)})
		}
		if got, err := mt.source().DetachFilesystems(mt.callContext(), attachments); err != nil || got[0] != nil || got[1] != nil {
			t.Fatalf("%v, %v", got, err)
		}
	}
	use(func(path string, whose []byte) {
		if err := os.WriteFile(path, whose, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	// What is known of the devices is as old as their names.
	unplug()
	unplug = plugAt(t, paths, []string{files[1], files[0]})
	use(func(path string, whose []byte) {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whose) {
			t.Errorf("%s is of disk %v, want %v: %v", path, got, whose, err)
		}
	})
}

// plugPair attaches two files to loop devices whose names nobody else gets when they
// are free: those with low numbers are taken first.
func plugPair(t *testing.T, files []string) (paths []string, unplug func()) {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for number := 900; number < 1000; number += len(files) {
		paths = nil
		for i := range files {
			if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number+i); err != nil && err != unix.EEXIST {
				t.Fatal(err)
			}
			paths = append(paths, fmt.Sprintf("/dev/loop%d", number+i))
		}
		if exec.Command("losetup", paths[0]).Run() != nil && exec.Command("losetup", paths[1]).Run() != nil {
			return paths, plugAt(t, paths, files)
		}
	}
	t.Fatal("the loop devices from 900 on are taken")
	return nil, nil
}

func plugAt(t *testing.T, paths, files []string) (unplug func()) {
	t.Helper()
	for i, path := range paths {
		run(t, "losetup", path, files[i])
	}
	return func() {
		t.Helper()
		for i, path := range paths {
			(&devicetest.Loop{Path: path, File: files[i]}).Detach(t)
		}
	}
}

// juju #22218, #21073; k8s #29076, #43291, #95183, #140376; k3s #1902: a device that
// had just appeared, with data, with partitions, or not readable yet, was formatted.
func TestPainDeviceThatJustAppearedIsFormatted(t *testing.T) {
	for _, test := range []struct {
		name  string
		put   func(t *testing.T, loop *devicetest.Loop)
		final bool
		words string
	}{
		{"with data", func(t *testing.T, loop *devicetest.Loop) {
			command(t, "mkfs.ext4", "-q", "-L", "precious", loop.Path)
		}, true, "precious"},
		{"with partitions", func(t *testing.T, loop *devicetest.Loop) {
			writeAt(t, loop.Path, 0, gpt(managedExt4Size))
		}, true, "gpt"},
		{"with data that nobody knows", func(t *testing.T, loop *devicetest.Loop) {
			writeAt(t, loop.Path, managedExt4Size-4096, randomBytes(4096))
		}, true, "unknown"},
		{"not readable yet", func(t *testing.T, loop *devicetest.Loop) {
			if err := os.Truncate(loop.File, managedExt4Size/2); err != nil {
				t.Fatal(err)
			}
		}, false, "cannot be proven blank"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.loop(managedExt4Size)
			test.put(t, loop)
			before, err := os.ReadFile(loop.File)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := mt.tryCreate("ext4")
				mt.checkError(err, test.final, loop.Path, test.words)
			}
			if after, err := os.ReadFile(loop.File); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the device was written to: %v", err)
			}
		})
	}
}

// juju #3366: an attach failed for a moment, and the volume's file was deleted for
// that; then the attach was tried for ever against a file that was not there.
func TestPainTransientAttachFailureDeletesTheBackingFile(t *testing.T) {
	devicetest.RequireProgram(t, "chattr")
	lt := newLoopTest(t)
	mine, others := volume(1), volume(2)
	lt.create(mine)
	lt.create(others)
	writeDevice(t, lt.attach(mine, false), "precious")
	lt.detach(mine)

	run(t, "chattr", "+i", lt.file(mine))
	for range 3 {
		_, err := lt.tryAttach(mine, false)
		checkError(t, err, false, lt.file(mine))
		lt.restart()
	}
	run(t, "chattr", "-i", lt.file(mine))
	checkDevice(t, lt.attach(mine, false), "precious")
	lt.detach(mine)

	if err := os.Remove(lt.file(mine)); err != nil {
		t.Fatal(err)
	}
	results, err := lt.source.AttachVolumes(lt.ctx, append(lt.attachment(mine, false), lt.attachment(others, false)...))
	if err != nil || results[1].Error != nil {
		t.Fatalf("the other volume: %+v, %v", results, err)
	}
	checkError(t, results[0].Error, true, lt.file(mine)+" is missing")
	if _, err := os.Lstat(lt.file(mine)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made in place of what was lost: %v", err)
	}
	lt.detach(others)
	if err := lt.tryDestroy(mine); err != nil {
		t.Error(err)
	}
	lt.destroy(others)
}

// juju #21897: "cannot find an unused loop device" in a container, for ever.
func TestPainContainerWithoutLoopDevices(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	lt := newLoopTest(t)
	lt.create(volume(1))
	if err := unix.Mount("none", "/dev", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	_, attaching := lt.tryAttach(volume(1), false)
	for what, err := range map[string]error{"creating": lt.tryCreate(volume(2), volumeSize), "attaching": attaching} {
		if !jujuerrors.Is(err, jujuerrors.NotSupported) || !strings.Contains(err.Error(), "/dev/loop-control") {
			t.Errorf("%s: want that it is not supported, and what is missing, got %v", what, err)
		}
	}
	if err := unix.Unmount("/dev", 0); err != nil {
		t.Fatal(err)
	}
	lt.destroy(volume(1))
}

// juju #22198, #23291: the volume was attached, its device never seen, and nothing
// told what was missing. What the worker does is its own story.
func TestPainLocationNeverAppears(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.create("ext4")
	entry := mt.blocks[managedVolume]
	delete(mt.blocks, managedVolume)
	_, err := mt.tryAttach(false)
	mt.checkError(err, false, "block device of volume 0/1")
	if !errors.Is(err, jujuerrors.NotFound) {
		t.Errorf("got %v", err)
	}
	// The name that is known may be gone as well, and the device there by another.
	entry.DeviceName = "loop-that-was-here-before"
	entry.BusAddress = busAddress(t, loop)
	mt.blocks[managedVolume] = entry
	mt.attach()
	mt.detach()
}

// juju #21359, #22220, postgresql-operator #1827: a busy mount blocked the teardown,
// and the error told not who.
func TestPainBusyMountNamesNobody(t *testing.T) {
	mt := newManagedTest(t)
	mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.attach()
	mt.writeData()
	file := filepath.Join(mt.path(), "data")
	cmd := exec.Command("sh", "-c", "exec <"+file+"; echo ready; exec sleep 1000")
	kill := holder(t, cmd)
	for range 2 {
		mt.checkError(mt.tryDetach(), false, mt.path(), fmt.Sprintf("process %d (s", cmd.Process.Pid), "has open "+file)
		mt.checkData()
		mt.attach() // nothing is half undone
	}
	kill()
	mt.detach()
}

// k8s #106710, #120328: a volume was detached by force while it was mounted.
func TestPainForceDetachOfAMountedVolume(t *testing.T) {
	lt := newLoopTest(t)
	lt.create(volume(1))
	device := lt.attach(volume(1), false)
	run(t, "mkfs.ext4", "-q", device)
	path := filepath.Join(lt.dir, "mounted")
	run(t, "mount", "--mkdir", device, path)
	for range 2 {
		checkError(t, lt.tryDetach(volume(1)), false, "mounted at "+path)
		lt.restart()
	}
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("precious"), 0o600); err != nil {
		t.Error(err)
	}
	run(t, "umount", path)
	run(t, "fsck.ext4", "-f", "-n", device)
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	lt.detach(volume(1))
	lt.destroy(volume(1))
}

// k8s #10462, #48953, #111799; democratic-csi #307: a volume was mounted twice,
// read-write, and corrupted.
func TestPainMountedTwice(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.loop(managedExt4Size)
	mt.create("ext4")
	// Several agents at once, each of which has just been started.
	var agents sync.WaitGroup
	for range 4 {
		agents.Go(func() {
			params := []storage.FilesystemAttachmentParams{mt.attachment(false)}
			if got, err := mt.source().AttachFilesystems(envcontext.New(t.Context()), params); err != nil || got[0].Error != nil {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	agents.Wait()
	if n := mt.mounts(); n != 1 {
		t.Errorf("mounted %d times", n)
	}
	// The same at another path, and an agent that knows nothing of the first.
	elsewhere := mt.attachment(false)
	elsewhere.Path = filepath.Join(mt.top, "elsewhere")
	got, err := mt.source().AttachFilesystems(mt.callContext(), []storage.FilesystemAttachmentParams{elsewhere})
	if err != nil {
		t.Fatal(err)
	}
	mt.checkError(got[0].Error, true, "it is mounted at "+mt.path())
	other := &managedTest{T: t, top: mt.top, dir: filepath.Join(mt.top, "other"), blocks: mt.blocks}
	_, err = other.tryCreate("ext4")
	mt.checkError(err, false, loop.Path, "in use", "mounted at "+mt.path())
	mt.detach()
}

// k8s #72257, #7317: a clean-up deleted data that were in use, or not its own.
func TestPainCleanUpDeletedLiveData(t *testing.T) {
	lt := newLoopTest(t)
	lt.create(volume(1))
	device := lt.attach(volume(1), false)
	writeDevice(t, device, "precious")
	foreign := filepath.Join(lt.dir, "volumes", "volume-0-9")
	if err := os.WriteFile(foreign, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		lt.restart()
		checkError(t, lt.tryDestroy(volume(1)), false, "detach it first")
		if err := lt.tryDestroy(volume(9)); err != nil {
			t.Error(err)
		}
	}
	checkDevice(t, device, "precious")
	if data, err := os.ReadFile(foreign); err != nil || string(data) != "not ours" {
		t.Errorf("what is not ours: %q, %v", data, err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Error(err)
	}
	lt.detach(volume(1))
	lt.destroy(volume(1))

	ft := newFilesystemTest(t, RootfsProviderType)
	ft.create()
	ft.attach()
	ft.write()
	for range 2 {
		ft.restart()
		checkError(t, ft.tryDestroy(), false, "mounted at "+ft.path)
	}
	ft.checkWritten()
	ft.detach()
	ft.destroy()
}

// k8s #84169, #86281; aws-ebs #1302, #2029; longhorn #1463; zfs-localpv #79:
// hundreds of attachments collapsed under the checks made for each of them.
func TestPainHundredsOfAttachments(t *testing.T) {
	const count = 100
	lt := newLoopTest(t)
	var params []storage.VolumeParams
	var attachments []storage.VolumeAttachmentParams
	var ids []string
	for i := range count {
		params = append(params, storage.VolumeParams{Tag: volume(i), Size: 1})
		attachments = append(attachments, lt.attachment(volume(i), false)...)
		ids = append(ids, volume(i).String())
	}
	created, err := lt.source.CreateVolumes(lt.ctx, params)
	if err != nil || created[count-1].Error != nil {
		t.Fatal(err, created[count-1].Error)
	}
	looksOnce := func(doing string, do func() error) {
		t.Helper()
		opens := devicetest.Opens(t, func() {
			if err := do(); err != nil {
				t.Error(err)
			}
		})
		if n := opens["partitions"] + opens["block"]; n != 1 {
			t.Errorf("%s %d volumes looked %d times at all devices", doing, count, n)
		}
	}
	looksOnce("attaching", func() error {
		attached, err := lt.source.AttachVolumes(lt.ctx, attachments)
		return errors.Join(append(errorsOf(attached, func(r storage.AttachVolumesResult) error { return r.Error }), err)...)
	})
	lt.checkLoops(count)
	looksOnce("detaching", func() error {
		detached, err := lt.source.DetachVolumes(lt.ctx, attachments)
		return errors.Join(append(detached, err)...)
	})
	looksOnce("destroying", func() error {
		destroyed, err := lt.source.DestroyVolumes(lt.ctx, ids)
		return errors.Join(append(destroyed, err)...)
	})
	lt.checkNothingLeft()
}

// juju 47d8d387: lines of /etc/fstab were lost. Nobody here has business with it.
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
	mt.loop(managedExt4Size)
	mt.create("ext4")
	mt.attach()
	mt.detach()
	forBoth(t, func(ft *filesystemTest) {
		ft.create()
		ft.attach()
		ft.detach()
		ft.destroy()
	})
	if err := unix.Stat("/etc/fstab", &after); err != nil {
		t.Fatal(err)
	}
	// It was neither written to, nor replaced, nor read.
	if before.Ino != after.Ino || before.Mtim != after.Mtim || before.Ctim != after.Ctim || before.Atim != after.Atim {
		t.Errorf("/etc/fstab was %+v and is %+v", before, after)
	}
	if err := unix.Unmount("/etc/fstab", 0); err != nil {
		t.Error(err)
	}
}
