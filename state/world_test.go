package state_test

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/storage"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

var (
	machine0 = names.NewMachineTag("0")
	machine1 = names.NewMachineTag("1")
	start    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// fakeProvider has the properties of a provider, and makes nothing.
type fakeProvider struct {
	storage.Provider
	scope      storage.Scope
	kinds      []storage.StorageKind
	releasable bool
	static     bool
	byPool     bool
	pools      []*storage.Config
}

func (p fakeProvider) Scope() storage.Scope                   { return p.scope }
func (p fakeProvider) Supports(kind storage.StorageKind) bool { return slices.Contains(p.kinds, kind) }
func (p fakeProvider) Releasable() bool                       { return p.releasable }
func (p fakeProvider) Dynamic() bool                          { return !p.static }
func (p fakeProvider) SourcesByPool() bool                    { return p.byPool }
func (p fakeProvider) DefaultPools() []*storage.Config        { return p.pools }
func (p fakeProvider) ValidateConfig(c *storage.Config) error {
	if _, ok := c.ValueString("bad"); ok {
		return errors.NotValidf("attribute bad")
	}
	return nil
}

// keeper is a provider that neither creates nor deletes.
type keeper struct{ fakeProvider }

func (keeper) CanCreate(storage.StorageKind) bool { return false }
func (keeper) CanDelete(storage.StorageKind) bool { return false }

// mounter is a provider of volumes that are filesystems, unless their attributes say otherwise.
type mounter struct{ fakeProvider }

func (mounter) MountsVolumes(attributes map[string]any) bool {
	return attributes["volume-mode"] != "block"
}

// registry has a machine's provider of volumes (loop), a machine's provider of
// filesystems (tmpfs), an environment's provider of volumes (disk), a static one (maas),
// one of filesystems (nfs), one of volumes that are filesystems (share), and one of a machine's volumes that can only be imported and released (vault).
func registry(t testing.TB) storage.ProviderRegistry {
	t.Helper()
	ssd, err := storage.NewConfig("ssd", "disk", storage.Attrs{"type": "ssd"})
	if err != nil {
		t.Fatal(err)
	}
	maas, err := storage.NewConfig("maas", "maas", storage.Attrs{"zone": "default"})
	if err != nil {
		t.Fatal(err)
	}
	block := []storage.StorageKind{storage.StorageKindBlock}
	filesystem := []storage.StorageKind{storage.StorageKindFilesystem}
	return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
		"loop":  fakeProvider{scope: storage.ScopeMachine, kinds: block},
		"tmpfs": fakeProvider{scope: storage.ScopeMachine, kinds: filesystem},
		"disk":  fakeProvider{scope: storage.ScopeEnviron, kinds: block, releasable: true, pools: []*storage.Config{ssd}},
		"maas":  fakeProvider{scope: storage.ScopeEnviron, kinds: block, static: true, byPool: true, pools: []*storage.Config{maas}},
		"nfs":   fakeProvider{scope: storage.ScopeEnviron, kinds: filesystem},
		"share": mounter{fakeProvider{scope: storage.ScopeEnviron, kinds: block}},
		"vault": keeper{fakeProvider{scope: storage.ScopeMachine, kinds: block, releasable: true}},
	}}
}

// world is a state with two machines and their workers.
type world struct {
	*state.State
	t     testing.TB
	store kv.Store
	clock *testclock.Clock
}

func newWorld(t testing.TB) *world {
	return openWorld(t, newStore(t))
}

// newFileWorld is a world in a file, for tests of persistence.
func newFileWorld(t testing.TB, path string) *world {
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return openWorld(t, store)
}

func openWorld(t testing.TB, store kv.Store) *world {
	t.Helper()
	w := &world{t: t, store: store, clock: testclock.NewClock(start)}
	w.open()
	t.Cleanup(w.close)
	for _, machine := range []names.MachineTag{machine0, machine1} {
		w.must(w.EnsureMachine(machine))
	}
	return w
}

