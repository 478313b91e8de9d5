//go:build linux

package sourcetest

import (
	"context"
	"os"
	"os/exec"
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
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
)

const FilesystemSize = 2 // MiB

var FilesystemTag = names.NewFilesystemTag("0/1")

// FilesystemTest is a storage directory with one filesystem of a provider. The filesystem is
// to be attached at a path whose last two directories do not exist.
type FilesystemTest struct {
	*testing.T
	Provider storage.ProviderType
	maker    storage.Provider
	Top      string
	Dir      string
	Path     string
	ID       string
	Source   storage.FilesystemSource
	Ctx      envcontext.ProviderCallContext
	// Tags are the resource tags, and Attributes the attributes, with which the filesystem is
	// created.
	Tags       map[string]string
	Attributes map[string]any
}

// NewFilesystemTest returns a FilesystemTest for a provider of the given type.
func NewFilesystemTest(t *testing.T, p storage.ProviderType, maker storage.Provider) *FilesystemTest {
	top := devicetest.Dir(t)
	ft := &FilesystemTest{
		T:        t,
		Provider: p,
		maker:    maker,
		Top:      top,
		Dir:      filepath.Join(top, "storage"),
		Path:     filepath.Join(top, "srv", "data"),
		ID:       FilesystemTag.String(),
		Ctx:      envcontext.New(context.Background()),
	}
	ft.Restart()
	return ft
}

// Restart opens a new source, as a new process does.
func (t *FilesystemTest) Restart() {
	t.Helper()
	config := PoolOf(t.T, t.Provider, storage.Attrs{storage.ConfigStorageDir: t.Dir})
	source, err := t.maker.FilesystemSource(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Source = source
}

func (t *FilesystemTest) TryCreate(size uint64) error {
	t.Helper()
	results, err := t.Source.CreateFilesystems(t.Ctx, []storage.FilesystemParams{
		{Tag: FilesystemTag, Size: size, Provider: t.Provider, ResourceTags: t.Tags, Attributes: t.Attributes},
	})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if results[0].Error != nil {
		return results[0].Error
	}
	want := &storage.Filesystem{
		Tag:            FilesystemTag,
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: t.ID, Size: size},
	}
	if !reflect.DeepEqual(results[0].Filesystem, want) {
		t.Errorf("created %+v, want %+v", results[0].Filesystem, want)
	}
	return nil
}

func (t *FilesystemTest) Create() {
	t.Helper()
	if err := t.TryCreate(FilesystemSize); err != nil {
		t.Fatal(err)
	}
}

func (t *FilesystemTest) attachment(path string, readOnly bool) []storage.FilesystemAttachmentParams {
	return []storage.FilesystemAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Provider: t.Provider, Machine: names.NewMachineTag("0"), ReadOnly: readOnly},
		Filesystem:       FilesystemTag,
		FilesystemId:     t.ID,
		Path:             path,
	}}
}

// hasOption reports whether the filesystem was created with a mount option.
func (t *FilesystemTest) hasOption(option string) bool {
	chosen, _ := t.Attributes[fsattr.MountOptions].(string)
	return slices.Contains(strings.Split(chosen, ","), option)
}

// TryAttach attaches the filesystem and returns the path at which it is attached.
func (t *FilesystemTest) TryAttach(path string, readOnly bool) (string, error) {
	t.Helper()
	results, err := t.Source.AttachFilesystems(t.Ctx, t.attachment(path, readOnly))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	got := results[0].FilesystemAttachment
	if results[0].Error != nil {
		return "", results[0].Error
	}
	if path == "" {
		path = got.Path
	}
	want := &storage.FilesystemAttachment{
		Filesystem:               FilesystemTag,
		Machine:                  names.NewMachineTag("0"),
		FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: path, ReadOnly: readOnly || t.hasOption("ro")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("attached %+v, want %+v", got, want)
	}
	return path, nil
}

func (t *FilesystemTest) Attach() {
	t.Helper()
	if _, err := t.TryAttach(t.Path, false); err != nil {
		t.Fatal(err)
	}
	t.CheckMounts(1)
}

