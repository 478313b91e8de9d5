//go:build linux

package bench

import (
	"flag"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

var checkBounds = flag.Bool("bounds", false, "measure for half a minute, and fail if a ratio is out of bounds")

// ratio is the cost of a way divided by that of another.
type ratio struct {
	scenario   string
	phase      phase
	way, other string
	// target is what the ratio of the wall times should be.
	target float64
	// wall and cpu are the bounds of the ratios of the wall times and CPU times.
	wall, cpu float64
}

// Each bound is 1.5 times the worst value of 25 runs on two CPUs that other programs kept busy,
// rounded. Between the best and the worst run, ratios of CPU time differed by a factor of 1.3
// to 2.2, and ratios of wall time by a factor of 2.6 to 14. The wall time bounds 1/1.2, 2.5, 5
// of ours-serial, 1/8 and 3 are tighter, so that they still mean something: a busy machine may
// exceed them.
var ratios = []ratio{
	{"volumes", setup, oursBulk, execSerial, 1. / 4, 1 / 1.2, 0.95},
	{"volumes", both, oursBulk, execSerial, 1. / 4, 1 / 1.2, 0.8},
	{"volumes", setup, oursSerial, execSerial, 1. / 4, 2.5, 1.5},
	{"volumes", both, oursSerial, execSerial, 1. / 4, 5, 1.4},
	{"volumes", setup, oursBulk, floorParallel, 1.5, 5, 2.8},
	{"volumes", both, oursBulk, floorParallel, 1.5, 2.2, 2.9},
	{"volumes", setup, oursSerial, floorSerial, 1.5, 4.7, 4.2},
	{"volumes", both, oursSerial, floorSerial, 1.5, 3.6, 4.6},
	{"tmpfs", mounting, oursBulk, execSerial, 1. / 20, 1. / 8, 0.15},
	{"bind", mounting, oursBulk, execSerial, 1. / 20, 1. / 8, 0.15},
	{"loops", attaching, "200", "20", 2, 3, 1.7},
}

// scenarios returns all scenarios: n volumes or mounts, and few and many loop devices.
func scenarios(t *testing.T, n int, size uint64, few, many int) []scenario {
	return []scenario{newVolumes(t, n, size), newMounts(t, tmpfs, n), newMounts(t, bind, n), newLoops(t, few, many)}
}

// TestRatios measures all ways, and checks the bounds.
func TestRatios(t *testing.T) {
	if !*checkBounds {
		t.Skip("it takes half a minute: set -bounds")
	}
	rounds := make(map[string][]costs) // by scenario and way
	for _, s := range scenarios(t, 20, 16, 20, 200) {
		for range 3 {
			for _, w := range s.ways {
				rounds[s.name+w.name] = append(rounds[s.name+w.name], w.run(t, s.phases))
			}
		}
	}
	for _, r := range ratios {
		// A disturbance of the machine affects all ways of a round, so the ratios of each round
		// are taken, and then their median.
		var wall, cpu []float64
		for n, c := range rounds[r.scenario+r.way] {
			this, other := c.sum(r.phase), rounds[r.scenario+r.other][n].sum(r.phase)
			wall = append(wall, float64(this.wall)/float64(other.wall))
			cpu = append(cpu, float64(this.cpu)/float64(other.cpu))
		}
		check := func(what string, each []float64, bound float64) {
			slices.Sort(each)
			median := each[len(each)/2]
			line := fmt.Sprintf("%s, %s: %s is %.3g × the %s of %s", r.scenario, r.phase.name, r.way, median, what, r.other)
			if median > bound {
				t.Errorf("OUT OF BOUNDS: %s, want at most %.3g", line, bound)
			} else {
				t.Logf("%s, at most %.3g", line, bound)
			}
		}
		check(fmt.Sprintf("wall time (target %.3g)", r.target), wall, r.wall)
		check("CPU time", cpu, r.cpu)
	}
}

// Every way does all steps, and leaves nothing.
func TestEveryWay(t *testing.T) {
	for _, s := range scenarios(t, 2, 8, 1, 2) {
		before := files(t, s.dir)
		for _, w := range s.ways {
			took := w.run(t, s.phases)
			for _, p := range s.phases {
				for _, step := range p.steps {
					if took[step].wall <= 0 {
						t.Errorf("%s, %s: %s took %v", s.name, w.name, step, took[step].wall)
					}
				}
			}
			if after := files(t, s.dir); !slices.Equal(after, before) {
				t.Errorf("%s, %s: there were %q, and then %q", s.name, w.name, before, after)
			}
			for _, m := range devicetest.Mounts(t, s.dir) {
				t.Errorf("%s, %s: left %s", s.name, w.name, m.Mountpoint)
			}
			for _, name := range devicetest.AwaitLoops(t, s.dir, 0) {
				t.Errorf("%s, %s: left %s", s.name, w.name, name)
			}
		}
	}
}

// files returns the paths of the files in a directory, except the providers' lock files. A
// directory that a way leaves makes the next way fail.
func files(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != ".lock" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
