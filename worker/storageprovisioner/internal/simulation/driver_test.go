package simulation

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// driver is the source of the environment's volumes in some worlds: like the provider of CSI drivers, it
// needs the context of a volume to attach it, and keeps none.
type driver struct{ source }

var _ storage.ContextSource = driver{}

// forgets reports whether the source of a creation does not know what earlier calls have made.
func (w *world) forgets(c call) bool {
	return c.op == creating && c.source == cloud && w.driver && !w.calm
}

// loseOrRefuse carries out a creation whose answer is lost, or refuses it, perhaps for good, whatever an
// earlier one has made.
func (w *world) loseOrRefuse(c call, l *luck) error {
	if w.things[c.key] == nil && l.once(2) {
		_, _ = c.do()
		return errTransient
	}
	if w.things[c.key] != nil {
		w.failed[cloud+" refuses what it has made"]++
	}
	if l.once(2) {
		return storage.Refused(errPermanent)
	}
	return storage.Refused(errTransient)
}

// contextOf returns the context of a volume.
func contextOf(id string) map[string]string { return map[string]string{"volume": id} }

// VolumeContext implements storage.ContextSource.
func (d driver) VolumeContext(id string) map[string]string { return contextOf(id) }

// AttachVolumesIn implements storage.ContextSource.
func (d driver) AttachVolumesIn(
	ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams, contexts []map[string]string,
) ([]storage.AttachVolumesResult, error) {
	d.in.world.mu.Lock()
	for i, p := range all {
		if got := contexts[i]["volume"]; got != p.VolumeId && !d.in.crashed {
			d.in.world.fail("%s: %s %s begins in the context of %q", d.in.name, attaching, p.VolumeId, got)
		}
	}
	d.in.world.failed[attaching+" in a context"]++
	d.in.world.mu.Unlock()
	return d.AttachVolumes(ctx, all)
}

func (a accessors) SetVolumeContexts(all []params.VolumeContext) ([]params.ErrorResult, error) {
	if !a.in.world.driver { // a call more would make another history of each that is known
		return a.Accessor.SetVolumeContexts(all)
	}
	return writing(a.in, "SetVolumeContexts", all, a.Accessor.SetVolumeContexts, func(params.VolumeContext, *params.Error) {})
}

func (a accessors) VolumeContexts(tags []names.VolumeTag) ([]params.VolumeContextResult, error) {
	if !a.in.world.driver {
		return a.Accessor.VolumeContexts(tags)
	}
	return reading(a.in, "VolumeContexts", tags, a.Accessor.VolumeContexts, func(err *params.Error) params.VolumeContextResult {
		return params.VolumeContextResult{Error: err}
	})
}
