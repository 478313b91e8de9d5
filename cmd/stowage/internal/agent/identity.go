package agent

import (
	"os"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
)

// identify gives the state, the first time, an environment and a machine. They
// stay what they are from then on.
func (a *Agent) identify() error {
	_, err := a.state.EnvironConfig()
	if errors.Is(err, errors.NotFound) {
		err = a.state.SetEnvironConfig(map[string]any{"name": "stowage", "type": "local", "uuid": uuid.NewString()})
	}
	if err != nil {
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

// newInstanceID returns the machine's own id, or a new one where it has none.
func newInstanceID() instance.Id {
	content, err := os.ReadFile("/etc/machine-id")
	if id := strings.TrimSpace(string(content)); err == nil && machineID.MatchString(id) {
		return instance.Id(id)
	}
	return instance.Id(uuid.NewString())
}

// distrustStatuses takes back that storage is attached: nobody has looked since
// the last agent stopped. The storage provisioner attaches it all again when it
// starts, and says so.
func (a *Agent) distrustStatuses() error {
	all, err := a.state.AllStorage()
	if err != nil {
		return errors.Trace(err)
	}
	var statuses []params.EntityStatusArgs
	for _, s := range all {
		if s.Life != life.Alive || len(s.Attachments) == 0 || s.Attachments[0].Life != life.Alive {
			continue
		}
		for _, entity := range []*state.Entity{s.Volume, s.Filesystem} {
			if entity != nil && entity.Status == status.Attached {
				statuses = append(statuses, params.EntityStatusArgs{
					Tag:    entity.Tag.String(),
					Status: string(status.Attaching),
					Info:   "looking at it again after a start of the agent",
				})
			}
		}
	}
	return errors.Trace(a.state.ForMachine(machine).SetStatus(statuses))
}
