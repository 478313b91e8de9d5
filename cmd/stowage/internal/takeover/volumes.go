package takeover

import (
	"fmt"
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// volumes is a guarded source of volumes. The calls of each volume come one at a time.
type volumes struct {
	storage.VolumeSource
	capabilities
	takeover *Takeover
	key      sourceKey
}

// CreateVolumes implements [storage.VolumeSource]. A volume that may be attached by a server before
// this one is only made, and attached by AttachVolumes: it has to be detached first, for which its
// ID must be known.
func (s *volumes) CreateVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	return s.create(all, func(some []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
		return s.VolumeSource.CreateVolumes(ctx, some)
	})
}

// CloneVolumes implements [storage.VolumeCloner].
func (s *volumes) CloneVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	params := make([]storage.VolumeParams, len(all))
	origins := make(map[names.VolumeTag]storage.Origin, len(all))
	for i, p := range all {
		params[i], origins[p.Tag] = p.VolumeParams, p.Origin
	}
	cloner, ok := s.VolumeSource.(storage.VolumeCloner)
	if !ok {
		results := make([]storage.CreateVolumesResult, len(all))
		for i := range results {
			results[i].Error = storage.Permanent(errors.NewNotSupported(nil, "its provider cannot make volumes with the contents of others"))
		}
		return results, nil
	}
	return s.create(params, func(some []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
		clones := make([]storage.VolumeCloneParams, len(some))
		for i, p := range some {
			clones[i] = storage.VolumeCloneParams{VolumeParams: p, Origin: origins[p.Tag]}
		}
		return cloner.CloneVolumes(ctx, clones)
	})
}

// create makes volumes with a call of the source.
func (s *volumes) create(all []storage.VolumeParams, source func([]storage.VolumeParams) ([]storage.CreateVolumesResult, error)) ([]storage.CreateVolumesResult, error) {
	results := make([]storage.CreateVolumesResult, len(all))
	made := slices.Clone(all)
	var calls []state.AttachmentCall
	var begun []int
	for i := range made {
		if p := made[i].Attachment; p != nil {
			call, err := s.call(*p, made[i].Tag, false)
			if err == nil {
				var late []state.AttachmentCall
				if late, err = s.takeover.lateCalls(call.Volume, call.Machine); len(late) > 0 {
					made[i].Attachment = nil
				}
			}
			if err != nil {
				results[i].Error = err
				continue
			}
			if made[i].Attachment != nil {
				calls = append(calls, call)
			}
		}
		begun = append(begun, i)
	}
	err := s.make(begun, calls, func(i int, err error) { results[i].Error = err }, func() ([]error, error) {
		got, err := source(pick(made, begun))
		if err = checkCount(len(got), len(begun), err); err != nil {
			return nil, err
		}
		var errs []error // of those that have a note
		for n, i := range begun {
			results[i] = got[n]
			if v := got[n].Volume; v != nil {
				s.takeover.learnID(s.key.provider, v.VolumeId, made[i].Tag)
			}
			if made[i].Attachment != nil {
				errs = append(errs, got[n].Error)
			}
		}
		return errs, nil
	})
	return results, err
}

// AttachVolumes implements [storage.VolumeSource].
func (s *volumes) AttachVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return s.attach(ctx, all, func(begun []int) ([]storage.AttachVolumesResult, error) {
		return s.VolumeSource.AttachVolumes(ctx, pick(all, begun))
	})
}

// AttachVolumesIn implements [storage.ContextSource].
func (s *volumes) AttachVolumesIn(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams, contexts []map[string]string) ([]storage.AttachVolumesResult, error) {
	source, ok := s.VolumeSource.(storage.ContextSource)
	if !ok {
		return s.AttachVolumes(ctx, all)
	}
	return s.attach(ctx, all, func(begun []int) ([]storage.AttachVolumesResult, error) {
		return source.AttachVolumesIn(ctx, pick(all, begun), pick(contexts, begun))
	})
}

