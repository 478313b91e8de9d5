package takeover_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/takeover"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

var (
	machine0 = names.NewMachineTag("0")
	machine1 = names.NewMachineTag("1")
	volume0  = names.NewVolumeTag("0")
)

// id is the ID of volume 0.
const id = "id-volume-0"

// leasedStore refuses updates with a lease that has ended, as a shared store does.
type leasedStore struct{ kv.Store }

func (s leasedStore) Update(ctx context.Context, fn func(kv.Tx) error) error {
	if lease := kv.LeaseOf(ctx); lease != nil && lease.(*lock).isLost() {
		return errors.Trace(kv.ErrLeaseLost)
	}
	return s.Store.Update(ctx, fn)
}

// lock is a lease. The store knows that it is lost before its holder does, which is paused.
type lock struct {
	term uint64
	done chan struct{}

	mu          sync.Mutex
	lost, ended bool
}

func (l *lock) Term() uint64                  { return l.term }
func (l *lock) Done() <-chan struct{}         { return l.done }
func (l *lock) Grace() time.Duration          { return 5 * time.Second }
func (l *lock) Release(context.Context) error { return nil }

// end lets the holder know that the lease ends.
func (l *lock) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.done)
	}
}

func (l *lock) isLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *lock) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// backend has the volumes, which it would attach to any number of machines.
type backend struct {
	t testing.TB

	mu       sync.Mutex
	attached map[string][]names.MachineTag
	calls    []string
	fails    error  // what all calls return
	failsFor string // the ID of the volume that cannot be detached
	lists    bool
	off      map[names.MachineTag]bool
	double   bool // a volume was attached to two machines …
	silent   bool // … which the test finds out itself
}

func (b *backend) attach(id string, machine names.Tag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, "attach "+id+" "+machine.Id())
	if at := machine.(names.MachineTag); !slices.Contains(b.attached[id], at) {
		b.attached[id] = append(b.attached[id], at)
	}
	if on := b.on(id); len(on) > 1 {
		b.double = true
		if !b.silent {
			b.t.Errorf("%s is attached to machines %v", id, on)
		}
	}
}

// on returns the machines that have a volume.
func (b *backend) on(id string) []names.MachineTag {
	return slices.Clone(b.attached[id])
}

func (b *backend) turnOff(machine names.MachineTag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.off[machine] = true
}

func (b *backend) isDouble() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.double
}

func (b *backend) detach(id string, machine names.Tag) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, "detach "+id+" "+machine.Id())
	b.attached[id] = slices.DeleteFunc(b.attached[id], func(at names.MachineTag) bool { return at == machine })
}

// want compares the calls since the last want.
func (b *backend) want(calls ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.calls, calls) {
		b.t.Errorf("the calls are %q, want %q", b.calls, calls)
	}
	b.calls = nil
}

// source is one server's source of volumes. Each call waits until it is let go, if pause is set.
type source struct {
	storage.VolumeSource
	*backend
	pause chan chan struct{}
}

func (s *source) begin() error {
	if s.pause != nil {
		resume := make(chan struct{})
		s.pause <- resume
		<-resume
	}
	return s.fails
}

func (s *source) CreateVolumes(_ envcontext.ProviderCallContext, all []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	results := make([]storage.CreateVolumesResult, len(all))
	err := s.begin()
	for i, p := range all {
		v := &storage.Volume{Tag: p.Tag, VolumeInfo: storage.VolumeInfo{VolumeId: "id-" + p.Tag.String(), Size: p.Size}}
		results[i].Volume = v
		if p.Attachment != nil {
			s.attach(v.VolumeId, p.Attachment.Machine)
			results[i].VolumeAttachment = &storage.VolumeAttachment{Volume: p.Tag, Machine: p.Attachment.Machine}
		}
	}
	return results, err
}

func (s *source) AttachVolumes(_ envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	results := make([]storage.AttachVolumesResult, len(all))
	err := s.begin()
	for i, p := range all {
		if results[i].Error = err; err == nil {
			s.attach(p.VolumeId, p.Machine)
			results[i].VolumeAttachment = &storage.VolumeAttachment{Volume: p.Volume, Machine: p.Machine}
		}
	}
	return results, nil
}

