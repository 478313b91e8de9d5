package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// A volume has contents, which users write. A snapshot keeps those that a volume has when it is
// made, and a clone is a volume that gets those of a snapshot, or those that another volume has
// when the clone is made. The user makes and deletes snapshots without a worker, since those of
// storage provisioners do nothing with them.

// snapshot is a snapshot as it really is. It stays in the world when it is deleted, for the
// checks of what was made from it.
type snapshot struct {
	contents string
	size     uint64
	deleted  bool
}

// cloning names the operation that makes a clone.
const cloning = "clone"

// copying of contents, by the user: writes, snapshots and clones.
func (w *world) copies(s step) bool {
	l := luck{dice: s.dice | 1}
	all, err := w.state.AllStorage()
	w.must(err)
	snapshots, err := w.state.Snapshots()
	w.must(err)
	all = slices.DeleteFunc(all, func(s state.Storage) bool { return s.Volume == nil || s.Pool == hosted })
	which := int(s.which)
	switch action := l.roll(10); {
	case action < 3:
		return w.writeTo(which)
	case action < 5 && len(all) > 0 && len(snapshots) < 6:
		w.takeSnapshot(all[which%len(all)])
	case action == 5 && len(snapshots) > 0:
		w.deleteSnapshot(snapshots[which%len(snapshots)])
	case action > 5 && len(all)+len(snapshots) > 0 && len(all) < 8:
		if which %= len(all) + len(snapshots); which < len(all) {
			w.wantFrom(&l, state.From{Storage: all[which].Name}, all[which].Kind, all[which].Pool, w.machineOf(all[which]), all[which].SizeMiB)
		} else {
			of := snapshots[which-len(all)]
			w.wantFrom(&l, state.From{Snapshot: of.Name}, of.Kind, of.Pool, of.Machine, of.SizeMiB)
		}
	default:
		return false
	}
	return true
}

// writeTo writes to an attached volume.
func (w *world) writeTo(which int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	var attached []*thing
	for _, tag := range sortedKeys(w.things) {
		if t := w.things[tag]; t.kind() == names.VolumeTagKind && len(t.at) > 0 {
			attached = append(attached, t)
		}
	}
	if len(attached) == 0 {
		return false
	}
	t := attached[which%len(attached)]
	w.writes++
	t.contents, t.written = fmt.Sprintf("text %d", w.writes), true
	w.logf("user writes %s to %s", t.contents, t.id)
	return true
}

