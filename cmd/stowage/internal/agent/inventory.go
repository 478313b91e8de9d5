package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/state"
)

// stampWarning explains the effect of adopted or recovered storage not being tagged.
func stampWarning(err error) string {
	return fmt.Sprintf("records have former names of what was adopted or recovered, until the agent starts again: %v", err)
}

// takeInventory compares what the providers have with the state, where that is due: when
// their records are to get new tags, and when the state has been restored.
func (a *Agent) takeInventory() error {
	stamps, err := a.state.PendingStamps()
	if err != nil || len(stamps) == 0 && !a.state.Restored() {
		return errors.Trace(err)
	}
	// Programs are not asked: the agent starts without them.
	inv, err := inventory.Open(inventory.Config{Registry: a.config.Registry, StorageDir: a.dir.Storage()})
	if err != nil {
		return errors.Trace(err)
	}
	ctx := context.Background()
	if err := inventory.Stamp(ctx, inv, a.state); err != nil {
		if slices.ContainsFunc(stamps, func(former state.Copy) bool { return former.FormerUUID != a.state.UUID() }) {
			return errors.Trace(err)
		}
		a.config.Logger.Warningf("%s", stampWarning(err))
	}
	if !a.state.Restored() {
		return nil
	}
	a.config.Logger.Warningf("the state is older than %s says: it has been restored, and is of generation %d now; "+
		"`stowage orphans` shows what was made since", a.dir.MarkFile(), a.state.Generation())
	names, err := inventory.KeepInUse(ctx, inv, a.state, machine)
	if len(names) > 0 {
		a.config.Logger.Warningf("in use, and therefore attached: %s", strings.Join(names, ", "))
	}
	return errors.Trace(err)
}
