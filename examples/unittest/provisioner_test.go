package unittest

import (
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/testing/stowagetest"
)

// A failed creation is retried after 30 seconds, and not before: the clock does not advance by
// itself.
func TestFailureIsRetried(t *testing.T) {
	f := stowagetest.New(t)
	f.AddVolume("volume-0")
	f.Provider.FailItem("CreateVolumes", "volume-0", errors.New("out of space"))
	f.Start(start)

	// Step waits until the worker has set its timer, which it does after the failure.
	f.Clock.Step(t, 29*time.Second, 1)
	if n := f.Provider.Count("CreateVolumes"); n != 1 {
		t.Errorf("%d attempts after 29 s, want 1", n)
	}
	f.Clock.Step(t, time.Second, 1)
	f.AwaitAttached("volume-0")
}
