package state_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// claim records a claim for existing storage.
func (w *world) claim(name, storage string, change func(*state.ClaimRequest)) error {
	c := state.Claim{Name: name, Storage: storage, Request: state.ClaimRequest{
		Selector: map[string]string{"tier": "fast"}, Size: 100, Kind: block, AccessMode: "ReadWriteOnce", Machine: "any",
	}}
	if change != nil {
		change(&c.Request)
	}
	return w.Apply(state.Changes{Claim: []state.Claim{c}})
}

func (w *world) unclaim(name string) error { return w.Apply(state.Changes{Unclaim: []string{name}}) }

func deletes(r *state.ClaimRequest) { r.Delete = true }

// wantClaim compares who has storage.
func (w *world) wantClaim(name, claim string, retained bool) {
	w.t.Helper()
	if s := w.one(name); s.Claim != claim || s.Retained != retained {
		w.t.Errorf("storage %s is of claim %q, retained %t; want %q, %t", name, s.Claim, s.Retained, claim, retained)
	}
}

// A claim and its storage are kept until the claim is removed.
func TestClaimIsKept(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", block)
	before := w.one("data").Revision
	all := state.Claim{Name: "db", Storage: "data", Request: state.ClaimRequest{
		Pool: "loop", Selector: map[string]string{"tier": "fast"}, Size: 90, Kind: filesystem, AccessMode: "ReadWriteOnce",
		Machine: "any", MachineLabels: map[string]string{"zone": "a"}, MountPoint: "/srv/db", Delete: true,
	}}
	w.must(w.Apply(state.Changes{Claim: []state.Claim{all}}))
	w.open()
	if got, err := w.Claim("db"); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%+v, %v; want %+v", got, err, all)
	}
	if got, err := w.Claims(); err != nil || !reflect.DeepEqual(got, []state.Claim{all}) {
		t.Errorf("all: %+v, %v", got, err)
	}
	w.wantClaim("data", "db", false)
	if w.one("data").Revision == before {
		t.Error("the revision of the storage does not tell that it is claimed")
	}
	_, err := w.Claim("none")
	wantError(t, err, errors.NotFound, `claim "none"`)
	wantError(t, w.unclaim("none"), errors.NotFound, `claim "none"`)
}

// Storage that a claim has is removed or released only through the claim.
func TestClaimedStorageIsNotRemoved(t *testing.T) {
	w := newWorld(t)
	w.add("data", "disk", block)
	w.work()
	w.must(w.claim("db", "data", nil))
	const remedy = "it belongs to claim \"db\": delete the claim, with `stowage unclaim db`"
	wantError(t, w.RemoveStorage([]string{"data"}), errors.NotValid, `removing storage "data": `+remedy)
	wantError(t, w.ReleaseStorage([]string{"data"}), errors.NotValid, `releasing storage "data": `+remedy)
	wantError(t, w.Apply(state.Changes{Offer: []string{"data"}}), errors.NotValid, `offering storage "data": `+remedy)
	w.must(w.DetachStorage([]string{"data"}))
	w.work()
	w.must(w.AttachStorage([]string{"data"}, machine1))
	w.work()
	w.wantAttached("data", machine1)
	w.wantClaim("data", "db", false)
}

// Storage of a claim that deletes it goes away with the claim, whose name can be used again.
func TestUnclaimDeletes(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", block)
	w.work()
	w.must(w.claim("db", "data", deletes))
	w.must(w.unclaim("db"))
	if got := w.one("data").Life; got != life.Dying {
		t.Errorf("the storage is %s", got)
	}
	wantError(t, w.claim("db", "data", nil), state.ErrChanged, "claimed or removed")
	w.work()
	if all, err := w.AllStorage(); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
	if all, err := w.Claims(); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
	w.add("data", "loop", block)
	w.must(w.claim("db", "data", nil))
}

