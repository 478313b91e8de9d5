package state_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
)

// scope is the scope of a worker: a machine, by its tag, or the environment.
type scope struct{ machine string }

// ownerOf returns the scope that looks after a volume or filesystem.
func ownerOf(id params.MachineStorageId) scope {
	tag, err := names.ParseTag(id.AttachmentTag)
	if err != nil || !strings.Contains(tag.Id(), "/") {
		return scope{}
	}
	machine := tag.Id()[:strings.LastIndex(tag.Id(), "/")]
	if !names.IsValidMachine(machine) {
		return scope{} // it belongs to a unit
	}
	return scope{names.NewMachineTag(machine).String()}
}

// of returns the accessors of the scope.
func (s scope) of(st *state.State) *state.Accessor {
	if s.machine == "" {
		return st.ForEnviron()
	}
	machine, _ := names.ParseMachineTag(s.machine) // some programs use invalid machines
	return st.ForMachine(machine)
}

// may reports whether the worker may write to a volume or filesystem, or to a plan for
// storage of the environment that is attached to its machine.
func (s scope) may(id params.MachineStorageId, plan bool) bool {
	owner := ownerOf(id)
	return owner == s || plan && owner == scope{} && id.MachineTag == s.machine
}

// twin returns a copy of the world.
func (o *operations) twin() *operations {
	store := newStore(o.t)
	o.must(store.Update(context.Background(), func(tx kv.Tx) error {
		for key, data := range o.dump() {
			if err := tx.Put(key, []byte(data)); err != nil {
				return err
			}
		}
		return nil
	}))
	w := &world{t: o.t, store: store, clock: o.clock}
	w.open()
	return newOperations(w, nil)
}

// write has a worker make a bulk call, and compares it with a call for each argument.
func write[A any](
	o *operations, what string, by scope, ids []params.MachineStorageId, arg func(params.MachineStorageId) A,
	call func(*state.Accessor, []A) ([]params.ErrorResult, error),
) []params.ErrorResult {
	o.t.Helper()
	var args []A
	for _, id := range ids {
		args = append(args, arg(id))
	}
	var results []params.ErrorResult
	do := func() error {
		var err error
		results, err = call(by.of(o.State), args)
		if err != nil || len(results) != len(args) {
			o.t.Errorf("%s %+v: %d results, error is %v", what, args, len(results), err)
		}
		for _, result := range results {
			checkCode(o.t, result.Error)
			if result.Error != nil && result.Error.Code == params.CodeNotFound && strings.HasPrefix(what, "remove") {
				o.t.Errorf("%s %+v: an entity that is gone already is an error: %v", what, args, result.Error)
			}
		}
		return err
	}
	if len(args) == 1 {
		before := o.dump()
		err := o.change(func() error {
			if err := do(); err != nil {
				return err
			}
			return asError(results[0].Error)
		}, "%s %+v by %q", what, args, by.machine)
		if differ := differ(before, o.dump()); err == nil && len(differ) > 0 && !by.may(ids[0], strings.Contains(what, "plan")) {
			o.t.Errorf("a worker of another scope, %q, changed %q", by.machine, differ)
		}
		return results
	}
	twin := o.twin()
	defer twin.close()
	var singles []params.ErrorResult
	for n := range ids {
		singles = append(singles, write(twin, what, by, ids[n:n+1], arg, call)...)
	}
	before := o.dump()
	o.note(do(), "%s %+v by %q", what, args, by.machine)
	o.checkNotified(before, o.dump())
	if !reflect.DeepEqual(results, singles) {
		o.t.Errorf("%s %+v one by one: %v, together: %v", what, args, singles, results)
	}
	o.sameAs(twin)
	return results
}

// statuses sets statuses, and compares with a call for each. Users are shown what is set.
func (o *operations) statuses(by scope, ids []params.MachineStorageId, value, message string) {
	o.t.Helper()
	twin := o.twin()
	defer twin.close()
	var first error
	var all []params.EntityStatusArgs
	for _, id := range ids {
		args := params.EntityStatusArgs{Tag: id.AttachmentTag, Status: value, Info: message}
		all = append(all, args)
		err := twin.change(func() error { return by.of(twin.State).SetStatus([]params.EntityStatusArgs{args}) }, "status %+v", args)
		if err == nil && !by.may(id, false) && !o.hasPlan(by, id.AttachmentTag) {
			o.t.Errorf("a worker of another scope, %q, set a status of %s", by.machine, id.AttachmentTag)
		}
		if err == nil {
			// The status that another worker has set may outrank it, and what is to be detached is not shown as
			// attached.
			set, shown := state.StatusInfo{Status: status.Status(value), Message: message}, twin.statusOf(id.AttachmentTag)
			if set.Status == status.Attached && shown.Status == status.Detaching && twin.detaching(id.AttachmentTag) {
				continue
			}
			if shown.Status != set.Status && !(twin.planned(id.AttachmentTag) && state.Outranks(shown, set)) {
				o.t.Errorf("%s is %+v, and was set to be %+v", id.AttachmentTag, shown, set)
			}
		}
		first = cmp.Or(first, err)
	}
	before := o.dump()
	err := by.of(o.State).SetStatus(all)
	o.note(err, "status %+v by %q", all, by.machine)
	o.checkNotified(before, o.dump())
	if fmt.Sprint(err) != fmt.Sprint(first) {
		o.t.Errorf("statuses one by one: %v, together: %v", first, err)
	}
	o.sameAs(twin)
}