func (s *source) DetachVolumes(_ envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]error, error) {
	results := make([]error, len(all))
	err := s.begin()
	for i, p := range all {
		if results[i] = err; err == nil && p.VolumeId == s.failsFor {
			results[i] = errors.New("in use")
		} else if err == nil {
			s.detach(p.VolumeId, p.Machine)
		}
	}
	return results, nil
}

func (s *source) DestroyVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	err := s.begin()
	for _, id := range ids {
		s.calls = append(s.calls, "destroy "+id)
	}
	return make([]error, len(ids)), err
}

// lister is a source that lists attachments.
type lister struct{ *source }

func (s lister) ListVolumeAttachments(envcontext.ProviderCallContext) ([]storage.ListedAttachment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "list")
	var listed []storage.ListedAttachment
	for id, machines := range s.attached {
		for _, machine := range machines {
			listed = append(listed, storage.ListedAttachment{VolumeId: id, Machine: machine})
		}
	}
	return listed, s.fails
}

// disk is the provider of one server.
type disk struct {
	storage.Provider
	source storage.VolumeSource
}

func (disk) Scope() storage.Scope                   { return storage.ScopeEnviron }
func (disk) Supports(kind storage.StorageKind) bool { return kind == storage.StorageKindBlock }
func (disk) Dynamic() bool                          { return true }
func (disk) DefaultPools() []*storage.Config        { return nil }
func (disk) ValidateConfig(*storage.Config) error   { return nil }
func (d disk) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return d.source, nil
}

func registryOf(p storage.Provider) storage.ProviderRegistry {
	return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"disk": p}}
}

// world is a state that servers share, and a backend.
type world struct {
	testing.TB
	*state.State
	backend *backend
	clock   *testclock.Clock
	term    uint64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, clock: testclock.NewClock(time.Unix(1e9, 0)), backend: &backend{t: t, attached: make(map[string][]names.MachineTag), off: make(map[names.MachineTag]bool)}}
	var err error
	w.State, err = state.Open(state.Config{Store: leasedStore{kvtest.NewMemory()}, Clock: w.clock, Registry: registryOf(disk{})})
	w.must(err)
	t.Cleanup(func() { w.must(w.State.Close()) })
	for _, machine := range []names.MachineTag{machine0, machine1} {
		w.must(w.EnsureMachine(machine))
	}
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(errors.ErrorStack(err))
	}
}

// server is a server that has, or had, the lease.
type server struct {
	*world
	lease  *lock
	source *source
	storage.VolumeSource
}

// takeOver returns the next server that has the lease.
func (w *world) takeOver() *server {
	w.Helper()
	w.term++
	s := &server{world: w, lease: &lock{term: w.term, done: make(chan struct{})}, source: &source{backend: w.backend}}
	var own storage.VolumeSource = s.source
	if w.backend.lists {
		own = lister{s.source}
	}
	t, err := takeover.New(takeover.Config{State: w.leader(s.lease), Machine: w.Machine, Lease: s.lease, Clock: w.clock, Window: time.Minute})
	w.must(err)
	registry, err := t.Registry(func(*config.Config) (storage.ProviderRegistry, error) { return registryOf(disk{source: own}), nil })(nil)
	w.must(err)
	p, err := registry.StorageProvider("disk")
	w.must(err)
	pool, err := storage.NewConfig("disk", "disk", nil)
	w.must(err)
	s.VolumeSource, err = p.VolumeSource(pool)
	w.must(err)
	return s
}

func (w *world) ctx() envcontext.ProviderCallContext { return envcontext.New(w.Context()) }

func on(machine names.MachineTag) storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: "disk", Machine: machine, InstanceId: "i"}, Volume: volume0, VolumeId: id,
	}
}

func (s *server) attach(machine names.MachineTag) error {
	s.Helper()
	results, err := s.AttachVolumes(s.ctx(), []storage.VolumeAttachmentParams{on(machine)})
	s.must(err)
	if got := results[0].VolumeAttachment; results[0].Error == nil && (got == nil || got.Machine != machine || got.Volume != volume0) {
		s.Errorf("the attachment is %+v", got)
	}
	return results[0].Error
}

func (s *server) detach(machine names.MachineTag) error {
	s.Helper()
	results, err := s.DetachVolumes(s.ctx(), []storage.VolumeAttachmentParams{on(machine)})
	s.must(err)
	return results[0]
}

