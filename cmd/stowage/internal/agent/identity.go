package agent

import (
	"os"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/instance"
)

// identify creates the environment and the machine in a new state. They never change
// afterwards.
func (a *Agent) identify() error {
	var err error
	a.config.Place(a.state)
	if a.model, err = process.EnsureEnviron(a.state); err != nil {
		return errors.Trace(err)
	}
	if err := a.state.EnsureMachine(machine); err != nil {
		return errors.Trace(err)
	}
	_, err = a.state.InstanceId(machine)
	if errors.Is(err, errors.NotProvisioned) {
		err = a.state.SetInstanceId(machine, newInstanceID())
	}
	return errors.Trace(err)
}

var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// newInstanceID returns the machine's own ID, or a new one if it has none.
func newInstanceID() instance.Id {
	content, err := os.ReadFile("/etc/machine-id")
	if id := strings.TrimSpace(string(content)); err == nil && machineID.MatchString(id) {
		return instance.Id(id)
	}
	return instance.Id(uuid.NewString())
}

// resetStatuses sets the status of attached storage back to attaching, because it has not been
// checked since the last agent stopped. Storage that this agent does not manage keeps its status.
func (a *Agent) resetStatuses() error {
	const why = "the agent has started again"
	if a.config.Manager {
		if err := a.state.RecheckEnviron(why); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(a.state.RecheckMachine(machine, why))
}