// attach attaches volumes with a call of the source for those with the indexes.
func (s *volumes) attach(
	ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams, source func([]int) ([]storage.AttachVolumesResult, error),
) ([]storage.AttachVolumesResult, error) {
	results := make([]storage.AttachVolumesResult, len(all))
	if len(all) == 0 {
		return results, nil
	}
	s.takeover.settlePast()
	targets := make([]target, len(all))
	for i, p := range all {
		machine, _ := p.Machine.(names.MachineTag) // call returns the error
		targets[i] = target{p.Volume, p.VolumeId, machine}
	}
	errs := s.settle(ctx, targets)
	listed := s.listed(ctx, all, errs)
	var calls []state.AttachmentCall
	var begun []int
	for i, p := range all {
		call, err := s.call(p, p.Volume, false)
		switch {
		case errs[i] != nil:
			results[i].Error = errs[i]
		case err != nil:
			results[i].Error = err
		case listed[i] != nil:
			results[i].VolumeAttachment = listed[i]
		default:
			calls, begun = append(calls, call), append(begun, i)
		}
	}
	err := s.make(begun, calls, func(i int, err error) { results[i].Error = err }, func() ([]error, error) {
		got, err := source(begun)
		if err = checkCount(len(got), len(begun), err); err != nil {
			return nil, err
		}
		errs := make([]error, len(begun))
		for n, i := range begun {
			results[i], errs[n] = got[n], got[n].Error
			s.takeover.listing(s.key).remove(all[i].VolumeId)
		}
		return errs, nil
	})
	return results, err
}

// DetachVolumes implements [storage.VolumeSource].
func (s *volumes) DetachVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]error, error) {
	results := make([]error, len(all))
	if len(all) == 0 {
		return results, nil
	}
	s.takeover.settlePast()
	var calls []state.AttachmentCall
	var begun []int
	// The notes that a success settles: of calls that came before this one, or not at all.
	var past []state.AttachmentCall
	for i, p := range all {
		call, err := s.call(p, p.Volume, true)
		if err != nil {
			results[i] = err
			continue
		}
		calls, begun = append(calls, call), append(begun, i)
		for _, c := range s.takeover.earlierCalls(p.Volume) {
			if c.Machine == call.Machine && s.takeover.isPast(c) {
				past = append(past, c)
			}
		}
	}
	err := s.make(begun, calls, func(i int, err error) { results[i], past = err, nil }, func() ([]error, error) {
		got, err := s.VolumeSource.DetachVolumes(ctx, pick(all, begun))
		if err = checkCount(len(got), len(begun), err); err != nil {
			return nil, err
		}
		failed := make(map[names.VolumeTag]bool)
		for n, i := range begun {
			if results[i] = got[n]; got[n] != nil {
				failed[all[i].Volume] = true
			} else {
				s.takeover.listing(s.key).remove(all[i].VolumeId)
			}
		}
		past = slices.DeleteFunc(past, func(c state.AttachmentCall) bool { return failed[c.Volume] })
		return got, nil
	})
	if err != nil {
		return results, err
	}
	// If this fails, the volumes are detached again before they are attached elsewhere.
	_ = s.takeover.settled(past)
	return results, nil
}

// DestroyVolumes implements [storage.VolumeSource].
func (s *volumes) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, ids, s.VolumeSource.DestroyVolumes)
}

// ReleaseVolumes implements [storage.VolumeSource].
func (s *volumes) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, ids, s.VolumeSource.ReleaseVolumes)
}

// remove destroys or releases volumes that no late call can attach.
func (s *volumes) remove(
	ctx envcontext.ProviderCallContext, ids []string, remove func(envcontext.ProviderCallContext, []string) ([]error, error),
) ([]error, error) {
	s.takeover.settlePast()
	var targets []target
	var settling []int
	for i, id := range ids {
		if tag, ok := s.takeover.volumeOf(s.key.provider, id); ok {
			targets, settling = append(targets, target{volume: tag, id: id}), append(settling, i)
		}
	}
	results := make([]error, len(ids))
	for n, err := range s.settle(ctx, targets) {
		results[settling[n]] = err
	}
	var begun []int
	for i := range ids {
		if results[i] == nil {
			begun = append(begun, i)
		}
	}
	err := s.make(begun, nil, func(i int, err error) { results[i] = err }, func() ([]error, error) {
		got, err := remove(ctx, pick(ids, begun))
		if err = checkCount(len(got), len(begun), err); err != nil {
			return nil, err
		}
		for n, i := range begun {
			results[i] = got[n]
		}
		return nil, nil
	})
	return results, err
}

// make makes a call for the begun arguments, if there are any. It notes calls before, and removes
// the notes of those with a known outcome: do returns an error for each of them. If the call cannot
// be made, it calls fail for each argument.
func (s *volumes) make(begun []int, calls []state.AttachmentCall, fail func(int, error), do func() ([]error, error)) error {
	if len(begun) == 0 {
		return nil
	}
	if err := s.takeover.begin(calls); err != nil {
		for _, i := range begun {
			fail(i, errors.Trace(err))
		}
		return nil
	}
	errs, err := do()
	if err != nil {
		return err
	}
	var known []state.AttachmentCall
	for n, err := range errs {
		if isKnown(err) {
			known = append(known, calls[n])
		}
	}
	s.takeover.end(known)
	return nil
}