// open opens the state, and closes it first if it is open.
func (w *world) open() {
	w.t.Helper()
	if w.State != nil {
		w.must(w.Close())
	}
	var err error
	w.State, err = state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: registry(w.t)})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	w.must(w.State.Close())
	w.must(w.store.Close())
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Error(errors.ErrorStack(err))
	}
}

// add adds storage of a pool to machine 0.
func (w *world) add(name, pool string, kind storage.StorageKind) {
	w.t.Helper()
	p := state.StorageParams{Name: name, Kind: kind, Pool: pool, Size: 100, Machine: machine0}
	if kind == storage.StorageKindFilesystem {
		p.MountPoint = "/srv/" + name
	}
	w.must(w.AddStorage(p))
}

// one returns the only storage of that name.
func (w *world) one(name string) state.Storage {
	w.t.Helper()
	all, err := w.Storage(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return all[0]
}

// entry is an index entry, the only thing that watchers report to workers.
type entry struct {
	scope   string
	kind    string
	machine string
	tag     string
}

func (e entry) id() params.MachineStorageId {
	return params.MachineStorageId{MachineTag: e.machine, AttachmentTag: e.tag}
}

func (e entry) parsed() names.Tag {
	tag, err := names.ParseTag(e.tag)
	if err != nil {
		panic(err)
	}
	return tag
}

// owner returns the accessors of the worker that looks after the entity.
func (w *world) owner(tag names.Tag) *state.Accessor {
	if i := strings.LastIndex(tag.Id(), "/"); i >= 0 {
		return w.ForMachine(names.NewMachineTag(tag.Id()[:i]))
	}
	return w.ForEnviron()
}

// carrier returns the accessors of the worker that carries out a plan.
func (w *world) carrier(plan entry) *state.Accessor {
	machine, err := names.ParseMachineTag(plan.machine)
	w.must(err)
	return w.ForMachine(machine)
}

// entries returns the index entries of all workers.
func (w *world) entries() (entries []entry) {
	for key := range w.dump() {
		parts := strings.Split(key, "/")
		switch {
		case parts[0] != "scope":
		case len(parts) == 4:
			entries = append(entries, entry{scope: parts[1], kind: parts[2], tag: parts[3]})
		default:
			entries = append(entries, entry{scope: parts[1], kind: parts[2], machine: parts[3], tag: parts[4]})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	return entries
}

func (w *world) dump() map[string]string {
	values := make(map[string]string)
	w.must(w.store.View(context.Background(), func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, data []byte) error {
			values[key] = string(data)
			return nil
		})
	}))
	return values
}

// lifeOf returns the life of an entity, attachment or plan, or "-" if it is gone.
func (w *world) lifeOf(e entry) life.Value {
	var result params.LifeResult
	switch {
	case e.kind == "plan":
		results, err := w.carrier(e).VolumeAttachmentPlans([]params.MachineStorageId{e.id()})
		w.must(err)
		result = params.LifeResult{Life: results[0].Result.Life, Error: results[0].Error}
	case e.machine != "":
		results, err := w.owner(e.parsed()).AttachmentLife([]params.MachineStorageId{e.id()})
		w.must(err)
		result = results[0]
	default:
		results, err := w.owner(e.parsed()).Life([]names.Tag{e.parsed()})
		w.must(err)
		result = results[0]
	}
	if params.IsCodeNotFound(asError(result.Error)) {
		return "-"
	}
	w.must(asError(result.Error))
	return result.Life
}

// remove removes an entity, attachment or plan.
func (w *world) remove(e entry) error {
	accessor := w.owner(e.parsed())
	switch {
	case e.kind == "plan":
		return single(w.carrier(e).RemoveVolumeAttachmentPlan([]params.MachineStorageId{e.id()}))
	case e.machine != "":
		return single(accessor.RemoveAttachments([]params.MachineStorageId{e.id()}))
	default:
		return single(accessor.Remove([]names.Tag{e.parsed()}))
	}
}