func (s *server) create(machine names.MachineTag) (storage.CreateVolumesResult, error) {
	s.Helper()
	p := on(machine)
	p.VolumeId = ""
	results, err := s.CreateVolumes(s.ctx(), []storage.VolumeParams{{Tag: volume0, Size: 1, Provider: "disk", Attachment: &p}})
	s.must(err)
	return results[0], results[0].Error
}

func (s *server) destroy() error {
	s.Helper()
	results, err := s.DestroyVolumes(s.ctx(), []string{id})
	s.must(err)
	return results[0]
}

// late begins a call and pauses the server in it, until resume is called, which returns when the
// call has.
func (s *server) late(call func()) (resume func()) {
	s.source.pause = make(chan chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		call()
	}()
	paused := <-s.source.pause
	s.source.pause = nil
	s.lease.lose()
	return func() {
		close(paused)
		<-ended
	}
}

func (w *world) wantRefused(err error, texts ...string) {
	w.Helper()
	if err == nil || storage.IsPermanent(err) {
		w.Errorf("got %v, want a refusal for now", err)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			w.Errorf("the error %q does not contain %q", err, text)
		}
	}
}

// leader returns the accessors of the server that has a lease.
func (w *world) leader(lease kv.Lease) *state.Leader {
	w.Helper()
	leader, err := w.ForLeader(lease)
	w.must(err)
	return leader
}

func (w *world) wantNotes(want int) {
	w.Helper()
	calls, err := w.leader(nil).AttachmentCalls()
	w.must(err)
	if len(calls) != want {
		w.Errorf("the notes are %+v, want %d", calls, want)
	}
}

func eachSource(t *testing.T, test func(t *testing.T, w *world)) {
	for _, lists := range []bool{false, true} {
		t.Run(fmt.Sprintf("lists=%t", lists), func(t *testing.T) {
			w := newWorld(t)
			w.backend.lists = lists
			w.addOn(machine1)
			test(t, w)
		})
	}
}

// without returns the calls without listings.
func (b *backend) without(calls ...string) {
	b.t.Helper()
	b.mu.Lock()
	b.calls = slices.DeleteFunc(b.calls, func(call string) bool { return call == "list" })
	b.mu.Unlock()
	b.want(calls...)
}

// A server is paused in a call that attaches a volume. The call comes after another server has taken
// over, and has been asked to attach the volume elsewhere.
// Fault F38.
func TestLateAttachment(t *testing.T) {
	eachSource(t, func(t *testing.T, w *world) {
		first := w.takeOver()
		resume := first.late(func() { _ = first.attach(machine0) })
		w.wantNotes(1)

		second := w.takeOver()
		w.must(second.detach(machine0))
		w.clock.Advance(time.Minute)
		w.wantRefused(second.attach(machine1), "volume 0", "may still attach it to machine 0", "1m0s after the takeover")
		resume()
		w.wantRefused(second.attach(machine1))
		w.wantRefused(second.destroy(), "machine 0")
		w.backend.without("detach "+id+" 0", "attach "+id+" 0")

		w.clock.Advance(time.Nanosecond)
		w.must(second.attach(machine1))
		w.backend.without("detach "+id+" 0", "attach "+id+" 1")
		w.wantNotes(0)
		w.must(second.detach(machine1))
		w.must(second.attach(machine0))
	})
}

// The late call may be that of a creation, which attaches the volume as well.
func TestLateCreation(t *testing.T) {
	w := newWorld(t)
	w.addOn(machine1)
	first := w.takeOver()
	resume := first.late(func() { _, _ = first.create(machine0) })

	second := w.takeOver()
	_, err := second.create(machine1)
	w.wantRefused(err, "volume 0", "machine 0")
	resume()
	w.clock.Advance(time.Minute + 1)
	made, err := second.create(machine1)
	w.must(err)
	if made.Volume.VolumeId != id || made.VolumeAttachment != nil {
		t.Errorf("got %+v", made)
	}
	w.wantNotes(1)
	w.must(second.attach(machine1))
	w.backend.want("attach "+id+" 0", "detach "+id+" 0", "attach "+id+" 1")
	w.wantNotes(0)
}

