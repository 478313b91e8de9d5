package mounts

import (
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/cputime"
)

// BenchmarkChangedMounts measures what a change of mounts costs among n mounts: reading their table
// and comparing it with the last reading. B/mount is what a table keeps.
func BenchmarkChangedMounts(b *testing.B) {
	// Without the kernel's share, which is the most.
	for _, n := range []int{10_000, 90_000} {
		b.Run(fmt.Sprintf("file/n=%d", n), func(b *testing.B) {
			var one, other strings.Builder
			for i := range n {
				line := fmt.Sprintf("%d 29 254:0 /var/lib/stowage/rootfs/data-%d/tree /srv/data/data-%[2]d rw,relatime - ext4 /dev/vda rw\n", i+100, i)
				one.WriteString(line)
				if i != n/2 {
					other.WriteString(line)
				}
			}
			measureReading(b, n, writeFile(b, one.String()), writeFile(b, other.String()))
		})
	}
	b.Run("mounts/n=10000", func(b *testing.B) {
		needRoot(b)
		const n = 10_000
		dir := b.TempDir()
		b.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		if err := unix.Mount("test", dir, "tmpfs", 0, ""); err != nil {
			b.Fatal(err)
		}
		for i := range n {
			at := filepath.Join(dir, fmt.Sprintf("data-%d", i))
			if err := os.Mkdir(at, 0o700); err != nil {
				b.Fatal(err)
			}
			if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
				b.Fatal(err)
			}
		}
		measureReading(b, n, "/proc/self/mountinfo")
	})
}

func writeFile(b *testing.B, text string) string {
	path := filepath.Join(b.TempDir(), "mountinfo")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// measureReading measures reading tables of n mounts in turn.
func measureReading(b *testing.B, n int, paths ...string) {
	w := &mounts{seed: maphash.MakeSeed()}
	before := heap()
	w.path = paths[0]
	w.ChangedMounts()
	kept := heap() - before
	used := cputime.Used()
	for i := 0; b.Loop(); i++ {
		w.path = paths[i%len(paths)]
		if _, all := w.ChangedMounts(); all {
			b.Fatal("the table could not be read")
		}
	}
	b.ReportMetric(float64((cputime.Used()-used).Nanoseconds())/float64(b.N*n), "cpu-ns/mount")
	b.ReportMetric(float64(kept)/float64(n), "B/mount")
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
