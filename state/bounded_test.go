package state_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// boundedStore refuses transactions that read or write more keys than it allows.
type boundedStore struct {
	kv.Store
	keys int // 0: any number
	// failAfter is how many transactions succeed before one fails; 0: none fails.
	failAfter int
	// between is called before each transaction.
	between func()
}

// runBetween calls between.
func (s *boundedStore) runBetween() {
	if between := s.between; between != nil {
		s.between = nil // it makes transactions of its own
		defer func() { s.between = between }()
		between()
	}
}

func (s *boundedStore) MaxKeys() int { return s.keys }

func (s *boundedStore) Update(ctx context.Context, fn func(kv.Tx) error) error {
	s.runBetween()
	if s.failAfter > 0 {
		if s.failAfter--; s.failAfter == 0 {
			return errNoMore
		}
	}
	return s.Store.Update(ctx, func(tx kv.Tx) error {
		counting := &countingTx{tx, make(map[string]bool), make(map[string]bool)}
		err := fn(counting)
		if n := max(len(counting.read), len(counting.written)); s.keys > 0 && n > s.keys {
			return errors.Errorf("a transaction of %d keys", n)
		}
		return err
	})
}

const errNoMore = errors.ConstError("no more transactions")

type countingTx struct {
	kv.Tx
	read, written map[string]bool
}

func (tx *countingTx) Get(key string) ([]byte, error) {
	tx.read[key] = true
	return tx.Tx.Get(key)
}

func (tx *countingTx) Put(key string, value []byte) error {
	tx.written[key] = true
	return tx.Tx.Put(key, value)
}

func (tx *countingTx) Delete(key string) error {
	tx.written[key] = true
	return tx.Tx.Delete(key)
}

// Bulk calls of accessors are divided into transactions that the store allows.
func TestBulkCallsOfBoundedStore(t *testing.T) {
	store := &boundedStore{Store: newStore(t)}
	w := openWorld(t, store)
	const n = 20
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("data-%d", i))
		w.add(all[i], "loop", storage.StorageKindBlock)
	}
	store.keys = 40
	a := w.ForMachine(machine0)
	var volumes []params.Volume
	var attachments []params.VolumeAttachment
	var ids []params.MachineStorageId
	var statuses []params.EntityStatusArgs
	for i := range n {
		tag := names.NewVolumeTag(fmt.Sprintf("0/%d", i)).String()
		volumes = append(volumes, params.Volume{VolumeTag: tag, Info: params.VolumeInfo{VolumeId: "id-" + tag, Size: 1}})
		attachments = append(attachments, params.VolumeAttachment{VolumeTag: tag, MachineTag: machine0.String(), Info: params.VolumeAttachmentInfo{DeviceName: fmt.Sprint("loop", i)}})
		ids = append(ids, params.MachineStorageId{MachineTag: machine0.String(), AttachmentTag: tag})
		statuses = append(statuses, params.EntityStatusArgs{Tag: tag, Status: "attached"})
	}
	checkEach := func(results []params.ErrorResult, err error) {
		t.Helper()
		w.must(err)
		if len(results) != n {
			t.Errorf("%d results, want %d", len(results), n)
		}
		for i, r := range results {
			if r.Error != nil {
				t.Errorf("%d: %v", i, r.Error)
			}
		}
	}
	checkEach(a.SetVolumeInfo(volumes))
	checkEach(a.SetVolumeAttachmentInfo(attachments))
	w.must(a.SetStatus(statuses))
	found, err := a.VolumeAttachments(ids)
	w.must(err)
	for i, r := range found {
		if r.Error != nil || r.Result.Info.DeviceName != attachments[i].Info.DeviceName {
			t.Errorf("attachment %d is %+v", i, r)
		}
	}
	for _, name := range all {
		w.must(w.RemoveStorage([]string{name}))
	}
	checkEach(a.RemoveAttachments(ids))
}

// A machine with much storage is fenced in transactions that the store allows. What an interruption
// has left is done later.
func TestFenceOfBoundedStore(t *testing.T) {
	store := &boundedStore{Store: newStore(t)}
	w := openWorld(t, store)
	var all []string
	for i := range 5 {
		all = append(all, fmt.Sprintf("data-%d", i))
		w.add(all[i], "disk", storage.StorageKindFilesystem)
	}
	w.work()
	store.keys, store.failAfter = 40, 4
	wantError(t, w.FenceMachine(machine0), errNoMore, "fencing machine 0")
	attached := 0
	for _, name := range all {
		if a := w.one(name).Attachments; len(a) > 0 && a[0].Life == life.Alive {
			attached++
		}
	}
	if attached == 0 || attached == len(all) {
		t.Errorf("%d of %d filesystems are still attached", attached, len(all))
	}
	w.must(w.FinishFences())
	for _, name := range all {
		w.wantAttached(name, nowhere)
	}
	w.must(w.FinishFences())
	w.check()
}