// attempted reports whether an entity that is not recorded may have been made, as the worker
// reads it.
func (o *operations) attempted(id params.MachineStorageId) bool {
	o.t.Helper()
	results, err := ownerOf(id).of(o.State).Attempts([]params.MachineStorageId{id})
	o.must(cmp.Or(err, asError(results[0].Error)))
	return results[0].Attempted
}

// noAttempts checks that recorded entities are no longer attempts.
func (o *operations) noAttempts(ids []params.MachineStorageId, results []params.ErrorResult) {
	o.t.Helper()
	for n, result := range results {
		if result.Error == nil && o.attempted(ids[n]) {
			o.t.Errorf("%v is recorded, and still an attempt", ids[n])
		}
	}
}

// recorded reports whether an entity is recorded as made.
func (o *operations) recorded(id params.MachineStorageId) bool {
	o.t.Helper()
	a, ids := ownerOf(id).of(o.State), []params.MachineStorageId{id}
	tag, err := names.ParseTag(id.AttachmentTag)
	o.must(err)
	switch {
	case id.MachineTag == "":
		e := o.entity(tag)
		return e != nil && e.ProviderID != ""
	case tag.Kind() == names.VolumeTagKind:
		results, err := a.VolumeAttachments(ids)
		o.must(err)
		return results[0].Error == nil
	default:
		results, err := a.FilesystemAttachments(ids)
		o.must(err)
		return results[0].Error == nil
	}
}

// hasPlan reports whether the machine of the worker has a plan for the volume.
func (o *operations) hasPlan(by scope, tag string) bool {
	return slices.ContainsFunc(o.entries(), func(e entry) bool { return e.kind == "plan" && e.machine == by.machine && e.tag == tag })
}

// planned reports whether any machine has a plan for the volume.
func (o *operations) planned(tag string) bool {
	return slices.ContainsFunc(o.entries(), func(e entry) bool { return e.kind == "plan" && e.tag == tag })
}

// detaching reports whether a volume or filesystem is to be detached.
func (o *operations) detaching(text string) bool {
	tag, err := names.ParseTag(text)
	o.must(err)
	all, err := o.AllStorage()
	o.must(err)
	for _, s := range all {
		if s.Volume != nil && s.Volume.Tag == tag || s.Filesystem != nil && s.Filesystem.Tag == tag {
			return len(s.Attachments) > 0 && s.Attachments[0].Life != life.Alive
		}
	}
	return false
}

// statusOf returns the status that users are shown of a volume or filesystem. Its tag may be
// spelt with slashes, unlike in package names.
func (o *operations) statusOf(text string) state.StatusInfo {
	tag, err := names.ParseTag(text)
	o.must(err)
	if e := o.entity(tag); e != nil {
		return e.StatusInfo
	}
	return state.StatusInfo{}
}

// entity returns a volume or filesystem as users are shown it, nil if it does not exist.
func (o *operations) entity(tag names.Tag) *state.Entity {
	all, err := o.AllStorage()
	o.must(err)
	for _, s := range all {
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil && e.Tag == tag {
				return e
			}
		}
	}
	return nil
}

func (o *operations) sameAs(twin *operations) {
	o.t.Helper()
	if differ := differ(twin.dump(), o.dump()); len(differ) > 0 {
		o.t.Errorf("done one by one and together, these differ: %q", differ)
	}
}

// checkShown fails unless the condition about what users are shown is true.
func (o *operations) checkShown(is bool, format string, args ...any) {
	o.t.Helper()
	if !is {
		o.t.Errorf(format, args...)
	}
}

// attachment returns the machine and life of the attachment of storage.
func (o *operations) attachment(name string) (a state.Attachment) {
	if all := o.one(name).Attachments; len(all) > 0 {
		a.Machine, a.Life = all[0].Machine, all[0].Life
	}
	return a
}

// checkCode checks that an error has a code that callers know.
func checkCode(t testing.TB, err *params.Error) {
	t.Helper()
	if err == nil {
		return
	}
	switch err.Code {
	case params.CodeNotFound, params.CodeNotProvisioned, params.CodeUnauthorized, params.CodeNotValid, params.CodeStorageAttached, params.CodeTryAgain, params.CodeAlreadyExists:
	default:
		t.Errorf("error %q has code %q", err.Message, err.Code)
	}
}

