package simulation

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// The providers: volumes and filesystems of the environment and of machines.
const (
	cloud = "cloud" // volumes of the environment, every other one with a plan
	share = "share" // filesystems of the environment
	disk  = "disk"  // volumes of a machine
	tree  = "tree"  // filesystems of a machine

	hosted = "hosted" // volumes of a machine, which a CSI driver on it makes (hosted_test.go)
)

// atOnce is the number of concurrent calls that a source allows; the default is one.
var atOnce = map[string]int{cloud: 2, hosted: 2, "plans": 8}

var providerTypes = []string{cloud, share, disk, tree, hosted}

// thing is a volume or filesystem as it really is.
type thing struct {
	tag, id, provider string
	size              uint64
	// owner is the owner by its tags. foreign: it has another owner since. stray: it belongs
	// to a restored state, which does not know of it.
	owner          storage.Owner
	foreign, stray bool
	// inUse: it stayed attached when the state was restored, which need not know that.
	inUse bool
	// at has the places where it is attached or mounted, by machine.
	at map[string]*place
	// on is the volume that a filesystem is on, and holds the filesystem that is on a
	// volume.
	on    *thing
	holds *thing
	// contents is what a volume has, and origin whose contents it got when it was made. written:
	// a user has written to it since.
	contents string
	origin   storage.Origin
	written  bool
}

// place is a thing on a machine.
type place struct {
	device string // of a volume that shows as a block device
	plan   bool   // it shows only after its plan has been carried out
	size   uint64 // of the device, which may be smaller than the volume if there is a plan
}

// sizeAt returns the size that a machine sees, in MiB.
func (t *thing) sizeAt(machine string) uint64 {
	if p := t.at[machine]; p != nil && p.plan {
		return p.size
	}
	return t.size
}

// provider is a provider as one worker uses it.
type provider struct {
	in   *incarnation
	name string
}

func (p provider) volumes() bool { return p.name == cloud || p.name == disk || p.name == hosted }

func (p provider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	if !p.volumes() {
		return nil, errors.NotSupportedf("volumes")
	}
	if p.name == hosted {
		return newHostedSource(p.in), nil
	}
	if p.name == cloud && p.in.world.driver {
		return driver{source{p.in, p.name, nil}}, nil
	}
	return source{p.in, p.name, nil}, nil
}

func (p provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	if p.volumes() {
		return nil, errors.NotSupportedf("filesystems")
	}
	if p.name == tree {
		// It keeps no tags.
		return struct {
			storage.FilesystemSource
			storage.FilesystemResizer
		}{source{p.in, p.name, nil}, source{p.in, p.name, nil}}, nil
	}
	return source{p.in, p.name, nil}, nil
}

func (p provider) Supports(kind storage.StorageKind) bool {
	return p.volumes() == (kind == storage.StorageKindBlock)
}

func (p provider) Scope() storage.Scope {
	if p.name == cloud || p.name == share {
		return storage.ScopeEnviron
	}
	return storage.ScopeMachine
}

func (provider) Dynamic() bool                        { return true }
func (p provider) Releasable() bool                   { return p.name != hosted }
func (provider) DefaultPools() []*storage.Config      { return nil }
func (provider) ValidateConfig(*storage.Config) error { return nil }
func (provider) ValidateForK8s(map[string]any) error  { return nil }
func (p provider) MaxConcurrentCalls() int            { return atOnce[p.name] }

// source is the source of one provider, or of a machine's managed filesystems.
type source struct {
	in      *incarnation
	name    string
	devices storage.BackingDevices
}

// The operations. Those on a thing have its tag as their key and exclude each other, those on
// an attachment the key of the attachment.
const (
	creating   = "create"
	destroying = "destroy"
	releasing  = "release"
	attaching  = "attach"
	detaching  = "detach"
	growing    = "grow"
)

// call is one item of a provider call.
type call struct {
	op     string
	key    string // of the entity
	source string
	// args must be the same in a repetition.
	args any
	// along is the key of the attachment that a creation may make as well.
	along string
	// do carries out the operation.
	do func() (any, error)
	// mistake is the answer of a creation that mistakes another thing for its own.
	mistake func(*thing) any
}

// going is an operation that goes on in the background.
type going struct {
	call
	by   *incarnation
	done bool // it has ended, and its result has not been fetched
	info any
	err  error
}

var (
	errTransient = errors.New("injected: transient")
	errPermanent = storage.Permanent(errors.New("injected: permanent"))
)

