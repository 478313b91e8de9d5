//go:build linux

package provider

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func checkMountedWith(ft *filesystemTest, options ...string) {
	ft.Helper()
	has := "," + devicetest.Mounts(ft, ft.Top)[0].Options + ","
	for _, want := range append(options, "nosuid", "nodev") {
		if !strings.Contains(has, ","+want+",") {
			ft.Errorf("mounted with %s, not with %s", has, want)
		}
	}
}

// The options of a filesystem are those with which it was created, whenever it is mounted.
func TestMountOptionsAppliedToEachMount(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Attributes = map[string]any{"mount-options": "noexec,nosuid,noatime,nodiratime"}
		ft.Create()
		ft.Attributes = nil
		for _, again := range []func(){
			func() {},
			ft.Restart,
			ft.Detach,
			ft.UnmountExternally, // as a restart of the machine does
			ft.Create,
			func() { ft.Resize(4, 4) },
		} {
			again()
			ft.Attach()
			checkMountedWith(ft, "rw", "noexec", "noatime", "nodiratime")
			ft.CheckExecutes(false)
		}
		sourcetest.CheckAttachmentState(ft.T, ft.Source, ft.ID)
		ft.Detach()
		ft.Destroy()
	})
}

func TestMountOptionReadOnly(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Attributes = map[string]any{"mount-options": "ro,noexec"}
		ft.Create()
		checkReports := func(words ...string) {
			ft.Helper()
			sourcetest.CheckAttachmentState(ft.T, ft.Source, ft.ID, words...)
		}
		for range 2 {
			ft.Attach()
			checkMountedWith(ft, "ro", "noexec")
			if err := os.WriteFile(filepath.Join(ft.Path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				ft.Errorf("writing: %v", err)
			}
			checkReports()
			ft.Restart()
		}
		if _, err := ft.TryAttach(ft.Path, true); err != nil {
			ft.Error(err)
		}
		ft.Remount("rw,noexec,nosuid,nodev")
		if ft.Provider == TmpfsProviderType {
			mustMount(ft.T, "", ft.Path, "", unix.MS_REMOUNT|unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV)
		}
		checkReports("it is read-write at "+ft.Path, "attached read-only")
		_, err := ft.TryAttach(ft.Path, false)
		sourcetest.CheckError(ft.T, err, true, "read-write", "wanted read-only", "detach it first")
		ft.Detach()
		ft.Destroy()
	})
}

// Somebody makes programs executable on the mount. A restarted agent does not accept that.
// Fault F32.
func TestMountWithoutOptionNotAdopted(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Attributes = map[string]any{"mount-options": "noexec,strictatime"}
		ft.Create()
		ft.Attach()
		for flags, lost := range map[string]string{
			"exec,strictatime,nosuid,nodev": "noexec",
			"noexec,noatime,nosuid,nodev":   "strictatime",
		} {
			ft.Remount(flags)
			for range 2 {
				sourcetest.CheckAttachmentState(ft.T, ft.Source, ft.ID, "it is without "+lost+" at "+ft.Path, "detach it, and attach it again")
				_, err := ft.TryAttach(ft.Path, false)
				sourcetest.CheckError(ft.T, err, true, "it is mounted at "+ft.Path+" without "+lost, "wanted with it", "detach it first")
				ft.CheckMounts(1)
				ft.Restart()
			}
			// More than what was chosen is no error: a directory has the flags of the mount that it is on.
			ft.Remount("noexec,strictatime,nodiratime,nosuid,nodev")
			sourcetest.CheckAttachmentState(ft.T, ft.Source, ft.ID)
			ft.Attach()
			ft.CheckExecutes(false)
		}
		ft.Detach()
		ft.Attach()
		ft.CheckExecutes(false)
		ft.Detach()
		ft.Destroy()
	})
}

// Promise S15.
func TestDisallowedMountOptionsRefused(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		for _, chosen := range []any{"suid", "noexec,exec", "size=1", "noexec,noexec", "relatime,noatime", "mode=rwx", 7} {
			ft.Attributes = map[string]any{"mount-options": chosen}
			err := ft.TryCreate(sourcetest.FilesystemSize)
			sourcetest.CheckError(ft.T, err, true, "creating filesystem 0/1", `attribute "mount-options"`)
			err = ft.Source.ValidateFilesystemParams(storage.FilesystemParams{
				Tag: sourcetest.FilesystemTag, Size: sourcetest.FilesystemSize, Attributes: ft.Attributes,
			})
			sourcetest.CheckError(ft.T, err, true, "filesystem 0/1", `attribute "mount-options"`)
			sourcetest.CheckNoFiles(ft.T, ft.Dir)
		}
	})
}

// The record of an older version has no mount options, and the filesystem is mounted as before.
func TestRecordWithoutMountOptions(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		ft.Create()
		ft.Attach()
		var rec map[string]json.RawMessage
		if err := ft.Store().Load(ft.ID, &rec); err != nil {
			ft.Fatal(err)
		}
		if _, ok := rec["mount-options"]; ok {
			ft.Errorf("recorded %s", rec)
		}
		ft.Restart()
		ft.Attach()
		ft.CheckExecutes(true)
		sourcetest.CheckAttachmentState(ft.T, ft.Source, ft.ID)
		ft.Detach()

		// Neither may a record be ignored that this version cannot read.
		rec["mount-options"] = json.RawMessage(`"sync"`)
		if err := ft.Store().Save(ft.ID, rec); err != nil {
			ft.Fatal(err)
		}
		_, err := ft.TryAttach(ft.Path, false)
		sourcetest.CheckError(ft.T, err, true, `"sync" is not an option for mounting `+string(ft.Provider))
		ft.CheckMounts(0)
		ft.Destroy()
	})
}
