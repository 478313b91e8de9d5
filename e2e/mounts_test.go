package e2e

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/looptest"
)

// What somebody does to the mounts of storage is shown within seconds, and not undone unasked.
func TestMountsThatOthersTakeAway(t *testing.T) {
	t.Parallel() // most of it waits for what comes with a change to be gathered
	m := newMachine(t)
	m.writeSpec(`storage: [{name: ram, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/ram}, {name: tree, directive: 'rootfs,1M', kind: filesystem, mount: MNT/tree}, {name: disk, directive: 'loop,16M', kind: filesystem, mount: MNT/disk}]`)
	m.start()
	m.apply()
	m.writeData("tree")
	m.writeData("disk")
	shows := func(name, status, message string) {
		t.Helper()
		m.poll(name+" is not shown as "+status+": "+message, func() bool {
			s := m.status()[name]
			return s.Status == status && strings.Contains(s.Message, message)
		})
	}
	names := []string{"ram", "tree", "disk"}
	for _, name := range names {
		if err := unix.Unmount(m.mount(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	shows("ram", "error", "contents lost: it was unmounted from "+m.mount("ram"))
	shows("tree", "error", "it was unmounted from "+m.mount("tree")+": attach it again")
	shows("disk", "error", "it was unmounted from "+m.mount("disk")+": attach it again")
	if left := mountsBelow(t, m.mount("")); len(left) > 0 {
		t.Errorf("mounted again unasked: %v", left)
	}

	m.must(append([]string{"attach", "--wait"}, names...)...)
	m.wantData("tree", "disk")
	shows("ram", "attached", "it came back empty after it was unmounted")

	// Put right by who has done it, it is well again.
	for _, name := range names {
		if err := unix.Mount("over", m.mount(name), "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		shows(name, "error", "tmpfs from over is mounted over it")
		if err := unix.Unmount(m.mount(name), 0); err != nil {
			t.Fatal(err)
		}
		shows(name, "attached", "")
	}
	m.must("remove", "ram", "tree", "disk", "--wait")
	m.wantNoStorage()
	m.stop()
}

// A loop device that somebody has detached is attached again when a user asks for it.
func TestLoopDeviceThatOthersDetach(t *testing.T) {
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