// provide makes one bulk call.
func provide[R any](ctx envcontext.ProviderCallContext, in *incarnation, name string, calls []call, result func(any, error) R) ([]R, error) {
	w := in.world
	var keys []string
	w.mu.Lock()
	if in.crashed {
		w.mu.Unlock()
		return nil, errCrashed
	}
	for _, c := range calls {
		keys = append(keys, c.key)
		in.begin(c)
	}
	in.enter(name, calls)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		in.calls[name]--
		for _, c := range calls {
			delete(in.making, c.key)
			delete(in.called, storageOf(c.key))
		}
	}()
	what := name + " " + calls[0].op + " " + strings.Join(keys, ",")
	l := in.wait(what, true)
	w.mu.Lock()
	results := make([]R, 0, len(calls))
	whole := l.lost || l.once(15) || w.mood == losing && l.once(3) || ctx.Err() != nil && l.once(2)
	for _, c := range calls {
		c.source = name
		if whole {
			w.failed[c.op+" is lost"]++
		}
		if whole && l.once(2) {
			in.leave(c, errTransient, true)
			continue
		}
		info, err := w.perform(in, c, &l)
		if err == nil || !w.calm {
			w.deeds.Add(1) // a missing or foreign thing is tried for ever
		}
		in.leave(c, err, whole)
		results = append(results, result(info, err))
	}
	w.mu.Unlock()
	switch {
	case l.lost:
		return nil, errCrashed
	case whole && ctx.Err() != nil:
		return nil, ctx.Err()
	case whole && len(results) < len(calls) && l.once(2):
		return results, nil
	case whole:
		return nil, errors.New("injected: the whole call")
	case l.once(8) && in.wait(what+" is done", true).lost:
		return nil, errCrashed
	}
	return results, nil
}

// mood is what fails more often than otherwise in a history, so that it fails in several
// places at a time.
type mood int

// Each mood is a number that attempt rolls, except losing.
const (
	failing  mood = 19
	refusing mood = 20
	ongoing  mood = 22
	losing   mood = 1
)

var moods = []mood{0, 0, failing, refusing, ongoing, ongoing, losing, losing}

// perform carries out one operation, or lets it fail, and counts how.
func (w *world) perform(in *incarnation, c call, l *luck) (any, error) {
	info, err := w.attempt(in, c, l)
	switch {
	case err == nil || w.calm:
	case errors.Is(err, storage.ErrInProgress):
		w.failed[c.op+" goes on"]++
	case errors.Is(err, storage.ErrIgnored):
		w.failed[c.op+" is ignored"]++
	case storage.IsPermanent(err):
		w.failed[c.op+" is refused"]++
	default:
		w.failed[c.op+" fails"]++
	}
	return info, err
}

// madeNothing counts and returns a failure that has made nothing; every second one lacks
// parameters. It draws no luck, so that the histories of the corpus stay the same.
func (w *world) madeNothing(what string) error {
	w.failed[what]++
	if w.failed[what]%2 == 0 {
		return storage.Incomplete(errTransient)
	}
	return storage.NothingMade(errTransient)
}

func (w *world) attempt(in *incarnation, c call, l *luck) (any, error) {
	if c.source == hosted {
		return w.askDriver(in, c, l)
	}
	g := w.going[c.op+" "+c.key]
	if g != nil {
		switch {
		case g.done:
			delete(w.going, c.op+" "+c.key)
			return g.info, g.err
		case w.calm || l.once(4):
			delete(w.going, c.op+" "+c.key)
			return c.do()
		case l.once(3):
			return nil, errTransient
		case c.op == creating && (w.things[c.key] == nil || w.forgets(c)) && l.once(6):
			delete(w.going, c.op+" "+c.key)
			if w.forgets(c) {
				return nil, storage.Refused(errTransient)
			}
			return nil, w.madeNothing(c.op + " ends and has made nothing")
		}
		// The answer to the first call may have been lost with the whole call: then the operation
		// goes on with the present arguments.
		g.call, g.by = c, in
		return nil, storage.ErrInProgress
	}
	w.endOpposite(c, l)
	if w.forgets(c) && !l.once(3) { // creations are few
		return nil, w.loseOrRefuse(c, l)
	}
	// What exists is never refused for good: its maker can describe it.
	refused := !w.isDone(c)
	n := l.roll(24)
	if w.mood > 0 && l.once(3) {
		n = int(w.mood)
	}
	switch n {
	case 12, 13, 14, 15, 16:
		if other := w.mistakable(in, c); other != nil {
			w.failed[c.op+" returns the ID of another"]++
			return c.mistake(other), nil
		}
	case 17:
		// It fails late, and leaves something unknown to all.
		if c.op == creating || c.op == attaching {
			if _, err := c.do(); err == nil {
				w.failed[c.op+" fails late"]++
			}
		}
		return nil, errTransient
	case 18:
		if c.op == creating && w.things[c.key] == nil {
			return nil, w.madeNothing(c.op + " makes nothing")
		}
		return nil, errTransient
	case 19:
		return nil, errTransient
	case 20, 21:
		switch {
		case n == 20 && refused:
			return nil, errPermanent
		case n == 21 && refused && (c.op == creating || c.op == attaching):
			return nil, storage.ErrIgnored
		}
	case 22, 23:
		if c.op == attaching && w.things[storageOf(c.key)] == nil {
			break
		}
		w.going[c.op+" "+c.key] = &going{call: c, by: in}
		return nil, storage.ErrInProgress
	}
	return c.do()
}

