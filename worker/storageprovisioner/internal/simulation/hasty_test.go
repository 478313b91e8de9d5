package simulation

import (
	"slices"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// A hasty state lets go of all that there is of an instance at once, where stowage's own
// lets go of one thing after another: of a volume, and of the plan for it, while the
// filesystem on it is mounted, and of volumes that are attached. A worker does not rely
// on that order about what it has mounted and attached itself. What it has done sooner
// than the state takes it, it tells again.

// hurries returns the instance of a volume, if a hasty state has let go of all of it.
func (a accessors) hurries(volume string) (state.Storage, bool) {
	if !a.in.world.hasty {
		return state.Storage{}, false
	}
	all, err := a.in.world.state.AllStorage()
	a.in.world.must(err)
	i := slices.IndexFunc(all, func(s state.Storage) bool { return s.Volume != nil && s.Volume.Tag.String() == volume })
	if i < 0 || all[i].Life == life.Alive {
		return state.Storage{}, false
	}
	return all[i], true
}

// unmounting reports whether a hasty state has let go of a volume's attachment while the
// worker that asks has the filesystem mounted that is on it.
func (a accessors) unmounting(volume string) bool {
	s, ok := a.hurries(volume)
	if !ok || s.Filesystem == nil {
		return false
	}
	a.in.world.mu.Lock()
	defer a.in.world.mu.Unlock()
	if a.in.attached[attachment(s.Filesystem.Tag, a.in.host())] {
		a.in.hurried[volume] = true
	}
	return a.in.hurried[volume] // which a state does not take back
}

func (a accessors) hastyLife(tags []names.Tag) ([]params.LifeResult, error) {
	results, err := a.Accessor.Life(tags)
	for i, r := range results {
		if _, ok := a.hurries(tags[i].String()); ok && r.Error == nil {
			results[i].Life = life.Dead
		}
	}
	return results, err
}

func (a accessors) hastyAttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	results, err := a.Accessor.AttachmentLife(ids)
	for i, r := range results {
		if r.Error == nil && a.unmounting(ids[i].AttachmentTag) {
			results[i].Life = life.Dying
		}
	}
	return results, err
}

func (a accessors) hastyPlans(ids []params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error) {
	results, err := a.Accessor.VolumeAttachmentPlans(ids)
	for i, r := range results {
		if r.Error == nil && a.unmounting(ids[i].AttachmentTag) {
			results[i].Result.Life = life.Dying
		}
	}
	return results, err
}

func (a accessors) hastyRemoval(tags []names.VolumeTag) ([]params.RemoveVolumeParamsResult, error) {
	results, err := a.Accessor.RemoveVolumeParams(tags)
	for i, r := range results {
		if s, ok := a.hurries(tags[i].String()); ok && r.Error != nil && s.Volume.ProviderID != "" {
			results[i] = params.RemoveVolumeParamsResult{Result: params.RemoveVolumeParams{
				Provider: string(s.Provider), VolumeId: s.Volume.ProviderID, Destroy: true,
			}}
		}
	}
	return results, err
}

// hurry has the watchers of a hasty state tell what it lets go of too soon.
func (w *world) hurry(s state.Storage) {
	if !w.hasty || s.Volume == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range s.Attachments {
		id := params.MachineStorageId{MachineTag: a.Machine.String(), AttachmentTag: s.Volume.Tag.String()}
		for _, in := range w.workers {
			if in == nil || in.scope != a.Machine {
				continue
			}
			for _, t := range in.taps {
				if t.what == "plans" || t.what == "volume attachments" && s.Volume.Scope == storage.ScopeMachine {
					t.tell(id)
				}
			}
		}
	}
}
