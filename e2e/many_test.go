package e2e

import (
	"fmt"
	"testing"
	"time"
)

const manyVolumes = 200

func TestCreateAndRemoveManyVolumes(t *testing.T) {
	up, away := createAndRemove(t)
	t.Logf("%d ext4 volumes on loop devices: up in %v, away in %v", manyVolumes, up, away)
}

// BenchmarkApply measures one `stowage apply --wait` of 200 volumes with ext4, and
// one `stowage remove --wait`.
func BenchmarkApply(b *testing.B) {
	var up, away time.Duration
	for b.Loop() {
		u, a := createAndRemove(b)
		up += u
		away += a
	}
	b.ReportMetric(up.Seconds()/float64(b.N), "s-up")
	b.ReportMetric(away.Seconds()/float64(b.N), "s-away")
	b.ReportMetric(0, "ns/op") // hidden: it includes setup and checks
}

func createAndRemove(tb testing.TB) (up, away time.Duration) {
	m := newMachine(tb)
	m.writeSpec(fmt.Sprintf(`
storage:
  - name: many
    directive: loop,16M,%d
    kind: filesystem
    mount: MNT/many
`, manyVolumes))
	m.start()

	begin := time.Now()
	m.apply()
	up = time.Since(begin)
	if n := len(mountsBelow(tb, m.dir)); n != manyVolumes {
		tb.Errorf("%d mounts, want %d", n, manyVolumes)
	}
	if n := len(loopsBelow(tb, m.dir)); n != manyVolumes {
		tb.Errorf("%d loop devices, want %d", n, manyVolumes)
	}
	m.wantNoDuplicates()

	begin = time.Now()
	m.must("remove", "many", "--wait")
	away = time.Since(begin)
	m.wantNoStorage()
	m.stop()
	return up, away
}
