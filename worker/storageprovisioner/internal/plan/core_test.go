package plan_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// script feeds events to a core step by step and checks what it wants done. It covers what
// is too rare for the random histories, or what their checks would not notice.
type script struct {
	t       *testing.T
	core    *plan.Core
	now     time.Time
	due     map[any]due
	sources map[plan.Key]plan.Source
	items   map[plan.Key]plan.Item
	// statuses are those that were set.
	statuses []plan.Status
}

func play(t *testing.T, edit ...func(*plan.Options)) *script {
	s := &script{
		t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), due: make(map[any]due),
		sources: make(map[plan.Key]plan.Source), items: make(map[plan.Key]plan.Item),
	}
	options := plan.Options{Retry: plan.Retry{Min: time.Second, Max: time.Minute, Factor: 2}, Host: machine, Timetable: s}
	for _, e := range edit {
		e(&options)
	}
	s.core = plan.New(options)
	s.core.At(s.now)
	s.core.Listed(plan.Volume)
	s.core.Listed(plan.Filesystem)
	return s
}

func (s *script) Add(key, value any, at time.Time) { s.due[key] = due{value: value, at: at} }

func (s *script) Remove(key any) { delete(s.due, key) }

func volume(id string) plan.Key { return plan.Key{Kind: plan.Volume, ID: id} }

func filesystem(id string) plan.Key { return plan.Key{Kind: plan.Filesystem, ID: id} }

// on returns the key of the attachment of a volume or filesystem to a host.
func on(host string, storage plan.Key) plan.Key {
	return plan.Key{Kind: storage.Kind + 2, ID: storage.ID, Host: host}
}

func planOf(volume plan.Key) plan.Key {
	return plan.Key{Kind: plan.Plan, ID: volume.ID, Host: machine}
}

// wanted returns the fact of an entity that is alive and can be made. All machines are
// provisioned.
func wanted(key plan.Key, edit ...func(*plan.Fact)) plan.Fact {
	f := plan.Fact{Subject: plan.NewSubject(key), Life: plan.Alive, Source: provided(key.Kind.Storage()), Host: key.Host, Args: "args"}
	if key.Host != "" {
		f.Instance = "instance of " + key.Host
	}
	for _, e := range edit {
		e(&f)
	}
	return f
}

func dying(f *plan.Fact) { f.Life = plan.Dying }

func dead(f *plan.Fact) { f.Life = plan.Dead }

func recorded(f *plan.Fact) {
	f.Recorded = true
	f.ID = "id of " + f.Key().Storage().String()
}

func without(f *plan.Fact) { f.Args = nil }

func backedBy(volume plan.Key) func(*plan.Fact) {
	return func(f *plan.Fact) { f.Backing, f.BackingKnown = volume.ID, true }
}

func (s *script) observe(facts ...plan.Fact) {
	for _, f := range facts {
		s.core.Observe(f)
	}
}

func (s *script) gone(keys ...plan.Key) {
	for _, key := range keys {
		s.core.Observe(plan.Fact{Subject: plan.NewSubject(key)})
	}
}

// does checks what the core wants done now, statuses aside.
func (s *script) does(want ...string) {
	s.t.Helper()
	got := []string{}
	for _, batch := range s.core.Batches() {
		for _, item := range batch.Items {
			s.sources[item.Key()], s.items[item.Key()] = batch.Source, item
			got = append(got, fmt.Sprintf("%s %s", batch.Op, item.Key()))
		}
	}
	out := s.core.Take()
	s.statuses = append(s.statuses, out.Publish.Statuses...)
	for _, r := range out.Publish.Records {
		got = append(got, fmt.Sprintf("record %s: %v", r.Key(), r.Info))
	}
	for _, removal := range out.Publish.Removals {
		got = append(got, fmt.Sprintf("remove %s", removal.Key()))
	}
	for _, key := range unread(s.core) {
		got = append(got, fmt.Sprintf("read %s", key))
	}
	for _, volume := range s.core.Devices(math.MaxInt) {
		got = append(got, "look up "+volume.Volume)
	}
	for _, volume := range out.Forgotten {
		got = append(got, "forget "+volume)
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("does %q, not %q", got, want)
	}
}

// ends ends the operation on an entity; it succeeds unless edit changes the result.
func (s *script) ends(key plan.Key, edit ...func(*plan.Result)) {
	s.t.Helper()
	source, ok := s.sources[key]
	if !ok {
		s.t.Fatalf("no operation on %s is running", key)
	}
	delete(s.sources, key)
	item := s.items[key]
	r := item.Ended(plan.Result{Info: "info", ID: "id of " + key.Storage().String()})
	for _, e := range edit {
		e(&r)
	}
	s.core.Finished(source, []plan.Result{r})
}

