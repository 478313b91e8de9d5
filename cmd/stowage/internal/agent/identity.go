package agent

import (
	"os"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// identify creates the environment and the machine in a new state. They never change
// afterwards.
func (a *Agent) identify() error {
	var err error
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
// checked since the last agent stopped. The storage provisioner attaches all storage again
// when it starts, and reports it as attached. Storage that this agent does not manage keeps
// its status.
func (a *Agent) resetStatuses() error {
	all, err := a.state.AllStorage()
	if err != nil {
		return errors.Trace(err)
	}
	statuses := map[storage.Scope][]params.EntityStatusArgs{}
	for _, s := range all {
		if s.Life != life.Alive || len(s.Attachments) == 0 || s.Attachments[0].Life != life.Alive {
			continue
		}
		for _, entity := range []*state.Entity{s.Volume, s.Filesystem} {
			if entity != nil && entity.Status == status.Attached {
				statuses[entity.Scope] = append(statuses[entity.Scope], params.EntityStatusArgs{
					Tag:    entity.Tag.String(),
					Status: string(status.Attaching),
					Info:   "rechecking: the agent has started again",
				})
			}
		}
	}
	if a.config.Manager {
		if err := a.state.ForEnviron().SetStatus(statuses[storage.ScopeEnviron]); err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(a.state.ForMachine(machine).SetStatus(statuses[storage.ScopeMachine]))
}
