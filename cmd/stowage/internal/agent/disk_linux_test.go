package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// mountTmpfs mounts a tmpfs at the directory until the test ends.
func mountTmpfs(t *testing.T, dir, options string) {
	t.Helper()
	require := t.Skip
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		require = t.Fatal
	}
	if os.Geteuid() != 0 {
		require("needs root: it mounts a filesystem")
	}
	if err := unix.Mount("test", dir, "tmpfs", 0, "mode=700,"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// A first start fails on a full disk. When there is space the next start succeeds, however
// far the first one got.
func TestFirstStartOnFullDisk(t *testing.T) {
	const page = 4096
	started := false
	for pages := 1; !started; pages++ {
		dir := t.TempDir()
		mountTmpfs(t, dir, "size=100M")
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", pages*page)); err != nil {
			t.Fatal(err)
		}
		c := config(t, dir, &memory{})
		c.SocketPath = filepath.Join(t.TempDir(), "s")
		var first error
		for range 2 {
			a, err := agent.New(c)
			if err == nil {
				started = true
				a.Kill()
				_ = a.Wait()
			} else if first = err; !errors.Is(err, unix.ENOSPC) && !strings.Contains(err.Error(), "no space left") {
				t.Errorf("%d pages: %v", pages, err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, "state.db.new")); err != nil || len(left) > 0 {
				t.Errorf("%d pages: left behind: %q, %v", pages, left, err)
			}
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=100M"); err != nil {
			t.Fatal(err)
		}
		_, stop := start(t, c)
		stop()
		t.Logf("%d pages: %v", pages, first)
	}
}

// If the storage directory is a mount, the space there counts.
func TestSpaceOfStorageDirectoryMount(t *testing.T) {
	dir := t.TempDir()
	mountTmpfs(t, dir, "size=64M")
	storage := filepath.Join(dir, "storage")
	if err := os.Mkdir(storage, 0o700); err != nil {
		t.Fatal(err)
	}
	mountTmpfs(t, storage, "size=512M")
	c := config(t, dir, &memory{})
	c.SocketPath = filepath.Join(t.TempDir(), "s")
	a, _ := start(t, c)
	const spec = "storage: [{name: %s, directive: 'rootfs,%s', kind: filesystem, mount: /srv/%[1]s}]"
	if err := apply(t, a, fmt.Sprintf(spec, "fits", "300M")); err != nil {
		t.Error(err)
	}
	err := apply(t, a, fmt.Sprintf(spec, "large", "600M"))
	if err == nil || !strings.Contains(err.Error(), "provider rootfs has room for 512M") {
		t.Errorf("600M of 512M: %v", err)
	}
}

// The disk of the state fails while a removal is committed, so the outcome is unknown. The
// agent ends, and destroys nothing.
func TestAgentEndsOnUncertainCommit(t *testing.T) {
	disk := syscalltest.NewDiskOf(t, "ext4")
	m := &memory{}
	c := config(t, filepath.Join(disk.Dir, "data"), m)
	c.SocketPath = filepath.Join(t.TempDir(), "s")
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Wait() }()
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, "attached"))
	count := 0
	err = syscalltest.Intercept(t, []int{unix.SYS_FDATASYNC}, func(call syscalltest.Call) syscalltest.Result {
		if count = call.N; count == 2 { // the sync of the meta page
			if err := disk.ShutDown(); err != nil {
				t.Error(err)
			}
		}
		return syscalltest.Pass
	}, func() error { return a.Remove(t.Context(), user.RemoveArgs{Names: []string{"data"}}) })
	if !errors.Is(err, kv.ErrUnknown) || count < 2 {
		t.Errorf("after %d syncs: %v", count, err)
	}
	err = <-ended
	if !errors.Is(err, boltkv.ErrUnreadable) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the agent ended: %v", err)
	}
	t.Log(err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.made) != 2 {
		t.Errorf("filesystems left: %v, want 2", m.made)
	}
}