func (t *FilesystemTest) TryDetach() error {
	t.Helper()
	results, err := t.Source.DetachFilesystems(t.Ctx, t.attachment(t.Path, false))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

func (t *FilesystemTest) Detach() {
	t.Helper()
	if err := t.TryDetach(); err != nil {
		t.Error(err)
	}
}

func (t *FilesystemTest) TryDestroy() error {
	t.Helper()
	results, err := t.Source.DestroyFilesystems(t.Ctx, []string{t.ID})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return results[0]
}

// Destroy destroys the filesystem and checks that nothing of it is left, including the
// directories of its mount point.
func (t *FilesystemTest) Destroy() {
	t.Helper()
	if err := t.TryDestroy(); err != nil {
		t.Error(err)
	}
	CheckNoFiles(t.T, t.Dir)
	t.CheckMounts(0)
	if _, err := os.Lstat(filepath.Dir(t.Path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s: %v", filepath.Dir(t.Path), err)
	}
}

func (t *FilesystemTest) TryResize(size uint64) (uint64, error) {
	t.Helper()
	results, err := t.Source.(storage.FilesystemResizer).ResizeFilesystems(t.Ctx,
		[]storage.FilesystemResizeParams{{Tag: FilesystemTag, FilesystemId: t.ID, Size: size}})
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if results[0].Error != nil {
		return 0, results[0].Error
	}
	if got := results[0].FilesystemInfo.FilesystemId; got != t.ID {
		t.Errorf("resized %q, want %q", got, t.ID)
	}
	return results[0].FilesystemInfo.Size, nil
}

// Resize requests a size in MiB and checks the resulting size.
func (t *FilesystemTest) Resize(size, want uint64) {
	t.Helper()
	if got, err := t.TryResize(size); err != nil || got != want {
		t.Errorf("resized to %d MiB: it has %d, %v, want %d", size, got, err, want)
	}
}

func (t *FilesystemTest) CheckRemark(want string) {
	t.Helper()
	if got := t.Source.(storage.FilesystemRemarker).FilesystemRemark(t.ID); got != want {
		t.Errorf("the remark is %q, want %q", got, want)
	}
}

func (t *FilesystemTest) CheckMounts(want int) {
	t.Helper()
	if mounts := devicetest.Mounts(t, t.Top); len(mounts) != want {
		t.Errorf("%d mounts, want %d", len(mounts), want)
	}
}

func (t *FilesystemTest) Write() {
	t.Helper()
	if err := os.WriteFile(filepath.Join(t.Path, "file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t *FilesystemTest) CheckWritten() {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(t.Path, "file"))
	if err != nil || string(data) != "precious" {
		t.Errorf("read %q, %v", data, err)
	}
}

// CheckExecutes writes a program, and checks whether it can be executed.
func (t *FilesystemTest) CheckExecutes(want bool) {
	t.Helper()
	program := filepath.Join(t.Path, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(program).Run(); want && err != nil || !want && !errors.Is(err, unix.EACCES) {
		t.Errorf("executing a program: %v", err)
	}
}

// Remount changes the flags of the mount, as an administrator does.
func (t *FilesystemTest) Remount(flags string) {
	t.Helper()
	Run(t.T, "mount", "-o", "remount,bind,"+flags, t.Path)
}

func (t *FilesystemTest) UnmountExternally() {
	t.Helper()
	if err := unix.Unmount(t.Path, 0); err != nil {
		t.Fatal(err)
	}
}

func (t *FilesystemTest) Store() *record.Store {
	t.Helper()
	store, err := record.Open(filepath.Join(t.Dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

func (t *FilesystemTest) CheckSize(path string, mib uint64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Blocks*uint64(st.Bsize) != mib<<20 {
		t.Errorf("it shows %d bytes, %v", st.Blocks*uint64(st.Bsize), err)
	}
}

// CheckAttachmentState checks a source's result of checking an attached volume or filesystem:
// an error that contains each of the words, or nil if there are no words.
func CheckAttachmentState(t *testing.T, source any, id string, words ...string) {
	t.Helper()
	check := func(envcontext.ProviderCallContext, []string) ([]error, error) {
		return nil, errors.Errorf("%T cannot check what it has attached", source)
	}
	switch source := source.(type) {
	case storage.FilesystemChecker:
		check = source.CheckFilesystems
	case storage.VolumeChecker:
		check = source.CheckVolumes
	}
	results, err := check(envcontext.New(context.Background()), []string{id})
	switch {
	case err != nil || len(results) != 1:
		t.Fatalf("checking %s: got %v, %v", id, results, err)
	case len(words) > 0:
		CheckError(t, results[0], true, words...)
	case results[0] != nil:
		t.Errorf("it is still as it was attached: got %v, want nil", results[0])
	}
}