// A machine with much storage is removed in transactions that the store allows. What an interruption has
// left is removed when that is asked for again.
func TestRemoveMachineOfBoundedStore(t *testing.T) {
	store := &boundedStore{Store: newStore(t)}
	w := openWorld(t, store)
	var lost []string
	for i := range 5 {
		lost = append(lost, fmt.Sprintf("data-%d", i))
		w.add(lost[i], "loop", storage.StorageKindFilesystem)
	}
	w.add("shared", "disk", storage.StorageKindBlock)
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sda"}, {DeviceName: "sdb"}}))
	w.work()
	store.keys, store.failAfter = 40, 5
	lost = append(lost, "shared")
	wantError(t, w.RemoveMachine(machine0, lost...), errNoMore, "removing machine 0")
	found, missing, err := w.FindStorage(lost...)
	w.must(err)
	if len(found) == 0 || len(missing) == 0 {
		t.Errorf("after an interruption, %d are left and %d are removed", len(found), len(missing))
	}
	lost, err = w.LostWith(machine0)
	w.must(err)
	w.must(w.RemoveMachine(machine0, lost...))
	wantError(t, w.RemoveMachine(machine0), errors.NotFound, "removing machine 0")
	w.work()
	if _, missing, err = w.FindStorage(lost...); err != nil || len(missing) != len(lost) {
		t.Errorf("of %q, %q are removed, %v", lost, missing, err)
	}
	w.check()
}

// A machine that returns while it is removed, before any of the transactions, stays: its agent may have
// attached storage.
func TestMachineReturnsWhileItIsRemoved(t *testing.T) {
	for after := 2; after <= 3; after++ { // the first one fences it
		store := &boundedStore{Store: newStore(t)}
		w := openWorld(t, store)
		w.add("data", "loop", storage.StorageKindBlock)
		w.work()
		n := 0
		store.between = func() {
			if n++; n == after {
				_, err := w.OpenSession(machine0, nil, "another boot")
				w.must(err)
			}
		}
		wantError(t, w.RemoveMachine(machine0, "data"), errors.NotValid, "it has returned while it was removed")
		if _, err := w.Machine(machine0); err != nil {
			t.Errorf("it is gone: %v", err)
		}
		store.between = nil
		_, missing, err := w.FindStorage("data")
		w.must(err)
		w.must(w.RemoveMachine(machine0, map[bool][]string{false: {"data"}}[len(missing) > 0]...))
		w.check()
	}
}

// A state begins a generation in transactions that the store allows. After an interruption, it does so
// from the beginning.
func TestRaiseGenerationOfBoundedStore(t *testing.T) {
	store := &boundedStore{Store: newStore(t)}
	w := openWorld(t, store)
	var all []string
	for i := range 5 {
		all = append(all, fmt.Sprintf("data-%d", i))
		w.add(all[i], "loop", storage.StorageKindFilesystem)
	}
	w.work()
	before := w.Generation()
	store.keys, store.failAfter = 40, 3
	wantError(t, w.RaiseGeneration(), errNoMore, "raising the generation")
	if now := w.Generation(); now != before {
		t.Errorf("after an interruption, the generation is %d, was %d", now, before)
	}
	w.must(w.RaiseGeneration())
	if now := w.Generation(); now != before+1 {
		t.Errorf("the generation is %d, was %d", now, before)
	}
	for _, name := range all {
		if got := w.one(name).Status; got != status.Attaching {
			t.Errorf("%s is %s", name, got)
		}
	}
	w.check()
}

// One object among many is adopted in a transaction that the store allows.
func TestAdoptInBoundedStore(t *testing.T) {
	store := &boundedStore{Store: newStore(t)}
	w := openWorld(t, store)
	for i := range 20 {
		w.add(fmt.Sprintf("data-%d", i), "loop", storage.StorageKindBlock)
	}
	w.work()
	store.keys = 40
	w.must(w.Adopt("found", []state.Recovered{{
		Of: storage.StorageKindBlock, Kind: storage.StorageKindBlock, Provider: "loop", ProviderID: "found", Size: 1, Machine: machine0,
		Owner: storage.Owner{ModelUUID: w.UUID(), EntityUUID: "7d2d0d4c-0d55-4b73-8a1c-8ca1ee3d3b0d"},
	}}))
	if got := w.one("found").Volume.ProviderID; got != "found" {
		t.Errorf("the volume is %q", got)
	}
	w.check()
}
