//go:build linux

package provider

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
)

const volumeSize = 4 // MiB

// loopTest is a storage directory with loop volumes.
type loopTest struct {
	*testing.T
	dir    string
	source storage.VolumeSource
	ctx    envcontext.ProviderCallContext
}

func newLoopTest(t *testing.T) *loopTest {
	lt := &loopTest{T: t, dir: devicetest.Dir(t), ctx: envcontext.New(context.Background())}
	lt.restart()
	return lt
}

// newLoopTestOnExt4 has its storage directory on a filesystem of 64 MiB of its
// own, made with the arguments.
func newLoopTestOnExt4(t *testing.T, args ...string) *loopTest {
	t.Helper()
	dir := devicetest.Dir(t)
	image := filepath.Join(dir, "image")
	run(t, "truncate", "--size", "64M", image)
	run(t, "mkfs.ext4", append(append([]string{"-q", "-m", "0"}, args...), image)...)
	fs := filepath.Join(dir, "fs")
	run(t, "mount", "--mkdir", "-o", "loop", image, fs)
	t.Cleanup(func() { run(t, "umount", fs) })
	lt := &loopTest{T: t, dir: filepath.Join(fs, "storage"), ctx: envcontext.New(context.Background())}
	lt.restart()
	return lt
}

// restart is what a new process does.
func (t *loopTest) restart() {
	t.Helper()
	config := poolOf(t.T, LoopProviderType, storage.Attrs{storage.ConfigStorageDir: t.dir})
	source, err := NewLoopProvider(LoopOptions{}).VolumeSource(config)
	if err != nil {
		t.Fatal(err)
	}
	t.source = source
}

func volume(n int) names.VolumeTag {
	return names.NewVolumeTag(fmt.Sprintf("0/%d", n))
}

// file is where a volume's file is.
func (t *loopTest) file(tag names.VolumeTag) string {
	return filepath.Join(t.dir, "volumes", tag.String())
}

func (t *loopTest) tryCreate(tag names.VolumeTag, size uint64) error {
	t.Helper()
	results, err := t.source.CreateVolumes(t.ctx, []storage.VolumeParams{{Tag: tag, Size: size, Provider: LoopProviderType}})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if results[0].Error != nil {
		return results[0].Error
	}
	want := &storage.Volume{Tag: tag, VolumeInfo: storage.VolumeInfo{VolumeId: tag.String(), Size: size}}
	if !reflect.DeepEqual(results[0].Volume, want) {
		t.Errorf("created %+v, want %+v", results[0].Volume, want)
	}
	return nil
}

func (t *loopTest) create(tag names.VolumeTag) {
	t.Helper()
	if err := t.tryCreate(tag, volumeSize); err != nil {
		t.Fatal(err)
	}
}

func (t *loopTest) attachment(tag names.VolumeTag, readOnly bool) []storage.VolumeAttachmentParams {
	return []storage.VolumeAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Provider: LoopProviderType, Machine: names.NewMachineTag("0"), ReadOnly: readOnly},
		Volume:           tag,
		VolumeId:         tag.String(),
	}}
}

func (t *loopTest) tryAttach(tag names.VolumeTag, readOnly bool) (*storage.VolumeAttachment, error) {
	t.Helper()
	results, err := t.source.AttachVolumes(t.ctx, t.attachment(tag, readOnly))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0].VolumeAttachment, results[0].Error
}

