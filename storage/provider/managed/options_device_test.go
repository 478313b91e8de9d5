//go:build linux

package managed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

func TestManagedOptionsApplied(t *testing.T) {
	for fs, test := range map[string]struct {
		mkfs, mount string
		show        []string // the program that shows the mkfs options …
		made        string   // … and its expected output
		mounted     []string
	}{
		"ext4": {"inode-size=512,stride=16,stripe-width=64", "noatime,commit=17",
			[]string{"dumpe2fs", "-h"}, "RAID stripe width:        64", []string{"noatime", "commit=17"}},
		"xfs": {"reflink=0,inode-size=1024", "nodiratime,logbufs=4",
			[]string{"xfs_db", "-r", "-c", "info"}, "isize=1024", []string{"nodiratime", "logbufs=4"}},
		"btrfs": {"checksum=xxhash,metadata=single", "noatime,compress=zstd:3",
			[]string{"btrfs", "inspect-internal", "dump-super"}, "xxhash64", []string{"noatime", "compress=zstd:3"}},
	} {
		t.Run(fs, func(t *testing.T) {
			mt := newManagedTest(t)
			loop := mt.Loop(sourcetest.ManagedSizes[fs])
			mt.Attributes = map[string]any{"mkfs-options": test.mkfs, "mount-options": test.mount}
			mt.Create(fs)
			out, err := exec.Command(test.show[0], append(test.show[1:], loop.Path)...).Output()
			if err != nil || !strings.Contains(string(out), test.made) {
				t.Errorf("%q does not say %q: %v: %s", test.show, test.made, err, out)
			}
			// Later attachments have the same options, whatever the attributes are.
			mt.Attributes = nil
			for range 2 {
				mt.Attach()
				m := mt.MountInfo()
				for _, want := range append(test.mounted, "nosuid", "nodev") {
					if !strings.Contains(m.Options+","+m.VFSOptions, want) {
						t.Errorf("mounted with %s,%s, not with %s", m.Options, m.VFSOptions, want)
					}
				}
				mt.Detach()
			}
		})
	}
}

// After mkfs was killed, the device is formatted again with the options of the first
// attempt.
func TestManagedOptionsSurviveRestart(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Attributes = map[string]any{"mkfs-options": "stride=16,stripe-width=64"}
	mt.Create("ext4")
	corruptExt4(t, loop)
	mt.editRecord(func(r *record) { r.Phase = phaseFormatting })
	mt.Create("ext4")
	out, err := exec.Command("dumpe2fs", "-h", loop.Path).Output()
	if err != nil || !strings.Contains(string(out), "RAID stripe width:        64") {
		t.Errorf("got %v: %s", err, out)
	}
}

// Disallowed options are refused before anything is done.
// Promise S15.
func TestManagedRefusesDisallowedOptions(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Attributes = map[string]any{"mount-options": "noatime,data=writeback"}
	_, err := mt.TryCreate("ext4")
	mt.CheckError(err, true, "creating filesystem 0/2", `attribute "mount-options"`, "ordered|journal")
	mt.Attributes = nil
	mt.Create("ext4")
}

// The filesystem is made, and found complete, although it is only ever mounted read-only.
func TestManagedMountOptionReadOnly(t *testing.T) {
	forEachType(t, func(mt *managedTest, fs string) {
		t := mt.T
		loop := mt.Loop(sourcetest.ManagedSizes[fs])
		mt.Attributes = map[string]any{"mount-options": "ro,nosuid,nodev,noexec"}
		mt.Create(fs)
		mt.editRecord(func(r *record) { r.Phase = phaseFormatting })
		mt.Create(fs)
		for range 2 {
			for range 2 {
				got, err := mt.TryAttach(false)
				if err != nil {
					t.Fatal(err)
				}
				if !got.ReadOnly {
					t.Errorf("got %+v", got)
				}
			}
			if err := os.WriteFile(filepath.Join(mt.Path(), "data"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("writing gives %v", err)
			}
			sourcetest.CheckAttachmentState(t, mt.Source(), sourcetest.ManagedID)
			mt.Detach()
		}
		if _, err := mt.TryAttach(false); err != nil {
			t.Fatal(err)
		}
		size := 2 * sourcetest.ManagedSizes[fs]
		mt.resizeDevice(loop, size)
		_, err := mt.tryResize(size)
		mt.CheckError(err, true, "mounted read-only at "+mt.Path()+", by its mount option ro")
		mt.Detach()
	})
}

// A filesystem that can only be mounted read-only is not complete, although nobody is to write to it.
func TestManagedIncompleteAlthoughReadOnly(t *testing.T) {
	mt := newManagedTest(t)
	loop := mt.Loop(sourcetest.ManagedExt4Size)
	mt.Attributes = map[string]any{"mount-options": "ro"}
	mt.Create("ext4")
	// Linux does not write to a filesystem that has this unknown feature.
	sourcetest.Command(t, "debugfs", "-w", "-R", "set_super_value feature_ro_compat 0x80000000", loop.Path)
	mt.editRecord(func(r *record) { r.Phase = phaseFormatting })
	mt.Create("ext4")
	out, err := exec.Command("dumpe2fs", "-h", loop.Path).Output()
	if err != nil || !strings.Contains(string(out), "metadata_csum") {
		t.Errorf("it was not formatted again: %v: %s", err, out)
	}
}

// Somebody makes programs executable on the mount. A restarted agent does not accept that.
// Fault F32.
func TestManagedMountWithoutOptionNotAdopted(t *testing.T) {
	mt := newManagedTest(t)
	mt.Loop(sourcetest.ManagedExt4Size)
	mt.Attributes = map[string]any{"mount-options": "noexec"}
	mt.Create("ext4")
	mt.Attach()
	sourcetest.Command(t, "mount", "-o", "remount,bind,exec,nosuid,nodev", mt.Path())
	sourcetest.CheckAttachmentState(t, mt.Source(), sourcetest.ManagedID, "it is without noexec at "+mt.Path())
	_, err := mt.TryAttach(false)
	mt.CheckError(err, true, "it is mounted at "+mt.Path()+" without noexec", "detach it first")
	mt.Detach()
	mt.Attach()
	mt.Detach()
}
