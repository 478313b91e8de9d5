package plugins

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/storage/provider/csi"
	"github.com/stowage-io/stowage/storage/provider/program"
)

const (
	// driverInterval is how often the drivers of the machine are asked what they say about it.
	driverInterval = 15 * time.Second
	// driverReportInterval is how often what has not changed is reported: the state may have been restored.
	driverReportInterval = time.Hour
)

// Plans returns what carries out the attachment plans of the registry's providers on a machine with a storage
// directory.
func Plans(registry storage.ProviderRegistry, storageDir string) func(storage.DeviceType) (plans.Plan, error) {
	return csi.Plans(registry, storageDir, program.Plans(registry))
}

// StartDriverReporter starts a worker that records what the CSI drivers of the machine say about it.
func StartDriverReporter(
	registry storage.ProviderRegistry, clock clock.Clock, warn func(format string, args ...any),
	record func(map[storage.ProviderType]machine.Driver) error,
) worker.Worker {
	var reported map[storage.ProviderType]machine.Driver
	var at time.Time
	warned := make(map[storage.ProviderType]string)
	refused := false
	return process.EveryIn(clock, driverInterval, func(ctx context.Context) error {
		if refused || !csi.HasMachineDrivers(registry) {
			return nil
		}
		answers, failures := csi.AskMachineDrivers(ctx, registry)
		if ctx.Err() != nil {
			return nil
		}
		for _, provider := range slices.Sorted(maps.Keys(failures)) {
			if text := failures[provider].Error(); warned[provider] != text {
				warn("asking the driver of provider %s about this machine: %s; trying again every %s", provider, text, driverInterval)
				warned[provider] = text
			}
		}
		for provider := range answers {
			delete(warned, provider)
		}
		now := clock.Now()
		if len(answers) == 0 || now.Sub(at) < driverReportInterval && reflect.DeepEqual(reported, answers) {
			return nil
		}
		err := record(answers)
		if errors.Is(err, errors.NotImplemented) {
			warn("the server is older than this agent, and does not know CSI drivers whose volumes any machine can have")
			refused = true
			return nil
		}
		reported, at = answers, now
		return errors.Trace(err)
	})
}