// endOpposite ends, or gives up, an attachment that goes on and is to be undone, or a detachment whose
// volume is to be attached. No worker knows that it goes on, or it would repeat it: the answer was lost.
func (w *world) endOpposite(c call, l *luck) {
	opposite := map[string]string{attaching: detaching, detaching: attaching}[c.op] + " " + c.key
	late := w.going[opposite]
	if late == nil {
		return
	}
	delete(w.going, opposite)
	if !late.done && l.once(2) {
		w.finish(late, l)
	}
	w.failed[c.op+" ends what was lost"]++
}

// isDone reports whether the result of a creation or attachment exists already.
func (w *world) isDone(c call) bool {
	if c.op == creating {
		return w.things[c.key] != nil
	}
	tag, machine, _ := strings.Cut(c.key, "@")
	t := w.things[tag]
	return c.op == attaching && t != nil && t.at[machine] != nil
}

// mistakable returns a recorded thing of the same source, known to the worker, that a creation
// may return by mistake, or nil.
func (w *world) mistakable(in *incarnation, c call) *thing {
	if c.op != creating || w.things[c.key] != nil {
		return nil
	}
	for _, tag := range sortedKeys(w.things) {
		if t := w.things[tag]; t.provider == c.source && tag != c.key && in.known[tag] == t.id && w.recorded[tag] == t.id {
			return t
		}
	}
	return nil
}

// progress ends an operation in the background.
func (w *world) progress(s step) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := sortedKeys(w.going)
	if len(keys) == 0 {
		return false
	}
	g := w.going[keys[int(s.which)%len(keys)]]
	l := luck{dice: s.dice}
	if g.done {
		return false
	}
	w.finish(g, &l)
	return true
}

// finish ends an operation in the background. The lock is held.
func (w *world) finish(g *going, l *luck) {
	w.logf("in the background: %s %s", g.op, g.key)
	g.done = true
	if l.once(6) {
		g.err = errTransient
		return
	}
	g.info, g.err = g.do()
}

// finishAll ends all operations in the background. The lock is held.
func (w *world) finishAll() {
	for _, key := range sortedKeys(w.going) {
		if g := w.going[key]; !g.done {
			w.finish(g, &luck{})
		}
	}
}

// doubt is an operation whose outcome the worker does not know.
type doubt struct {
	op string
	// goesOn: the provider has reported it in progress, and only the provider can report its
	// end.
	goesOn bool
}

// storageOf returns the tag of the volume or filesystem that the key of an entity is about.
func storageOf(key string) string {
	tag, _, _ := strings.Cut(strings.TrimPrefix(key, planOf), "@")
	return tag
}

// enter checks the limit of concurrent calls of a source, and that only one call at a time
// concerns a volume or filesystem.
func (in *incarnation) enter(name string, calls []call) {
	if in.crashed {
		return
	}
	in.calls[name]++
	if in.calls[name] > max(1, atOnce[name]) {
		in.world.fail("%s: %d calls of %s at a time", in.name, in.calls[name], name)
	}
	for _, c := range calls {
		if other := in.called[storageOf(c.key)]; other != "" {
			in.world.fail("%s: %s %s begins during a call to %s", in.name, c.op, c.key, other)
		}
	}
	for _, c := range calls {
		in.called[storageOf(c.key)] = c.op + " " + c.key
	}
}

// fits checks that an operation may begin beside others in progress.
func (in *incarnation) fits(c call) {
	w := in.world
	tag := storageOf(c.key)
	switch c.op {
	case creating:
		if c.along != "" && in.doubts[c.along] == (doubt{detaching, true}) {
			w.fail("%s: %s is made, and perhaps attached, while it is being detached", in.name, tag)
		}
	case destroying, releasing:
		in.doomed[tag] = true
	case attaching:
		if in.doomed[tag] {
			w.fail("%s: %s %s begins, which it has begun to destroy", in.name, c.op, c.key)
		}
	case detaching:
		if in.growing[tag] && in.doubts[c.key].op != detaching {
			w.fail("%s: %s %s begins while it grows", in.name, c.op, c.key)
		}
		if t := w.things[tag]; t != nil && t.holds != nil && in.attached[t.holds.tag+"@"+in.scope.String()] {
			w.fail("%s: %s %s begins under %s, which it has mounted", in.name, c.op, c.key, t.holds.tag)
		}
	case growing:
		if !strings.HasPrefix(tag, names.FilesystemTagKind) {
			break
		}
		var at []string
		for key := range in.attached {
			if storageOf(key) == tag && in.doubts[key].op != detaching {
				at = append(at, key)
			}
		}
		if len(at) == 0 {
			w.fail("%s: %s begins to grow, which it has not attached", in.name, tag)
		}
	}
}

