//go:build linux

package freeze

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// holdVariable has the directory that a child process of the tests freezes.
const holdVariable = "STOWAGE_TEST_FREEZE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdVariable); dir != "" {
		holdUntilKilled(dir)
	}
	os.Exit(m.Run())
}

func holdUntilKilled(path string) {
	dir, err := os.Open(path)
	if err == nil {
		_, err = Hold(context.Background(), dir, time.Minute)
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("held\n")
	select {}
}

func openDisk(t *testing.T, fsType string) *os.File {
	t.Helper()
	size := map[string]int64{"ext4": 32 << 20, "xfs": 320 << 20, "btrfs": 128 << 20}[fsType]
	dir, err := os.Open(devicetest.NewDisk(t, size, "mkfs."+fsType, "-q").Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// write writes a file to a filesystem, in the background if the filesystem is frozen.
func write(t *testing.T, dir *os.File) (written chan error) {
	t.Helper()
	written = make(chan error, 1)
	path := filepath.Join(dir.Name(), "file")
	go func() { written <- os.WriteFile(path, []byte("data"), 0o600) }()
	return written
}

func checkThawed(t *testing.T, written chan error, atMost time.Duration) {
	t.Helper()
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(atMost):
		t.Errorf("still frozen after %v", atMost)
	}
}

func TestHold(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			dir := openDisk(t, fsType)
			for range 3 {
				f, err := Hold(t.Context(), dir, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				written := write(t, dir)
				select {
				case err := <-written:
					t.Errorf("written although it is frozen: %v", err)
				case <-time.After(50 * time.Millisecond):
				}
				if err := f.Thaw(); err != nil {
					t.Error(err)
				}
				checkThawed(t, written, 10*time.Second)
			}
		})
	}
}

func TestHoldEndsAtLimit(t *testing.T) {
	dir := openDisk(t, "ext4")
	f, err := Hold(t.Context(), dir, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	checkThawed(t, write(t, dir), 10*time.Second)
	if err := f.Thaw(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("thawing after the limit: %v", err)
	}
}

// A process that is killed does not leave a frozen filesystem.
// Fault F41.
func TestHoldEndsWithProcess(t *testing.T) {
	dir := openDisk(t, "ext4")
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), holdVariable+"="+dir.Name())
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	written := write(t, dir)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	checkThawed(t, written, 10*time.Second)
	t.Logf("thawed %v after kill -9", time.Since(killed))
	_ = child.Wait()
}

// The guard survives the signals with which a service is ended.
func TestHoldSurvivesTermination(t *testing.T) {
	dir := openDisk(t, "ext4")
	f, err := Hold(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(f.child.Process.Pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.alive.Close() // as when this process dies
	checkThawed(t, write(t, dir), 10*time.Second)
	if err := f.Thaw(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("thawing: %v", err)
	}
}

// What somebody else has frozen stays frozen.
func TestHoldOfFrozenFilesystem(t *testing.T) {
	dir := openDisk(t, "ext4")
	other, err := Hold(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(t.Context(), dir, time.Minute); !errors.Is(err, unix.EBUSY) {
		t.Errorf("frozen twice: %v", err)
	}
	if err := other.Thaw(); err != nil {
		t.Error(err)
	}
}

func TestHoldOfFilesystemThatCannotFreeze(t *testing.T) {
	dir := devicetest.Dir(t)
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Hold(t.Context(), f, time.Minute); !errors.Is(err, errors.NotSupported) {
		t.Errorf("freezing a tmpfs: %v", err)
	}
}