// provision records that an entity or attachment has been made. A recorded ID stays.
func (w *world) provision(e entry) error {
	accessor := w.owner(e.parsed())
	switch e.kind {
	case "volume":
		known, err := accessor.Volumes([]names.VolumeTag{e.parsed().(names.VolumeTag)})
		w.must(err)
		id := cmp.Or(known[0].Result.Info.VolumeId, "id-"+e.tag)
		return single(accessor.SetVolumeInfo([]params.Volume{{VolumeTag: e.tag, Info: params.VolumeInfo{VolumeId: id, Size: 128}}}))
	case "filesystem":
		known, err := accessor.Filesystems([]names.FilesystemTag{e.parsed().(names.FilesystemTag)})
		w.must(err)
		id := cmp.Or(known[0].Result.Info.FilesystemId, "id-"+e.tag)
		return single(accessor.SetFilesystemInfo([]params.Filesystem{{FilesystemTag: e.tag, Info: params.FilesystemInfo{FilesystemId: id, Size: 120}}}))
	case "volume-attachment":
		return single(accessor.SetVolumeAttachmentInfo([]params.VolumeAttachment{{
			VolumeTag: e.tag, MachineTag: e.machine, Info: params.VolumeAttachmentInfo{DeviceName: "dev-" + e.tag},
		}}))
	case "filesystem-attachment":
		return single(accessor.SetFilesystemAttachmentInfo([]params.FilesystemAttachment{{
			FilesystemTag: e.tag, MachineTag: e.machine, Info: params.FilesystemAttachmentInfo{MountPoint: "/mnt/" + e.tag},
		}}))
	}
	return nil
}

// plan records a plan for a volume and machine.
func (w *world) plan(e entry) error {
	return single(w.owner(e.parsed()).CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan{{
		VolumeTag: e.tag, MachineTag: e.machine, PlanInfo: params.VolumeAttachmentPlanInfo{DeviceType: storage.DeviceTypeISCSI},
	}}))
}

// work lets the workers finish their work: they make what is alive and remove the rest.
func (w *world) work() {
	w.t.Helper()
	for range 100 {
		busy := false
		for _, e := range w.entries() {
			switch w.lifeOf(e) {
			case life.Alive:
				// An entity may come before what it depends on: it is tried again.
				if err := w.provision(e); err != nil {
					busy = true
				} else if e.machine != "" && e.kind != "plan" {
					w.setStatus(e.tag, status.Attached, "")
				}
			case life.Dying:
				if e.machine != "" {
					w.must(w.remove(e))
				}
				busy = busy || e.machine != ""
			case life.Dead:
				w.must(w.remove(e))
				busy = true
			}
		}
		if !busy {
			return
		}
	}
	w.t.Error("the workers never finish")
}

func (w *world) setStatus(tag string, value status.Status, message string) {
	w.t.Helper()
	parsed, err := names.ParseTag(tag)
	w.must(err)
	w.must(w.owner(parsed).SetStatus([]params.EntityStatusArgs{{Tag: tag, Status: string(value), Info: message}}))
}

func (w *world) check() {
	w.t.Helper()
	for _, problem := range state.CheckStore(w.store) {
		w.t.Error(problem)
	}
}

// single returns the error of a bulk call with one argument.
func single(results []params.ErrorResult, err error) error {
	if err != nil {
		return err
	}
	return asError(results[0].Error)
}

// asError converts a nil *params.Error to a nil error.
func asError(err *params.Error) error {
	if err == nil {
		return nil
	}
	return err
}

// wantError checks an error's kind, and that its text has all of says.
func wantError(t testing.TB, err error, kind error, says ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v, want one that is %v", err, kind)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	if err == nil || params.ErrCode(err) != code {
		t.Errorf("error is %v (code %q), want code %q", err, params.ErrCode(err), code)
	}
}

func filePath(t testing.TB) string { return filepath.Join(t.TempDir(), "state") }

// move moves instances to a machine.
func (w *world) move(names []string, machine names.MachineTag) error {
	moves := make([]state.Attach, len(names))
	for i, name := range names {
		moves[i] = state.Attach{Name: name, Machine: machine}
	}
	return w.MoveStorage(moves...)
}
