package simulation

import (
	"slices"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// A hasty state marks all entities of an instance as dying or dead at once: a volume and its
// plan while the filesystem on the volume is mounted, and volumes that are attached. Stowage's
// own state marks one after the other. A worker does not rely on that order for what it has
// mounted and attached itself. If the state does not take a result yet, the worker reports the
// result again.

// hurries returns the storage instance of a volume, if a hasty state has marked all of it.
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

// unmounting reports whether a hasty state has marked a volume's attachment as dying while
// the worker that asks has the volume's filesystem mounted.
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
	return a.in.hurried[volume] // a state does not take that back
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

// hurry has the watchers of a hasty state report the entities that it marks too soon.
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
					t.add(id)
				}
			}
		}
	}
}