// A call that may detach a volume comes late: the volume is not in use there until it cannot come.
func TestLateDetachment(t *testing.T) {
	eachSource(t, func(t *testing.T, w *world) {
		first := w.takeOver()
		w.must(first.attach(machine0))
		resume := first.late(func() { _ = first.detach(machine0) })

		second := w.takeOver()
		w.must(second.detach(machine0))
		w.wantRefused(second.attach(machine0), "may still detach it from machine 0")
		w.wantRefused(second.attach(machine1))
		resume()
		w.clock.Advance(time.Minute + 1)
		w.must(second.attach(machine0))
		w.backend.without("attach "+id+" 0", "detach "+id+" 0", "detach "+id+" 0", "attach "+id+" 0")
	})
}

// That the machine is off does not end the wait: the provider can still get the call.
// Fault F38.
func TestFenceDoesNotEndTheWait(t *testing.T) {
	eachSource(t, func(t *testing.T, w *world) {
		first := w.takeOver()
		resume := first.late(func() { _ = first.attach(machine0) })
		second := w.takeOver()
		w.must(w.FenceMachine(machine0))
		w.wantRefused(second.attach(machine1))
		resume()
		w.wantRefused(second.attach(machine1))
		w.clock.Advance(time.Hour)
		w.must(second.attach(machine1))
		w.backend.without("attach "+id+" 0", "detach "+id+" 0", "attach "+id+" 1")
		w.wantNotes(0)
	})
}

// If the volume cannot be detached from the machine, it is attached to no other.
func TestLateAttachmentThatCannotBeUndone(t *testing.T) {
	eachSource(t, func(t *testing.T, w *world) {
		first := w.takeOver()
		resume := first.late(func() { _ = first.attach(machine0) })
		second := w.takeOver()
		resume()
		w.clock.Advance(time.Hour)
		w.backend.fails = storage.Permanent(errors.New("no answer"))
		w.wantRefused(second.attach(machine1), "no answer")
		w.backend.fails = nil
		w.must(second.attach(machine1))
	})
}

// Each volume of a call waits, or not, for itself.
func TestManyVolumesAtOnce(t *testing.T) {
	w := newWorld(t)
	volume := func(n string, machine names.MachineTag) storage.VolumeAttachmentParams {
		p := on(machine)
		p.Volume, p.VolumeId = names.NewVolumeTag(n), n
		return p
	}
	for _, n := range []string{"0", "1", "2", "3"} {
		w.must(w.AddStorage(state.StorageParams{Name: "s" + n, Kind: storage.StorageKindBlock, Pool: "disk", Size: 1, Machine: machine1}))
	}
	first := w.takeOver()
	resume := first.late(func() {
		_, _ = first.AttachVolumes(w.ctx(), []storage.VolumeAttachmentParams{volume("1", machine0), volume("2", machine0), volume("3", machine1)})
	})
	second := w.takeOver()
	var all []storage.VolumeAttachmentParams
	for _, n := range []string{"0", "1", "2", "3"} {
		all = append(all, volume(n, machine1))
	}
	attach := func(want ...string) {
		t.Helper()
		results, err := second.AttachVolumes(w.ctx(), all)
		w.must(err)
		for i, r := range results {
			switch {
			case want[i] != "":
				w.wantRefused(r.Error, "volume "+all[i].VolumeId, want[i])
			case r.Error != nil:
				t.Errorf("volume %s: %v", all[i].VolumeId, r.Error)
			case r.VolumeAttachment.Volume != all[i].Volume:
				t.Errorf("volume %s: got %+v", all[i].VolumeId, r.VolumeAttachment)
			}
		}
	}
	attach("", "wait until", "wait until", "")
	resume()
	w.clock.Advance(time.Minute + 1)
	w.backend.failsFor = "2"
	attach("", "", "in use", "")
	w.backend.failsFor = ""
	attach("", "", "", "")
	w.wantNotes(0)
}

// What a server leaves is settled by the one that takes over, even if several have failed in turn.
func TestSeveralTakeovers(t *testing.T) {
	w := newWorld(t)
	w.addOn(machine1)
	first := w.takeOver()
	resume := first.late(func() { _ = first.attach(machine0) })
	second := w.takeOver()
	w.must(second.attach(machine0)) // its success does not end the call of the first one
	w.must(second.detach(machine0))
	w.clock.Advance(time.Minute)
	third := w.takeOver()
	w.clock.Advance(time.Minute)
	w.wantRefused(third.attach(machine1))
	resume()
	w.clock.Advance(1)
	w.must(third.detach(machine0))
	w.wantNotes(0)
	w.must(third.attach(machine1))
}

