//go:build linux

package mount

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// newFilesystem makes a filesystem on a new device.
func newFilesystem(t *testing.T, fsType string) *devicetest.Loop {
	t.Helper()
	devicetest.RequireProgram(t, "mkfs."+fsType)
	size := map[string]int64{"ext4": 32 << 20, "xfs": 300 << 20, "btrfs": 109 << 20}[fsType]
	loop := devicetest.NewLoop(t, size)
	runCommand(t, "mkfs."+fsType, "-q", loop.Path)
	return loop
}

func runCommand(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

func mustAttach(t *testing.T, fs Filesystem, path string) {
	t.Helper()
	if err := attach(t, fs, path); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T) *Table {
	t.Helper()
	table, err := ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// The kernel accepts each option, with each of its values or the limits of its range.
func TestNewAcceptsEachOption(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(fsType, func(t *testing.T) {
			source := "mount-test"
			if fsType != "tmpfs" {
				source = newFilesystem(t, fsType).Path
			}
			for _, option := range Options(fsType) {
				for _, value := range option.Values.Examples() {
					d, err := New(Filesystem{Type: fsType, Source: source, Options: []Option{{option.Key, value}}})
					if err != nil {
						t.Errorf("%s=%s: %v", option.Key, value, err)
						continue
					}
					d.Close()
				}
			}
		})
	}
}

// A directory accepts each option, also one that differs from the mount that it is on.
func TestBindAcceptsEachOption(t *testing.T) {
	dir := devicetest.Dir(t)
	for _, on := range []string{"", "noatime", "strictatime"} {
		from, err := OpenTarget(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		s, err := ParseOptions("rootfs", on)
		if err != nil {
			t.Fatal(err)
		}
		outer, err := Bind(from.f, s)
		if err != nil {
			t.Fatal(err)
		}
		defer outer.Close()
		for _, option := range Options("rootfs") {
			s, err := ParseOptions("rootfs", option.Key)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "mnt")
			target, err := MakeTarget(path)
			if err != nil {
				t.Fatal(err)
			}
			d, err := Bind(outer.f, s)
			if err == nil {
				err = d.Attach(target)
			}
			target.Close()
			if err != nil {
				t.Fatalf("%s on %q: %v", option.Key, on, err)
			}
			d.Close()
			m := read(t).At(path)
			if lacks := Lacks(m, []Option{{Key: option.Key}}); lacks != "" || IsReadOnly(m) != (option.Key == "ro") {
				t.Errorf("%s on %q: mounted with %s", option.Key, on, m.Options)
			}
			if err := Unmount(path); err != nil {
				t.Error(err)
			}
		}
	}
	from, err := OpenTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if _, err := Bind(from.f, Settings{Options: []Option{{"mode", "700"}}}); !errors.Is(err, errors.NotValid) {
		t.Errorf("an option of a filesystem: %v", err)
	}
}

func TestOptionsTakeEffect(t *testing.T) {
	for _, test := range []struct {
		fsType, options string
		mount, fs       []string // what mountinfo shows of the mount, and of the filesystem
	}{
		{"ext4", "", []string{"nosuid", "nodev", "relatime"}, nil},
		{"ext4", "noatime,noexec,commit=17,data=journal,lazytime", []string{"nosuid", "nodev", "noatime", "noexec"}, []string{"commit=17", "data=journal", "lazytime"}},
		{"xfs", "strictatime,nodiratime,logbufs=4", []string{"nodiratime"}, []string{"logbufs=4"}},
		{"btrfs", "noatime,compress=zstd:3,flushoncommit", []string{"noatime"}, []string{"compress=zstd:3", "flushoncommit"}},
		{"btrfs", "discard=async", nil, []string{"discard=async"}},
		{"ext4", "ro", []string{"ro"}, []string{"ro"}},
	} {
		t.Run(test.fsType+" "+test.options, func(t *testing.T) {
			dir := devicetest.Dir(t)
			loop := newFilesystem(t, test.fsType)
			s, err := ParseOptions(test.fsType, test.options)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "mnt")
			mustAttach(t, Filesystem{Type: test.fsType, Source: loop.Path, Options: s.Options, ReadOnly: s.ReadOnly}, path)
			m := read(t).At(path)
			for _, want := range test.mount {
				if !hasOption(m.Options, want) {
					t.Errorf("mount options %q lack %s", m.Options, want)
				}
			}
			for _, want := range test.fs {
				if !hasOption(m.VFSOptions, want) {
					t.Errorf("options %q lack %s", m.VFSOptions, want)
				}
			}
			// Discarding is off by default: a volume may need its space again.
			if discards := strings.Contains(m.VFSOptions, "discard"); discards != strings.Contains(test.options, "discard") {
				t.Errorf("discarding: %q", m.VFSOptions)
			}
			if err := Unmount(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// mountinfo shows a btrfs under a number that belongs to no device.
func TestBtrfsMountsFoundByDevice(t *testing.T) {
	dir := devicetest.Dir(t)
	mine, other := newFilesystem(t, "btrfs"), newFilesystem(t, "btrfs")
	path, otherPath := filepath.Join(dir, "mine"), filepath.Join(dir, "other")
	mustAttach(t, Filesystem{Type: "btrfs", Source: mine.Path}, path)
	// This one is mounted through a link that later leads to the first device.
	link := filepath.Join(dir, "link")
	if err := os.Symlink(other.Path, link); err != nil {
		t.Fatal(err)
	}
	mustAttach(t, Filesystem{Type: "btrfs", Source: link}, otherPath)
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(mine.Path, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(path, "part"), 0o755); err != nil {
		t.Fatal(err)
	}
	bound := filepath.Join(dir, "bound")
	runCommand(t, "mount", "--mkdir", "--bind", filepath.Join(path, "part"), bound)

	paths := func(loop *devicetest.Loop) []string {
		var found []string
		var st unix.Stat_t
		if err := unix.Stat(loop.Path, &st); err != nil {
			t.Fatal(err)
		}
		for _, m := range read(t).OfDevice(unix.Major(st.Rdev), unix.Minor(st.Rdev)) {
			found = append(found, m.Mountpoint)
		}
		return found
	}
	if got := strings.Join(paths(mine), " "); got != path+" "+bound {
		t.Errorf("got %q", got)
	}
	if got := strings.Join(paths(other), " "); got != otherPath {
		t.Errorf("got %q", got)
	}
	// A covered mount is still found by the other mounts of its device.
	runCommand(t, "mount", "-t", "tmpfs", "cover", path)
	if got := strings.Join(paths(mine), " "); got != path+" "+bound {
		t.Errorf("covered: got %q", got)
	}
	for _, p := range []string{path, path, bound, otherPath} {
		if err := Unmount(p); err != nil {
			t.Error(err)
		}
	}
}

// Promise S15.
func TestNewRefusesDisallowedOption(t *testing.T) {
	loop := newFilesystem(t, "ext4")
	_, err := New(Filesystem{Type: "ext4", Source: loop.Path, Options: []Option{{"data", "writeback"}}})
	if !errors.Is(err, errors.NotValid) {
		t.Errorf("got %v", err)
	}
}