// begin checks that an operation may begin.
func (in *incarnation) begin(c call) {
	w := in.world
	if in.crashed {
		return
	}
	if op, ok := in.running[c.key]; ok {
		w.fail("%s: %s %s begins during %s", in.name, c.op, c.key, op)
	}
	in.running[c.key] = c.op
	if t := w.things[storageOf(c.key)]; t != nil && t.foreign && !strings.HasPrefix(c.key, planOf) {
		w.fail("%s: %s %s, which is another's", in.name, c.op, c.key)
	}
	if w.orphans[storageOf(c.key)] != nil {
		w.fail("%s: %s %s, which its state does not have", in.name, c.op, c.key)
	}
	in.fits(c)
	d := in.doubts[c.key]
	if d.goesOn && d.op != c.op {
		w.fail("%s: %s %s begins before the end of %s is known", in.name, c.op, c.key, d.op)
	}
	if g := w.going[c.op+" "+c.key]; g != nil && d.goesOn && g.by == in && !reflect.DeepEqual(g.args, c.args) {
		w.fail("%s: %s %s is repeated with %v, and began with %v", in.name, c.op, c.key, c.args, g.args)
	}
	if in.news[c.key] {
		delete(in.news, c.key)
		return
	}
	heard, ok := in.heard[c.key]
	if _, soon := in.hearing[c.key]; !ok || soon || w.free {
		return
	}
	switch c.op {
	case creating, attaching:
		if heard != life.Alive && d.op != c.op && !w.attempted[c.key] {
			w.fail("%s: %s %s, which it knows to be %s", in.name, c.op, c.key, heard)
		}
	case destroying, releasing, detaching:
		if heard == life.Alive && d.op != c.op {
			w.fail("%s: %s %s, which it knows to be %s", in.name, c.op, c.key, heard)
		}
	}
}

// leave notes the outcome of an operation, as far as its worker knows it.
func (in *incarnation) leave(c call, err error, whole bool) {
	delete(in.running, c.key)
	makes := c.op == creating || c.op == attaching
	switch d := in.doubts[c.key]; {
	case c.op == growing:
		in.growing[c.key] = !whole && errors.Is(err, storage.ErrInProgress)
	case whole && makes:
		in.doubts[c.key] = doubt{c.op, d.goesOn}
	case whole:
	case errors.Is(err, storage.ErrInProgress):
		in.doubts[c.key] = doubt{c.op, true}
	case d.goesOn && err != nil && !storage.IsPermanent(err) && !errors.Is(err, storage.ErrIgnored) && !storage.IsNothingMade(err):
	default:
		delete(in.doubts, c.key)
	}
	if err == nil && !whole {
		switch c.op {
		case attaching:
			in.attached[c.key] = true
		case detaching:
			delete(in.attached, c.key)
		}
	}
}

// next returns a new ID for a tag.
func (w *world) next(provider, tag string) string {
	w.made++
	return fmt.Sprintf("%s:%s:%d", provider, tag, w.made)
}

// byID returns the thing with an ID, or nil.
func (w *world) byID(id string) *thing {
	for _, t := range w.things {
		if t.id == id {
			return t
		}
	}
	return nil
}

// own checks that an ID belongs to the entity that it is used for.
func (w *world) own(in *incarnation, op string, tag names.Tag, id string) {
	if tagOf(id) != tag.String() {
		w.fail("%s: %s %s by the id %s", in.name, op, tag, id)
	}
}

// tagOf returns the tag in an id.
func tagOf(id string) string {
	parts := strings.Split(id, ":")
	if len(parts) != 3 {
		return id
	}
	return parts[1]
}

func (s source) create(tag names.Tag, size uint64, on *thing, tags map[string]string) (*thing, error) {
	w, key, owner := s.in.world, tag.String(), storage.OwnerOf(tags)
	if owner.ModelUUID == "" || owner.EntityUUID == "" {
		w.fail("%s: %s is to be made without an owner", s.in.name, key)
	}
	if former := w.owners[key]; former != (storage.Owner{}) && former != owner {
		w.fail("%s: %s has been another", s.in.name, key)
	}
	w.owners[key] = owner
	if t := w.things[key]; t != nil {
		return t, nil
	}
	if id := w.recorded[key]; id != "" {
		w.fail("%s: %s is made again, which is recorded as %s", s.in.name, key, id)
	}
	t := &thing{tag: key, provider: s.name, size: size, owner: owner, at: make(map[string]*place), on: on}
	if s.name == hosted {
		t.id, t.size = w.requests[key].id, w.requests[key].size
	} else {
		t.id = w.next(s.name, key)
	}
	if on != nil {
		on.holds = t
	}
	w.things[key] = t
	return t, nil
}

