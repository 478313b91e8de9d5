package state_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	coreinstance "github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
)

// FuzzOperations takes its input for a program: users and workers do what the bytes
// say, right or wrong, in any order. After each operation the rules hold and watchers
// have been told of all that it changed, which is nothing where it was refused.
// Whatever has happened, with workers who do what they are told storage can then be
// detached, attached again, and removed without a trace.
func FuzzOperations(f *testing.F) {
	for seed := range uint64(60) {
		program := make([]byte, 512)
		random := rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), seed)))
		_, _ = random.Read(program) // it never fails
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		const longest = 512 // more takes time and shows nothing new
		o := newOperations(newWorld(t), program[:min(len(program), longest)])
		before := o.dump()
		for len(o.program) > 0 {
			o.do()
			o.stopIfFailed()
		}
		o.settleDown(before)
		o.stopIfFailed()
	})
}

// operations are a program in the midst of its run.
type operations struct {
	*world
	program []byte
	feed    kv.Feed // of all keys
	done    []string
	gone    map[string]bool // the index entries that there are no more
}

func newOperations(w *world, program []byte) *operations {
	feed, err := w.store.Watch("", kv.FromNow)
	w.must(err)
	w.t.Cleanup(feed.Close)
	return &operations{world: w, program: program, feed: feed, gone: make(map[string]bool)}
}