// published reports whether the state has accepted the result of an entity.
func (s *script) published(key plan.Key, err error) {
	s.core.Published(plan.NewSubject(key), err)
}

func failing(err error) func(*plan.Result) {
	return func(r *plan.Result) { r.Err = err }
}

// unknown is the result of a call whose outcome nobody knows.
func unknown(r *plan.Result) { r.Err, r.Unknown = errors.New("unknown"), true }

func inProgress(r *plan.Result) { r.Err = storage.InProgress(errors.New("later")) }

// attachedAlong is the result of a creation that attached the volume as well.
func attachedAlong(host string) func(*plan.Result) {
	return func(r *plan.Result) { r.Attached = &plan.Attached{Key: on(host, r.Key()), Info: "along"} }
}

func (s *script) taken(keys ...plan.Key) {
	for _, key := range keys {
		s.published(key, nil)
	}
}

// passes lets time pass.
func (s *script) passes(d time.Duration) {
	s.now = s.now.Add(d)
	s.core.At(s.now)
	var values []any
	for key, due := range s.due {
		if !due.at.After(s.now) {
			delete(s.due, key)
			values = append(values, due.value)
		}
	}
	s.core.Due(values)
}

// attached has the core attach a volume or filesystem that is already recorded.
func (s *script) attached(storage plan.Key, host string, edit ...func(*plan.Fact)) {
	s.t.Helper()
	key := on(host, storage)
	s.observe(wanted(storage, recorded), wanted(key, edit...))
	s.does("attach " + key.String())
	s.ends(key)
	s.does("record " + key.String() + ": info")
	s.taken(key)
	s.does()
}

// mounted has the core mount filesystem 1 on volume 0; hasUUID says that the device has
// a UUID.
func (s *script) mounted(hasUUID bool) {
	s.t.Helper()
	s.attached(volume("0"), machine)
	s.backed("0", "1", hasUUID)
}

// backed has the core mount a filesystem on a volume that is attached to the machine.
func (s *script) backed(volumeID, filesystemID string, hasUUID bool) {
	s.t.Helper()
	f, m := filesystem(filesystemID), on(machine, filesystem(filesystemID))
	s.observe(wanted(f, recorded, backedBy(volume(volumeID))), wanted(m, backedBy(volume(volumeID))))
	s.does("look up " + volumeID)
	s.core.DeviceKnown(volumeID, true, hasUUID, 1000)
	s.does("attach " + m.String())
	s.ends(m)
	s.does("record " + m.String() + ": info")
	s.taken(m)
	s.does()
}

// pending returns what is reported of the operation on an entity, if it has one.
func (s *script) pending(key plan.Key) plan.Pending {
	for _, p := range s.core.Report(1000).Pending {
		if p.Key == key {
			return p
		}
	}
	return plan.Pending{}
}

// A volume that somebody else has recorded exists: its creation is not repeated to find out.
// Behaviour 14.
func TestRecordedVolumeDestroyedAfterUnknownCreate(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, unknown)
	s.observe(wanted(v, recorded, dead))
	s.does("destroy volume 0")
}

// An attachment whose outcome is unknown is detached: only a creation is repeated to learn
// its outcome.
// Behaviour 17.
func TestUnknownAttachIsDetached(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a, unknown)
	s.observe(wanted(a, dying))
	s.does("detach volume attachment 0 on machine-0")
}

// If the life of an attachment is dying, and nothing else can be read about it, it is not
// attached again.
// Finding N33.
func TestDyingAttachmentNotAttachedWhileUnreadable(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a, failing(storage.Permanent(errors.New("refused"))))
	s.observe(wanted(a, dying, func(f *plan.Fact) { f.Err = errors.New("unreadable") }))
	s.core.Refresh()
	s.does("read volume attachment 0 on machine-0")
	s.observe(wanted(a, dying))
	s.does("remove volume attachment 0 on machine-0")
}

// An attachment that may have been made to a volume that has since been destroyed is not
// detached with an empty ID: there is nothing left to detach from.
// Finding N23.
func TestAttachmentOfDestroyedVolumeIsNotDetached(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	here := func(f *plan.Fact) { f.Host, f.Instance = machine, "instance of "+machine }
	s.observe(wanted(v, here), wanted(a))
	s.does("create volume 0")
	s.ends(v, unknown)
	s.passes(time.Second)
	s.does("create volume 0")
	s.ends(v)
	s.does("record volume 0: info")
	s.gone(v)
	s.published(v, jujuerrors.NotFoundf("volume 0"))
	s.does("destroy volume 0")
	s.observe(wanted(v, dying, here), wanted(a, dying))
	s.ends(v)
	s.does("read volume 0")
	s.observe(wanted(v, dying, here))
	s.does("remove volume attachment 0 on machine-0")
}