// creation returns the call of a creation, and checks that the entity is not recorded.
func (s source) creation(tag names.Tag, args any, along string, do func() (any, error), mistake func(*thing) any) call {
	w := s.in.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if id := w.recorded[tag.String()]; id != "" && !s.in.crashed {
		w.fail("%s: %s is to be made again, which is recorded as %s", s.in.name, tag, id)
	}
	return call{op: creating, key: tag.String(), args: args, along: along, do: do, mistake: mistake}
}

func (t *thing) volumeInfo() storage.VolumeInfo {
	return storage.VolumeInfo{VolumeId: t.id, HardwareId: t.id, Size: t.size, Persistent: true}
}

func (s source) CreateVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	var calls []call
	for _, p := range all {
		calls = append(calls, s.volumeCreation(p, storage.Origin{}))
	}
	return s.createVolumes(ctx, calls)
}

// volumeCreation returns the call that makes a volume, from an origin unless that is zero.
func (s source) volumeCreation(p storage.VolumeParams, from storage.Origin) call {
	args := p
	args.Attachment = nil
	var along string
	if a := p.Attachment; a != nil {
		along = attachment(p.Tag, a.Machine)
		s.provisioned(along, a.InstanceId)
	}
	return s.creation(p.Tag, args, along, func() (any, error) {
		t, err := s.clone(p, from)
		if err != nil {
			return nil, err
		}
		r := storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: t.volumeInfo()}}
		// Every third volume of the others can only be made attached.
		if a := p.Attachment; a != nil && s.name != hosted && p.Tag.String()[len(p.Tag.String())-1]%3 == 0 && len(t.at) == 0 {
			info := s.place(t, a.Machine.String())
			r.VolumeAttachment = &storage.VolumeAttachment{Volume: p.Tag, Machine: a.Machine, VolumeAttachmentInfo: info}
		}
		return r, nil
	}, func(other *thing) any {
		return storage.CreateVolumesResult{Volume: &storage.Volume{Tag: p.Tag, VolumeInfo: other.volumeInfo()}}
	})
}

func (s source) createVolumes(ctx envcontext.ProviderCallContext, calls []call) ([]storage.CreateVolumesResult, error) {
	return provide(ctx, s.in, s.name, calls, func(info any, err error) storage.CreateVolumesResult {
		if err != nil {
			return storage.CreateVolumesResult{Error: err}
		}
		return info.(storage.CreateVolumesResult)
	})
}

// provisioned checks that an attachment to a machine names the machine's instance.
func (s source) provisioned(key string, id instance.Id) {
	if id == "" && !s.in.crashed {
		s.in.world.mu.Lock()
		defer s.in.world.mu.Unlock()
		s.in.world.fail("%s: %s is to be attached to a machine without an instance", s.in.name, key)
	}
}

// place attaches a volume, and returns its attachment info.
func (s source) place(t *thing, machine string) storage.VolumeAttachmentInfo {
	p := t.at[machine]
	if p == nil {
		p = &place{plan: s.name == cloud && t.tag[len(t.tag)-1]%2 == 1}
		t.at[machine] = p
	}
	if p.plan {
		return storage.VolumeAttachmentInfo{PlanInfo: &storage.VolumeAttachmentPlanInfo{
			DeviceType: "simulated", DeviceAttributes: map[string]string{"id": t.id},
		}}
	}
	s.in.world.show(p, machine)
	return storage.VolumeAttachmentInfo{DeviceName: p.device}
}

// show gives a volume a device on a machine: the first name that is free.
func (w *world) show(p *place, machine string) {
	for n := 0; p.device == ""; n++ {
		name := fmt.Sprintf("sd%d", n)
		if w.deviceNamed(machine, name) == nil {
			p.device = name
		}
	}
}

// deviceNamed returns the volume that has a device name on a machine.
func (w *world) deviceNamed(machine, name string) *thing {
	for _, t := range w.things {
		if p := t.at[machine]; p != nil && t.kind() == names.VolumeTagKind && p.device == name {
			return t
		}
	}
	return nil
}

func (t *thing) kind() string { kind, _, _ := strings.Cut(t.tag, "-"); return kind }

func attachment(tag names.Tag, machine names.Tag) string {
	return tag.String() + "@" + machine.String()
}

func (s source) AttachVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	var calls []call
	for _, p := range all {
		s.provisioned(attachment(p.Volume, p.Machine), p.InstanceId)
		calls = append(calls, call{op: attaching, key: attachment(p.Volume, p.Machine), args: p, do: func() (any, error) {
			w := s.in.world
			w.own(s.in, attaching, p.Volume, p.VolumeId)
			t := w.things[p.Volume.String()]
			if t == nil || t.id != p.VolumeId {
				return nil, errors.NotFoundf("volume %s", p.VolumeId)
			}
			for machine := range t.at {
				if machine != p.Machine.String() {
					return nil, errors.Errorf("volume %s is attached to %s", t.id, machine)
				}
			}
			return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
				Volume: p.Volume, Machine: p.Machine, VolumeAttachmentInfo: s.place(t, p.Machine.String()),
			}}, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, func(info any, err error) storage.AttachVolumesResult {
		if err != nil {
			return storage.AttachVolumesResult{Error: err}
		}
		return info.(storage.AttachVolumesResult)
	})
}