// call returns the note of a call.
func (s *volumes) call(p storage.VolumeAttachmentParams, volume names.VolumeTag, detach bool) (state.AttachmentCall, error) {
	machine, ok := p.Machine.(names.MachineTag)
	if !ok {
		return state.AttachmentCall{}, errors.NotSupportedf("attaching %s to %v, which is no machine,", names.ReadableString(volume), p.Machine)
	}
	return state.AttachmentCall{
		Volume: volume, Machine: machine, Detach: detach, VolumeID: p.VolumeId,
		InstanceID: p.InstanceId, Provider: s.key.provider, Window: s.takeover.config.Window,
	}, nil
}

// target is a volume that is to be attached to a machine, or nowhere.
type target struct {
	volume  names.VolumeTag
	id      string
	machine names.MachineTag
}

// lateCalls returns the notes of earlier terms that have to be settled before a volume can be
// attached to a machine: those of calls on other machines. The error says why they cannot be
// settled yet.
func (t *Takeover) lateCalls(volume names.VolumeTag, machine names.MachineTag) ([]state.AttachmentCall, error) {
	var late []state.AttachmentCall
	for _, c := range t.earlierCalls(volume) {
		if c.Machine == machine && !c.Detach {
			continue
		}
		if !t.isPast(c) {
			return nil, storage.Transient(fmt.Errorf("%s: a server that was replaced may still %s machine %s: wait until %s after the takeover",
				names.ReadableString(volume), map[bool]string{false: "attach it to", true: "detach it from"}[c.Detach], t.machineName(c.Machine), c.Window))
		}
		if c.Machine != machine {
			late = append(late, c)
		}
	}
	return late, nil
}

// machineName returns the name of a machine, or its number.
func (t *Takeover) machineName(tag names.MachineTag) string {
	if m, err := t.config.Machine(tag); err == nil {
		return m.Name
	}
	return tag.Id()
}

// settle detaches volumes from the machines to which calls of earlier terms may have attached them,
// other than their targets. It returns an error for each target.
func (s *volumes) settle(ctx envcontext.ProviderCallContext, targets []target) []error {
	errs := make([]error, len(targets))
	var late []state.AttachmentCall // one for each machine of a target
	var of []int                    // the targets of late
	for i, target := range targets {
		calls, err := s.takeover.lateCalls(target.volume, target.machine)
		errs[i] = err
		first := len(late)
		for _, c := range calls {
			isSame := func(other state.AttachmentCall) bool { return other.Machine == c.Machine }
			if !slices.ContainsFunc(late[first:], isSame) {
				c.VolumeID = target.id
				late, of = append(late, c), append(of, i)
			}
		}
	}
	if len(late) == 0 {
		return errs
	}
	listing := s.takeover.listing(s.key)
	listing.forget()
	known, err := listing.read(ctx, s.VolumeSource)
	if err != nil {
		for _, i := range of {
			errs[i] = err
		}
		return errs
	}
	var detach []storage.VolumeAttachmentParams
	var detached []int // the indexes in late
	for n, c := range late {
		if known && listing.machineOf(c.VolumeID) != c.Machine {
			continue
		}
		detach = append(detach, storage.VolumeAttachmentParams{
			AttachmentParams: storage.AttachmentParams{Provider: c.Provider, Machine: c.Machine, InstanceId: c.InstanceID},
			Volume:           c.Volume, VolumeId: c.VolumeID,
		})
		detached = append(detached, n)
	}
	for n, err := range s.detachEach(ctx, detach) {
		if err != nil {
			errs[of[detached[n]]] = err
		}
	}
	var settled []state.AttachmentCall
	for n, i := range of {
		if errs[i] != nil {
			continue
		}
		for _, c := range s.takeover.earlierCalls(targets[i].volume) {
			if c.Machine == late[n].Machine {
				settled = append(settled, c)
			}
		}
	}
	if err := s.takeover.settled(settled); err != nil {
		for _, i := range of {
			errs[i] = errors.Trace(err)
		}
	}
	return errs
}

