package state_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
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
	"github.com/stowage-io/stowage/storage"
)

// FuzzOperations runs its input as a program: users and workers make valid and invalid
// requests in any order. After each operation the rules hold and watchers have been notified
// of exactly what it changed; a refused operation changes nothing. Afterwards, with workers
// that do their work, storage can be detached, attached again, and removed without a trace.
func FuzzOperations(f *testing.F) {
	programs := uint64(60)
	if testing.Short() { // as under the race detector: one goroutine does the operations
		programs = 8
	}
	for seed := range programs {
		program := make([]byte, 512)
		random := rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), seed)))
		_, _ = random.Read(program) // it never fails
		f.Add(program)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		const longest = 512 // more takes time and finds nothing new
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

// operations is a running program.
type operations struct {
	*world
	program []byte
	feed    kv.Feed // of all keys
	done    []string
}

func newOperations(w *world, program []byte) *operations {
	feed, err := w.store.Watch(context.Background(), "", kv.FromNow)
	w.must(err)
	w.t.Cleanup(feed.Close)
	return &operations{world: w, program: program, feed: feed}
}

func (o *operations) stopIfFailed() {
	o.t.Helper()
	if o.t.Failed() {
		o.t.Fatalf("the operations:\n%s", strings.Join(o.done, "\n"))
	}
}

func (o *operations) note(err error, format string, args ...any) {
	o.done = append(o.done, fmt.Sprintf("%.400s: %v", fmt.Sprintf(format, args...), err))
}

// next returns the program's next byte, 0 at its end.
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

// choice is the valid and the invalid values of a parameter.
type choice[T any] struct{ right, wrong []T }

// choose picks a value, an invalid one once in a while.
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

// do runs the next operation of the program.
func (o *operations) do() {
	o.clock.Advance(time.Second)
	switch op := o.next(); {
	case op < 96:
		o.user(op)
	case op < 236:
		o.worker(op)
	case op < 242:
		o.look()
	case op < 249:
		o.note(nil, "work")
		o.work()
		o.check()
		_, err := o.feed.Take() // the changes of work are checked elsewhere
		o.must(err)
	case op < 252:
		o.note(nil, "restart")
		o.open()
	case op < 254:
		o.becomeCopy()
	default:
		o.recoverAll()
	}
}

// becomeCopy makes the state a copy of itself.
func (o *operations) becomeCopy() {
	before := entityUUIDs(o.world)
	_, err := o.BecomeCopy()
	o.note(err, "become a copy")
	o.must(err)
	o.check()
	for uuid, tag := range entityUUIDs(o.world) {
		o.checkShown(before[uuid] == "", "%s has the UUID that it has in the original", tag)
	}
	o.must(o.StampsDone())
	_, err = o.feed.Take()
	o.must(err)
}

// recoverAll removes all storage from the state, and recovers what was provisioned.
func (o *operations) recoverAll() {
	objects := o.objects()
	o.unclaimAll()
	o.must(o.Apply(state.Changes{Remove: o.present(), Force: true}))
	o.work()
	results, err := o.Recover(objects)
	o.note(err, "recover %d: %v", len(objects), results)
	o.must(err)
	o.check()
	for n, result := range results {
		// These workers may record one ID for several entities.
		o.checkShown(result.Outcome == state.RecoverAdded || strings.Contains(result.Reason, "its ID already belongs to") ||
			strings.Contains(result.Reason, "its volume"), "%v is not recovered: %v", objects[n], result)
	}
	_, err = o.feed.Take()
	o.must(err)
}