func onlyError(_ any, err error) error { return err }

func (s source) DetachVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]error, error) {
	var calls []call
	for _, p := range all {
		calls = append(calls, call{op: detaching, key: attachment(p.Volume, p.Machine), args: p, do: func() (any, error) {
			t, machine := s.in.world.things[p.Volume.String()], p.Machine.String()
			if t == nil || t.at[machine] == nil {
				return nil, nil
			}
			if p.VolumeId != t.id {
				s.in.world.fail("%s: %s is detached as %q, and is %q", s.in.name, t.tag, p.VolumeId, t.id)
			}
			s.in.world.checkUnused(s.in, t, machine)
			delete(t.at, machine)
			return nil, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, onlyError)
}

// checkUnused checks that no filesystem is mounted, or being made, on a volume that is being
// detached from a machine.
func (w *world) checkUnused(in *incarnation, t *thing, machine string) {
	for _, other := range w.workers {
		if other == nil || other.crashed {
			continue
		}
		for key, volume := range other.making {
			if volume == t.tag && other.scope.String() == machine {
				w.fail("%s: %s is taken from %s under %s, which is being made", in.name, t.tag, machine, key)
			}
		}
	}
	if t.holds != nil && t.holds.at[machine] != nil {
		w.fail("%s: %s is taken from %s under %s, which is mounted", in.name, t.tag, machine, t.holds.tag)
	}
}

func (s source) remove(ctx envcontext.ProviderCallContext, op string, ids []string) ([]error, error) {
	var calls []call
	for _, id := range ids {
		s.in.world.mu.Lock()
		for key := range s.in.attached {
			if strings.HasPrefix(key, tagOf(id)+"@") && !s.in.crashed {
				s.in.world.fail("%s: %s %s, whose attachment %s it has made", s.in.name, op, id, key)
			}
		}
		s.in.world.mu.Unlock()
		calls = append(calls, call{op: op, key: tagOf(id), args: id, do: func() (any, error) {
			w := s.in.world
			t := w.byID(id)
			switch {
			case t == nil:
				return nil, nil
			case len(t.at) > 0:
				return nil, errors.Errorf("%s is attached", id)
			}
			w.take(t)
			return nil, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, onlyError)
}

// take removes a thing from the world.
func (w *world) take(t *thing) {
	delete(w.things, t.tag)
	if t.holds != nil {
		delete(w.things, t.holds.tag)
	}
	if t.on != nil {
		t.on.holds = nil
	}
}

func (s source) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, destroying, ids)
}

func (s source) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, releasing, ids)
}

func (s source) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, destroying, ids)
}

func (s source) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, releasing, ids)
}

// ListVolumeOwners implements storage.VolumeOwnerLister.
func (s source) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.owners(ctx)
}

// ListFilesystemOwners implements storage.FilesystemOwnerLister.
func (s source) ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.owners(ctx)
}

func (s source) owners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	w := s.in.world
	w.mu.Lock()
	s.in.asking++
	w.mu.Unlock()
	l := s.in.wait(s.name+" owners", true)
	w.mu.Lock()
	s.in.asking--
	w.mu.Unlock()
	switch {
	case l.lost:
		return nil, errCrashed
	case l.once(6) && !l.together:
		// Of two that fail together, the scheduler would decide which one is tried again first.
		return nil, errTransient
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.name == hosted {
		return w.ownersAtDriver(), nil
	}
	var objects []storage.OwnedObject
	for _, tag := range sortedKeys(w.things) {
		if t := w.things[tag]; t.provider == s.name {
			objects = append(objects, storage.OwnedObject{
				ID: t.id, Size: t.size, Attached: len(t.at) > 0,
				ResourceTags: map[string]string{storage.ModelUUIDTag: t.owner.ModelUUID, storage.EntityUUIDTag: t.owner.EntityUUID},
			})
		}
	}
	return objects, nil
}

func (source) ListVolumes(envcontext.ProviderCallContext) ([]string, error) {
	return nil, errors.NotSupportedf("listing")
}

func (source) DescribeVolumes(envcontext.ProviderCallContext, []string) ([]storage.DescribeVolumesResult, error) {
	return nil, errors.NotSupportedf("describing")
}

func (source) ValidateVolumeParams(storage.VolumeParams) error         { return nil }
func (source) ValidateFilesystemParams(storage.FilesystemParams) error { return nil }

