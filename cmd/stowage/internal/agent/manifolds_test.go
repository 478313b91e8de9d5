package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Workers resync every 15 minutes, for changes that no event announces. The jitter keeps
// agents from doing so at the same moment.
// Behaviour 31.
func TestProvisionersResync(t *testing.T) {
	a := &Agent{backend: &backend{}, metrics: prometheus.NewRegistry()}
	for _, scope := range []string{"machine-0", "environment"} {
		config := a.provisioner("accessors", scope)
		if config.ResyncInterval != 15*time.Minute || config.ResyncJitter <= 0 {
			t.Errorf("%s resyncs every %v, with jitter %v", scope, config.ResyncInterval, config.ResyncJitter)
		}
	}
}
