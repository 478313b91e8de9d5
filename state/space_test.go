package state_test

import (
	"syscall"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// fullStore is a store on a disk that can be full.
type fullStore struct {
	kv.Store
	full bool
}

func (s *fullStore) CheckSpace() error {
	if s.full {
		return errors.Annotate(syscall.ENOSPC, "store")
	}
	return nil
}

func TestFullDiskRefusesNewStorage(t *testing.T) {
	store := &fullStore{Store: newStore(t)}
	w := openWorld(t, store)
	w.add("data", "loop", storage.StorageKindBlock)
	w.must(w.AddStorage(state.StorageParams{Name: "shared", Kind: storage.StorageKindBlock, Pool: "disk", Size: 100}))
	pools := poolmanager.New(w, registry(t))
	w.must(pools.Create("slow", "loop", nil))
	store.full = true

	block := state.StorageParams{Name: "more", Kind: storage.StorageKindBlock, Pool: "loop", Size: 1, Machine: machine0}
	source := block
	source.Source = "/srv/image"
	for what, do := range map[string]func() error{
		"add":     func() error { return w.AddStorage(block) },
		"resize":  func() error { return w.ResizeStorage("data", 200) },
		"pool":    func() error { return w.Apply(state.Changes{Pools: []state.Pool{{Name: "p", Provider: "loop"}}}) },
		"create":  func() error { return pools.Create("p", "loop", nil) },
		"replace": func() error { return pools.Replace("slow", "loop", storage.Attrs{"a": "b"}) },
		"prepare": func() error { _, err := w.PrepareImport(source); return err },
		"adopt":   func() error { return w.Adopt("more", nil) },
	} {
		if err := do(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s on a full disk: %v", what, err)
		}
	}

	// Recording, detaching and removing still work.
	results, err := w.ForMachine(machine0).SetVolumeInfo([]params.Volume{{
		VolumeTag: names.NewVolumeTag("0/0").String(), Info: params.VolumeInfo{VolumeId: "loop-1", Size: 100},
	}})
	if err != nil || len(results) != 1 || results[0].Error != nil {
		t.Errorf("recording on a full disk: %v, %v", results, err)
	}
	w.must(w.AttachStorage([]string{"shared"}, machine0))
	for what, do := range map[string]func() error{
		"detach": func() error { return w.DetachStorage([]string{"data"}) },
		"remove": func() error { return w.RemoveStorage([]string{"data", "shared"}) },
		// An agent applies its configuration file when it starts.
		"apply":       func() error { return w.Apply(state.Changes{}) },
		"open":        func() error { w.open(); return nil },
		"remove pool": func() error { return pools.Remove("slow") },
	} {
		if err := do(); err != nil {
			t.Errorf("%s on a full disk: %v", what, err)
		}
	}
	store.full = false
	w.must(w.AddStorage(block))
}
