//go:build linux

package bench

import (
	"flag"
	"testing"
	"time"
)

var (
	volumes = flag.Int("volumes", 100, "how many `volumes` or mounts the benchmarks have at once")
	size    = flag.Uint64("size", 64, "size of a volume of the benchmarks in `MiB`")
)

// BenchmarkVolumes makes and removes volumes on loop devices, with ext4 on each.
func BenchmarkVolumes(b *testing.B) {
	newVolumes(b, *volumes, *size).benchmark(b, "way=", "volume")
}

// BenchmarkMounts mounts and unmounts filesystems without a volume.
func BenchmarkMounts(b *testing.B) {
	for _, k := range []kind{tmpfs, bind} {
		b.Run("kind="+string(k), func(b *testing.B) {
			newMounts(b, k, *volumes).benchmark(b, "way=", "mount")
		})
	}
}

// BenchmarkLoops attaches and detaches volumes in one call. The cost per volume must not grow
// with their number.
func BenchmarkLoops(b *testing.B) {
	newLoops(b, 100, 1000).benchmark(b, "n=", "volume")
}

// benchmark measures each way. The unit is what an item is called in the metrics.
func (s scenario) benchmark(b *testing.B, prefix, unit string) {
	for _, w := range s.ways {
		passed := b.Run(prefix+w.name, func(b *testing.B) {
			total := make(costs)
			for b.Loop() {
				for step, c := range w.run(b, s.phases) {
					total[step] = cost{total[step].wall + c.wall, total[step].cpu + c.cpu}
				}
			}
			b.ReportMetric(0, "ns/op") // an iteration does opposite things
			report := func(name string, d time.Duration) {
				b.ReportMetric(float64(d)/float64(b.N), name+"ns/"+unit)
			}
			for _, p := range s.phases {
				sum := total.sum(p)
				report(p.name+"-", sum.wall)
				report(p.name+"-cpu-", sum.cpu)
				for _, step := range p.steps {
					report(string(step)+"-", total[step].wall)
				}
			}
		})
		if !passed {
			return // the next way would find what this one has left
		}
	}
}
