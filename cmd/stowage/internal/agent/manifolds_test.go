package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What nobody tells the agent of is seen within a quarter of an hour, and not by all agents
// at the same moment.
func TestProvisionersResync(t *testing.T) {
	a := &Agent{backend: &backend{}, metrics: prometheus.NewRegistry()}
	for _, scope := range []string{"machine-0", "environment"} {
		config := a.provisioner("accessors", scope)
		if config.ResyncInterval != 15*time.Minute || config.ResyncJitter <= 0 {
			t.Errorf("%s resyncs every %v, with jitter %v", scope, config.ResyncInterval, config.ResyncJitter)
		}
	}
}
