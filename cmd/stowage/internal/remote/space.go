package remote

import (
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

const (
	// spaceInterval is how often the agent measures the space of the machine.
	spaceInterval = 15 * time.Second
	// spaceReportInterval is how often it reports what has not changed: the server may have forgotten it.
	spaceReportInterval = time.Hour
	// smallChange is the part of the size by which the free space must have changed to be reported
	// before that.
	smallChange = 100
)

// startSpaceReporter starts a worker that reports to the server how much space the machine has.
func (a *Agent) startSpaceReporter() (worker.Worker, error) {
	var reported map[storage.ProviderType]coremachine.Space
	var at time.Time
	refused := false
	return process.Every(a.config.Clock, spaceInterval, func() error {
		if refused {
			return nil
		}
		measured, err := space.Measure(a.dir.Storage())
		if err != nil {
			return errors.Trace(err)
		}
		now := a.config.Clock.Now()
		if now.Sub(at) < spaceReportInterval && isAbout(reported, measured) {
			return nil
		}
		err = a.client.SetMachineSpace(measured)
		if errors.Is(err, errors.NotImplemented) {
			a.config.Logger.Warningf("the server is older than this agent, and does not record how much space the machine has")
			refused = true
			return nil
		}
		reported, at = measured, now
		return errors.Trace(err)
	}), nil
}

// isAbout reports whether the space of each provider differs little between two measurements.
func isAbout(a, b map[storage.ProviderType]coremachine.Space) bool {
	for provider, now := range b {
		before, ok := a[provider]
		change := max(before.FreeMiB, now.FreeMiB) - min(before.FreeMiB, now.FreeMiB)
		if !ok || before.SizeMiB != now.SizeMiB || change > now.SizeMiB/smallChange {
			return false
		}
	}
	return len(a) == len(b)
}
