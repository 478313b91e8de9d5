package state_test

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

var _ poolmanager.Store = (*state.State)(nil)

// SetPool makes or replaces a pool.
func (w *world) SetPool(name string, provider storage.ProviderType, attributes map[string]any) error {
	return w.Apply(state.Changes{Pools: []state.Pool{{Name: name, Provider: provider, Attributes: attributes}}})
}

func (w *world) poolManager() *poolmanager.Manager {
	return poolmanager.New(w.State, registry(w.t))
}

func TestPools(t *testing.T) {
	w := newWorld(t)
	pools := w.poolManager()
	poolNames := func() (all []string) {
		list, err := pools.List()
		w.must(err)
		for _, p := range list {
			all = append(all, p.Name())
		}
		return all
	}
	if got := poolNames(); !slices.Equal(got, []string{"disk", "loop", "maas", "nfs", "share", "ssd", "tmpfs", "vault"}) {
		t.Errorf("a new state has pools %q", got)
	}
	wantError(t, w.SetPool("no good", "loop", nil), errors.NotValid, `"no good"`)
	wantError(t, w.SetPool("loop", "loop", nil), errors.NotValid, `"loop"`, "default")
	wantError(t, w.SetPool("ssd", "loop", nil), errors.NotValid, `"ssd"`, "default")
	wantError(t, w.SetPool("fast", "none", nil), errors.NotFound, `"fast"`, `"none"`)
	wantError(t, w.SetPool("fast", "loop", map[string]any{"bad": "x"}), errors.NotValid, `"fast"`, "bad")
	wantError(t, pools.Remove("fast"), errors.NotFound, `"fast"`)
	wantError(t, pools.Remove("ssd"), errors.NotValid, `"ssd"`, "default")
	_, err := pools.Get("fast")
	wantError(t, err, errors.NotFound, `"fast"`)

	w.must(w.SetPool("fast", "loop", map[string]any{"fs": "ext4", "tier": "one"}))
	w.must(w.AddStorage(state.StorageParams{
		Name: "it", Kind: filesystem, Pool: "fast", Size: 1, Machine: machine0, Attributes: map[string]any{"fs": "xfs"},
	}))
	wantError(t, pools.Remove("fast"), errors.NotValid, `"fast"`, "in use")
	wantError(t, w.SetPool("fast", "disk", nil), errors.NotValid, `"fast"`, "in use", `"loop"`)
	wantError(t, pools.Replace("fast", "disk", nil), errors.NotValid, `"fast"`, "in use", `"loop"`)
	w.must(w.SetPool("fast", "loop", map[string]any{"tier": "two"}))
	pool, err := pools.Get("fast")
	w.must(err)
	if tier, _ := pool.ValueString("tier"); pool.Provider() != "loop" || tier != "two" || pool.Default {
		t.Errorf("the pool is %+v", pool)
	}
	if s := w.one("it"); s.Provider != "loop" || s.Attributes["fs"] != "xfs" || s.Attributes["tier"] != "one" {
		t.Errorf("existing storage has changed with its pool: %+v", s)
	}
	wantError(t, pools.Remove("fast"), errors.NotValid, `"fast"`, "in use")
	w.must(w.RemoveStorage([]string{"it"}))
	wantError(t, pools.Remove("fast"), errors.NotValid, `"fast"`, "in use")
	w.work()
	w.must(pools.Replace("fast", "disk", nil))
	w.must(pools.Remove("fast"))
	if got := poolNames(); slices.Contains(got, "fast") {
		t.Errorf("the pool is still among %q", got)
	}
}

func TestRemovePoolsAllOrNone(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b"} {
		w.must(w.SetPool(name, "loop", nil))
	}
	before := w.dump()
	wantError(t, w.poolManager().Remove("a", "b", "none"), errors.NotFound, `"none"`)
	if after := w.dump(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the store is\n%v\nwant\n%v", after, before)
	}
	w.must(w.poolManager().Remove("a", "b"))
}

// The first request wins: either the pool is removed before it is used, or it is in use and
// stays.
func TestRemovePoolRacesWithAddStorage(t *testing.T) {
	w := newWorld(t)
	for n := range 50 {
		pool, name := fmt.Sprintf("p%d", n), fmt.Sprintf("s%d", n)
		w.must(w.SetPool(pool, "loop", nil))
		var removed, added error
		var both sync.WaitGroup
		both.Go(func() { removed = w.poolManager().Remove(pool) })
		both.Go(func() {
			added = w.AddStorage(state.StorageParams{Name: name, Kind: block, Pool: pool, Size: 1, Machine: machine0})
		})
		both.Wait()
		switch {
		case removed == nil:
			wantError(t, added, errors.NotFound, pool)
		case added == nil:
			wantError(t, removed, errors.NotValid, pool, "in use")
		default:
			t.Errorf("removed: %v, added: %v", removed, added)
		}
	}
}

// Parameters name the pool, with its current attributes, where the provider has a source for
// each pool.
func TestParamsHaveCurrentPool(t *testing.T) {
	w := newWorld(t)
	w.must(w.SetPool("rack", "maas", storage.Attrs{"zone": "one"}))
	w.add("of-a-pool", "rack", block)
	w.add("of-the-default-pool", "maas", block)
	w.add("of-one-source", "disk", block)
	w.must(w.SetPool("rack", "maas", storage.Attrs{"zone": "two"})) // the current attributes count
	pools := []*params.Pool{
		{Name: "rack", Attributes: map[string]any{"zone": "two"}}, {Name: "maas", Attributes: map[string]any{"zone": "default"}}, nil,
	}
	volumes := []names.VolumeTag{names.NewVolumeTag("0"), names.NewVolumeTag("1"), names.NewVolumeTag("2")}
	made, err := w.ForEnviron().VolumeParams(volumes)
	w.must(err)
	attached, err := w.ForEnviron().VolumeAttachmentParams([]params.MachineStorageId{
		on("machine-0", "volume-0"), on("machine-0", "volume-1"), on("machine-0", "volume-2"),
	})
	w.must(err)
	for _, v := range volumes {
		w.must(w.provision(entry{kind: "volume", tag: v.String()}))
	}
	w.must(w.RemoveStorage([]string{"of-a-pool", "of-the-default-pool", "of-one-source"}))
	for _, v := range volumes {
		w.must(w.remove(entry{kind: "volume-attachment", machine: "machine-0", tag: v.String()}))
	}
	removed, err := w.ForEnviron().RemoveVolumeParams(volumes)
	w.must(err)
	for n, want := range pools {
		for what, got := range map[string]*params.Pool{
			"made": made[n].Result.Pool, "made attached": made[n].Result.Attachment.Pool,
			"attached": attached[n].Result.Pool, "removed": removed[n].Result.Pool,
		} {
			if !reflect.DeepEqual(got, want) {
				t.Errorf("volume %d is %s with pool %+v, want %+v", n, what, got, want)
			}
		}
	}
}
