//go:build linux && faults

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// A process uses what is to be detached or destroyed.
// Fault F11.
// Story D6.
func TestBusy(t *testing.T) {
	r := begin(t, "in use: file, directory, namespace, device")
	devicetest.RequireRoot(t)
	type busy struct {
		name string
		op   string
		hold func(s stepTest) hold
	}
	mounted := []busy{
		{"an open file", "detach", func(s stepTest) hold { return hold{Open: s.data(0)} }},
		{"a working directory", "detach", func(s stepTest) hold { return hold{Dir: s.path(0)} }},
	}
	copied := append([]busy{
		{"another mount namespace", "detach", func(stepTest) hold { return hold{Namespace: true} }},
	}, mounted...)
	for kind, cases := range map[string][]busy{
		"tmpfs":  copied,
		"rootfs": copied,
		"ext4":   copied,
		"xfs":    mounted[:1],
		"loop": {
			{"an open loop device", "detach", func(s stepTest) hold { return hold{Open: s.data(0)} }},
			{"a loop device claimed", "detach", func(s stepTest) hold { return hold{Exclusively: s.data(0)} }},
		},
	} {
		for _, busy := range cases {
			if testing.Short() && kind == "xfs" {
				continue
			}
			r.run(t, kind+" "+busy.name, func(t *testing.T) {
				b := newBase(t, baseSize(kind, 1))
				s := stepTest{base: b, world: newWorld(kind, b.dir, 1), op: operations[3]}
				s.setup()
				pid, release := busy.hold(s).start(t)
				s.isRefused(busy.op, pid)
				r.steps++
				if kind != "ext4" || busy.name != "another mount namespace" {
					s.verifyAttached()
				}
				release()
				s.repeat()
				s.verify()
				s.finish()
			})
		}
	}
}

// isRefused checks that an operation fails while a process uses the storage, with an
// error that names the process.
func (s stepTest) isRefused(op string, pid int) {
	s.Helper()
	for range 2 {
		err := s.do(context.Background(), op)
		if err == nil {
			s.Fatalf("%s succeeded while process %d held the storage", op, pid)
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("process %d (", pid)) {
			s.Errorf("the error does not name process %d: %v", pid, err)
		}
		if storage.IsPermanent(err) {
			s.Errorf("the error is permanent, although the process may release the storage: %v", err)
		}
	}
}

// verifyAttached checks that the objects are attached and have their data.
func (s stepTest) verifyAttached() {
	s.Helper()
	s.op = operation{name: "attach", exists: true, attached: true}
	s.verify()
	for i := range s.Count {
		checkContents(s, s.data(i), i)
	}
}

// A process is killed, and its mkfs continues. Nobody else formats the device at the same
// time.
// Fault F10.
func TestNoConcurrentFormatting(t *testing.T) {
	r := begin(t, "kill -9 while mkfs goes on without its parent")
	devicetest.RequireRoot(t)
	for _, kind := range formats() {
		r.run(t, kind, func(t *testing.T) {
			b := newBase(t, baseSize(kind, 1))
			s := stepTest{base: b, world: newWorld(kind, b.dir, 1), op: operations[0]}
			s.setup()
			dir := devicetest.VisibleDir(t)
			started := filepath.Join(dir, "started")
			original, restore := wrap(t, dir, "mkfs."+kind, fmt.Sprintf("touch %s; %s -e trace=pwrite64 -e inject=pwrite64:delay_enter=300000:when=2", started, strace))
			child, wait := task{World: s.world, Op: "create"}.start(t)
			eventually(t, func() error { return exists(started) })
			kill(t, child)
			wait()
			restore()
			// The next process waits for that mkfs, or refuses, and does not format concurrently.
			deadline := time.Now().Add(30 * time.Second)
			for {
				o := task{World: s.world, Op: "create"}.run(t)
				r.steps++
				if o.err == nil {
					break
				}
				t.Log(o.err)
				if !saysOneOf(o.err, "in use", "cannot get exclusive access", "contains a mounted filesystem", "busy") || time.Now().After(deadline) {
					t.Fatal(o.err)
				}
			}
			if left := running(original); len(left) > 0 {
				t.Fatalf("the filesystem was made while another mkfs was running: %v", left)
			}
			eventually(t, func() error {
				if left := children(); len(left) > 0 {
					return fmt.Errorf("left: %v", left)
				}
				return nil
			})
			s.repeat()
			s.verify()
			s.finish()
		})
	}
}

// running returns the processes below this one that run a program.
func running(program string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && path == program && isBelow(filepath.Dir(link)) {
			found = append(found, link)
		}
	}
	return found
}

// isBelow reports whether a process, by its directory in /proc, is below this one.
func isBelow(dir string) bool {
	for {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		_, rest, ok := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if err != nil || !ok || len(fields) < 2 || fields[1] == "0" {
			return false
		}
		if fields[1] == strconv.Itoa(os.Getpid()) {
			return true
		}
		dir = filepath.Join("/proc", fields[1])
	}
}