// A note is kept unless the outcome of the call is known.
func TestNotesOfCalls(t *testing.T) {
	w := newWorld(t)
	s := w.takeOver()
	for _, test := range []struct {
		err  error
		kept int
	}{
		{nil, 0},
		{errors.New("the array does not answer"), 1},
		{storage.InProgress(errors.New("it takes its time")), 1},
		{context.Canceled, 1},
		{storage.NothingMade(errors.New("full")), 0},
		{storage.Permanent(errors.New("no such volume")), 0},
		{storage.Ignored(errors.New("not mine")), 0},
	} {
		w.backend.fails = test.err
		_ = s.attach(machine0)
		w.wantNotes(test.kept)
		w.backend.fails = nil
		w.must(s.detach(machine0))
		w.wantNotes(0)
	}
	// The calls of this server hold up nothing.
	w.backend.fails = errors.New("the array does not answer")
	_ = s.attach(machine0)
	w.backend.fails = nil
	w.must(s.detach(machine0))
	w.must(s.attach(machine1))
	if _, err := s.AttachVolumes(w.ctx(), nil); err != nil {
		t.Error(err)
	}
	unit := on(machine0)
	unit.Machine = names.NewUnitTag("app/0")
	if results, err := s.AttachVolumes(w.ctx(), []storage.VolumeAttachmentParams{unit}); err != nil || !errors.Is(results[0].Error, errors.NotSupported) {
		t.Errorf("a host that is no machine: %+v, %v", results, err)
	}
}

// slowState takes its time to note calls.
type slowState struct {
	takeover.State
	note func()
}

func (s slowState) NoteAttachmentCalls(calls []state.AttachmentCall) error {
	err := s.State.NoteAttachmentCalls(calls)
	s.note()
	return err
}

// A server that has lost its lease, or does not know how long it was paused, calls nothing.
func TestNoCallAfterTheLease(t *testing.T) {
	for name, pause := range map[string]func(*world, *lock){
		"lost":      func(_ *world, l *lock) { l.lose() },
		"ended":     func(_ *world, l *lock) { l.end() },
		"long past": func(w *world, _ *lock) { w.clock.Advance(31 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			lease := &lock{term: 1, done: make(chan struct{})}
			slow := slowState{w.leader(lease), func() { pause(w, lease) }}
			if name == "lost" {
				slow.note = func() {}
				lease.lose()
			}
			guard, err := takeover.New(takeover.Config{State: slow, Machine: w.Machine, Lease: lease, Clock: w.clock})
			w.must(err)
			own := disk{source: &source{backend: w.backend}}
			registry, err := guard.Registry(func(*config.Config) (storage.ProviderRegistry, error) { return registryOf(own), nil })(nil)
			w.must(err)
			p, err := registry.StorageProvider("disk")
			w.must(err)
			pool, err := storage.NewConfig("disk", "disk", nil)
			w.must(err)
			guarded, err := p.VolumeSource(pool)
			w.must(err)
			s := &server{world: w, lease: lease, VolumeSource: guarded}
			for what, err := range map[string]error{"attaching": s.attach(machine0), "detaching": s.detach(machine0)} {
				if err == nil {
					t.Errorf("%s succeeds", what)
				}
			}
			if _, err := s.create(machine0); err == nil {
				t.Error("creating succeeds")
			}
			if err := s.destroy(); err == nil && name == "ended" {
				t.Error("destroying succeeds")
			}
			w.backend.mu.Lock()
			w.backend.calls = slices.DeleteFunc(w.backend.calls, func(c string) bool { return strings.HasPrefix(c, "destroy") })
			w.backend.mu.Unlock()
			w.backend.want()
		})
	}
}

// addOn adds storage whose volume is volume 0, to be attached to a machine.
func (w *world) addOn(machine names.MachineTag) {
	w.Helper()
	w.must(w.AddStorage(state.StorageParams{Name: "it", Kind: storage.StorageKindBlock, Pool: "disk", Size: 1, Machine: machine}))
}