// attach attaches a volume and returns the path of its device.
func (t *loopTest) attach(tag names.VolumeTag, readOnly bool) string {
	t.Helper()
	got, err := t.tryAttach(tag, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(t.file(tag), &st); err != nil {
		t.Fatal(err)
	}
	want := &storage.VolumeAttachment{
		Volume:  tag,
		Machine: names.NewMachineTag("0"),
		VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
			DeviceName: got.DeviceName,
			BusAddress: fmt.Sprintf("loop@%d:%d/%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino),
			ReadOnly:   readOnly,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("attached %+v, want %+v", got, want)
	}
	return "/dev/" + got.DeviceName
}

func (t *loopTest) tryDetach(tag names.VolumeTag) error {
	t.Helper()
	results, err := t.source.DetachVolumes(t.ctx, t.attachment(tag, false))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

func (t *loopTest) detach(tag names.VolumeTag) {
	t.Helper()
	if err := t.tryDetach(tag); err != nil {
		t.Error(err)
	}
}

func (t *loopTest) tryDestroy(tag names.VolumeTag) error {
	t.Helper()
	results, err := t.source.DestroyVolumes(t.ctx, []string{tag.String()})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

// destroy destroys a volume and checks that nothing of it is left.
func (t *loopTest) destroy(tag names.VolumeTag) {
	t.Helper()
	if err := t.tryDestroy(tag); err != nil {
		t.Error(err)
	}
	t.checkNothingLeft()
}

func (t *loopTest) checkNothingLeft() {
	t.Helper()
	checkNoFiles(t.T, t.dir)
	if loops := devicetest.Loops(t, t.dir); len(loops) != 0 {
		t.Errorf("left attached: %v", loops)
	}
}

// checkNoFiles checks that a storage directory holds nothing but directories of
// the providers.
func checkNoFiles(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, err := filepath.Glob(filepath.Join(dir, "*", ".*"))
	if err != nil {
		t.Fatal(err)
	}
	if left = append(left, hidden...); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func (t *loopTest) checkLoops(want int) {
	t.Helper()
	if loops := devicetest.Loops(t, t.dir); len(loops) != want {
		t.Errorf("attached as %v, want %d", loops, want)
	}
}

// store opens the volumes' records, to leave there what a crash would have.
func (t *loopTest) store() *record.Store {
	t.Helper()
	store, err := record.Open(filepath.Join(t.dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func (t *loopTest) record(tag names.VolumeTag) loopRecord {
	t.Helper()
	var rec loopRecord
	if err := t.store().Load(tag.String(), &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

func (t *loopTest) saveRecord(tag names.VolumeTag, rec loopRecord) {
	t.Helper()
	if err := t.store().Save(tag.String(), rec); err != nil {
		t.Fatal(err)
	}
}

// checkError checks that an error is permanent, or not, and says the words.
func checkError(t *testing.T, err error, permanent bool, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	if storage.IsPermanent(err) != permanent {
		t.Errorf("permanent: %v, want %v: %v", !permanent, permanent, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func writeDevice(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func checkDevice(t *testing.T, path, want string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != want {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

func TestLoopLife(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	var st unix.Stat_t
	if err := unix.Stat(lt.file(tag), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != volumeSize<<20 || st.Blocks*512 < volumeSize<<20 || st.Mode&0o777 != 0o600 {
		t.Errorf("file of %d bytes, %d blocks, mode %o", st.Size, st.Blocks, st.Mode)
	}
	device := lt.attach(tag, false)
	writeDevice(t, device, "precious")
	lt.detach(tag)
	lt.checkLoops(0)
	device = lt.attach(tag, false)
	checkDevice(t, device, "precious")

	ids, err := lt.source.ListVolumes(lt.ctx)
	if err != nil || !slices.Equal(ids, []string{"volume-0-1"}) {
		t.Errorf("listed %v, %v", ids, err)
	}
	described, err := lt.source.DescribeVolumes(lt.ctx, []string{"volume-0-1", "volume-0-2"})
	if err != nil || len(described) != 2 {
		t.Fatalf("described %v, %v", described, err)
	}
	if want := (storage.VolumeInfo{VolumeId: "volume-0-1", Size: volumeSize}); described[0].Error != nil || *described[0].VolumeInfo != want {
		t.Errorf("described %+v, %v", described[0].VolumeInfo, described[0].Error)
	}
	if !errors.Is(described[1].Error, errors.NotFound) {
		t.Errorf("described what is not there: %v", described[1].Error)
	}
	lt.detach(tag)
	lt.destroy(tag)
}

// TestLoopOneCallNamesAVolumeTwice is a batch in which nothing may be made or
// attached twice.
func TestLoopOneCallNamesAVolumeTwice(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	params := append(lt.attachment(tag, false), lt.attachment(tag, false)...)
	results, err := lt.source.AttachVolumes(lt.ctx, append(params, lt.attachment(tag, true)...))
	if err != nil || results[0].Error != nil || results[1].Error != nil {
		t.Fatalf("%+v, %v", results, err)
	}
	if !reflect.DeepEqual(results[0], results[1]) {
		t.Errorf("attached as %+v and %+v", results[0].VolumeAttachment, results[1].VolumeAttachment)
	}
	checkError(t, results[2].Error, true, "read-write", "wanted read-only")
	lt.checkLoops(1)
	if failures, err := lt.source.DetachVolumes(lt.ctx, params); err != nil || failures[0] != nil || failures[1] != nil {
		t.Errorf("detaching: %v, %v", failures, err)
	}
	lt.destroy(tag)
}

func TestLoopRestart(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	device := lt.attach(tag, false)
	writeDevice(t, device, "precious")
	for range 2 {
		lt.restart()
		lt.create(tag)
		if again := lt.attach(tag, false); again != device {
			t.Errorf("attached as %s and as %s", device, again)
		}
		lt.checkLoops(1)
	}
	checkDevice(t, device, "precious")
	lt.restart()
	lt.detach(tag)
	lt.restart()
	lt.destroy(tag)
}

// TestLoopReboot is a record of an earlier boot, in which the disk may have had
// another number.
func TestLoopReboot(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	rec := lt.record(tag)
	rec.Phase, rec.BootID, rec.Dev, rec.Device, rec.DiskSeq = phaseAttached, "earlier", rec.Dev+1, "loop0", 1
	lt.saveRecord(tag, rec)
	lt.detach(tag)
	lt.attach(tag, false)
	if got := lt.record(tag); got.BootID == "earlier" || got.Dev == rec.Dev {
		t.Errorf("record still says %+v", got)
	}
	lt.detach(tag)
	lt.destroy(tag)
}

func TestLoopAdoptsWhatIsAttachedAlready(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	run(t, "losetup", "--find", lt.file(tag))
	before := devicetest.Loops(t, lt.dir)
	if got := lt.attach(tag, false); !slices.Equal(before, []string{filepath.Base(got)}) {
		t.Errorf("attached as %s, was %v", got, before)
	}
	lt.checkLoops(1)
	lt.detach(tag)
	lt.destroy(tag)
}

func TestLoopRefusesAttachmentsThatDiffer(t *testing.T) {
	for _, test := range []struct {
		about string
		args  []string
		words []string
	}{
		{"read-only", []string{"--read-only"}, []string{"read-only", "wanted read-write", "detach it first"}},
		{"a part", []string{"--offset", "4096"}, []string{"a part of it", "detach it first"}},
	} {
		t.Run(test.about, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := volume(1)
			lt.create(tag)
			run(t, "losetup", append([]string{"--find"}, append(test.args, lt.file(tag))...)...)
			_, err := lt.tryAttach(tag, false)
			checkError(t, err, true, append(test.words, "attaching volume 0/1")...)
			lt.checkLoops(1)
			lt.detach(tag)
			lt.destroy(tag)
		})
	}
}

func TestLoopAttachedTwiceIsRefusedAndDetached(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	lt.attach(tag, false)
	run(t, "losetup", "--find", lt.file(tag))
	_, err := lt.tryAttach(tag, false)
	checkError(t, err, true, "more than once")
	lt.detach(tag)
	lt.checkLoops(0)
	lt.destroy(tag)
}

func TestLoopReadOnly(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	device := lt.attach(tag, true)
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		f.Close()
	}
	if err == nil {
		t.Error("wrote to a read-only volume")
	}
	_, err = lt.tryAttach(tag, false)
	checkError(t, err, true, "read-only", "wanted read-write")
	lt.detach(tag)
	lt.destroy(tag)
}

func TestLoopInUseIsNotRemoved(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	device := filepath.Base(lt.attach(tag, false))
	for what, remove := range map[string]func(envcontext.ProviderCallContext, []string) ([]error, error){
		"destroying": lt.source.DestroyVolumes, "releasing": lt.source.ReleaseVolumes,
	} {
		results, err := remove(lt.ctx, []string{tag.String()})
		if err != nil {
			t.Fatal(err)
		}
		checkError(t, results[0], false, what+" volume-0-1: it is attached as "+device+": detach it first")
	}
	lt.restart()
	lt.attach(tag, false)
	lt.checkLoops(1)
	lt.detach(tag)
	lt.destroy(tag)
}

// TestLoopCrashBeforeTheAttachmentIsRecorded is a device that nobody was told of. It
// is not in the way of what comes next, and unlike one that somebody else attached
// it goes with its volume.
func TestLoopCrashBeforeTheAttachmentIsRecorded(t *testing.T) {
	for _, then := range []string{"destroy", "release"} {
		for _, earlier := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, attached before: %v", then, earlier), func(t *testing.T) {
				lt := newLoopTest(t)
				tag := volume(1)
				lt.create(tag)
				before := lt.record(tag)
				if earlier {
					lt.attach(tag, false)
					before = lt.record(tag)
					lt.detach(tag)
					before.BootID = "earlier"
				}
				device := lt.attach(tag, false)
				lt.saveRecord(tag, before)
				lt.restart()
				remove := lt.source.DestroyVolumes
				if then == "release" {
					remove = lt.source.ReleaseVolumes
				}
				holder, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
				if err != nil {
					t.Fatal(err)
				}
				results, err := remove(lt.ctx, []string{tag.String()})
				if err != nil {
					t.Fatal(err)
				}
				checkError(t, results[0], false, filepath.Base(device), "has open "+device)
				lt.checkLoops(1)
				holder.Close()
				if results, err := remove(lt.ctx, []string{tag.String()}); err != nil || results[0] != nil {
					t.Errorf("%v, %v", results, err)
				}
				lt.checkLoops(0)
				if err := os.Remove(lt.file(tag)); (err == nil) != (then == "release") {
					t.Errorf("the file: %v", err)
				}
				lt.checkNothingLeft()
			})
		}
	}
	t.Run("somebody else's", func(t *testing.T) {
		lt := newLoopTest(t)
		tag := volume(1)
		lt.create(tag)
		run(t, "losetup", "--find", lt.file(tag))
		checkError(t, lt.tryDestroy(tag), false, "it is attached as loop", "detach it first")
		lt.checkLoops(1)
		lt.detach(tag)
		lt.destroy(tag)
	})
}

// TestLoopAttachmentThatCannotBeRecorded leaves no device.
func TestLoopAttachmentThatCannotBeRecorded(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	record := filepath.Join(lt.dir, "records", tag.String()+".json")
	// Not even root writes there now.
	run(t, "chattr", "+i", record)
	_, err := lt.tryAttach(tag, false)
	run(t, "chattr", "-i", record)
	checkError(t, err, false, "saving record "+tag.String())
	lt.checkLoops(0)
	lt.destroy(tag)
}

func TestLoopBusyDetachNamesTheHolder(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	device := lt.attach(tag, false)
	before := lt.record(tag)
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	checkError(t, lt.tryDetach(tag), false, "detaching volume 0/1", fmt.Sprintf("process %d", os.Getpid()), "has open "+device)
	f.Close()
	if after := lt.record(tag); after != before {
		t.Errorf("the record became %+v", after)
	}
	if again := lt.attach(tag, false); again != device {
		t.Errorf("attached as %s and as %s", device, again)
	}
	lt.detach(tag)
	lt.destroy(tag)
}

// TestLoopMissingFile is juju #3366: the file is gone, and the volume is the only
// one to suffer.
func TestLoopMissingFile(t *testing.T) {
	lt := newLoopTest(t)
	lost, fine := volume(1), volume(2)
	lt.create(lost)
	lt.create(fine)
	if err := os.Remove(lt.file(lost)); err != nil {
		t.Fatal(err)
	}
	results, err := lt.source.AttachVolumes(lt.ctx, append(lt.attachment(lost, false), lt.attachment(fine, false)...))
	if err != nil {
		t.Fatal(err)
	}
	checkError(t, results[0].Error, true, "attaching volume 0/1", lt.file(lost)+" is missing")
	if results[1].Error != nil {
		t.Error(results[1].Error)
	}
	checkError(t, lt.tryCreate(lost, volumeSize), true, "missing")
	if ids, err := lt.source.ListVolumes(lt.ctx); err != nil || !slices.Equal(ids, []string{fine.String()}) {
		t.Errorf("listed %v, %v", ids, err)
	}
	lt.detach(fine)
	lt.detach(lost)
	if err := lt.tryDestroy(lost); err != nil {
		t.Error(err)
	}
	lt.destroy(fine)
}

// TestLoopDeletedFileIsStillAttached is a file that lost its name while a loop
// device shows it.
func TestLoopDeletedFileIsStillAttached(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	lt.attach(tag, false)
	if err := os.Remove(lt.file(tag)); err != nil {
		t.Fatal(err)
	}
	checkError(t, lt.tryDestroy(tag), false, "detach it first")
	lt.detach(tag)
	lt.checkLoops(0)
	lt.destroy(tag)
}

func TestLoopReplacedFileIsNotTouched(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	// Both files are there for a moment, so that their inodes differ.
	foreign := lt.file(tag) + ".foreign"
	if err := os.WriteFile(foreign, make([]byte, volumeSize<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(foreign, lt.file(tag)); err != nil {
		t.Fatal(err)
	}
	_, err := lt.tryAttach(tag, false)
	checkError(t, err, true, "was replaced")
	checkError(t, lt.tryDestroy(tag), true, "was replaced", "move it away")
	if err := os.Remove(lt.file(tag)); err != nil {
		t.Errorf("the other file: %v", err)
	}
	lt.destroy(tag)
}

// TestLoopFileDeletedAndMadeAgainIsNotTouched is a file of the same size that got
// the same inode, as ext4 gives out at once: only its birth is another.
func TestLoopFileDeletedAndMadeAgainIsNotTouched(t *testing.T) {
	for _, test := range []struct {
		about, inodeSize, word string
	}{
		{"birth times", "256", "made at 2"},
		{"generations only", "128", "generation"},
	} {
		t.Run(test.about, func(t *testing.T) {
			lt := newLoopTestOnExt4(t, "-I", test.inodeSize)
			tag := volume(1)
			lt.create(tag)
			lt.attach(tag, false)
			lt.detach(tag)
			before := lt.record(tag)
			if (before.Born == 0) == (before.Generation == 0) {
				t.Errorf("recorded %+v", before.identity)
			}
			remake(t, lt.file(tag), before.Ino)
			for range 2 {
				lt.restart()
				_, err := lt.tryAttach(tag, false)
				checkError(t, err, true, "attaching volume 0/1", lt.file(tag), "was replaced", "inode", test.word)
				checkError(t, lt.tryDestroy(tag), true, "was replaced", "move it away")
			}
			// It is attached by somebody else, and that is none of ours.
			foreign := devicetest.AttachLoop(t, lt.file(tag))
			lt.detach(tag)
			lt.checkLoops(1)
			foreign.Detach(t)

			// What is known of volumes that were made long ago is enough.
			old := before
			old.Born, old.Generation = 0, 0
			lt.saveRecord(tag, old)
			lt.attach(tag, false)
			if got := lt.record(tag); got.Born == 0 && got.Generation == 0 {
				t.Errorf("attaching did not complete the record: %+v", got)
			}
			lt.detach(tag)
			lt.destroy(tag)
		})
	}
}

// remake deletes a file and makes one of the same size that has its inode number,
// but was not made in the same tick of the clock.
func remake(t *testing.T, path string, ino uint64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	for range 100 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, info.Size()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Ino == ino {
			return
		}
	}
	t.Fatalf("the inode number %d was not used again", ino)
}

// TestLoopFileThatIsNone is something else in the place of a backing file.
func TestLoopFileThatIsNone(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"a symbolic link": func(path string) error { return os.Symlink(path+".away", path) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
	} {
		t.Run(what, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := volume(1)
			lt.create(tag)
			if err := os.Rename(lt.file(tag), lt.file(tag)+".away"); err != nil {
				t.Fatal(err)
			}
			if err := put(lt.file(tag)); err != nil {
				t.Fatal(err)
			}
			_, err := lt.tryAttach(tag, false)
			checkError(t, err, true, lt.file(tag)+" is not a regular file: move it away")
			checkError(t, lt.tryDestroy(tag), true, "was replaced", "move it away")
			if err := os.Remove(lt.file(tag)); err != nil {
				t.Error(err)
			}
			if err := os.Rename(lt.file(tag)+".away", lt.file(tag)); err != nil {
				t.Error(err)
			}
			lt.attach(tag, false)
			lt.detach(tag)
			lt.destroy(tag)
		})
	}
}

func TestLoopFileOfAnotherSize(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	if err := os.Truncate(lt.file(tag), 1<<20); err != nil {
		t.Fatal(err)
	}
	_, err := lt.tryAttach(tag, false)
	checkError(t, err, true, "has 1048576 bytes, not 4194304")
	if _, err := os.Stat(lt.file(tag)); err != nil {
		t.Error(err)
	}
	lt.destroy(tag)
}

func TestLoopCreateRefusals(t *testing.T) {
	lt := newLoopTest(t)
	lt.create(volume(1))
	checkError(t, lt.tryCreate(volume(1), volumeSize-1), true, "creating volume 0/1", "exists with 4 MiB, not 3 MiB")
	checkError(t, lt.tryCreate(volume(2), 0), true, "creating volume 0/2", "0 MiB")
	checkError(t, lt.tryCreate(volume(2), 1<<40), false, "1099511627776 MiB needed", "MiB available")
	if err := lt.source.ValidateVolumeParams(storage.VolumeParams{Tag: volume(2)}); !errors.Is(err, errors.NotValid) {
		t.Errorf("no size: %v", err)
	}
	if err := lt.source.ValidateVolumeParams(storage.VolumeParams{Tag: volume(2), Size: 1}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(lt.file(volume(3)), []byte("foreign"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkError(t, lt.tryCreate(volume(3), volumeSize), true, "no record belongs to", "move it away")
	if err := os.Remove(lt.file(volume(3))); err != nil {
		t.Error(err)
	}
	_, err := lt.tryAttach(volume(4), false)
	checkError(t, err, true, "it was not made here")
	lt.destroy(volume(1))
}

// TestLoopFullFilesystem is a filesystem with less room than it says: a part of
// the file is allocated before that shows.
func TestLoopFullFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	mountTmpfs(t, "full", dir, "8m")
	lt := &loopTest{T: t, dir: filepath.Join(dir, "storage"), ctx: envcontext.New(context.Background())}
	lt.restart()
	lt.create(volume(1))
	checkError(t, lt.tryCreate(volume(2), volumeSize), false, "4 MiB needed", "3 MiB available")

	c, err := lt.source.(*loopSource).begin(lt.ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = c.makeFile(volume(2).String(), volumeSize<<20)
	if uerr := c.files.Unlink(temporary(volume(2).String())); uerr != nil {
		t.Error(uerr)
	}
	c.end()
	checkError(t, err, false, "4 MiB needed", "available")
	lt.destroy(volume(1))
}

func TestLoopRelease(t *testing.T) {
	lt := newLoopTest(t)
	tag := volume(1)
	lt.create(tag)
	for range 2 {
		if results, err := lt.source.ReleaseVolumes(lt.ctx, []string{tag.String()}); err != nil || results[0] != nil {
			t.Fatalf("releasing: %v, %v", results, err)
		}
	}
	if ids, err := lt.source.ListVolumes(lt.ctx); err != nil || len(ids) != 0 {
		t.Errorf("listed %v, %v", ids, err)
	}
	if err := os.Remove(lt.file(tag)); err != nil {
		t.Errorf("the released file: %v", err)
	}
	lt.checkNothingLeft()
}

// TestLoopCrashes leaves records and files as a crash would, and repeats the call
// that was interrupted, twice.
func TestLoopCrashes(t *testing.T) {
	tag := volume(1)
	temp := func(lt *loopTest) string { return lt.file(tag) + ".tmp" }
	write := func(t *testing.T, path string, size int) {
		t.Helper()
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		about string
		crash func(t *testing.T, lt *loopTest)
		words string // what creating says, if it cannot go on
	}{{
		about: "recorded that it is being made",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, loopRecord{Size: volumeSize << 20, Phase: phaseCreating})
		},
	}, {
		about: "allocated in part",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, loopRecord{Size: volumeSize << 20, Phase: phaseCreating})
			write(t, temp(lt), 1<<20)
		},
	}, {
		about: "allocated and named",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, loopRecord{Size: volumeSize << 20, Phase: phaseCreating})
			write(t, lt.file(tag), volumeSize<<20)
		},
	}, {
		about: "named with the wrong size",
		crash: func(t *testing.T, lt *loopTest) {
			lt.saveRecord(tag, loopRecord{Size: volumeSize << 20, Phase: phaseCreating})
			write(t, lt.file(tag), 1<<20)
		},
		words: "has 1048576 bytes, not 4194304",
	}, {
		about: "recorded that it is being destroyed",
		crash: func(t *testing.T, lt *loopTest) {
			lt.create(tag)
			rec := lt.record(tag)
			rec.Phase = phaseDestroying
			lt.saveRecord(tag, rec)
		},
	}, {
		about: "its file destroyed, its record not",
		crash: func(t *testing.T, lt *loopTest) {
			lt.create(tag)
			rec := lt.record(tag)
			rec.Phase = phaseDestroying
			lt.saveRecord(tag, rec)
			if err := os.Remove(lt.file(tag)); err != nil {
				t.Fatal(err)
			}
		},
	}} {
		t.Run(test.about+", then create", func(t *testing.T) {
			lt := newLoopTest(t)
			lt.prepareDirs()
			test.crash(t, lt)
			lt.restart()
			_, err := lt.tryAttach(tag, false)
			checkError(t, err, false, "not complete")
			if ids, err := lt.source.ListVolumes(lt.ctx); err != nil || len(ids) != 0 {
				t.Errorf("listed %v, %v", ids, err)
			}
			for range 2 {
				lt.restart()
				if test.words != "" {
					checkError(t, lt.tryCreate(tag, volumeSize), true, test.words)
					continue
				}
				lt.create(tag)
				lt.attach(tag, false)
				lt.checkLoops(1)
			}
			lt.detach(tag)
			lt.destroy(tag)
		})
		t.Run(test.about+", then destroy", func(t *testing.T) {
			lt := newLoopTest(t)
			lt.prepareDirs()
			test.crash(t, lt)
			lt.restart()
			lt.destroy(tag)
			lt.destroy(tag)
		})
	}
}

// prepareDirs makes the directories that a source makes with its first call.
func (t *loopTest) prepareDirs() {
	t.Helper()
	if _, err := t.source.ListVolumes(t.ctx); err != nil {
		t.Fatal(err)
	}
}

// TestLoopCrashWhileAttachingAndDetaching has the device attached, or not, at
// each point where the record may say the other thing.
func TestLoopCrashWhileAttachingAndDetaching(t *testing.T) {
	for _, test := range []struct {
		about    string
		phase    phase
		attached bool
	}{
		{"attached but not recorded", phaseReady, true},
		{"recorded but detached by the kernel", phaseAttached, false},
		{"about to be detached", phaseDetaching, true},
		{"detached but not recorded", phaseDetaching, false},
	} {
		for _, then := range []string{"attach", "detach"} {
			t.Run(test.about+", then "+then, func(t *testing.T) {
				lt := newLoopTest(t)
				tag := volume(1)
				lt.create(tag)
				ready := lt.record(tag)
				lt.attach(tag, false)
				rec := lt.record(tag)
				if test.phase == phaseReady {
					rec = ready
				}
				if !test.attached {
					lt.detach(tag)
				}
				rec.Phase = test.phase
				lt.saveRecord(tag, rec)
				for range 2 {
					lt.restart()
					if then == "attach" {
						lt.attach(tag, false)
						lt.checkLoops(1)
						if got := lt.record(tag); got.Phase != phaseAttached {
							t.Errorf("recorded as %s", got.Phase)
						}
					} else {
						lt.detach(tag)
						lt.checkLoops(0)
						if got := lt.record(tag); got != ready {
							t.Errorf("recorded %+v, want %+v", got, ready)
						}
					}
				}
				lt.detach(tag)
				lt.destroy(tag)
			})
		}
	}
}

func TestLoopDamagedRecordHurtsNobodyElse(t *testing.T) {
	lt := newLoopTest(t)
	lt.create(volume(1))
	path := filepath.Join(lt.dir, "records", "volume-0-2.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkError(t, lt.tryCreate(volume(2), volumeSize), true, path, "damaged")
	lt.create(volume(1))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	lt.destroy(volume(1))
}

func TestLoopBadIDs(t *testing.T) {
	lt := newLoopTest(t)
	for _, id := range []string{"", "../../x", "volume-0-1/../x", "volume-0-1.tmp"} {
		results, err := lt.source.DestroyVolumes(lt.ctx, []string{id})
		if err != nil || !errors.Is(results[0], errors.NotValid) {
			t.Errorf("destroying %q: %v, %v", id, results, err)
		}
		attachment := lt.attachment(volume(1), false)
		attachment[0].VolumeId = id
		attached, err := lt.source.AttachVolumes(lt.ctx, attachment)
		if err != nil || !errors.Is(attached[0].Error, errors.NotValid) {
			t.Errorf("attaching %q: %v, %v", id, attached, err)
		}
	}
}

// TestLoopCancelled is a context that ends between two volumes.
func TestLoopCancelled(t *testing.T) {
	lt := newLoopTest(t)
	c, err := lt.source.(*loopSource).begin(lt.ctx)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, failures := collect(ctx, []int{1, 2}, func(n int) (storage.VolumeInfo, error) {
		defer cancel()
		return c.create(storage.VolumeParams{Tag: volume(n), Size: volumeSize})
	})
	if failures[0] != nil || !errors.Is(failures[1], context.Canceled) {
		t.Errorf("failures %v", failures)
	}
	c.Context = ctx
	if err := c.makeNew(volume(3).String(), volumeSize<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended while a volume was made: %v", err)
	}
	c.end()
	if _, err := lt.source.CreateVolumes(envcontext.New(ctx), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was cancelled before it began: %v", err)
	}
	lt.destroy(volume(1))
}

// TestLoopVolumesMadeAtOnceFillTheSpace is a call for more volumes than there is
// space for: those that fit are made.
func TestLoopVolumesMadeAtOnceFillTheSpace(t *testing.T) {
	dir := devicetest.Dir(t)
	image := filepath.Join(dir, "image")
	run(t, "truncate", "--size", "1T", image) // sparse, and so it stays
	run(t, "mkfs.ext4", "-q", "-m", "0", image)
	fs := filepath.Join(dir, "fs")
	run(t, "mount", "--mkdir", "-o", "loop", image, fs)
	t.Cleanup(func() { run(t, "umount", fs) })
	lt := &loopTest{T: t, dir: filepath.Join(fs, "storage"), ctx: envcontext.New(context.Background())}
	lt.restart()
	const size = 190 << 10
	var params []storage.VolumeParams
	for n := range maxAtOnce {
		params = append(params, storage.VolumeParams{Tag: volume(n), Size: size, Provider: LoopProviderType})
	}
	results, err := lt.source.CreateVolumes(lt.ctx, params)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, result := range results {
		if result.Error == nil {
			made++
		} else {
			checkError(t, result.Error, false, "194560 MiB needed", "MiB available")
		}
	}
	if made != 5 {
		t.Errorf("%d volumes of 190 GiB were made in 1 TiB, want 5", made)
	}
	for n := range maxAtOnce {
		if err := lt.tryDestroy(volume(n)); err != nil {
			t.Error(err)
		}
	}
	checkNoFiles(t, lt.dir)
}

// TestLoopGoesAwayFromAFullFilesystem is the only way to make space there.
func TestLoopGoesAwayFromAFullFilesystem(t *testing.T) {
	dir := devicetest.Dir(t)
	mountTmpfs(t, "full", dir, "8m")
	lt := &loopTest{T: t, dir: filepath.Join(dir, "storage"), ctx: envcontext.New(context.Background())}
	lt.restart()
	lt.create(volume(1))
	lt.attach(volume(1), false)
	if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling up: %v", err)
	}
	lt.detach(volume(1))
	lt.checkLoops(0)
	lt.destroy(volume(1))
}

// TestLoopStorageMountedAnew is a disk that is plugged in again, and has another
// device number.
func TestLoopStorageMountedAnew(t *testing.T) {
	dir := devicetest.Dir(t)
	image := filepath.Join(dir, "image")
	run(t, "truncate", "--size", "64M", image)
	run(t, "mkfs.ext4", "-q", image)
	fs := filepath.Join(dir, "fs")
	mounted := func() (unmount func()) {
		run(t, "mount", "--mkdir", "-o", "loop", image, fs)
		return func() { run(t, "umount", fs) }
	}
	unmount := mounted()
	lt := &loopTest{T: t, dir: filepath.Join(fs, "storage"), ctx: envcontext.New(context.Background())}
	lt.restart()
	lt.create(volume(1))
	writeDevice(t, lt.attach(volume(1), false), "precious")
	lt.detach(volume(1))
	before := lt.record(volume(1)).Dev
	for tries := 0; tries < 20 && lt.record(volume(1)).Dev == before; tries++ {
		unmount()
		// Whoever comes first gets the number that is free now, be it another test.
		devicetest.NewLoop(t, 1<<20)
		unmount = mounted()
		checkDevice(t, lt.attach(volume(1), false), "precious")
		lt.detach(volume(1))
	}
	if lt.record(volume(1)).Dev == before {
		t.Error("the storage was never mounted from another device")
	}
	lt.destroy(volume(1))
	unmount()
}

// TestLoopOfAnotherSizeThanItsFile is a device that somebody attached when the
// file was shorter, or longer.
func TestLoopOfAnotherSizeThanItsFile(t *testing.T) {
	attachedWith := func(t *testing.T, size int64) *loopTest {
		lt := newLoopTest(t)
		lt.create(volume(1))
		if err := os.Truncate(lt.file(volume(1)), size); err != nil {
			t.Fatal(err)
		}
		run(t, "losetup", "--find", lt.file(volume(1)))
		if err := os.Truncate(lt.file(volume(1)), volumeSize<<20); err != nil {
			t.Fatal(err)
		}
		return lt
	}
	t.Run("shorter", func(t *testing.T) {
		lt := attachedWith(t, 1<<20)
		lt.checkSize(lt.attach(volume(1), false), volumeSize)
		lt.checkLoops(1)
		lt.detach(volume(1))
		lt.destroy(volume(1))
	})
	t.Run("longer", func(t *testing.T) {
		lt := attachedWith(t, 8<<20)
		_, err := lt.tryAttach(volume(1), false)
		checkError(t, err, true, "8388608 bytes large", "its file 4194304", "detach it first")
		lt.detach(volume(1))
		lt.attach(volume(1), false)
		lt.detach(volume(1))
		lt.destroy(volume(1))
	})
}