// twin is another world in which all is as it is here.
func (o *operations) twin() *operations {
	store := kvtest.NewMemory()
	o.must(store.Update(func(tx kv.Tx) error {
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

func (o *operations) stopIfFailed() {
	o.t.Helper()
	if o.t.Failed() {
		o.t.Fatalf("what was done:\n%s", strings.Join(o.done, "\n"))
	}
}

func (o *operations) note(err error, format string, args ...any) {
	o.done = append(o.done, fmt.Sprintf("%.400s: %v", fmt.Sprintf(format, args...), err))
}

// next returns the program's next byte, 0 where there is none.
func (o *operations) next() int {
	if len(o.program) == 0 {
		return 0
	}
	next := o.program[0]
	o.program = o.program[1:]
	return int(next)
}

func pick[T any](o *operations, of ...T) T { return of[o.next()%len(of)] }

// several picks one, or now and then up to three.
func several[T any](o *operations, of func() T) []T {
	all := make([]T, max(1, o.next()%8-4))
	for n := range all {
		all[n] = of()
	}
	return all
}

// choice is what the program may say: what can be, and what is wrong.
type choice[T any] struct{ right, wrong []T }

// choose picks something that is wrong once in a while.
func choose[T any](o *operations, from choice[T]) T {
	n := o.next()
	if n >= 240 {
		return pick(o, from.wrong...)
	}
	return from.right[n%len(from.right)]
}

var (
	container       = names.NewMachineTag("0/lxd/1")
	programMachines = choice[names.MachineTag]{
		[]names.MachineTag{machine0, machine0, machine0, machine1, container},
		[]names.MachineTag{names.NewMachineTag("7"), {}},
	}
	programNames = choice[string]{[]string{"a", "b", "c", "c/0", "c/1"}, []string{"none", "", "-", "A", "a/00", "a//0", "../a", "a\n"}}
	programPools = choice[string]{[]string{"loop", "tmpfs", "disk", "nfs", "ssd", "fast", "slow"}, []string{"none", "", "a/b"}}
	programKinds = choice[storage.StorageKind]{[]storage.StorageKind{filesystem, filesystem, block}, []storage.StorageKind{-1, 7}}
	programSizes = choice[uint64]{[]uint64{1, 100, 100, 128, 200}, []uint64{0, math.MaxUint64}}
	programIDs   = choice[string]{[]string{"id-1", "id-2", "../x", "a/b", "\xff\n", strings.Repeat("x", 300)}, []string{""}}
	programTags  = []string{
		"volume-0", "filesystem-0", "volume-0-0", "filesystem-0-0", "volume-1-0", "volume-7-7", "volume-0-lxd-1-0",
		"volume-a-0-1", "machine-0", "unit-a-0", "", "volume-", "volume-00", "volume-0/0", "\xff",
	}
	programAttributes = choice[map[string]any]{
		[]map[string]any{nil, {}, {"tier": "one"}, {"depth": 1.5}, {"list": []any{"a", nil}}},
		[]map[string]any{{"bad": "x"}, {"inf": math.Inf(1)}, {storage.ConfigStorageDir: "/x"}},
	}
	programMountPoints = choice[string]{[]string{"", "", "/srv", "/\xff"}, []string{"srv", "/", "/a/../b"}}
)

// do does what the program says next.
func (o *operations) do() {
	o.clock.Advance(time.Second)
	switch op := o.next(); {
	case op < 96:
		o.user(op)
	case op < 240:
		o.worker(op)
	case op < 248:
		o.look()
	default:
		o.note(nil, "restart")
		o.open()
	}
}

// user does what users and the agent do.
func (o *operations) user(op int) {
	machine, names := choose(o, programMachines), several(o, o.name)
	switch op % 16 {
	default:
		p := o.params(names[0], machine)
		if o.change(func() error { return o.AddStorage(p) }, "add %+v", p) == nil {
			o.shows(o.one(p.Name).RequestedMiB == p.Size, "%s is added with another size", p.Name)
		}
	case 4:
		err := o.change(func() error { return o.AttachStorage(names, machine) }, "attach %q to %s", names, machine)
		for _, name := range names {
			o.shows(err != nil || o.attachment(name) == state.Attachment{Machine: machine, Life: life.Alive}, "%s is not attached", name)
		}
	case 5:
		err := o.change(func() error { return o.DetachStorage(names) }, "detach %q", names)
		for _, name := range names {
			o.shows(err != nil || o.attachment(name).Life != life.Alive, "%s is not detached", name)
		}
	case 6:
		err := o.change(func() error { return o.RemoveStorage(names) }, "remove %q", names)
		for _, name := range names {
			o.shows(err != nil || o.one(name).Life == life.Dying, "%s is not removed", name)
		}
	case 7:
		err := o.change(func() error { return o.ReleaseStorage(names) }, "release %q", names)
		for _, name := range names {
			o.shows(err != nil || o.one(name).Life == life.Dying, "%s is not released", name)
		}
	case 8:
		size := choose(o, programSizes)
		err := o.change(func() error { return o.ResizeStorage(names[0], size) }, "resize %q to %d", names[0], size)
		o.shows(err != nil || o.one(names[0]).RequestedMiB == size, "%s is not resized", names[0])
	case 9:
		changes := state.Changes{Attach: names, Machine: machine}
		for range o.next() % 3 {
			changes.Pools = append(changes.Pools, o.pool())
			changes.Add = append(changes.Add, o.params(o.name(), machine))
			changes.Resize = append(changes.Resize, state.Resize{Name: o.name(), Size: choose(o, programSizes)})
		}
		o.change(func() error { return o.Apply(changes) }, "apply %+v", changes)
	case 10:
		p, info := o.params(names[0], machine), storage.VolumeInfo{VolumeId: choose(o, programIDs), Size: choose(o, programSizes)}
		p.Pool = pick(o, "disk", "loop", p.Pool)
		o.change(func() error { return o.ImportVolume(p, info) }, "import %+v as %+v", p, info)
	case 11:
		p, info := o.params(names[0], machine), storage.FilesystemInfo{FilesystemId: choose(o, programIDs), Size: choose(o, programSizes)}
		p.Pool = pick(o, "nfs", "tmpfs", p.Pool)
		o.change(func() error { return o.ImportFilesystem(p, info) }, "import %+v as %+v", p, info)
	case 12:
		p := o.pool()
		o.change(func() error { return o.SetPool(p.Name, p.Provider, p.Attributes) }, "set pool %+v", p)
	case 13:
		pools := several(o, func() string { return choose(o, programPools) })
		o.change(func() error { return o.poolManager().Remove(pools...) }, "remove pools %q", pools)
	case 14:
		id := coreinstance.Id(choose(o, programIDs))
		if o.next()%2 == 0 {
			// What is no machine's tag is no machine.
			machine = cmp.Or(machine, machine1)
			o.change(func() error { return o.EnsureMachine(machine) }, "ensure %s", machine)
		} else {
			o.change(func() error { return o.SetInstanceId(machine, id) }, "%s is %q", machine, id)
		}
	case 15:
		if o.next()%4 == 0 {
			config := map[string]any{"name": "a", "type": "b", "uuid": "deadbeef-0bad-400d-8000-4b1d0d06f00d", "resource-tags": pick(o, "", "a=b", "=")}
			o.change(func() error { return o.SetEnvironConfig(config) }, "configure %v", config)
			return
		}
		var devices []storage.BlockDevice
		for range o.next() % 4 {
			devices = append(devices, o.device())
		}
		machine = cmp.Or(machine, machine0)
		o.change(func() error { return o.SetMachineBlockDevices(machine, devices) }, "%s has %+v", machine, devices)
	}
}

// shows is about what users are shown of what they have done.
func (o *operations) shows(is bool, format string, args ...any) {
	o.t.Helper()
	if !is {
		o.t.Errorf(format, args...)
	}
}

// attachment returns the attachment of storage as far as its user decides of it.
func (o *operations) attachment(name string) (a state.Attachment) {
	if all := o.one(name).Attachments; len(all) > 0 {
		a.Machine, a.Life = all[0].Machine, all[0].Life
	}
	return a
}

func (o *operations) name() string { return choose(o, programNames) }

func (o *operations) params(name string, machine names.MachineTag) state.StorageParams {
	p := state.StorageParams{
		Name: name, Machine: machine, Kind: choose(o, programKinds), Pool: choose(o, programPools), Size: choose(o, programSizes),
		Attributes: choose(o, programAttributes), MountPoint: choose(o, programMountPoints), ReadOnly: o.next()%2 == 0,
	}
	if p.Kind == block && o.next()%16 > 0 {
		p.MountPoint = ""
	}
	return p
}

func (o *operations) pool() state.Pool {
	return state.Pool{
		Name:       pick(o, "fast", "slow", choose(o, programPools)),
		Provider:   pick(o, storage.ProviderType("disk"), "loop", storage.ProviderType(choose(o, programPools))),
		Attributes: choose(o, programAttributes),
	}
}

func (o *operations) device() storage.BlockDevice {
	return storage.BlockDevice{
		DeviceName: pick(o, "sda", "dev-volume-0", "dev-volume-0-0", ""), HardwareId: choose(o, programIDs),
		DeviceLinks: several(o, func() string { return pick(o, "/dev/x", "", "/dev/disk/by-id/id-1") }), Size: choose(o, programSizes),
	}
}

// worker does what workers do, those of the right scope and those of a wrong one.
func (o *operations) worker(op int) {
	kinds := []string{
		"volume", "volume-attachment", "plan", "volume", "filesystem", "volume-attachment",
		"filesystem-attachment", "volume-attachment", "plan", "volume", "filesystem", "filesystem-attachment",
	}
	kind := kinds[op%len(kinds)]
	args := several(o, func() params.MachineStorageId {
		switch like := o.ids(kind); {
		case o.next()%16 == 0:
			return params.MachineStorageId{MachineTag: choose(o, programMachines).String(), AttachmentTag: pick(o, programTags...)}
		case o.next()%16 == 0 || len(like) == 0:
			return pick(o, o.ids("")...)
		default:
			return pick(o, like...)
		}
	})
	of := ownerOf(args[0])
	if strings.HasPrefix(kind, "plan") {
		of = scope{args[0].MachineTag}
	}
	if o.next()%16 == 0 {
		of = scope{pick(o, "", choose(o, programMachines).String())}
	}
	switch op % len(kinds) {
	case 0, 10:
		write(o, "remove", of, args, func(id params.MachineStorageId) names.Tag {
			tag, _ := names.ParseTag(id.AttachmentTag)
			return tag
		}, (*state.Accessor).Remove)
	case 1, 11:
		write(o, "remove attachment", of, args, same, (*state.Accessor).RemoveAttachments)
	case 2:
		write(o, "remove plan", of, args, same, (*state.Accessor).RemoveVolumeAttachmentPlan)
	case 3:
		info := params.VolumeInfo{VolumeId: choose(o, programIDs), HardwareId: pick(o, "", "id-1"), Size: choose(o, programSizes)}
		write(o, "provision", of, args, func(id params.MachineStorageId) params.Volume {
			return params.Volume{VolumeTag: id.AttachmentTag, Info: info}
		}, (*state.Accessor).SetVolumeInfo)
	case 4:
		info := params.FilesystemInfo{FilesystemId: choose(o, programIDs), Size: choose(o, programSizes)}
		write(o, "provision", of, args, func(id params.MachineStorageId) params.Filesystem {
			return params.Filesystem{FilesystemTag: id.AttachmentTag, Info: info}
		}, (*state.Accessor).SetFilesystemInfo)
	case 5:
		info := params.VolumeAttachmentInfo{DeviceName: pick(o, "", "sda", "\xff"), PlanInfo: pick(o, nil, &params.VolumeAttachmentPlanInfo{})}
		write(o, "attached", of, args, func(id params.MachineStorageId) params.VolumeAttachment {
			return params.VolumeAttachment{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: info}
		}, (*state.Accessor).SetVolumeAttachmentInfo)
	case 6:
		info := params.FilesystemAttachmentInfo{MountPoint: choose(o, programMountPoints)}
		write(o, "attached", of, args, func(id params.MachineStorageId) params.FilesystemAttachment {
			return params.FilesystemAttachment{FilesystemTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: info}
		}, (*state.Accessor).SetFilesystemAttachmentInfo)
	case 7:
		write(o, "plan", of, args, o.plan(), (*state.Accessor).CreateVolumeAttachmentPlans)
	case 8:
		write(o, "plan led to", of, args, o.plan(), (*state.Accessor).SetVolumeAttachmentPlanBlockInfo)
	case 9:
		value := choose(o, choice[string]{[]string{"error", "pending", "attached"}, []string{"", "odd"}})
		o.statuses(of, args, value, pick(o, "", "no", strings.Repeat("ü\xff", 3000)))
	}
}

// ids returns the tags and machines of all index entries of a kind, or of all, and one
// that nobody has.
func (o *operations) ids(kind string) (ids []params.MachineStorageId) {
	for _, e := range o.entries() {
		if kind == "" || e.kind == kind {
			ids = append(ids, params.MachineStorageId{MachineTag: cmp.Or(e.machine, "machine-0"), AttachmentTag: e.tag})
		}
	}
	if kind == "" {
		ids = append(ids, params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: "volume-0-99"})
	}
	return ids
}

// tagsOf returns those tags that are of a type.
func tagsOf[T names.Tag](ids []params.MachineStorageId) []T {
	var tags []T
	for _, id := range ids {
		if tag, err := names.ParseTag(id.AttachmentTag); err == nil {
			if own, ok := tag.(T); ok {
				tags = append(tags, own)
			}
		}
	}
	return tags
}

func same(id params.MachineStorageId) params.MachineStorageId { return id }

func (o *operations) plan() func(params.MachineStorageId) params.VolumeAttachmentPlan {
	info, device := params.VolumeAttachmentPlanInfo{DeviceType: pick(o, storage.DeviceTypeISCSI, "", "odd")}, o.device()
	return func(id params.MachineStorageId) params.VolumeAttachmentPlan {
		return params.VolumeAttachmentPlan{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, PlanInfo: info, BlockDevice: device}
	}
}

// scope is a worker's: a machine's, by its tag, or the environment's.
type scope struct{ machine string }

// ownerOf returns the scope that looks after a volume or filesystem.
func ownerOf(id params.MachineStorageId) scope {
	tag, err := names.ParseTag(id.AttachmentTag)
	if err != nil || !strings.Contains(tag.Id(), "/") {
		return scope{}
	}
	machine := tag.Id()[:strings.LastIndex(tag.Id(), "/")]
	if !names.IsValidMachine(machine) {
		return scope{} // a unit's
	}
	return scope{names.NewMachineTag(machine).String()}
}

// of returns the accessors of the scope.
func (s scope) of(st *state.State) *state.Accessor {
	if s.machine == "" {
		return st.ForEnviron()
	}
	machine, _ := names.ParseMachineTag(s.machine) // there are workers of machines that are none
	return st.ForMachine(machine)
}

// may reports whether the worker may write to a volume or filesystem, or to the plan
// of what the environment has attached to its machine.
func (s scope) may(id params.MachineStorageId, plan bool) bool {
	owner := ownerOf(id)
	return owner == s || plan && owner == scope{} && id.MachineTag == s.machine
}

// write has a worker make a bulk call, and compares it with one call for each.
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
				o.t.Errorf("%s %+v: what is gone already is an error: %v", what, args, result.Error)
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
	o.told(before, o.dump())
	if !reflect.DeepEqual(results, singles) {
		o.t.Errorf("%s %+v one by one: %v, together: %v", what, args, singles, results)
	}
	o.sameAs(twin)
	return results
}

// statuses sets statuses, and compares with one call for each. What is set is shown.
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
		if err == nil && !by.may(id, false) {
			o.t.Errorf("a worker of another scope, %q, set a status of %s", by.machine, id.AttachmentTag)
		}
		if err == nil && twin.statusOf(id.AttachmentTag) != value {
			o.t.Errorf("%s is %q, and was set to be %q", id.AttachmentTag, twin.statusOf(id.AttachmentTag), value)
		}
		first = cmp.Or(first, err)
	}
	before := o.dump()
	err := by.of(o.State).SetStatus(all)
	o.note(err, "status %+v by %q", all, by.machine)
	o.told(before, o.dump())
	if fmt.Sprint(err) != fmt.Sprint(first) {
		o.t.Errorf("statuses one by one: %v, together: %v", first, err)
	}
	o.sameAs(twin)
}

