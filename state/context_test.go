package state_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// The context of a volume is kept until the volume is removed, also before the volume itself is recorded.
func TestVolumeContexts(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	volume := w.one("a").Volume.Tag.(names.VolumeTag)
	st := w.owner(volume)
	set := func(context map[string]string) error {
		t.Helper()
		results, err := st.SetVolumeContexts([]params.VolumeContext{{VolumeTag: volume.String(), Context: context}})
		w.must(err)
		if e := results[0].Error; e != nil {
			return params.TranslateWellKnownError(e)
		}
		return nil
	}
	want := func(want map[string]string) {
		t.Helper()
		results, err := st.VolumeContexts([]names.VolumeTag{volume, names.NewVolumeTag("99")})
		w.must(err)
		if got := results[0].Result; results[0].Error != nil || got.VolumeTag != volume.String() || !maps.Equal(got.Context, want) {
			t.Errorf("context %v (%v), want %v", got, results[0].Error, want)
		}
		if !params.IsCodeNotFound(results[1].Error) {
			t.Errorf("of a volume that does not exist: %v", results[1])
		}
	}
	want(nil)
	w.must(set(map[string]string{"portal": "10.0.0.1"}))
	want(map[string]string{"portal": "10.0.0.1"})
	if err := set(map[string]string{"a": strings.Repeat("x", 4096)}); !errors.Is(err, errors.NotValid) {
		t.Errorf("a context that is too large: %v", err)
	}
	w.must(set(map[string]string{"portal": "10.0.0.2"}))
	want(map[string]string{"portal": "10.0.0.2"})
	w.check()
}

// Beside servers that know snapshots and no contexts of volumes, contexts are refused.
func TestVolumeContextsOfSharedSchema(t *testing.T) {
	w := &world{t: t, store: olderStore(t, 9), clock: testclock.NewClock(start)}
	st, err := state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: commonRegistry(), KeepSchema: true})
	w.must(err)
	w.State = st
	t.Cleanup(w.close)
	w.must(w.EnsureMachine(machine0))
	w.add("a", "loop", storage.StorageKindBlock)
	volume := w.one("a").Volume.Tag.(names.VolumeTag)
	results, err := w.owner(volume).SetVolumeContexts([]params.VolumeContext{{VolumeTag: volume.String(), Context: map[string]string{"a": "b"}}})
	w.must(err)
	if e := results[0].Error; e == nil || !strings.Contains(e.Message, "storage of CSI drivers that any machine can have can be used once") {
		t.Errorf("recording a context: %v", e)
	}
	wantSchema(w, 9)
}