// A volume that no machine wants any more may exist if the outcome of its creation is
// unknown. The creation is repeated at once to find out, not only when the volume is
// removed.
// Behaviour 27.
func TestUnknownCreateRepeatedForUnwantedVolume(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, unknown)
	s.observe(wanted(v, without))
	s.passes(time.Second)
	s.does("create volume 0")
	if item := s.items[v]; !item.Repeat || item.Args != "args" {
		t.Errorf("the creation does not repeat its arguments: %+v", item)
	}
}

// Behaviour 14.
func TestDyingVolumeIsNotCreated(t *testing.T) {
	s := play(t)
	s.observe(wanted(volume("0"), dying))
	s.does()
}

// A creation may attach the volume as well, so it must not run during the detachment of a
// former volume of the same ID.
// Behaviour 6.
func TestCreateWaitsForDetachOfFormerVolume(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.attached(v, machine)
	s.observe(wanted(a, recorded, dying))
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a, inProgress)
	s.gone(v)
	s.observe(wanted(v, func(f *plan.Fact) { f.Host = machine }))
	s.does()
	if p := s.pending(v); p.Op != plan.Create || p.WaitsFor != a.String() {
		t.Errorf("the creation does not wait for the detachment: %+v", p)
	}
	// Elsewhere it is not in the way.
	s.observe(wanted(v, func(f *plan.Fact) { f.Host, f.Instance = "machine-1", "instance of machine-1" }))
	s.does("create volume 0")
}

// A detachment that has ended, even by failing, does not hold up a creation.
// Behaviour 6.
func TestCreateAfterFailedDetachOfFormerVolume(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.attached(v, machine)
	s.observe(wanted(a, recorded, dying))
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a, inProgress)
	s.gone(v)
	s.observe(wanted(v, func(f *plan.Fact) { f.Host = machine }))
	s.passes(time.Second)
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a, failing(storage.Permanent(errors.New("held by another"))))
	s.does("create volume 0")
}

// Behaviour 20.
func TestFilesystemWaitsForDeviceOnceAttachmentIsGone(t *testing.T) {
	s := play(t)
	v, f := volume("0"), filesystem("1")
	a := on(machine, v)
	s.observe(wanted(v, recorded), wanted(a, func(f *plan.Fact) { f.Instance = "" }), wanted(f, backedBy(v)))
	if p := s.pending(f); p.WaitsFor != a.String() {
		t.Errorf("the filesystem does not wait for the attachment: %+v", p)
	}
	s.core.Take()
	s.gone(a)
	s.does("look up 0")
	if p := s.pending(f); p.WaitsFor != "block device of volume 0 to appear" {
		t.Errorf("%+v", p)
	}
}

// The attachment of a former volume of the same ID does not hold up a creation.
// Behaviour 7.
func TestCreateDuringAttachOfFormerVolume(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a, inProgress)
	s.gone(v)
	s.observe(wanted(v, func(f *plan.Fact) { f.Host = machine }))
	s.does("create volume 0")
	s.ends(v, attachedAlong(machine))
	s.does("record volume 0: info")
	s.taken(v)
	s.passes(time.Second)
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a)
	s.does("record volume attachment 0 on machine-0: info")
	s.taken(a)
	s.does()
}

// A mount waits until its filesystem is known, which says who mounts it and whether it needs
// a volume.
// Behaviour 18.
func TestMountWaitsForUnknownFilesystem(t *testing.T) {
	s := play(t)
	f := filesystem("0")
	s.attached(f, "machine-1")
	s.gone(f)
	// All that the core still knows of the filesystem is its attachment.
	s.observe(wanted(on("machine-2", f), func(f *plan.Fact) { f.ID = "id" }))
	s.does()
	if p := s.pending(on("machine-2", f)); p.WaitsFor != "filesystem 0" {
		t.Errorf("the mount does not wait for the filesystem: %+v", p)
	}
}

// Behaviour 35.
func TestMountDroppedDuringAttachIsDetached(t *testing.T) {
	s := play(t)
	f, m := filesystem("0"), on(machine, filesystem("0"))
	s.observe(wanted(f, recorded), wanted(m))
	s.does("attach filesystem attachment 0 on machine-0")
	s.gone(f, m)
	s.ends(m)
	s.does("detach filesystem attachment 0 on machine-0")
	if item := s.items[m]; item.ID != "id of filesystem 0" {
		t.Errorf("the detachment lacks the ID of the filesystem: %+v", item)
	}
	s.ends(m)
	s.does("read filesystem attachment 0 on machine-0")
	s.gone(m)
	s.nothing()
}