// statusOf returns the status that users are shown of a volume or filesystem. Its tag
// may be spelt as package names does not, with slashes.
func (o *operations) statusOf(text string) string {
	tag, err := names.ParseTag(text)
	o.must(err)
	all, err := o.AllStorage()
	o.must(err)
	for _, s := range all {
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e != nil && e.Tag == tag {
				return string(e.Status)
			}
		}
	}
	return ""
}

func (o *operations) sameAs(twin *operations) {
	o.t.Helper()
	if differ := differ(twin.dump(), o.dump()); len(differ) > 0 {
		o.t.Errorf("done one by one and together, these differ: %q", differ)
	}
	maps.Copy(o.gone, twin.gone)
}

// checkCode checks that callers can tell what an error is.
func checkCode(t testing.TB, err *params.Error) {
	t.Helper()
	if err == nil {
		return
	}
	switch err.Code {
	case params.CodeNotFound, params.CodeNotProvisioned, params.CodeUnauthorized, params.CodeNotValid, params.CodeStorageAttached:
	default:
		t.Errorf("error %q has code %q", err.Message, err.Code)
	}
}

// change makes a change, and checks what it did.
func (o *operations) change(do func() error, format string, args ...any) error {
	o.t.Helper()
	before := o.dump()
	err := do()
	after := o.dump()
	o.note(err, format, args...)
	o.told(before, after)
	if err != nil {
		if differ := differ(before, after); len(differ) > 0 {
			o.t.Errorf("it was refused, and changed %q", differ)
		}
		if !slices.ContainsFunc(refusals, func(kind error) bool { return errors.Is(err, kind) }) && params.ErrCode(err) == "" {
			o.t.Errorf("nobody can tell what this is: %v", err)
		}
		return err
	}
	o.check()
	for _, problem := range state.CheckChange(before, after) {
		o.t.Error(problem)
	}
	for key := range after {
		if o.gone[key] && strings.HasPrefix(key, "history/") {
			o.t.Errorf("%s came back", key)
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			o.gone[key] = true
		}
	}
	return nil
}