// user makes a request of a user or of the agent.
func (o *operations) user(op int) {
	machine, names := choose(o, programMachines), several(o, o.name)
	switch op % 18 {
	default:
		p := o.params(names[0], machine)
		if o.change(func() error { return o.AddStorage(p) }, "add %+v", p) == nil {
			o.checkShown(o.one(p.Name).RequestedMiB == p.Size, "%s is added with another size", p.Name)
		}
	case 3:
		o.claims(names)
	case 4:
		err := o.change(func() error { return o.AttachStorage(names, machine) }, "attach %q to %s", names, machine)
		for _, name := range names {
			o.checkShown(err != nil || o.attachment(name) == state.Attachment{Machine: machine, Life: life.Alive}, "%s is not attached", name)
		}
	case 5:
		err := o.change(func() error { return o.DetachStorage(names) }, "detach %q", names)
		for _, name := range names {
			o.checkShown(err != nil || o.attachment(name).Life != life.Alive, "%s is not detached", name)
		}
		_ = o.change(func() error { return o.RetryStorage(names) }, "retry %q", names)
		_ = o.change(func() error { return o.FormatStorage(names) }, "format %q", names)
	case 6:
		claimed := o.claimed(names)
		err := o.change(func() error { return o.RemoveStorage(names) }, "remove %q", names)
		o.checkShown(err != nil || !claimed, "%q, of a claim, is removed", names)
		for _, name := range names {
			o.checkShown(err != nil || o.one(name).Life == life.Dying, "%s is not removed", name)
		}
	case 7:
		err := o.change(func() error { return o.ReleaseStorage(names) }, "release %q", names)
		for _, name := range names {
			o.checkShown(err != nil || o.one(name).Life == life.Dying, "%s is not released", name)
		}
	case 8:
		size := choose(o, programSizes)
		err := o.change(func() error { return o.ResizeStorage(names[0], size) }, "resize %q to %d", names[0], size)
		o.checkShown(err != nil || o.one(names[0]).RequestedMiB == size, "%s is not resized", names[0])
	case 9:
		var changes state.Changes
		for _, name := range names {
			changes.Attach = append(changes.Attach, state.Attach{Name: name, Machine: machine})
			machine = choose(o, programMachines)
		}
		for range o.next() % 3 {
			changes.Pools = append(changes.Pools, o.pool())
			changes.Add = append(changes.Add, o.params(o.name(), machine))
			changes.Resize = append(changes.Resize, state.Resize{Name: o.name(), Size: choose(o, programSizes)})
		}
		o.change(func() error { return o.Apply(changes) }, "apply %+v", changes)
	case 10:
		p, info := o.params(names[0], machine), storage.VolumeInfo{VolumeId: choose(o, programIDs), Size: choose(o, programSizes)}
		p.Pool = pick(o, "disk", "loop", p.Pool)
		p.Source = o.source(p)
		o.change(func() error { return o.ImportVolume(p, info) }, "import %+v as %+v", p, info)
	case 11:
		p, info := o.params(names[0], machine), storage.FilesystemInfo{FilesystemId: choose(o, programIDs), Size: choose(o, programSizes)}
		p.Pool = pick(o, "nfs", "tmpfs", p.Pool)
		p.Source = o.source(p)
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
			// The zero tag is not a machine.
			machine = cmp.Or(machine, machine1)
			o.change(func() error { return o.EnsureMachine(machine) }, "ensure %s", machine)
		} else {
			o.change(func() error { return o.SetInstanceId(machine, id) }, "%s is %q", machine, id)
		}
	case 16:
		connected := o.next()%2 == 0
		o.change(func() error {
			return o.SetPresence(state.Session{Machine: machine}, state.Presence{Connected: connected, Since: o.clock.Now()})
		}, "%s is connected: %t", machine, connected)
		err := o.change(func() error { return o.move(names, machine) }, "move %q to %s", names, machine)
		for _, name := range names {
			if err != nil {
				break
			}
			if at := o.one(name).Attachments; len(at) > 0 {
				o.checkShown(at[0].Machine == machine || at[0].Life != life.Alive, "%s is neither moved nor leaves its machine", name)
			}
		}
	case 17:
		err := o.change(func() error { return o.FenceMachine(machine) }, "fence %s", machine)
		for _, name := range o.present() {
			for _, a := range o.one(name).Attachments {
				o.checkShown(err != nil || isBound(o.one(name)) || a.Machine != machine || a.Life != life.Alive, "%s stays attached to %s", name, machine)
			}
		}
		if err == nil && o.next()%2 == 0 {
			// A refused session records its boot ID if that of the session before the fence is not known.
			var refused error
			o.must(o.change(func() error {
				_, err := o.OpenSession(machine, nil, "another boot")
				if errors.Is(err, errors.Forbidden) {
					refused, err = err, nil
				}
				return err
			}, "%s is started again", machine))
			o.checkShown(refused == nil || strings.Contains(refused.Error(), "has not been restarted"), "%s is refused: %v", machine, refused)
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

// claims makes requests about claims of storage.
func (o *operations) claims(names []string) {
	name := o.name()
	switch o.next() % 5 {
	case 0, 1:
		request := state.ClaimRequest{Pool: choose(o, programPools), Size: choose(o, programSizes), Kind: block, Delete: o.next()%2 == 0}
		err := o.change(func() error {
			return o.Apply(state.Changes{Claim: []state.Claim{{Name: name, Request: request, Storage: names[0]}}})
		}, "claim %q for %q", names[0], name)
		o.checkShown(err != nil || o.claimed(names[:1]), "%s is not claimed", names[0])
	case 2:
		claim, err := o.Claim(name)
		o.checkShown(o.change(func() error { return o.unclaim(name) }, "unclaim %q", name) == nil == (err == nil), "%s is not removed", name)
		if err == nil && !claim.Lost {
			s := o.one(claim.Storage)
			o.checkShown(s.Retained && (s.Life != life.Alive || !claim.Request.Delete), "%s is not reclaimed", claim.Storage)
		}
	case 3:
		err := o.change(func() error { return o.Apply(state.Changes{Offer: names}) }, "offer %q", names)
		o.checkShown(err != nil || !o.claimed(names) && !o.one(names[0]).Retained, "%q are not offered", names)
	case 4:
		labels := map[string]string{"tier": pick(o, "a", "b", "B")}
		err := o.change(func() error { return o.Apply(state.Changes{Label: []state.Label{{Name: names[0], Labels: labels}}}) }, "label %q %v", names[0], labels)
		o.checkShown(err != nil || maps.Equal(o.one(names[0]).Labels, labels), "%s is not labelled", names[0])
	}
}

// claimed reports whether any of the storage belongs to a claim.
func (o *operations) claimed(names []string) bool {
	found, _, err := o.FindStorage(names...)
	o.must(err)
	return slices.ContainsFunc(found, func(s state.Storage) bool { return s.Claim != "" && !s.Retained })
}

// isBound reports whether the storage cannot leave its machine.
func isBound(s state.Storage) bool {
	e := s.Volume
	if e == nil {
		e = s.Filesystem
	}
	return e.Scope == storage.ScopeMachine
}

// source prepares an import once in a while, and cancels another.
func (o *operations) source(p state.StorageParams) string {
	source := pick(o, "", "", "/a", "/b")
	if source == "" {
		return ""
	}
	if o.next()%4 == 0 {
		other := pick(o, "/a", "/b")
		o.change(func() error { return o.CancelImport(p.Pool, other) }, "cancel the import of %s into %s", other, p.Pool)
	}
	p.Source = source
	o.change(func() error { _, err := o.PrepareImport(p); return err }, "prepare to import %+v", p)
	return source
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
	if o.next()%8 == 0 {
		p.Asker = state.Asker{Way: pick(o, "csi", "docker"), Name: pick(o, "a", "b/c", "")}
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

// worker makes a request of a worker, sometimes of one in the wrong scope.
func (o *operations) worker(op int) {
	kinds := []string{
		"volume", "volume-attachment", "plan", "volume", "filesystem", "volume-attachment",
		"filesystem-attachment", "volume-attachment", "plan", "volume", "filesystem", "filesystem-attachment",
		"filesystem", pick(o, "volume", "volume-attachment", "filesystem-attachment"),
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
		results := write(o, "provision", of, args, func(id params.MachineStorageId) params.Volume {
			return params.Volume{VolumeTag: id.AttachmentTag, Info: info}
		}, (*state.Accessor).SetVolumeInfo)
		o.noAttempts(entities(args), results)
	case 4:
		info := params.FilesystemInfo{FilesystemId: choose(o, programIDs), Size: choose(o, programSizes)}
		results := write(o, "provision", of, args, func(id params.MachineStorageId) params.Filesystem {
			return params.Filesystem{FilesystemTag: id.AttachmentTag, Info: info}
		}, (*state.Accessor).SetFilesystemInfo)
		o.noAttempts(entities(args), results)
	case 5:
		info := params.VolumeAttachmentInfo{DeviceName: pick(o, "", "sda", "\xff"), PlanInfo: pick(o, nil, &params.VolumeAttachmentPlanInfo{})}
		results := write(o, "attached", of, args, func(id params.MachineStorageId) params.VolumeAttachment {
			return params.VolumeAttachment{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: info}
		}, (*state.Accessor).SetVolumeAttachmentInfo)
		o.noAttempts(args, results)
	case 6:
		info := params.FilesystemAttachmentInfo{MountPoint: choose(o, programMountPoints)}
		results := write(o, "attached", of, args, func(id params.MachineStorageId) params.FilesystemAttachment {
			return params.FilesystemAttachment{FilesystemTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: info}
		}, (*state.Accessor).SetFilesystemAttachmentInfo)
		o.noAttempts(args, results)
	case 7:
		write(o, "plan", of, args, o.plan(), (*state.Accessor).CreateVolumeAttachmentPlans)
	case 8:
		write(o, "plan led to", of, args, o.plan(), (*state.Accessor).SetVolumeAttachmentPlanBlockInfo)
	case 9:
		value := choose(o, choice[string]{[]string{"error", "pending", "attached"}, []string{"", "odd"}})
		o.statuses(of, args, value, pick(o, "", "no", strings.Repeat("ü\xff", 3000)))
	case 12, 13:
		attempted := o.next()%4 > 0
		if !strings.HasSuffix(kind, "attachment") {
			args = entities(args)
		}
		results := write(o, "attempt", of, args, func(id params.MachineStorageId) params.Attempt {
			return params.Attempt{Id: id, Attempted: attempted}
		}, (*state.Accessor).SetAttempts)
		for n, result := range results {
			o.checkShown(result.Error != nil || o.attempted(args[n]) == (attempted && !o.recorded(args[n])), "the attempt of %v does not match what was noted", args[n])
		}
	}
}

// ids returns the IDs of all index entries of a kind, or of all kinds and an unknown one.
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

// tagsOf returns the tags of one type.
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

// entities returns the IDs of the volumes and filesystems instead of their attachments.
func entities(ids []params.MachineStorageId) []params.MachineStorageId {
	own := slices.Clone(ids)
	for n := range own {
		own[n].MachineTag = ""
	}
	return own
}

func same(id params.MachineStorageId) params.MachineStorageId { return id }

func (o *operations) plan() func(params.MachineStorageId) params.VolumeAttachmentPlan {
	info, device := params.VolumeAttachmentPlanInfo{DeviceType: pick(o, storage.DeviceTypeISCSI, "", "odd")}, o.device()
	return func(id params.MachineStorageId) params.VolumeAttachmentPlan {
		return params.VolumeAttachmentPlan{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, PlanInfo: info, BlockDevice: device}
	}
}