func (s source) ResizeVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeResizeParams) ([]storage.ResizeVolumesResult, error) {
	var calls []call
	for _, p := range all {
		calls = append(calls, call{op: growing, key: p.Tag.String(), args: p, do: func() (any, error) {
			t := s.in.world.things[p.Tag.String()]
			if t == nil || t.id != p.VolumeId {
				return nil, errors.NotFoundf("volume %s", p.VolumeId)
			}
			t.size = max(t.size, p.Size)
			info := t.volumeInfo()
			return storage.ResizeVolumesResult{VolumeInfo: &info}, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, func(info any, err error) storage.ResizeVolumesResult {
		if err != nil {
			return storage.ResizeVolumesResult{Error: err}
		}
		return info.(storage.ResizeVolumesResult)
	})
}

func (s source) ResizeFilesystems(ctx envcontext.ProviderCallContext, all []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	var calls []call
	for _, p := range all {
		calls = append(calls, call{op: growing, key: p.Tag.String(), args: p, do: func() (any, error) {
			t := s.in.world.things[p.Tag.String()]
			switch {
			case t == nil || t.id != p.FilesystemId:
				return nil, errors.NotFoundf("filesystem %s", p.FilesystemId)
			case t.on != nil && t.on.sizeAt(s.in.host().String()) < p.Size:
				s.in.world.fail("%s: %s is to have %d MiB, and is on %s, which has %d for the machine", s.in.name, t.tag, p.Size, t.on.id, t.on.sizeAt(s.in.host().String()))
			}
			t.size = max(t.size, p.Size)
			return storage.ResizeFilesystemsResult{FilesystemInfo: &storage.FilesystemInfo{FilesystemId: t.id, Size: t.size}}, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, func(info any, err error) storage.ResizeFilesystemsResult {
		if err != nil {
			return storage.ResizeFilesystemsResult{Error: err}
		}
		return info.(storage.ResizeFilesystemsResult)
	})
}

// find returns the volume that backs a filesystem which is to be made or mounted. The device
// that the worker knows may already belong to another volume: a source checks that again.
func (s source) find(volume names.VolumeTag) (*thing, error) {
	w, machine := s.in.world, s.in.host().String()
	device, ok := s.devices.BlockDevice(volume)
	if !ok {
		return nil, errors.Errorf("volume %s has no device", volume.Id())
	}
	t := w.deviceNamed(machine, device.DeviceName)
	if t == nil || t.id != device.HardwareId {
		return nil, errors.Errorf("device %s is not %s", device.DeviceName, device.HardwareId)
	}
	if t.tag != volume.String() {
		w.fail("%s: %s is taken for %s", s.in.name, t.tag, volume)
	}
	return t, nil
}

func (s source) CreateFilesystems(ctx envcontext.ProviderCallContext, all []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	var calls []call
	for _, p := range all {
		args := p
		args.Attachment = nil
		if s.devices != nil {
			s.in.world.mu.Lock()
			s.in.making[p.Tag.String()] = p.Volume.String()
			s.in.world.mu.Unlock()
		}
		calls = append(calls, s.creation(p.Tag, args, "", func() (any, error) {
			var on *thing
			size := p.Size
			if s.devices != nil {
				var err error
				if on, err = s.find(p.Volume); err != nil {
					return nil, err
				}
				if on.holds != nil && on.holds.tag != p.Tag.String() {
					s.in.world.fail("%s: %s is made over %s", s.in.name, p.Tag, on.holds.tag)
				}
				size = on.size
				s.checkFormat(on)
			}
			t, err := s.create(p.Tag, size, on, p.ResourceTags)
			if err != nil {
				return nil, err
			}
			return storage.CreateFilesystemsResult{Filesystem: &storage.Filesystem{
				Tag: p.Tag, Volume: p.Volume, FilesystemInfo: storage.FilesystemInfo{FilesystemId: t.id, Size: t.size},
			}}, nil
		}, func(other *thing) any {
			return storage.CreateFilesystemsResult{Filesystem: &storage.Filesystem{
				Tag: p.Tag, Volume: p.Volume, FilesystemInfo: storage.FilesystemInfo{FilesystemId: other.id, Size: other.size},
			}}
		}))
	}
	return provide(ctx, s.in, s.name, calls, func(info any, err error) storage.CreateFilesystemsResult {
		if err != nil {
			return storage.CreateFilesystemsResult{Error: err}
		}
		return info.(storage.CreateFilesystemsResult)
	})
}

func (s source) AttachFilesystems(ctx envcontext.ProviderCallContext, all []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	var calls []call
	for _, p := range all {
		s.provisioned(attachment(p.Filesystem, p.Machine), p.InstanceId)
		calls = append(calls, call{op: attaching, key: attachment(p.Filesystem, p.Machine), args: p, do: func() (any, error) {
			w, machine := s.in.world, p.Machine.String()
			w.own(s.in, attaching, p.Filesystem, p.FilesystemId)
			t := w.things[p.Filesystem.String()]
			if t == nil || t.id != p.FilesystemId {
				return nil, errors.NotFoundf("filesystem %s", p.FilesystemId)
			}
			if s.devices != nil {
				fs, ok := s.devices.Filesystem(p.Filesystem)
				if !ok {
					return nil, errors.Errorf("filesystem %s is not known", p.FilesystemId)
				}
				on, err := s.find(fs.Volume)
				if err != nil {
					return nil, err
				}
				if on.holds != t {
					w.fail("%s: %s is mounted from %s, where it is not", s.in.name, t.tag, on.tag)
				}
			}
			for at := range t.at {
				if at != machine {
					w.fail("%s: %s is mounted on %s too", s.in.name, t.tag, at)
				}
			}
			t.at[machine] = &place{}
			return storage.AttachFilesystemsResult{FilesystemAttachment: &storage.FilesystemAttachment{
				Filesystem: p.Filesystem, Machine: p.Machine,
				FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: "/" + t.tag},
			}}, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, func(info any, err error) storage.AttachFilesystemsResult {
		if err != nil {
			return storage.AttachFilesystemsResult{Error: err}
		}
		return info.(storage.AttachFilesystemsResult)
	})
}

func (s source) DetachFilesystems(ctx envcontext.ProviderCallContext, all []storage.FilesystemAttachmentParams) ([]error, error) {
	var calls []call
	for _, p := range all {
		calls = append(calls, call{op: detaching, key: attachment(p.Filesystem, p.Machine), args: p, do: func() (any, error) {
			if t := s.in.world.things[p.Filesystem.String()]; t != nil {
				if t.at[p.Machine.String()] != nil && p.FilesystemId != t.id {
					s.in.world.fail("%s: %s is detached as %q, and is %q", s.in.name, t.tag, p.FilesystemId, t.id)
				}
				delete(t.at, p.Machine.String())
			}
			return nil, nil
		}})
	}
	return provide(ctx, s.in, s.name, calls, onlyError)
}

// carrier carries out the plans of a machine.
type carrier struct{ in *incarnation }

func (c carrier) of(id string) string {
	return planOf + tagOf(id) + "@" + c.in.host().String()
}

func (c carrier) AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error) {
	id, machine := attributes["id"], c.in.host().String()
	results, err := provide(envcontext.New(ctx), c.in, "plans", []call{{op: attaching, key: c.of(id), args: id, do: func() (any, error) {
		w := c.in.world
		t := w.byID(id)
		if t == nil || t.at[machine] == nil {
			return nil, errors.Errorf("%s is not there to be logged in to", id)
		}
		if t.at[machine].device == "" {
			t.at[machine].size = t.size
		}
		w.show(t.at[machine], machine)
		return storage.BlockDevice{DeviceName: t.at[machine].device, HardwareId: t.id}, nil
	}}}, func(info any, err error) planned {
		device, _ := info.(storage.BlockDevice)
		return planned{device, err}
	})
	if err != nil || len(results) == 0 {
		return storage.BlockDevice{}, errors.Errorf("logging in: %v", err)
	}
	return results[0].device, results[0].err
}

// ResizeVolume implements [plans.Resizer]. It is part of carrying out the plan.
func (c carrier) ResizeVolume(ctx context.Context, attributes map[string]string, size uint64) error {
	id, machine := attributes["id"], c.in.host().String()
	errs, err := provide(envcontext.New(ctx), c.in, "plans", []call{{op: growing, key: c.of(id), args: id, do: func() (any, error) {
		t := c.in.world.byID(id)
		if t == nil || t.at[machine] == nil || t.at[machine].device == "" {
			return nil, errors.Errorf("%s is not there to be looked at again", id)
		}
		if t.size < size {
			c.in.world.fail("%s has %d MiB, and its plan is told that it has %d", t.tag, t.size, size)
		}
		t.at[machine].size = t.size
		return nil, nil
	}}}, onlyError)
	whole := err != nil || len(errs) == 0
	if whole {
		err = errors.Errorf("looking at the volume again: %v", err)
	} else {
		err = errs[0]
	}
	if whole || errors.Is(err, storage.ErrInProgress) { // as of the attachment, which ends with this
		c.in.world.mu.Lock()
		defer c.in.world.mu.Unlock()
		c.in.doubts[c.of(id)] = doubt{attaching, !whole}
	}
	return err
}

type planned struct {
	device storage.BlockDevice
	err    error
}

func (c carrier) DetachVolume(ctx context.Context, attributes map[string]string) error {
	id, machine := attributes["id"], c.in.host().String()
	errs, err := provide(envcontext.New(ctx), c.in, "plans", []call{{op: detaching, key: c.of(id), args: id, do: func() (any, error) {
		w := c.in.world
		if t := w.byID(id); t != nil && t.at[machine] != nil {
			w.checkUnused(c.in, t, machine)
			t.at[machine].device = ""
		}
		return nil, nil
	}}}, onlyError)
	if err != nil || len(errs) == 0 {
		return errors.Errorf("logging out: %v", err)
	}
	return errs[0]
}

// sortedKeys returns the keys of a map in a fixed order, so that a history is the same
// each time.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
