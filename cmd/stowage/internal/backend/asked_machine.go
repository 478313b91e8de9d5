package backend

import (
	"context"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/watcher"
)

// MachineAsked is the storage of a way in for the agent of a machine, in its session. It implements
// agentapi.AskedAccessor. The agent sees what its machine may use, attaches it to that machine only, and
// detaches and grows only what is attached there.
type MachineAsked struct{ asked *Asked }

// AskedOn returns the storage of a way in for the agent in a session. Its calls fail as those of
// [state.State.ForSession] do.
func (b *Backend) AskedOn(s state.Session, way string) *MachineAsked {
	return &MachineAsked{&Asked{backend: b, way: way, session: s}}
}

// checkBound returns an error that satisfies errors.IsNotFound if an agent asks for storage that is bound to
// another machine.
func (a *Asked) checkBound(s *state.Storage, id string) error {
	if a.session.Number == 0 {
		return nil
	}
	if machine, bound := converge.HomeMachine(s); bound && machine != a.session.Machine {
		return errors.NotFoundf("storage %s on this machine", id)
	}
	return nil
}

// checkAttached returns an error that satisfies errors.Is(err, asked.ErrElsewhere) if an agent asks for a
// change of storage that is not attached to its machine.
func (a *Asked) checkAttached(s *state.Storage) error {
	here := a.session.Machine
	if a.session.Number == 0 || s.MoveTo == here || len(s.Attachments) > 0 && s.Attachments[0].Machine == here {
		return nil
	}
	return errors.WithType(errors.Errorf("storage %s is not attached to this machine", s.Name), asked.ErrElsewhere)
}

// WatchAskedVolume returns a watcher that notifies when a volume may have changed, except for the block
// devices of its machine.
func (m *MachineAsked) WatchAskedVolume(id string) (watcher.NotifyWatcher, error) {
	if err := m.asked.backend.state.CheckSession(m.asked.session); err != nil {
		return nil, errors.Trace(err)
	}
	if _, _, err := m.asked.find(id); err != nil {
		return nil, errors.Trace(err)
	}
	return m.asked.backend.state.WatchAsked(m.asked.way, id)
}

// AskedVolumes returns volumes.
func (m *MachineAsked) AskedVolumes(ids []string) ([]params.AskedVolumeResult, error) {
	if err := m.asked.backend.state.CheckSession(m.asked.session); err != nil {
		return nil, errors.Trace(err)
	}
	results := make([]params.AskedVolumeResult, len(ids))
	for i, id := range ids {
		v, err := m.asked.Volume(id)
		results[i] = params.AskedVolumeResult{Result: asked.WireVolume(v), Error: asked.WireError(err)}
	}
	return results, nil
}

// AttachAskedVolumes requests that volumes be attached to the machine.
func (m *MachineAsked) AttachAskedVolumes(ids []string) ([]params.ErrorResult, error) {
	return changeAsked(ids, func(ctx context.Context, id string) error {
		return m.asked.attach(ctx, id, m.asked.session.Machine)
	})
}

// DetachAskedVolumes requests that volumes be detached from the machine.
func (m *MachineAsked) DetachAskedVolumes(ids []string) ([]params.ErrorResult, error) {
	return changeAsked(ids, m.asked.Detach)
}

// ResizeAskedVolumes requests that volumes that are attached to the machine grow.
func (m *MachineAsked) ResizeAskedVolumes(sizes []params.AskedVolumeSize) ([]params.ErrorResult, error) {
	return changeAsked(sizes, func(ctx context.Context, size params.AskedVolumeSize) error {
		return m.asked.Resize(ctx, size.ID, size.SizeMiB)
	})
}

// askedTimeout bounds the wait of an agent's request for changes by other servers.
const askedTimeout = 10 * time.Second

// changeAsked makes a change for each argument. It returns an error if the session has ended.
func changeAsked[A any](args []A, change func(context.Context, A) error) ([]params.ErrorResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askedTimeout)
	defer cancel()
	results := make([]params.ErrorResult, len(args))
	for i, arg := range args {
		err := change(ctx, arg)
		if errors.Is(err, state.ErrSessionEnded) {
			return nil, errors.Trace(err)
		}
		results[i].Error = asked.WireError(err)
	}
	return results, nil
}