// nothing checks that the core remembers nothing.
func (s *script) nothing() {
	s.t.Helper()
	if left := s.core.Leftovers(); len(left) > 0 {
		s.t.Errorf("the core remembers:\n%s", strings.Join(left, "\n"))
	}
}

// An attachment that cannot have been made is removed at once, whatever its volume waits
// for.
// Behaviour 17.
func TestUnmadeAttachmentRemovedAtOnce(t *testing.T) {
	v, a := volume("0"), on(machine, volume("0"))
	t.Run("volume to be created", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, func(f *plan.Fact) { f.Host = "machine-1" }), wanted(a))
		s.does()
		s.core.Take()
		s.observe(wanted(a, dying))
		s.does("remove volume attachment 0 on machine-0", "read volume 0")
	})
	t.Run("volume to be destroyed", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(v, recorded, dead))
		s.does("destroy volume 0")
		s.observe(wanted(a, dying))
		s.does("remove volume attachment 0 on machine-0")
	})
}

// A creation may have attached the volume: the attachment is not removed before the outcome
// of the creation is known.
// Behaviour 17.
func TestAttachmentStaysUntilVolumeOutcomeIsKnown(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v), wanted(a))
	s.does("create volume 0")
	s.ends(v, unknown)
	s.observe(wanted(v, dying), wanted(a, dying))
	s.does("create volume 0")
	s.ends(v, unknown)
	s.observe(wanted(a, dying))
	s.does()
	s.passes(time.Minute)
	s.does("create volume 0")
	s.ends(v)
	s.does("record volume 0: info")
	s.taken(v)
	s.does("remove volume attachment 0 on machine-0", "read volume 0")
}

// A former worker began to create a volume, and the first fact read is that its attachment
// is dying. The provider's ID of the volume is known only once the volume is.
// Behaviour A3.
// Finding N9.
func TestDetachWaitsForVolumeID(t *testing.T) {
	attempted := func(f *plan.Fact) { f.Attempted = true }
	v, a := volume("0"), on(machine, volume("0"))
	s := play(t)
	s.observe(wanted(a, dying, attempted))
	s.does()
	if p := s.pending(a); p.WaitsFor != "volume 0 to be read from the state" {
		t.Errorf("the detachment waits for %q", p.WaitsFor)
	}
	s.observe(wanted(v, attempted, without))
	s.does("create volume 0")
	s.ends(v)
	s.does("record volume 0: info")
	s.taken(v)
	s.does("detach volume attachment 0 on machine-0")
	if item := s.items[a]; item.ID == "" {
		t.Errorf("the detachment lacks an ID: %+v", item)
	}
	t.Run("recorded volume", func(t *testing.T) {
		s := play(t)
		s.observe(wanted(a, dying, attempted, func(f *plan.Fact) { f.ID = "id of volume 0" }))
		s.does("detach volume attachment 0 on machine-0")
	})
}

// A plan that a former worker has carried out is not undone while the filesystem on it is
// mounted.
// Behaviour 35.
func TestFormerWorkersPlanOutlastsMount(t *testing.T) {
	s := play(t)
	s.mounted(true)
	p := planOf(volume("0"))
	s.observe(wanted(p, recorded, dying))
	s.does()
	m := on(machine, filesystem("1"))
	s.observe(wanted(m, recorded, dying, backedBy(volume("0"))))
	s.does("detach filesystem attachment 1 on machine-0")
	s.ends(m)
	s.does("detach attachment plan of volume 0 on machine-0", "remove filesystem attachment 1 on machine-0")
}

// A volume that is being destroyed is gone before another of the same ID is created.
// Behaviour 14.
func TestDestroyEndsBeforeRecreation(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.gone(v)
	s.ends(v)
	s.does("destroy volume 0")
	s.ends(v, failing(errors.New("busy")))
	s.observe(wanted(v))
	s.does()
	s.passes(time.Second)
	s.does("destroy volume 0")
	s.ends(v)
	s.does("read volume 0")
	s.observe(wanted(v))
	s.does("create volume 0")
}

