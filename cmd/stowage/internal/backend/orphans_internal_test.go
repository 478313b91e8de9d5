package backend

import (
	"testing"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
)

// A scan serves as the baseline for later scans that find a subset of it, for a minute.
func TestOrphanScanBaseline(t *testing.T) {
	start := time.Now()
	after := func(d time.Duration, ids ...string) orphanScan {
		l := orphanScan{at: start.Add(d)}
		for _, id := range ids {
			o := orphan{state: user.OrphanLost}
			o.Provider, o.Kind, o.ID = "loop", names.VolumeTagKind, id
			l.found = append(l.found, o)
		}
		return l
	}
	b := new(Backend)
	for _, step := range []struct {
		about string
		now   orphanScan
		first time.Duration
	}{
		{"the first of all", after(0, "a", "b"), 0},
		{"a second of the same", after(5*time.Second, "a", "b"), 0},
		{"one that finds less", after(10*time.Second, "b"), 0},
		{"one that finds more", after(20*time.Second, "b", "c"), 20 * time.Second},
		{"a second of that", after(80*time.Second, "c"), 20 * time.Second},
		{"one that is too late", after(81*time.Second, "c"), 81 * time.Second},
	} {
		if first := b.baselineFor(step.now).at.Sub(start); first != step.first {
			t.Errorf("%s: the baseline is the scan at %s, want %s", step.about, first, step.first)
		}
	}
}