// change makes a change, and checks its effects.
func (o *operations) change(do func() error, format string, args ...any) error {
	o.t.Helper()
	before := o.dump()
	err := do()
	after := o.dump()
	o.note(err, format, args...)
	o.checkNotified(before, after)
	if err != nil {
		if differ := differ(before, after); len(differ) > 0 {
			o.t.Errorf("a refused change changed %q", differ)
		}
		if !slices.ContainsFunc(refusals, func(kind error) bool { return errors.Is(err, kind) }) && params.ErrCode(err) == "" {
			o.t.Errorf("the error has neither a kind nor a code: %v", err)
		}
		return err
	}
	o.check()
	for _, problem := range state.CheckChange(before, after) {
		o.t.Error(problem)
	}
	return nil
}

// refusals are the kinds of errors that users get.
var refusals = []error{errors.NotValid, errors.NotFound, errors.NotSupported, errors.AlreadyExists, errors.NotYetAvailable, errors.Forbidden, state.ErrChanged}

// checkNotified checks that watchers have been notified of exactly what has changed. A plan stays the same
// when its volume grows, and is reported nevertheless.
func (o *operations) checkNotified(before, after map[string]string) {
	o.t.Helper()
	keys, err := o.feed.Take()
	o.must(err)
	keys = slices.DeleteFunc(keys, func(key string) bool {
		was, ok := before[key]
		return ok && was == after[key] && strings.Contains(key, "/plan/")
	})
	if differ := differ(before, after); !slices.Equal(keys, differ) {
		o.t.Errorf("watchers are notified of %q, and these have changed: %q", keys, differ)
	}
}

