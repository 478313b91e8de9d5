package e2e

import (
	"slices"
	"strings"
	"testing"

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

	m.must(append([]string{"attach", "--wait"}, names...)...)
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
