package takeover_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/takeover"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

const patience = time.Minute

// work starts the worker of the next server that has the lease.
func (w *world) work(source *source) (*lock, worker.Worker) {
	w.Helper()
	w.term++
	lease := &lock{term: w.term, done: make(chan struct{})}
	accessors := w.leader(lease)
	guard, err := takeover.New(takeover.Config{State: accessors, Machine: w.Machine, Lease: lease, Clock: w.clock})
	w.must(err)
	own := storage.VolumeSource(source)
	if w.backend.lists {
		own = lister{source}
	}
	started, err := storageprovisioner.New(storageprovisioner.Config{
		Scope: names.NewModelTag(w.UUID()),
		Clock: w.clock,
		Registry: guard.Registry(func(*config.Config) (storage.ProviderRegistry, error) {
			return registryOf(disk{source: own}), nil
		}),
	}.WithAccessors(accessors))
	w.must(err)
	return lease, started
}

// await waits until the only storage satisfies the condition.
func (w *world) await(what string, holds func(state.Storage) bool) {
	w.Helper()
	for end := time.Now().Add(patience); ; {
		all, err := w.Storage("it")
		w.must(err)
		if holds(all[0]) {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%s: the storage is %+v", what, all[0])
		}
		<-time.After(time.Millisecond)
	}
}

// A user moves a volume while a server that was replaced is paused in a call that attaches it where
// it was. The call comes late, and the volume is at no time attached to two machines.
// Fault F38.
func TestWorkersWithLateCall(t *testing.T) {
	for _, lists := range []bool{false, true} {
		t.Run(fmt.Sprintf("lists=%t", lists), func(t *testing.T) {
			w := newWorld(t)
			w.backend.lists = lists
			w.must(w.SetEnvironConfig(map[string]any{"name": "test", "type": "test", "uuid": w.UUID()}))
			w.must(w.SetInstanceId(machine0, "i-0"))
			w.must(w.SetInstanceId(machine1, "i-1"))
			w.addOn(machine0)
			results, err := w.ForEnviron().SetVolumeInfo([]params.Volume{{VolumeTag: volume0.String(), Info: params.VolumeInfo{VolumeId: id, Size: 1}}})
			w.must(err)
			if results[0].Error != nil {
				t.Fatal(results[0].Error)
			}
			first := &source{backend: w.backend, pause: make(chan chan struct{})}
			lease, paused := w.work(first)
			resume := <-first.pause
			lease.lose()

			_, second := w.work(&source{backend: w.backend})
			defer func() {
				second.Kill()
				w.must(second.Wait())
			}()
			w.await("not attached", func(s state.Storage) bool { return s.Status == "attached" })
			w.must(w.DetachStorage([]string{"it"}))
			w.await("not detached", func(s state.Storage) bool { return len(s.Attachments) == 0 })
			w.must(w.AttachStorage([]string{"it"}, machine1))
			w.await("the reason is not shown", func(s state.Storage) bool {
				return s.Status == "attaching" && strings.Contains(s.Message, "may still attach it to machine 0")
			})
			close(resume)
			if err := paused.Wait(); !errors.Is(err, kv.ErrLeaseLost) {
				t.Errorf("the server that was replaced: %v", err)
			}
			w.await("not attached elsewhere", func(s state.Storage) bool {
				w.clock.Advance(time.Second)
				return s.Status == "attached" && s.Attachments[0].Machine == machine1
			})
			if waited := w.clock.Now().Sub(time.Unix(1e9, 0)); waited <= time.Minute {
				t.Errorf("it was attached elsewhere after %s", waited)
			}
			w.wantNotes(0)
			w.backend.mu.Lock()
			defer w.backend.mu.Unlock()
			if got := w.backend.attached[id]; len(got) != 1 || got[0] != machine1 {
				t.Errorf("the volume is attached to %v", got)
			}
		})
	}
}
