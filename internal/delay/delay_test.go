//go:build delays

package delay_test

import (
	"testing"
	"time"

	"github.com/stowage-io/stowage/internal/delay"
)

// Run with STOWAGE_DELAY=all: each point that "make delays" selects is delayed.
func TestPointsAreDelayed(t *testing.T) {
	if len(delay.Points) < 10 {
		t.Fatalf("only %d points", len(delay.Points))
	}
	for _, p := range delay.Points {
		begun := time.Now()
		delay.At(p)
		if took := time.Since(begun); took < 400*time.Microsecond {
			t.Errorf("%s took %v", p, took)
		}
	}
}
