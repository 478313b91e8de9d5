//go:build linux

package sourcetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/looptest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
)

// VolumeSize is the size of the volumes in tests, in MiB.
const VolumeSize = 4

const loopType storage.ProviderType = "loop"

// LoopTest is a storage directory with loop volumes.
type LoopTest struct {
	*testing.T
	provider storage.Provider
	Dir      string
	Source   storage.VolumeSource
	Ctx      envcontext.ProviderCallContext
}

// NewLoopTest returns a LoopTest with a storage directory.
func NewLoopTest(t *testing.T, p storage.Provider, dir string) *LoopTest {
	lt := &LoopTest{T: t, provider: p, Dir: dir, Ctx: envcontext.New(context.Background())}
	lt.Restart()
	return lt
}

// MountFile mounts the filesystem in a file on a directory, which it makes if necessary.
func MountFile(t *testing.T, file, dir, filesystem string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := looptest.Mount(file, dir, filesystem, ""); err != nil {
		t.Fatal(err)
	}
}

// Unmount unmounts what [MountFile] has mounted, and waits until that is possible.
func Unmount(t *testing.T, dir string) {
	t.Helper()
	if err := looptest.Unmount(dir); err != nil {
		t.Error(err)
	}
}

// Ext4Dir returns the path of a storage directory that does not exist yet, on an ext4
// filesystem of 64 MiB of its own, made with the given arguments.
func Ext4Dir(t *testing.T, args ...string) string {
	t.Helper()
	dir := devicetest.Dir(t)
	image := filepath.Join(dir, "image")
	Run(t, "truncate", "--size", "64M", image)
	Run(t, "mkfs.ext4", append(append([]string{"-q", "-m", "0"}, args...), image)...)
	fs := filepath.Join(dir, "fs")
	MountFile(t, image, fs, "ext4")
	t.Cleanup(func() { Unmount(t, fs) })
	return filepath.Join(fs, "storage")
}

// Restart opens a new source, as a new process does.
func (t *LoopTest) Restart() {
	t.Helper()
	config := PoolOf(t.T, loopType, storage.Attrs{storage.ConfigStorageDir: t.Dir})
	source, err := t.provider.VolumeSource(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Source = source
}

func Volume(n int) names.VolumeTag {
	return names.NewVolumeTag(fmt.Sprintf("0/%d", n))
}

// File returns the path of a volume's file.
func (t *LoopTest) File(tag names.VolumeTag) string {
	return filepath.Join(t.Dir, "volumes", tag.String())
}

func (t *LoopTest) TryCreate(tag names.VolumeTag, size uint64) error {
	t.Helper()
	results, err := t.Source.CreateVolumes(t.Ctx, []storage.VolumeParams{{Tag: tag, Size: size, Provider: loopType}})
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

func (t *LoopTest) Create(tag names.VolumeTag) {
	t.Helper()
	if err := t.TryCreate(tag, VolumeSize); err != nil {
		t.Fatal(err)
	}
}

func (t *LoopTest) Attachment(tag names.VolumeTag, readOnly bool) []storage.VolumeAttachmentParams {
	return []storage.VolumeAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Provider: loopType, Machine: names.NewMachineTag("0"), ReadOnly: readOnly},
		Volume:           tag,
		VolumeId:         tag.String(),
	}}
}

func (t *LoopTest) TryAttach(tag names.VolumeTag, readOnly bool) (*storage.VolumeAttachment, error) {
	t.Helper()
	results, err := t.Source.AttachVolumes(t.Ctx, t.Attachment(tag, readOnly))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0].VolumeAttachment, results[0].Error
}

// Attach attaches a volume and returns the path of its device.
func (t *LoopTest) Attach(tag names.VolumeTag, readOnly bool) string {
	t.Helper()
	got, err := t.TryAttach(tag, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(t.File(tag), &st); err != nil {
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
	if file := t.Source.(storage.FileVolumes).VolumeFile(tag.String()); file != t.File(tag) {
		t.Errorf("the source reports the file at %s", file)
	}
	return "/dev/" + got.DeviceName
}

func (t *LoopTest) TryDetach(tag names.VolumeTag) error {
	t.Helper()
	results, err := t.Source.DetachVolumes(t.Ctx, t.Attachment(tag, false))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

func (t *LoopTest) Detach(tag names.VolumeTag) {
	t.Helper()
	if err := t.TryDetach(tag); err != nil {
		t.Error(err)
	}
}

func (t *LoopTest) TryDestroy(tag names.VolumeTag) error {
	t.Helper()
	results, err := t.Source.DestroyVolumes(t.Ctx, []string{tag.String()})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

// Destroy destroys a volume and checks that nothing of it is left.
func (t *LoopTest) Destroy(tag names.VolumeTag) {
	t.Helper()
	if err := t.TryDestroy(tag); err != nil {
		t.Error(err)
	}
	t.CheckNothingLeft()
}

func (t *LoopTest) CheckNothingLeft() {
	t.Helper()
	CheckNoFiles(t.T, t.Dir)
	if loops := devicetest.Loops(t, t.Dir); len(loops) != 0 {
		t.Errorf("left attached: %v", loops)
	}
}

// CheckNoFiles checks that a storage directory contains nothing but directories of the
// providers.
func CheckNoFiles(t *testing.T, dir string) {
	t.Helper()
	if left := Files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Files returns the paths of everything in a storage directory, and in its directory of
// snapshots, except the directories of the providers.
func Files(t *testing.T, dir string) []string {
	t.Helper()
	snapshots := filepath.Join(dir, "snapshots")
	var all []string
	for _, pattern := range []string{filepath.Join(dir, "*", "*"), filepath.Join(dir, "*", ".*"), filepath.Join(snapshots, "*", "*"), filepath.Join(snapshots, "*", ".*")} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, names...)
	}
	return slices.DeleteFunc(all, func(path string) bool { return filepath.Dir(path) == snapshots })
}

func (t *LoopTest) CheckLoops(want int) {
	t.Helper()
	if loops := devicetest.AwaitLoops(t, t.Dir, want); len(loops) != want {
		t.Errorf("attached as %v, want %d", loops, want)
	}
}

// Store opens the records of the volumes, so that a test can write records as a crash would
// leave them.
func (t *LoopTest) Store() *record.Store {
	t.Helper()
	store, err := record.Open(filepath.Join(t.Dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// CheckError checks whether an error is permanent, and that it contains the words.
func CheckError(t *testing.T, err error, permanent bool, words ...string) {
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

func WriteDevice(t *testing.T, path, text string) {
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

func CheckDevice(t *testing.T, path, want string) {
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