// differ returns the keys whose values differ between two contents of a store, sorted.
func differ(a, b map[string]string) []string {
	keys := []string{}
	for key, value := range a {
		if other, ok := b[key]; !ok || other != value {
			keys = append(keys, key)
		}
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// look reads all that users and one worker can read, and checks that nothing changes.
func (o *operations) look() {
	before := o.dump()
	o.lookAsUser()
	machine := choose(o, programMachines)
	scope, name := o.ForMachine(machine), machine.String()
	if o.next()%2 == 0 {
		scope, name = o.ForEnviron(), "environ"
	}
	o.note(nil, "look as %s", name)
	watch(o, name, "volume", entityID, scope.WatchVolumes)
	watch(o, name, "filesystem", entityID, scope.WatchFilesystems)
	watch(o, name, "volume-attachment", entry.id, scope.WatchVolumeAttachments)
	watch(o, name, "filesystem-attachment", entry.id, scope.WatchFilesystemAttachments)
	watch(o, name, "plan", entry.id, scope.WatchVolumeAttachmentPlans)
	ids := o.ids("")
	for _, tag := range programTags {
		ids = append(ids, params.MachineStorageId{MachineTag: machine.String(), AttachmentTag: tag})
	}
	volumes, filesystems := tagsOf[names.VolumeTag](ids), tagsOf[names.FilesystemTag](ids)
	read(o, tagsOf[names.Tag](ids), scope.Life)
	read(o, slices.Concat(programMachines.right, programMachines.wrong), scope.InstanceIds)
	read(o, ids, scope.AttachmentLife)
	read(o, ids, scope.VolumeAttachments)
	read(o, ids, scope.FilesystemAttachments)
	read(o, ids, scope.VolumeAttachmentParams)
	read(o, ids, scope.FilesystemAttachmentParams)
	read(o, ids, scope.VolumeAttachmentPlans)
	read(o, ids, scope.VolumeBlockDevices)
	read(o, ids, scope.Attempts)
	read(o, volumes, scope.Volumes)
	read(o, volumes, scope.VolumeSizes)
	read(o, volumes, scope.VolumeParams)
	read(o, volumes, scope.RemoveVolumeParams)
	read(o, filesystems, scope.Filesystems)
	read(o, filesystems, scope.FilesystemSizes)
	read(o, filesystems, scope.FilesystemParams)
	read(o, filesystems, scope.RemoveFilesystemParams)
	o.checkNotified(before, o.dump())
}

// read makes a bulk call that reads.
func read[A, R any](o *operations, args []A, call func([]A) ([]R, error)) {
	o.t.Helper()
	results, err := call(args)
	if err != nil || len(results) != len(args) {
		o.t.Errorf("%d results for %d arguments, error is %v", len(results), len(args), err)
	}
	for _, result := range results {
		checkCode(o.t, reflect.ValueOf(result).FieldByName("Error").Interface().(*params.Error))
	}
}

// watch checks that a new watcher reports everything.
func watch[E comparable, W interface {
	Changes() <-chan []E
	Kill()
	Wait() error
}](o *operations, scope, kind string, of func(entry) E, start func() (W, error)) {
	o.t.Helper()
	w, err := start()
	if err != nil {
		o.must(err)
		return
	}
	var want []E
	for _, e := range o.entries() {
		if e.scope == scope && e.kind == kind {
			want = append(want, of(e))
		}
	}
	got := <-w.Changes()
	order := func(a, b E) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, want) {
		o.t.Errorf("watching each %s of %s reports %v, want %v", kind, scope, got, want)
	}
	w.Kill()
	o.must(w.Wait())
}

func entityID(e entry) string { return e.parsed().Id() }

// lookAsUser checks that all requests show users the same.
func (o *operations) lookAsUser() {
	o.t.Helper()
	all, err := o.AllStorage()
	o.must(err)
	for _, s := range all {
		if one := o.one(s.Name); !reflect.DeepEqual(one, s) {
			o.t.Errorf("in the list it is\n\t%+v\nalone\n\t%+v", s, one)
		}
		events, err := o.Events(s.Name)
		o.must(err)
		said := func(e state.Event) bool { return s.Message == "" || strings.Contains(s.Message, e.Text) }
		if !slices.ContainsFunc(events, said) {
			o.t.Errorf("%s: status %v is not in its events %v", s.Name, s.StatusInfo, events)
		}
	}
	found, _, err := o.StorageOf(o.present()...)
	o.must(err)
	if len(found) != len(all) {
		o.t.Errorf("there are %d instances, and the names of all find %d", len(all), len(found))
	}
	_, err = o.PoolSettings()
	o.must(err)
	if _, err = o.EnvironConfig(); !errors.Is(err, errors.NotFound) {
		o.must(err)
	}
}

// settleDown lets the workers finish, detaches, attaches and removes all storage, and checks that
// nothing is left.
func (o *operations) settleDown(before map[string]string) {
	o.open()
	o.must(o.StampsDone())
	machines, err := o.Machines()
	o.must(err)
	for _, m := range machines {
		if !m.Fenced.IsZero() {
			_, err := o.OpenSession(m.Tag, nil, "one more boot")
			if errors.Is(err, errors.Forbidden) { // the last one before the fence was not known
				_, err = o.OpenSession(m.Tag, nil, "and one more")
			}
			o.must(err)
		}
	}
	o.work()
	o.must(o.DetachStorage(o.present()))
	o.work()
	for _, name := range o.present() {
		s := o.one(name)
		if s.Life != life.Alive || len(s.Attachments) > 0 {
			o.t.Errorf("%s was detached and is %s with %d attachments", name, s.Life, len(s.Attachments))
		}
		o.must(o.AttachStorage([]string{name}, home(s)))
	}
	o.work()
	for _, name := range o.present() {
		if s := o.one(name); s.Status != "attached" || len(s.Attachments) != 1 || s.Attachments[0].Life != life.Alive {
			o.t.Errorf("%s was attached and is %s", name, s.Status)
		}
	}
	o.unclaimAll()
	o.must(o.Apply(state.Changes{Remove: o.present(), Force: true}))
	o.work()
	o.check()
	pools, err := o.PoolSettings()
	o.must(err)
	o.must(o.poolManager().Remove(slices.Collect(maps.Keys(pools))...))
	o.clock.Advance(48 * time.Hour)
	o.must(o.RemoveOldEvents())
	// Sequences go on, and each machine has one key that is written to wake its worker.
	// Machines, their sessions and records, the configuration, the identity of the state and prepared
	// imports are not storage.
	for key, value := range o.dump() {
		storages := !slices.ContainsFunc([]string{"sequence/", "blockdevice/", "device/", "bearers/", "machine/", "session/", "presence/", "environ/", "identity", "importing/"}, func(prefix string) bool {
			return strings.HasPrefix(key, prefix)
		})
		if before[key] != value && storages {
			o.t.Errorf("removing everything left %s: %q", key, value)
		}
	}
}

// unclaimAll removes all claims, after which no storage belongs to one.
func (o *operations) unclaimAll() {
	claims, err := o.Claims()
	o.must(err)
	for _, c := range claims {
		o.must(o.unclaim(c.Name))
	}
}

// home returns the machine that storage can be attached to.
func home(s state.Storage) names.MachineTag {
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e != nil {
			if i := strings.LastIndex(e.Tag.Id(), "/"); i >= 0 {
				return names.NewMachineTag(e.Tag.Id()[:i])
			}
		}
	}
	return machine0
}

// present returns the names of all storage.
func (w *world) present() (present []string) {
	all, err := w.AllStorage()
	w.must(err)
	for _, s := range all {
		present = append(present, s.Name)
	}
	return present
}
