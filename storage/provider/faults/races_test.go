//go:build linux && faults

package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// While filesystems are mounted, somebody repeatedly exchanges the mount point, or the
// directory above it, for a symbolic link.
// Fault F17.
func TestSymlinkSwappedIn(t *testing.T) {
	r := begin(t, "a symlink swapped in on the way to the mount point")
	devicetest.RequireRoot(t)
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for _, kind := range []string{"tmpfs", "rootfs", "ext4"} {
		for name, swapped := range map[string]func(world) string{
			"mount point":        func(w world) string { return w.path(0) },
			"directory above it": func(w world) string { return filepath.Dir(w.path(0)) },
		} {
			r.run(t, kind+" "+name, func(t *testing.T) {
				b := newBase(t, baseSize(kind, 1))
				s := stepTest{base: b, world: newWorld(kind, b.dir, 1), op: operations[0]}
				s.setup()
				s.must(s.world, "create")
				victim := filepath.Join(b.dir, "victim", "data0")
				link := filepath.Join(b.dir, "link")
				for _, err := range []error{
					os.MkdirAll(s.path(0), 0o755), os.MkdirAll(victim, 0o755),
					os.Symlink(map[bool]string{true: victim, false: filepath.Dir(victim)}[name == "mount point"], link),
				} {
					if err != nil {
						t.Fatal(err)
					}
				}
				stop := make(chan struct{})
				var swapping sync.WaitGroup
				swapping.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							// Busy while something is mounted there.
							_ = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, swapped(s.world), unix.RENAME_EXCHANGE)
						}
					}
				})
				attached, refused := 0, 0
				for range rounds {
					r.steps++
					if err := s.do(context.Background(), "attach"); err == nil {
						attached++
					} else {
						refused++
					}
					for _, path := range b.mounts() {
						if strings.HasPrefix(path, filepath.Join(b.dir, "victim")) {
							t.Fatalf("mounted at %s", path)
						}
					}
					_ = s.do(context.Background(), "detach")
				}
				close(stop)
				swapping.Wait()
				t.Logf("%d attached, %d refused", attached, refused)
				if refused == 0 {
					t.Error("no attach met the symbolic link")
				}
				if st, err := os.Lstat(swapped(s.world)); err != nil {
					t.Fatal(err)
				} else if st.Mode()&os.ModeSymlink != 0 {
					if err := unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, swapped(s.world), unix.RENAME_EXCHANGE); err != nil {
						t.Fatal(err)
					}
				}
				s.must(s.world, "attach")
				s.must(s.world, "detach")
				for _, path := range []string{"victim", "link", "srv"} {
					if err := os.RemoveAll(filepath.Join(b.dir, path)); err != nil {
						t.Fatal(err)
					}
				}
				s.repeat()
				s.verify()
				s.finish()
			})
		}
	}
}

// A volume's file is deleted, and another of the same name and size is made, which on
// ext4 may have the same inode.
// Fault F16.
func TestBackingFileRecreated(t *testing.T) {
	r := begin(t, "a backing file deleted and made again")
	devicetest.RequireRoot(t)
	for _, name := range []string{"with another inode", "with the same inode"} {
		r.run(t, name, func(t *testing.T) {
			b := newBase(t, baseSize("loop", 1))
			s := stepTest{base: b, world: newWorld("loop", b.dir, 1), op: operations[5]}
			s.setup()
			file := filepath.Join(s.world.dir(), "volumes", s.world.id(0))
			kept := filepath.Join(b.dir, "kept")
			status := func() (ino uint64, born unix.StatxTimestamp) {
				var st unix.Statx_t
				if err := unix.Statx(unix.AT_FDCWD, file, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
					t.Fatal(err)
				}
				return st.Ino, st.Btime
			}
			sameInode := name == "with the same inode"
			beforeIno, beforeBorn := status()
			if !sameInode {
				if err := os.Rename(file, kept); err != nil {
					t.Fatal(err)
				}
			}
			// Two files made in the same tick of the clock have the same time of birth.
			eventually(t, func() error {
				if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, make([]byte, s.Size<<20), 0o600); err != nil {
					t.Fatal(err)
				}
				if ino, born := status(); (ino == beforeIno) != sameInode || born == beforeBorn {
					return fmt.Errorf("inode %d, made at %v, became %d, made at %v", beforeIno, beforeBorn, ino, born)
				}
				return nil
			})
			for _, op := range []string{"attach", "destroy"} {
				o := task{World: s.world, Op: op}.run(t)
				r.steps++
				if o.err == nil || !o.final || !saysOneOf(o.err, "was replaced") {
					t.Errorf("%s of a volume whose file was replaced: %v", op, o.err)
				}
			}
			if loops, _ := loopsOf(b.dir); len(loops) > 0 {
				t.Fatalf("attached: %v", loops)
			}
			if err := os.Remove(file); err != nil {
				t.Fatalf("the other file is gone: %v", err)
			}
			_ = os.Remove(kept)
			s.repeat()
			s.verify()
			s.finish()
		})
	}
}

// TestFaultsInOtherPackages runs the tests of faults that belong to other packages.
// Fault F18, F19.
func TestFaultsInOtherPackages(t *testing.T) {
	for fault, test := range map[string]struct{ folder, name string }{
		"more events of devices than anybody can read": {"./worker/diskmanager", "Overflow"},
		"many volumes at once beside a foreign device": {"./storage/provider/loop", "^TestLoopCrowd$"},
	} {
		t.Run(fault, func(t *testing.T) {
			r := begin(t, fault)
			r.cases = 1
			cmd := exec.Command("go", "test", "-count=1", "-v", "-run", test.name, test.folder)
			cmd.Dir = "../../.."
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", cmd, err, out)
			}
			r.steps = strings.Count(string(out), "--- PASS")
			if r.steps == 0 {
				t.Fatalf("%s: there is no such test", cmd)
			}
		})
	}
}
