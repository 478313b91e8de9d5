//go:build linux && faults

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// strace is the beginning of a command that runs another under strace.
const strace = "exec strace -f -o /dev/null"

// formats are the filesystem types that are made on volumes.
func formats() []string {
	if makesBtrfs() {
		return []string{"ext4", "xfs", "btrfs"}
	}
	return []string{"ext4", "xfs"}
}

// wrap puts a shell command before each run of a program, in this mount namespace, until
// restore is called. It returns the path of a copy of the program in dir, which is a
// [devicetest.VisibleDir].
func wrap(t *testing.T, dir, program, before string) (original string, restore func()) {
	t.Helper()
	devicetest.RequireProgram(t, "strace")
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	original = filepath.Join(dir, program) // mkfs behaves according to its name
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(original, data, 0o755); err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(dir, "wrapper")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\n"+before+" "+original+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The program may be a link; the wrapper then covers all its names.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(wrapper, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	wrapped := true
	restore = func() {
		if wrapped {
			wrapped = false
			// A starting shell may still read the wrapper.
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(restore)
	return original, restore
}

// writes are the system calls that write.
var writes = []string{"pwrite64", "write", "fsync", "fallocate", "ioctl"}

// TestMkfsKilled kills mkfs at each of its writes.
// Fault F9.
func TestMkfsKilled(t *testing.T) {
	r := begin(t, "mkfs killed at each write")
	devicetest.RequireRoot(t)
	for _, kind := range formats() {
		t.Run(kind, func(t *testing.T) {
			b := newBase(t, baseSize(kind, 1))
			s := stepTest{base: b, world: newWorld(kind, b.dir, 1), op: operations[0]}
			for call, count := range s.countCalls() {
				for n := 1; n <= count; n++ {
					if testing.Short() && (call != "pwrite64" || n > 2 && n != count/2 && n < count) {
						continue
					}
					if !s.at(t, r, fmt.Sprintf("%s %03d", call, n), func(s *stepTest) bool {
						inject := fmt.Sprintf("%s -e trace=%s -e inject=%s:signal=KILL:when=%d", strace, call, call, n)
						_, restore := wrap(s.TB.(*testing.T), devicetest.VisibleDir(s), "mkfs."+kind, inject)
						o := task{World: s.world, Op: "create"}.run(s)
						restore()
						r.steps++
						// The number of calls varies: mkfs.btrfs inspects other devices with
						// ioctls.
						sure := count * 9 / 10
						if call == "ioctl" {
							sure = count / 2
						}
						if o.err == nil && n < sure || o.err != nil && !saysOneOf(o.err, "killed", "exit status") {
							s.Fatalf("mkfs was killed, and the call returned %v", o.err)
						}
						s.repeat()
						s.verify()
						return true
					}) {
						return
					}
				}
			}
		})
	}
}

// countCalls runs mkfs once and counts the system calls that write.
func (s stepTest) countCalls() map[string]int {
	counts := make(map[string]int)
	t := s.TB.(*testing.T)
	s.once(t, func(s *stepTest) bool {
		dir := devicetest.VisibleDir(s)
		log := filepath.Join(dir, "log")
		_, restore := wrap(s.TB.(*testing.T), dir, "mkfs."+s.Kind,
			"exec strace -f -c -o "+log+" -e trace="+strings.Join(writes, ","))
		if o := (task{World: s.world, Op: "create"}).run(s); o.err != nil {
			s.Fatal(o.err)
		}
		restore()
		text, err := os.ReadFile(log)
		if err != nil {
			s.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			// % time, seconds, usecs/call, calls, errors if any, syscall
			fields := strings.Fields(line)
			if len(fields) < 5 {
				continue
			}
			n, err := strconv.Atoi(fields[3])
			for _, call := range writes {
				if err == nil && fields[len(fields)-1] == call {
					counts[call] = n
				}
			}
		}
		s.repeat()
		s.verify()
		return true
	})
	t.Logf("%s writes with %v", s.Kind, counts)
	if len(counts) == 0 {
		t.Fatal("no writes were counted")
	}
	return counts
}
