package state_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// boundedStore refuses transactions that read or write more keys than it allows.
type boundedStore struct {
	kv.Store
	keys int // 0: any number
	// failAfter is how many transactions succeed before one fails; 0: none fails.
	failAfter int
}

func (s *boundedStore) MaxKeys() int { return s.keys }

func (s *boundedStore) Update(ctx context.Context, fn func(kv.Tx) error) error {
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
