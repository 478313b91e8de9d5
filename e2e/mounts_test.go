package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/looptest"
)

// When another program changes the mounts of storage, the status shows it within seconds. The
// agent does not undo the change until a user asks for it.
// Fault F32.
func TestExternalMountChangesAreShown(t *testing.T) {
	t.Parallel() // most of the time passes while the agent collects related changes
	m := newMachine(t)
	m.writeSpec(`storage: [{name: ram, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/ram}, {name: tree, directive: 'rootfs,1M', kind: filesystem, mount: MNT/tree}, {name: disk, directive: 'loop,16M', kind: filesystem, mount: MNT/disk}]`)
	m.start()
	m.apply()
	m.writeData("tree")
	m.writeData("disk")
	// A new filesystem is attached again when the agent learns its UUID, which mounts it if it
	// is not mounted. One that is attached later has its UUID from the start.
	m.must("detach", "--wait", "disk")
	m.must("attach", "--wait", "disk")
	wantStatus := func(name, status, message string) {
		t.Helper()
		m.poll(name+" is not shown as "+status+": "+message, func() bool {
			s := m.status()[name]
			return string(s.Status) == status && strings.Contains(s.Message, message)
		})
	}
	names := []string{"ram", "tree", "disk"}
	for _, name := range names {
		if err := unix.Unmount(m.mount(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	wantStatus("ram", "error", "contents lost: it was unmounted from "+m.mount("ram"))
	wantStatus("tree", "error", "it was unmounted from "+m.mount("tree")+": attach it again")
	wantStatus("disk", "error", "it was unmounted from "+m.mount("disk")+": attach it again")
	if left := mountsBelow(t, m.mount("")); len(left) > 0 {
		t.Errorf("mounted again without a request: %v", left)
	}

	answer := m.must(append([]string{"attach", "--wait"}, names...)...).Stdout
	for _, name := range names {
		if line := regexp.MustCompile(`(?m)^~ ` + name + ` +retry  .*it was unmounted from `); !line.MatchString(answer) {
			t.Errorf("attach does not say that it tries %s again:\n%s", name, answer)
		}
	}
	m.wantData("tree", "disk")
	wantStatus("ram", "attached", "it came back empty after it was unmounted")

	// The status recovers when a mount over the storage goes away.
	for _, name := range names {
		if err := unix.Mount("over", m.mount(name), "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		wantStatus(name, "error", "tmpfs from over is mounted over it")
		if err := unix.Unmount(m.mount(name), 0); err != nil {
			t.Fatal(err)
		}
		wantStatus(name, "attached", "")
	}
	// So it does when the mount was over the directory that contains all mount points.
	if err := unix.Mount("over", m.mount(""), "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		wantStatus(name, "error", "")
	}
	if err := unix.Unmount(m.mount(""), 0); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		wantStatus(name, "attached", "")
	}
	// A mount that is made read-only is not as it was attached either.
	if err := unix.Mount("", m.mount("ram"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	wantStatus("ram", "error", "read-only")
	if err := unix.Mount("", m.mount("ram"), "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	wantStatus("ram", "attached", "")
	m.must("remove", "ram", "tree", "disk", "--wait")
	m.wantNoStorage()
	m.stop()
}

// Mount options of a pool and of a file apply to every mount, until the storage is removed.
func TestMountOptions(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.must("pools", "add", "strict", "rootfs", "mount-options=noexec")
	m.writeSpec(`storage: [{name: ram, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/ram, mount-options: 'noexec,mode=0700,uid=7'}, ` +
		`{name: tree, directive: 'strict,1M', kind: filesystem, mount: MNT/tree}, ` +
		`{name: fixed, directive: 'rootfs,1M', kind: filesystem, mount: MNT/fixed, mount-options: ro}]`)
	m.apply()
	old := filepath.Join(m.dir, "old")
	if err := os.Mkdir(old, 0o755); err != nil {
		t.Fatal(err)
	}
	m.must("import", "old", old, "--pool", "strict", "--mount", m.mount("old"), "--wait")
	// What exists keeps its options.
	m.must("pools", "add", "--replace", "strict", "rootfs")

	check := func() {
		t.Helper()
		for _, name := range []string{"ram", "tree", "old"} {
			program := filepath.Join(m.mount(name), "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := exec.Command(program).Run(); !errors.Is(err, unix.EACCES) {
				t.Errorf("executing a program of %s: %v", name, err)
			}
		}
		var st unix.Stat_t
		if err := unix.Stat(m.mount("ram"), &st); err != nil || st.Mode&0o7777 != 0o700 || st.Uid != 7 {
			t.Errorf("ram has mode %o and owner %d, %v", st.Mode&0o7777, st.Uid, err)
		}
		if err := os.Mkdir(filepath.Join(m.mount("fixed"), "dir"), 0o700); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to fixed: %v", err)
		}
		for name, s := range m.status() {
			if got, want := s.Attachments[0].ReadOnly, name == "fixed"; got != want {
				t.Errorf("%s is shown as read-only: %t, want %t", name, got, want)
			}
		}
	}
	check()
	m.kill()
	for _, name := range []string{"ram", "tree", "old", "fixed"} {
		if err := unix.Unmount(m.mount(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	m.start()
	m.must("attach", "ram", "tree", "old", "fixed", "--wait")
	check()
	m.must("remove", "ram", "tree", "old", "fixed", "--wait")
	m.wantNoStorage()
	m.stop()
}

// Retry attaches a loop device again that another program has detached.
func TestRetryReattachesDetachedLoopDevice(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(`storage: [{name: raw, directive: 'loop,16M', kind: block}]`)
	m.start()
	m.apply()
	if err := looptest.Detach(m.status()["raw"].Location); err != nil {
		t.Fatal(err)
	}
	m.must("retry", "raw")
	m.poll("raw is not attached again", func() bool {
		s := m.status()["raw"]
		return s.Status == "attached" && slices.ContainsFunc(loopsBelow(t, m.dir), func(l kernel.Loop) bool { return l.Path == s.Location })
	})
	m.must("remove", "raw", "--wait")
	m.wantNoStorage()
	m.stop()
}