// takeSnapshot makes a snapshot of the volume of storage.
func (w *world) takeSnapshot(of state.Storage) {
	w.mu.Lock()
	t := w.things[of.Volume.Tag.String()]
	w.mu.Unlock()
	if t == nil || t.id != of.Volume.ProviderID {
		return // it is missing
	}
	name := fmt.Sprintf("snapshot-%d", len(w.snapshots))
	made, err := w.state.AddSnapshot(state.SnapshotParams{Name: name, Storage: of.Name})
	w.logf("user makes %s of %s: %v", name, of.Name, err)
	if err != nil {
		return
	}
	w.must(w.state.SetSnapshotMade(made.UUID, storage.SnapshotInfo{SnapshotId: name, Size: t.size, TakenAt: time.Now()}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshots[name] = &snapshot{contents: t.contents, size: t.size}
}

// deleteSnapshot deletes a snapshot, which a restored state may have although it is deleted.
func (w *world) deleteSnapshot(s state.Snapshot) {
	w.logf("user deletes %s", s.Name)
	w.must(w.state.DeleteSnapshot(s.Name, state.SnapshotDeletion{}))
	w.must(w.state.RemoveSnapshot(s.UUID))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshots[s.SnapshotID].deleted = true
}

// machineOf returns the machine that storage cannot leave; zero if it can.
func (w *world) machineOf(s state.Storage) names.MachineTag {
	if s.Volume.Scope != storage.ScopeMachine {
		return names.MachineTag{}
	}
	t := thing{tag: s.Volume.Tag.String()}
	machine, err := names.ParseMachineTag(t.machine())
	w.must(err)
	return machine
}

// wantFrom adds storage that gets the contents of others.
func (w *world) wantFrom(l *luck, from state.From, kind storage.StorageKind, pool string, machine names.MachineTag, size uint64) {
	p := state.StorageParams{
		Name: fmt.Sprintf("storage/%d", w.storage), Kind: kind, Pool: pool, Size: size + uint64(l.roll(2)), From: from, Machine: machine,
	}
	if machine == (names.MachineTag{}) && l.roll(4) > 0 {
		p.Machine = scopes[1+l.roll(2)].(names.MachineTag)
	}
	w.mu.Lock() // before a worker reads it
	defer w.mu.Unlock()
	err := w.state.AddStorage(p)
	w.logf("user wants %s, %s of %s with %d MiB on %q, from %s: %v", p.Name, p.Kind, p.Pool, p.Size, p.Machine.Id(), from, err)
	if err != nil {
		return
	}
	w.storage++
	if p.Machine != (names.MachineTag{}) {
		w.on[p.Name] = p.Machine
	}
	all, err := w.state.AllStorage()
	w.must(err)
	byName := func(name string) state.Storage {
		return all[slices.IndexFunc(all, func(s state.Storage) bool { return s.Name == name })]
	}
	origin := storage.Origin{SnapshotId: from.Snapshot} // its name is its ID
	if from.Storage != "" {
		origin.Id = byName(from.Storage).Volume.ProviderID
	}
	w.origins[byName(p.Name).Volume.Tag.String()] = origin
}

// CloneVolumes implements storage.VolumeCloner.
func (s source) CloneVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeCloneParams) ([]storage.CreateVolumesResult, error) {
	var calls []call
	for _, p := range all {
		calls = append(calls, s.volumeCreation(p.VolumeParams, p.Origin))
	}
	return s.createVolumes(ctx, calls)
}

// IsNewVolume implements storage.NewVolumes. A careless source says that of clones, too: a worker
// knows better.
func (s source) IsNewVolume(string) bool { return true }

// clone makes a volume with the contents of its origin, or an empty one without an origin. The
// lock is held.
func (s source) clone(p storage.VolumeParams, from storage.Origin) (*thing, error) {
	w, tag := s.in.world, p.Tag.String()
	if want := w.origins[tag]; want != from && !s.in.crashed {
		w.fail("%s: %s is to be made from %+v, and is wanted from %+v", s.in.name, tag, from, want)
	}
	existed := w.things[tag] != nil
	var contents string
	if from != (storage.Origin{}) && !existed {
		kept, err := w.openOrigin(from, p.Size)
		if err != nil {
			w.failed[cloning+" misses its origin"]++
			return nil, err
		}
		contents = kept
	}
	t, err := s.create(p.Tag, p.Size, nil, p.ResourceTags)
	switch {
	case err != nil || from == (storage.Origin{}):
	case existed:
		w.failed[cloning+" finds what it has made"]++
	default:
		t.contents, t.origin = contents, from
		w.failed[cloning+map[bool]string{true: " of a volume", false: " of a snapshot"}[from.Id != ""]]++
	}
	return t, err
}

// openOrigin returns the contents of an origin, for a volume of a size. Sources differ in whether
// they give up for good without an origin.
func (w *world) openOrigin(from storage.Origin, size uint64) (string, error) {
	kept, ok := w.snapshots[from.SnapshotId]
	if ok = ok && !kept.deleted; from.Id != "" {
		t := w.byID(from.Id)
		for _, orphan := range w.orphans {
			if orphan.id == from.Id {
				t = orphan
			}
		}
		if ok = t != nil; ok {
			kept = &snapshot{contents: t.contents, size: t.size}
		}
	}
	switch {
	case !ok && len(from.Id+from.SnapshotId)%2 == 0:
		return "", storage.NothingMade(errors.NewNotFound(nil, noOrigin))
	case !ok:
		return "", storage.Permanent(errors.NewNotFound(nil, noOrigin))
	case size < kept.size:
		return "", errors.NewNotValid(nil, noOrigin)
	}
	return kept.contents, nil
}

// noOrigin is the message of an error about a clone that cannot be made: its origin does not
// exist, or has grown and does not fit any more.
const noOrigin = "there is no such origin"

// unclonable reports whether the volume of storage does not exist, and cannot be made from its
// origin.
func (w *world) unclonable(s state.Storage) bool {
	if s.Volume == nil || w.things[s.Volume.Tag.String()] != nil || w.origins[s.Volume.Tag.String()] == (storage.Origin{}) {
		return false
	}
	_, err := w.openOrigin(w.origins[s.Volume.Tag.String()], s.RequestedMiB)
	return err != nil
}

// checkUnclonable checks that the status of storage that cannot be made says why.
func (w *world) checkUnclonable(s state.Storage) error {
	told := s.Volume.Status == status.Error || s.Volume.Status == status.Pending
	if len(s.Attachments) > 0 && !w.lostStatus[s.Volume.Tag.String()] && (!told || !strings.Contains(s.Volume.Message, noOrigin)) {
		return errors.Errorf("%s cannot be made without its origin, and its status is %s %s", s.Volume.Tag, s.Volume.Status, s.Volume.Message)
	}
	return nil
}

// checkContents checks that a volume has what its origin had, until somebody writes to it.
func (w *world) checkContents(t *thing) error {
	if t.kind() != names.VolumeTagKind {
		return nil
	}
	if want := w.origins[t.tag]; t.origin != want {
		return errors.Errorf("%s was made from %+v, and is wanted from %+v", t.id, t.origin, want)
	}
	want := ""
	switch {
	case t.written, t.origin.Id != "":
		return nil
	case t.origin.SnapshotId != "":
		want = w.snapshots[t.origin.SnapshotId].contents
	}
	if t.contents != want {
		return errors.Errorf("%s has %q, and should have %q", t.id, t.contents, want)
	}
	return nil
}

// checkFormat checks that a volume may only be formatted without a proof that it is blank if it
// was made empty.
func (s source) checkFormat(on *thing) {
	consents, ok := s.devices.(storage.FormatConsents)
	if !ok {
		return
	}
	tag, err := names.ParseVolumeTag(on.tag)
	s.in.world.must(err)
	if consents.FormatConsent(tag) != storage.ConsentNone && on.origin != (storage.Origin{}) {
		s.in.world.fail("%s: %s may be formatted, and has the contents of %+v", s.in.name, on.id, on.origin)
	}
}