// A volume that the state dropped before it was recorded is destroyed and not released:
// nobody can ask for it any more.
// Behaviour 14.
func TestVolumeDroppedDuringCreateIsDestroyed(t *testing.T) {
	s := play(t)
	v := volume("0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.observe(wanted(v, dead, func(f *plan.Fact) { f.Release = true }))
	s.gone(v)
	s.ends(v)
	s.does("destroy volume 0")
	if s.items[v].Release {
		t.Error("the volume is released, not destroyed")
	}
}

// An attachment that a creation has made is detached by the provider of the volume, on the
// machine of the creation.
// Behaviour 7.
func TestDetachAfterCreateHasIDInstanceAndSource(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, func(f *plan.Fact) { f.Host, f.Instance = machine, "instance of machine-0" }))
	s.does("create volume 0")
	s.gone(v)
	s.ends(v, attachedAlong(machine))
	s.does("detach volume attachment 0 on machine-0")
	item := s.items[a]
	if item.ID != "id of volume 0" || item.Instance != "instance of machine-0" || s.sources[a] != provided(plan.Volume) {
		t.Errorf("%+v of %s", item, s.sources[a])
	}
	s.ends(a)
	s.does("destroy volume 0", "read volume attachment 0 on machine-0")
}

// Behaviour 7.
func TestAttachmentByCreateDetachedAfterVolumeIsGone(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, attachedAlong(machine))
	s.does("record volume 0: info")
	s.taken(v)
	s.does("record volume attachment 0 on machine-0: along")
	s.taken(a)
	s.gone(v)
	s.observe(wanted(a, dying, func(f *plan.Fact) { f.Recorded = true }))
	s.does("detach volume attachment 0 on machine-0")
	if id := s.items[a].ID; id != "id of volume 0" {
		t.Errorf("the ID of the detachment is %q", id)
	}
}

// An attachment that a creation makes while the attachment is being removed is detached,
// although the state refuses the removal.
// Behaviour 7.
func TestAttachmentByCreateDuringRemovalIsDetached(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(a, dying))
	s.does("remove volume attachment 0 on machine-0")
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, attachedAlong(machine))
	s.does("record volume 0: info")
	s.taken(v)
	s.published(a, errors.New("it is alive"))
	s.does("detach volume attachment 0 on machine-0")
}

// An attachment that a creation makes before the former attachment is detached stays.
// Behaviour 7.
func TestAttachmentByCreateBeforeDetachStays(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	s.does("attach volume attachment 0 on machine-0")
	s.gone(v, a)
	s.ends(a)
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a, failing(errors.New("busy")))
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, attachedAlong(machine))
	s.does("record volume 0: info")
	s.taken(v)
	s.does("record volume attachment 0 on machine-0: along")
	s.taken(a)
	s.does("read volume attachment 0 on machine-0")
	s.observe(wanted(a, recorded))
	s.passes(time.Minute)
	s.does()
}

// An attachment that is known only through the plan on it is recorded under its own key when
// a creation makes it.
// Behaviour 7.
func TestAttachmentByCreateUnderFormerPlanIsRecorded(t *testing.T) {
	s := play(t)
	v, a, p := volume("0"), on(machine, volume("0")), planOf(volume("0"))
	s.attached(v, machine)
	s.observe(wanted(p, recorded))
	s.does("attach attachment plan of volume 0 on machine-0")
	s.ends(p)
	s.does("record attachment plan of volume 0 on machine-0: info")
	s.taken(p)
	s.gone(a, v)
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v, attachedAlong(machine))
	s.does("record volume 0: info")
	s.taken(v)
	s.does("record volume attachment 0 on machine-0: along")
}

// Behaviour 9.
func TestRecordedVolumeIsNotReadAgain(t *testing.T) {
	s := play(t)
	s.observe(wanted(volume("0")))
	s.does("create volume 0")
	s.ends(volume("0"))
	s.does("record volume 0: info")
	s.taken(volume("0"))
	s.does()
}

// Once the state has accepted a result, earlier refusals do not lengthen the next backoff.
// Behaviour 32.
func TestPublishBackoffStartsOverAfterSuccess(t *testing.T) {
	s := play(t)
	v := volume("0")
	refuse := func(want time.Duration) {
		t.Helper()
		s.published(v, errors.New("not now"))
		p := s.pending(v)
		if p.Failure != "not now" || p.Due != s.now.Add(want) {
			t.Fatalf("at %v, after a refusal, got %+v", s.now, p)
		}
		s.passes(want)
	}
	s.observe(wanted(v))
	s.does("create volume 0")
	s.ends(v)
	s.does("record volume 0: info")
	refuse(time.Second)
	s.does("record volume 0: info")
	refuse(2 * time.Second)
	s.does("record volume 0: info")
	s.taken(v)
	s.observe(wanted(v, recorded, dead))
	s.does("destroy volume 0")
	s.ends(v)
	s.does("remove volume 0")
	refuse(time.Second)
	s.does("remove volume 0")
	s.published(v, jujuerrors.NotFoundf("volume 0"))
	s.does()
	s.nothing()
}