// detachEach detaches volumes before they are attached elsewhere, destroyed or released. It returns an
// error for each.
func (s *volumes) detachEach(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) []error {
	results, err := s.DetachVolumes(ctx, all)
	for i, p := range all {
		cause := err
		if cause == nil {
			cause = results[i]
		}
		if results[i] = nil; cause != nil {
			// Whatever the cause means for the detachment, the other operation can be tried again.
			results[i] = errors.Errorf("%s has to be detached from %s first, which may have it: %v",
				names.ReadableString(p.Volume), names.ReadableString(p.Machine), cause)
		}
	}
	return results
}

// pick returns the elements at the indexes.
func pick[T any](all []T, indexes []int) []T {
	picked := make([]T, len(indexes))
	for n, i := range indexes {
		picked[n] = all[i]
	}
	return picked
}

// checkCount returns the error of a bulk call, or one if it has not returned a result for each
// argument.
func checkCount(got, want int, err error) error {
	if err == nil && got != want {
		err = errors.Errorf("provider returned %d results for %d arguments", got, want)
	}
	return err
}

// listed returns the attachments that need not be made, since the state has them and the source has
// listed them, nil for others. It sets the errors of volumes that another machine has.
func (s *volumes) listed(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams, errs []error) []*storage.VolumeAttachment {
	listed := make([]*storage.VolumeAttachment, len(all))
	listing := s.takeover.listing(s.key)
	known, err := listing.read(ctx, s.VolumeSource)
	var there, elsewhere []int
	for i, p := range all {
		switch {
		case errs[i] != nil:
		case err != nil:
			errs[i] = err
		case !known:
		case listing.machineOf(p.VolumeId) == p.Machine && len(s.takeover.earlierCalls(p.Volume)) == 0:
			there = append(there, i)
		case listing.machineOf(p.VolumeId) != nil && listing.machineOf(p.VolumeId) != p.Machine:
			elsewhere = append(elsewhere, i)
		}
	}
	s.takeAway(ctx, all, elsewhere, errs)
	if len(there) == 0 {
		return listed
	}
	recorded, err := s.takeover.recorded(pick(all, there))
	if err != nil {
		return listed // they are attached again
	}
	for n, i := range there {
		if r := recorded[n]; r != nil && r.ReadOnly == all[i].ReadOnly {
			listed[i] = r
			listing.remove(all[i].VolumeId)
		}
	}
	return listed
}

// takeAway detaches volumes from machines that have been listed, if these are fenced. It sets the
// errors of the others: what the state does not know may be in use.
func (s *volumes) takeAway(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams, elsewhere []int, errs []error) {
	if len(elsewhere) == 0 {
		return
	}
	listing := s.takeover.listing(s.key)
	var detach []storage.VolumeAttachmentParams
	var of []int
	for _, i := range elsewhere {
		p, at := all[i], listing.machineOf(all[i].VolumeId)
		machine, _ := at.(names.MachineTag)
		m, err := s.takeover.config.Machine(machine)
		switch {
		case err != nil && !errors.Is(err, errors.NotFound):
			errs[i] = errors.Trace(err)
		case err != nil || m.Fenced.IsZero():
			errs[i] = fmt.Errorf("%s is attached to %s, which the state does not know: detach it there first",
				names.ReadableString(p.Volume), names.ReadableString(at))
		default:
			p.Machine, p.InstanceId, p.ReadOnly = machine, m.InstanceID, false
			detach, of = append(detach, p), append(of, i)
		}
	}
	for n, err := range s.detachEach(ctx, detach) {
		errs[of[n]] = err
	}
	listing.forget() // the next call finds out whether something has changed
}

// recorded returns the attachments that the state has recorded, nil for others.
func (t *Takeover) recorded(all []storage.VolumeAttachmentParams) ([]*storage.VolumeAttachment, error) {
	ids := make([]params.MachineStorageId, len(all))
	for i, p := range all {
		ids[i] = params.MachineStorageId{MachineTag: p.Machine.String(), AttachmentTag: p.Volume.String()}
	}
	results, err := t.config.State.VolumeAttachments(ids)
	if err != nil {
		return nil, errors.Trace(err)
	}
	recorded := make([]*storage.VolumeAttachment, len(all))
	for i, r := range results {
		if r.Error != nil {
			continue
		}
		info := r.Result.Info
		recorded[i] = &storage.VolumeAttachment{Volume: all[i].Volume, Machine: all[i].Machine, VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
			DeviceName: info.DeviceName, DeviceLink: info.DeviceLink, BusAddress: info.BusAddress, ReadOnly: info.ReadOnly,
		}}
		if p := info.PlanInfo; p != nil {
			recorded[i].PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: p.DeviceType, DeviceAttributes: p.DeviceAttributes}
		}
	}
	return recorded, nil
}
