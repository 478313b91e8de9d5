package process

import (
	"testing"
	"time"

	"github.com/juju/clock"
)

// Workers resync, for changes that no event announces. The jitter keeps agents from doing so at the same
// moment.
// Behaviour 31.
func TestProvisionersResync(t *testing.T) {
	p := New(Config{Clock: clock.WallClock, Resync: 15 * time.Minute})
	for _, scope := range []string{"machine-0", "environment"} {
		config := p.Provisioner("accessors", scope)
		if config.ResyncInterval != 15*time.Minute || config.ResyncJitter <= 0 {
			t.Errorf("%s resyncs every %v, with jitter %v", scope, config.ResyncInterval, config.ResyncJitter)
		}
	}
}