// add adds storage on machine 0, whose volume and attachment are recorded.
func (w *world) add(attachment params.VolumeAttachmentInfo) {
	w.Helper()
	w.addOn(machine0)
	a := w.ForEnviron()
	results, err := a.SetVolumeInfo([]params.Volume{{VolumeTag: volume0.String(), Info: params.VolumeInfo{VolumeId: id, Size: 1}}})
	w.must(err)
	if results[0].Error != nil {
		w.Fatal(results[0].Error)
	}
	results, err = a.SetVolumeAttachmentInfo([]params.VolumeAttachment{{VolumeTag: volume0.String(), MachineTag: machine0.String(), Info: attachment}})
	w.must(err)
	if results[0].Error != nil {
		w.Fatal(results[0].Error)
	}
}

// A volume that is listed where the state has it is not attached again, except when a user wants it.
func TestListedVolumeIsNotAttachedAgain(t *testing.T) {
	w := newWorld(t)
	w.backend.lists = true
	w.must(w.EnsureMachine(machine0))
	w.add(params.VolumeAttachmentInfo{DeviceLink: "/dev/disk/it", PlanInfo: &params.VolumeAttachmentPlanInfo{DeviceType: "program", DeviceAttributes: map[string]string{"lun": "7"}}})
	first := w.takeOver()
	w.must(first.attach(machine0))
	w.backend.want("list", "attach "+id+" 0")

	second := w.takeOver()
	results, err := second.AttachVolumes(w.ctx(), []storage.VolumeAttachmentParams{on(machine0)})
	w.must(err)
	w.must(results[0].Error)
	got := results[0].VolumeAttachment
	if got.DeviceLink != "/dev/disk/it" || got.PlanInfo == nil || got.PlanInfo.DeviceAttributes["lun"] != "7" || got.Machine != machine0 {
		t.Errorf("the attachment is %+v", got)
	}
	w.backend.want("list")
	w.must(second.attach(machine0))
	w.backend.want("attach " + id + " 0")

	// What the state has otherwise is attached again.
	readOnly := on(machine0)
	readOnly.ReadOnly = true
	if _, err := w.takeOver().AttachVolumes(w.ctx(), []storage.VolumeAttachmentParams{readOnly}); err != nil {
		t.Error(err)
	}
	w.backend.want("list", "attach "+id+" 0")
}

// A volume that is listed on another machine is attached to no other one.
func TestVolumeListedElsewhere(t *testing.T) {
	w := newWorld(t)
	w.backend.lists = true
	w.backend.attached[id] = []names.MachineTag{machine0}
	s := w.takeOver()
	w.wantRefused(s.attach(machine1), "volume 0 is attached to machine 0", "detach it there first")
	w.backend.want("list")
	w.backend.attached[id] = nil
	w.must(s.attach(machine1))
	w.backend.want("list", "attach "+id+" 1")
	// A machine that is off does not use it.
	w.must(s.detach(machine1))
	w.backend.attached[id] = []names.MachineTag{machine0}
	w.must(w.FenceMachine(machine0))
	s = w.takeOver()
	w.backend.failsFor = id
	w.wantRefused(s.attach(machine1), "volume 0 has to be detached from machine 0 first", "in use")
	w.backend.failsFor, w.backend.calls = "", nil
	w.must(s.attach(machine1))
	w.backend.want("list", "detach "+id+" 0", "attach "+id+" 1")
	// Nothing is attached before the source has listed.
	w.must(s.detach(machine1))
	other := w.takeOver()
	w.backend.fails = errors.New("no answer")
	w.wantRefused(other.attach(machine0), "listing which machines have volumes: no answer")
	// One that cannot list is one without the capability.
	w.backend.fails = errors.NotSupportedf("listing")
	_ = other.attach(machine0)
	w.backend.fails = nil
	w.must(other.attach(machine0))
}

// Notes do not pile up: those of volumes that stay where they are are removed by the first call after
// the window, as are those of volumes that are gone.
func TestNotesOfVolumesThatStay(t *testing.T) {
	w := newWorld(t)
	w.add(params.VolumeAttachmentInfo{})
	first := w.takeOver()
	resume := first.late(func() { _ = first.attach(machine0) })
	gone := state.AttachmentCall{Volume: names.NewVolumeTag("99"), Machine: machine0, Window: time.Second}
	first.lease.lost = false
	w.must(w.leader(first.lease).NoteAttachmentCalls([]state.AttachmentCall{gone}))
	first.lease.lose()
	second := w.takeOver()
	w.must(second.attach(machine0))
	w.wantNotes(2)
	w.clock.Advance(time.Minute + 1)
	w.must(second.attach(machine0))
	w.wantNotes(0)
	resume()
}