// After a change of the environment's configuration there is no need to read entities that
// are finished or gone.
// Behaviour 2.
func TestRefreshReadsUnfinishedEntities(t *testing.T) {
	s := play(t)
	s.attached(volume("0"), machine)
	s.observe(
		wanted(volume("1"), func(f *plan.Fact) { f.Class = plan.Foreign }),
		wanted(volume("2"), func(f *plan.Fact) { f.Class = plan.Static }),
		wanted(volume("3")),
	)
	s.does("create volume 3")
	s.ends(volume("3"), failing(errors.New("no space")))
	// All that is known of this volume is that it is attached.
	s.attached(volume("4"), machine)
	s.gone(volume("4"))
	if entities := s.core.Report(0).Entities; entities["volume"] != 4 || entities["volume attachment"] != 2 {
		t.Errorf("entity counts: %v", entities)
	}
	want := []plan.Key{volume("1"), volume("2"), volume("3")}
	s.core.Refresh()
	if got := sortedKeys(unread(s.core)); !slices.Equal(got, want) {
		t.Errorf("reads %v, not %v", got, want)
	}
	all := append([]plan.Key{volume("0")}, append(want, on(machine, volume("0")), on(machine, volume("4")))...)
	s.core.Resync()
	if got := sortedKeys(unread(s.core)); !slices.Equal(got, all) {
		t.Errorf("the resync reads %v, not %v", got, all)
	}
}

// A change of the environment's configuration retries what has failed until then. That includes
// what went on at the change, and is known to have failed only later.
// Finding N46.
func TestRefreshRetriesWhatFailsAfterwards(t *testing.T) {
	s := play(t)
	v := volume("0")
	refused := failing(storage.Permanent(errors.New("refused")))
	s.observe(wanted(v, recorded, dead))
	s.does("destroy volume 0")
	s.ends(v, inProgress)
	s.core.Refresh()
	s.does("read volume 0")
	s.observe(wanted(v, recorded, dead))
	s.passes(time.Second)
	s.does("destroy volume 0")
	s.ends(v, refused)
	s.does("destroy volume 0")
	s.ends(v, refused)
	s.passes(time.Hour)
	s.does()
}

// A volume that the state has dropped may still be attached when the state has it again.
// Behaviour 35.
func TestReturningVolumeDetachedBeforeDestroy(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.attached(v, machine)
	s.gone(v)
	s.observe(wanted(v, recorded, dead))
	s.does()
	s.observe(wanted(a, recorded, dying))
	s.does("detach volume attachment 0 on machine-0")
	s.ends(a)
	s.does("destroy volume 0", "remove volume attachment 0 on machine-0")
}

// The device of a volume is watched while its filesystem is there, or something waits for
// it.
// Behaviour 20.
func TestDeviceWatchedUntilFilesystemIsGone(t *testing.T) {
	s := play(t)
	s.mounted(false)
	m := on(machine, filesystem("1"))
	s.observe(wanted(m, recorded, dying, backedBy(volume("0"))))
	s.does("detach filesystem attachment 1 on machine-0")
	s.ends(m)
	s.does("remove filesystem attachment 1 on machine-0")
	s.taken(m)
	s.does()
	if !s.core.DeviceWatched("0") {
		t.Error("the device is not watched")
	}
	s.gone(filesystem("1"))
	s.does("forget 0")
}

// Behaviour 20.
func TestMountWaitsForDeviceOnceFilesystemIsGone(t *testing.T) {
	s := play(t)
	s.attached(volume("0"), machine)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.observe(wanted(f, recorded, backedBy(volume("0"))), wanted(m, recorded, backedBy(volume("0"))))
	s.does("look up 0")
	s.gone(f)
	s.does("look up 0", "forget 0")
	if !s.core.DeviceWatched("0") {
		t.Fatal("the device is not watched")
	}
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("attach filesystem attachment 1 on machine-0")
}

// Behaviour 20.
func TestDeviceForgottenWithLastWaitingMount(t *testing.T) {
	s := play(t)
	v, f, m := volume("0"), filesystem("1"), on(machine, filesystem("1"))
	s.attached(v, machine)
	s.observe(wanted(f, recorded, backedBy(v)), wanted(m, recorded, backedBy(v)))
	s.does("look up 0")
	s.gone(f, m)
	s.core.Take()
	if s.core.DeviceWatched("0") {
		t.Error("the device is still watched")
	}
	s.gone(on(machine, v), v)
	s.nothing()
}

