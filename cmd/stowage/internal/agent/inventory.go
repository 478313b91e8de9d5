package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/state"
)

// takeInventory compares the providers' objects with the state if that is due: when their
// records must get new tags, or when the state was restored.
func (a *Agent) takeInventory() error {
	stamps, err := a.state.PendingStamps()
	if err != nil || len(stamps) == 0 && !a.state.Restored() {
		return errors.Trace(err)
	}
	// Programs are not included: the agent starts without them.
	inv, err := inventory.Open(inventory.Config{Registry: a.config.Registry, StorageDir: a.dir.Storage()})
	if err != nil {
		return errors.Trace(err)
	}
	ctx := context.Background()
	if err := inventory.Stamp(ctx, inv, a.state); err != nil {
		if slices.ContainsFunc(stamps, func(former state.Copy) bool { return former.FormerUUID != a.state.UUID() }) {
			return errors.Trace(err)
		}
		a.config.Logger.Warningf("%s", backend.StampWarning(err))
	}
	if !a.state.Restored() {
		return nil
	}
	a.config.Logger.Warningf("the state is older than %s says, so it has been restored; its generation is now %d; "+
		"`stowage orphans` shows what was made since", a.dir.MarkFile(), a.state.Generation())
	names, err := inventory.KeepInUse(ctx, inv, a.state, machine)
	if len(names) > 0 {
		a.config.Logger.Warningf("attached because it is in use: %s", strings.Join(names, ", "))
	}
	return errors.Trace(err)
}