// refusals are the kinds of errors that users are told of.
var refusals = []error{errors.NotValid, errors.NotFound, errors.NotSupported, errors.AlreadyExists, errors.NotYetAvailable}

// told checks that watchers have been told of what has changed, and of nothing else.
func (o *operations) told(before, after map[string]string) {
	o.t.Helper()
	keys, err := o.feed.Take()
	o.must(err)
	if differ := differ(before, after); !slices.Equal(keys, differ) {
		o.t.Errorf("watchers are told of %q, and these have changed: %q", keys, differ)
	}
}

// differ returns the keys of which two contents of a store differ, sorted.
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

// look reads all that users and one worker can, and changes nothing.
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
	read(o, volumes, scope.Volumes)
	read(o, volumes, scope.VolumeSizes)
	read(o, volumes, scope.VolumeParams)
	read(o, volumes, scope.RemoveVolumeParams)
	read(o, filesystems, scope.Filesystems)
	read(o, filesystems, scope.FilesystemSizes)
	read(o, filesystems, scope.FilesystemParams)
	read(o, filesystems, scope.RemoveFilesystemParams)
	o.told(before, o.dump())
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

// watch checks that a new watcher tells of all that there is.
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
		o.t.Errorf("watching each %s of %s tells of %v, there are %v", kind, scope, got, want)
	}
	w.Kill()
	o.must(w.Wait())
}