// Behaviour 15.
func TestFilesystemWithoutVolumeForgetsNoDevice(t *testing.T) {
	s := play(t)
	s.observe(wanted(filesystem("0"), recorded))
	s.gone(filesystem("0"))
	s.does()
}

// A mount on a volume is attached again when the device gains a UUID, even if a former mount
// on the same volume has been detached.
// Behaviour 21.
func TestNewUUIDRepeatsMountAfterOtherDetach(t *testing.T) {
	s := play(t)
	s.mounted(false)
	former, m := on(machine, filesystem("1")), on(machine, filesystem("2"))
	s.observe(wanted(filesystem("2"), recorded, backedBy(volume("0"))), wanted(m, backedBy(volume("0"))))
	s.does("attach filesystem attachment 2 on machine-0")
	s.ends(m)
	s.does("record filesystem attachment 2 on machine-0: info")
	s.taken(m)
	s.observe(wanted(former, recorded, dying, backedBy(volume("0"))))
	s.does("detach filesystem attachment 1 on machine-0")
	s.ends(former)
	s.does("remove filesystem attachment 1 on machine-0")
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("read filesystem attachment 2 on machine-0")
}

// A mount on a volume is attached again when the device gains a UUID, even if its filesystem
// has been dropped and recreated.
// Behaviour 21.
func TestNewUUIDRepeatsMountOfRecreatedFilesystem(t *testing.T) {
	s := play(t)
	s.mounted(false)
	f := filesystem("1")
	s.gone(f)
	s.does("forget 0")
	s.observe(wanted(f, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceKnown("0", true, false, 1000)
	s.does("create filesystem 1")
	s.ends(f)
	s.does("record filesystem 1: info")
	s.taken(f)
	s.does()
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("read filesystem attachment 1 on machine-0")
}

// A retry keeps its time while it waits for a volume, and is forgotten with its entity.
// Behaviour 15.
func TestRetryTimeKeptWhileWaiting(t *testing.T) {
	s := play(t)
	v, a := volume("0"), on(machine, volume("0"))
	s.observe(wanted(v, recorded), wanted(a))
	s.does("attach volume attachment 0 on machine-0")
	s.ends(a, failing(errors.New("no")))
	s.observe(wanted(v, recorded, dead), wanted(a))
	if p := s.pending(a); p.WaitsFor != "volume 0" {
		t.Errorf("%+v", p)
	}
	s.observe(wanted(v, recorded))
	if p := s.pending(a); p.Phase != "scheduled" || p.Due != s.now.Add(time.Second) {
		t.Errorf("%+v", p)
	}
	s.gone(a, v)
	s.nothing()
}

// Behaviour R1.
func TestReportIsSortedAndLimited(t *testing.T) {
	s := play(t)
	for _, id := range []string{"2", "0", "1"} {
		for _, host := range []string{"machine-2", "machine-1"} {
			s.observe(wanted(on(host, volume(id))))
		}
	}
	all := []plan.Key{
		on("machine-1", volume("0")), on("machine-2", volume("0")),
		on("machine-1", volume("1")), on("machine-2", volume("1")),
		on("machine-1", volume("2")), on("machine-2", volume("2")),
	}
	for _, limit := range []int{0, 2, 6, 7} {
		report := s.core.Report(limit)
		entities, unfinished, pending := report.Entities, report.Unfinished, report.Pending
		var keys []plan.Key
		for _, p := range pending {
			keys = append(keys, p.Key)
		}
		if want := all[:min(limit, 6)]; !slices.Equal(keys, want) {
			t.Errorf("with limit %d, reports %v, not %v", limit, keys, want)
		}
		if entities["volume attachment"] != 6 || unfinished["waiting"] != 6 {
			t.Errorf("entity counts %v, unfinished %v", entities, unfinished)
		}
	}
}

// Behaviour R2.
func TestReportPlanWaitsForVolume(t *testing.T) {
	s := play(t)
	s.observe(wanted(volume("0")), wanted(planOf(volume("0")), recorded, func(f *plan.Fact) { f.ID = "" }))
	if p := s.pending(planOf(volume("0"))); p.WaitsFor != "volume 0" {
		t.Errorf("%+v", p)
	}
}

// Since is when the reported phase began, however often it is reported.
// Behaviour R2.
func TestReportSincePhaseBegan(t *testing.T) {
	s := play(t)
	start := s.now
	v, a := volume("0"), on("machine-1", volume("0"))
	since := func(phase string, want time.Duration) {
		t.Helper()
		if p := s.pending(a); p.Phase != phase || p.Since.Sub(start) != want {
			t.Fatalf("%s since %v, not %s since %v", p.Phase, p.Since.Sub(start), phase, want)
		}
	}
	// Another volume keeps the source busy.
	s.observe(wanted(volume("1")))
	s.does("create volume 1")
	s.observe(wanted(v, recorded), wanted(a))
	since("queued", 0)
	s.passes(time.Second)
	s.observe(wanted(v, recorded, dead), wanted(a))
	since("waiting", time.Second)
	s.passes(time.Second)
	s.observe(wanted(a))
	since("waiting", time.Second)
	s.passes(time.Second)
	s.observe(wanted(v, recorded))
	since("queued", 3*time.Second)
}

// One lookup of a device answers all that wait for it.
// Behaviour 20.
func TestDeviceLookedUpOnceForAllWaiters(t *testing.T) {
	s := play(t)
	s.attached(volume("0"), machine)
	for i, id := range []string{"1", "2"} {
		s.observe(
			wanted(filesystem(id), recorded, backedBy(volume("0"))),
			wanted(on(machine, filesystem(id)), recorded, backedBy(volume("0"))),
		)
		s.does([]string{"look up 0"}[:1-i]...)
	}
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("attach filesystem attachment 1 on machine-0", "attach filesystem attachment 2 on machine-0")
}

// Nothing is mounted from a device that cannot be looked up, even if it was known before. It
// is looked up again with backoff, until it can be.
func TestUnreadableDeviceHoldsUpMountAndIsRetried(t *testing.T) {
	s := play(t)
	s.mounted(true)
	s.core.DevicesChanged()
	s.does("look up 0")
	s.core.DeviceUnreadable("0")
	f, m := filesystem("2"), on(machine, filesystem("2"))
	s.observe(wanted(f, recorded, backedBy(volume("0"))), wanted(m, backedBy(volume("0"))))
	s.does()
	s.passes(time.Second)
	s.does("look up 0")
	s.core.DeviceUnreadable("0")
	s.passes(time.Second)
	s.does()
	s.passes(time.Second)
	s.does("look up 0")
	s.core.DeviceKnown("0", false, false, 0)
	s.does()
	s.core.DevicesChanged()
	s.does("look up 0")
	s.core.DeviceUnreadable("0")
	s.passes(time.Second)
	s.does("look up 0")
	s.core.DeviceKnown("0", true, true, 1000)
	s.does("attach filesystem attachment 2 on machine-0")
}

// A device that cannot be looked up is not retried once nothing waits for it.
func TestUnreadableDeviceNotRetriedWhenUnused(t *testing.T) {
	s := play(t)
	s.attached(volume("0"), machine)
	f, m := filesystem("1"), on(machine, filesystem("1"))
	s.observe(wanted(f, recorded, backedBy(volume("0"))), wanted(m, recorded, backedBy(volume("0"))))
	s.does("look up 0")
	s.core.DeviceUnreadable("0")
	s.gone(f, m)
	s.core.Take()
	if len(s.due) > 0 {
		t.Errorf("still due: %v", s.due)
	}
}

// Behaviour 27.
func TestCreateAndRemoveThresholds(t *testing.T) {
	s := play(t, func(o *plan.Options) { o.Retry.CreateThreshold, o.Retry.RemoveThreshold = 2, 3 })
	v, a := volume("0"), on(machine, volume("0"))
	tries := func(key plan.Key, what string, most int) {
		t.Helper()
		for range most {
			s.does(what)
			s.ends(key, failing(errors.New("no")))
			s.passes(time.Minute)
		}
		s.does()
		if p := s.pending(key); p.Phase != "stalled" {
			t.Errorf("after %d failures: %+v", most, p)
		}
	}
	s.observe(wanted(v))
	tries(v, "create volume 0", 2)
	s.observe(wanted(v, recorded), wanted(a))
	tries(a, "attach volume attachment 0 on machine-0", 2)
	s.observe(wanted(a, recorded, dying))
	tries(a, "detach volume attachment 0 on machine-0", 3)
	s.gone(a)
	s.observe(wanted(v, recorded, dead), wanted(a))
	tries(v, "destroy volume 0", 3)
}

func TestSourceString(t *testing.T) {
	for want, source := range map[string]plan.Source{
		"managed filesystems":    plan.Managed,
		"loop volumes":           {Kind: plan.Volume, Provider: "loop"},
		"tmpfs filesystems":      {Kind: plan.Filesystem, Provider: "tmpfs"},
		"iscsi attachment plans": {Kind: plan.Plan, Provider: "iscsi"},
	} {
		if got := source.String(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