// Storage that a claim retains is for no other claim until it is offered.
func TestUnclaimRetains(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", block)
	w.work()
	w.must(w.claim("db", "data", nil))
	w.must(w.unclaim("db"))
	w.wantClaim("data", "db", true)
	if got := w.one("data"); got.Life != life.Alive || len(got.Attachments) != 1 {
		t.Errorf("the storage is not as it was: %+v", got)
	}
	wantError(t, w.claim("other", "data", nil), state.ErrChanged, "claimed or removed")
	wantError(t, w.claim("db", "data", nil), state.ErrChanged, "claimed or removed")
	w.must(w.Apply(state.Changes{Offer: []string{"data"}}))
	w.must(w.Apply(state.Changes{Offer: []string{"data"}})) // it can be repeated
	w.wantClaim("data", "", false)
	w.must(w.claim("other", "data", nil))
	w.must(w.unclaim("other"))
	w.must(w.RemoveStorage([]string{"data"}))
	w.work()
	if all, err := w.AllStorage(); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

// A claim is lost with its storage, and does not get storage that is added with the same name.
func TestClaimIsLost(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", block)
	w.work()
	w.must(w.claim("db", "data", deletes))
	w.must(w.RemoveMachine(machine0, "data"))
	wantLost := func() {
		t.Helper()
		if got, err := w.Claim("db"); err != nil || !got.Lost || got.Storage != "data" {
			t.Errorf("%+v, %v; want a lost claim", got, err)
		}
	}
	wantLost()
	w.must(w.AddStorage(state.StorageParams{Name: "data", Kind: block, Pool: "loop", Size: 100, Machine: machine1}))
	wantLost()
	w.must(w.unclaim("db"))
	if got := w.one("data"); got.Life != life.Alive || got.Claim != "" {
		t.Errorf("removing the claim has changed the storage of another: %+v", got)
	}
}

// A claim, and the storage that is made for it, are recorded together or not at all.
func TestClaimWithNewStorage(t *testing.T) {
	w := newWorld(t)
	add := state.StorageParams{Name: "db", Kind: block, Pool: "loop", Size: 100, Machine: machine0, Labels: map[string]string{"tier": "fast"}}
	c := state.Claim{Name: "db", Storage: "db", Request: state.ClaimRequest{Pool: "loop", Size: 100, Kind: block}}
	w.must(w.Apply(state.Changes{Add: []state.StorageParams{add}, Claim: []state.Claim{c}}))
	w.wantClaim("db", "db", false)
	for _, bad := range []state.Claim{{Name: "db", Storage: "new"}, {Name: "Bad", Storage: "new"}, {Name: "more", Storage: "db"}, {Name: "more", Storage: "none"}} {
		add.Name = "new"
		if err := w.Apply(state.Changes{Add: []state.StorageParams{add}, Claim: []state.Claim{bad}}); err == nil || !strings.Contains(err.Error(), `claim "`+bad.Name+`"`) {
			t.Errorf("claim %+v: %v", bad, err)
		}
	}
	if all, err := w.AllStorage(); err != nil || len(all) != 1 {
		t.Errorf("storage was added for claims that failed: %+v, %v", all, err)
	}
	if all, err := w.Claims(); err != nil || len(all) != 1 {
		t.Errorf("claims: %+v, %v", all, err)
	}
}

// Claims that are made at the same time never get the same storage.
func TestConcurrentClaims(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *world{
		"shared":  newWorld,
		"in file": func(t testing.TB) *world { return newFileWorld(t, filepath.Join(t.TempDir(), "state")) },
	} {
		t.Run(name, func(t *testing.T) {
			const instances, claims = 8, 24
			w := open(t)
			for n := range instances {
				w.add(fmt.Sprintf("data%d", n), "loop", block)
			}
			var group sync.WaitGroup
			errs := make([]error, claims)
			for n := range claims {
				group.Go(func() {
					for i := range instances { // all want the first that nobody has
						if errs[n] = w.claim(fmt.Sprintf("c%d", n), fmt.Sprintf("data%d", i), nil); errs[n] == nil {
							return
						}
					}
				})
			}
			group.Wait()
			made := 0
			for n, err := range errs {
				if err == nil {
					made++
				} else if !errors.Is(err, state.ErrChanged) {
					t.Errorf("claim %d: %v", n, err)
				}
			}
			all, err := w.Claims()
			if err != nil || len(all) != instances || made != instances {
				t.Fatalf("%d claims were made and %d are there, %v; want %d", made, len(all), err, instances)
			}
			has := map[string]string{}
			for _, c := range all {
				if other, ok := has[c.Storage]; ok {
					t.Errorf("%s belongs to claims %s and %s", c.Storage, other, c.Name)
				}
				has[c.Storage] = c.Name
				w.wantClaim(c.Storage, c.Name, false)
			}
		})
	}
}

// A claim that is to destroy its storage cannot have storage that its provider does not delete.
func TestClaimOfStorageThatIsNotDeleted(t *testing.T) {
	w := newWorld(t)
	params := state.StorageParams{Name: "kept", Kind: block, Pool: "vault", Size: 200, Machine: machine0, Source: "/srv/kept"}
	_, err := w.PrepareImport(params)
	w.must(err)
	w.must(w.ImportVolume(params, storage.VolumeInfo{VolumeId: "id", Size: 200}))
	wantError(t, w.claim("db", "kept", deletes), errors.NotSupported, `claim "db": claiming storage "kept": provider "vault" deletes no block storage: the claim can only retain it`)
	w.wantClaim("kept", "", false)
	w.must(w.claim("db", "kept", nil))
	w.must(w.unclaim("db"))
	w.wantClaim("kept", "db", true)
	w.must(w.ReleaseStorage([]string{"kept"}))
	w.check()
}

// The events of storage tell who had it, and which labels it got.
func TestClaimEvents(t *testing.T) {
	w := newWorld(t)
	w.add("data", "loop", block)
	seen := len(strings.Split(w.eventsOf("data", 0), "\n"))
	ask := func(c state.Changes) {
		t.Helper()
		c.By = "alice"
		w.must(w.Apply(c))
	}
	ask(state.Changes{Label: []state.Label{{Name: "data", Labels: map[string]string{"zone": "a", "tier": "fast"}}}})
	ask(state.Changes{Claim: []state.Claim{{Name: "db", Storage: "data"}}})
	ask(state.Changes{Unclaim: []string{"db"}})
	ask(state.Changes{Offer: []string{"data"}})
	ask(state.Changes{Claim: []state.Claim{{Name: "cache", Storage: "data", Request: state.ClaimRequest{Delete: true}}}})
	ask(state.Changes{Label: []state.Label{{Name: "data"}}})
	seen = w.wantEvents("data", seen,
		"labelled tier=fast,zone=a by alice", "claimed db by alice", "unclaimed db by alice", "offered by alice", "claimed cache by alice",
		"labelled by alice")
	ask(state.Changes{Unclaim: []string{"cache"}})
	w.wantEvents("data", seen, "unclaimed cache by alice", "remove-wanted by alice")
}