func entityID(e entry) string { return e.parsed().Id() }

// lookAsUser checks that what users are shown is the same however they ask.
func (o *operations) lookAsUser() {
	o.t.Helper()
	all, err := o.AllStorage()
	o.must(err)
	for _, s := range all {
		if one := o.one(s.Name); !reflect.DeepEqual(one, s) {
			o.t.Errorf("among all it is\n\t%+v\nalone\n\t%+v", s, one)
		}
		history, err := o.StatusHistory(s.Name)
		o.must(err)
		if last := func(c state.StatusChange) bool { return c.StatusInfo == s.StatusInfo }; !slices.ContainsFunc(history, last) {
			o.t.Errorf("%s: status %v is not in its history %v", s.Name, s.StatusInfo, history)
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

// settleDown lets workers do all that is to do.
func (o *operations) settleDown(before map[string]string) {
	o.open()
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
	o.must(o.RemoveStorage(o.present()))
	o.work()
	o.check()
	pools, err := o.PoolSettings()
	o.must(err)
	o.must(o.poolManager().Remove(slices.Collect(maps.Keys(pools))...))
	// Sequences go on, and each machine has one key that is written to wake its
	// worker. Machines, what they are and have, and the configuration are not of
	// storage.
	for key, value := range o.dump() {
		storages := !slices.ContainsFunc([]string{"sequence/", "blockdevice/", "machine/", "environ/"}, func(prefix string) bool {
			return strings.HasPrefix(key, prefix)
		})
		if before[key] != value && storages {
			o.t.Errorf("removing everything left %s: %q", key, value)
		}
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

func (o *operations) present() (present []string) {
	all, err := o.AllStorage()
	o.must(err)
	for _, s := range all {
		present = append(present, s.Name)
	}
	return present
}
