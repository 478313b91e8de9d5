package backend

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock/testclock"
	"github.com/juju/names/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// countingStore counts the records that are read outside of transactions.
type countingStore struct {
	kv.Store
	reads int
}

func (s *countingStore) View(ctx context.Context, fn func(kv.Snapshot) error) error {
	return s.Store.View(ctx, func(snapshot kv.Snapshot) error { return fn(countingSnapshot{snapshot, s}) })
}

type countingSnapshot struct {
	kv.Snapshot
	store *countingStore
}

func (s countingSnapshot) Get(key string) ([]byte, error) {
	s.store.reads++
	return s.Snapshot.Get(key)
}

// tallyWorld is a backend with a state of machine 0.
type tallyWorld struct {
	testing.TB
	store *countingStore
	state *state.State
	clock *testclock.Clock
	*Backend
	registry *prometheus.Registry
}

func newTallyWorld(t testing.TB, server *Server) *tallyWorld {
	w := &tallyWorld{TB: t, store: &countingStore{Store: kvtest.NewMemory()}, clock: testclock.NewClock(time.Unix(1_700_000_000, 0)), registry: prometheus.NewPedanticRegistry()}
	var err error
	w.state, err = state.Open(state.Config{Store: w.store, Clock: w.clock, Registry: provider.CommonStorageProviders()})
	w.must(err)
	t.Cleanup(func() { w.must(w.state.Close()) })
	w.must(w.state.EnsureMachine(names.NewMachineTag("0")))
	dir := datadir.Dir(t.TempDir())
	w.must(os.MkdirAll(filepath.Join(dir.Storage(), "loop", "volumes"), 0o700))
	w.Backend = &Backend{state: w.state, dir: dir, config: Config{Server: server}}
	t.Cleanup(w.Close)
	w.registry.MustRegister(w.StorageMetrics())
	return w
}

func (w *tallyWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *tallyWorld) add(all ...state.StorageParams) {
	w.Helper()
	for i := range all {
		all[i].Machine = names.NewMachineTag("0")
		if all[i].Kind == 0 {
			all[i].Kind = storage.StorageKindBlock
		}
	}
	w.must(w.state.Apply(state.Changes{Add: all}))
}

// changed makes a change, and returns when metrics show it.
func (w *tallyWorld) changed(change func()) {
	w.Helper()
	j, err := w.openJournal()
	w.must(err)
	_, more := j.end()
	change()
	select {
	case <-more:
	case <-time.After(time.Minute):
		w.Fatal("the change is not in the journal")
	}
}

// made records that a volume is made.
func (w *tallyWorld) made(tag, id string, sizeMiB uint64) {
	w.Helper()
	results, err := w.state.ForMachine(names.NewMachineTag("0")).SetVolumeInfo([]params.Volume{{VolumeTag: tag, Info: params.VolumeInfo{VolumeId: id, Size: sizeMiB}}})
	w.must(err)
	if results[0].Error != nil {
		w.Fatal(results[0].Error)
	}
}

func (w *tallyWorld) want(text string, metrics ...string) {
	w.Helper()
	if err := testutil.GatherAndCompare(w.registry, strings.NewReader(text), metrics...); err != nil {
		w.Error(err)
	}
}

// Metrics count storage as users see it, and follow its changes.
func TestMetricsOfStorage(t *testing.T) {
	w := newTallyWorld(t, nil)
	w.add(
		state.StorageParams{Name: "thick", Pool: "loop", Size: 8},
		state.StorageParams{Name: "thin", Pool: "loop", Size: 4, Attributes: map[string]any{"allocation": "thin"}},
		state.StorageParams{Name: "unmade", Pool: "loop", Size: 2},
		state.StorageParams{Name: "memory", Pool: "tmpfs", Kind: storage.StorageKindFilesystem, Size: 1},
	)
	file, err := os.Create(provider.LoopVolumePath(filepath.Join(w.dir.Storage(), "loop"), "thin"))
	w.must(err)
	w.must(file.Truncate(4 << 20)) // it takes no space
	w.must(file.Close())
	w.made("volume-0-0", "thick", 9) // more than wanted
	w.made("volume-0-1", "thin", 4)
	const about = `# HELP stowage_storage_instances Storage instances, by pool, kind and status.
# TYPE stowage_storage_instances gauge
`
	w.want(about+`stowage_storage_instances{kind="block",pool="loop",status="attached"} 0
stowage_storage_instances{kind="block",pool="loop",status="attaching"} 0
stowage_storage_instances{kind="block",pool="loop",status="destroying"} 0
stowage_storage_instances{kind="block",pool="loop",status="detached"} 0
stowage_storage_instances{kind="block",pool="loop",status="detaching"} 0
stowage_storage_instances{kind="block",pool="loop",status="error"} 0
stowage_storage_instances{kind="block",pool="loop",status="pending"} 3
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="attached"} 0
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="attaching"} 0
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="destroying"} 0
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="detached"} 0
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="detaching"} 0
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="error"} 0
stowage_storage_instances{kind="filesystem",pool="tmpfs",status="pending"} 1
# HELP stowage_storage_made_bytes The sizes of what has been made, by pool.
# TYPE stowage_storage_made_bytes gauge
stowage_storage_made_bytes{pool="loop"} 1.3631488e+07
stowage_storage_made_bytes{pool="tmpfs"} 0
# HELP stowage_storage_used_bytes The space that loop volumes take in the filesystem that they are on, by pool.
# TYPE stowage_storage_used_bytes gauge
stowage_storage_used_bytes{pool="loop"} 9.437184e+06
# HELP stowage_storage_wanted_bytes The sizes that users want, by pool.
# TYPE stowage_storage_wanted_bytes gauge
stowage_storage_wanted_bytes{pool="loop"} 1.4680064e+07
stowage_storage_wanted_bytes{pool="tmpfs"} 1.048576e+06
# HELP stowage_host_thin_promised_bytes Space that thin volumes may still allocate: their sizes, less what their files have allocated.
# TYPE stowage_host_thin_promised_bytes gauge
stowage_host_thin_promised_bytes 4.194304e+06
# HELP stowage_storage_oldest_timestamp_seconds The time since which the status and message of some storage with this status have not changed, in seconds since 1970: the earliest.
# TYPE stowage_storage_oldest_timestamp_seconds gauge
stowage_storage_oldest_timestamp_seconds{status="pending"} 1.7e+09
`, "stowage_storage_instances", "stowage_storage_made_bytes", "stowage_storage_used_bytes", "stowage_storage_wanted_bytes", "stowage_host_thin_promised_bytes", "stowage_storage_oldest_timestamp_seconds")

	w.clock.Advance(time.Minute)
	w.changed(func() {
		w.must(w.state.ForMachine(names.NewMachineTag("0")).SetStatus([]params.EntityStatusArgs{{Tag: "volume-0-2", Status: "error", Info: "no"}}))
	})
	w.want(`# HELP stowage_storage_oldest_timestamp_seconds The time since which the status and message of some storage with this status have not changed, in seconds since 1970: the earliest.
# TYPE stowage_storage_oldest_timestamp_seconds gauge
stowage_storage_oldest_timestamp_seconds{status="error"} 1.70000006e+09
stowage_storage_oldest_timestamp_seconds{status="pending"} 1.7e+09
`, "stowage_storage_oldest_timestamp_seconds")
	w.changed(func() { w.must(w.state.Apply(state.Changes{Remove: []string{"memory"}})) })
	found, _, err := w.state.FindStorage("memory")
	w.must(err)
	tag, at := found[0].Filesystem.Tag, names.NewMachineTag("0")
	w.changed(func() {
		_, err := w.state.ForMachine(at).RemoveAttachments([]params.MachineStorageId{{MachineTag: at.String(), AttachmentTag: tag.String()}})
		w.must(err)
	})
	w.changed(func() {
		_, err := w.state.ForMachine(at).Remove([]names.Tag{tag})
		w.must(err)
	})
	w.want(`# HELP stowage_storage_wanted_bytes The sizes that users want, by pool.
# TYPE stowage_storage_wanted_bytes gauge
stowage_storage_wanted_bytes{pool="loop"} 1.4680064e+07
`, "stowage_storage_wanted_bytes")

	problems, err := testutil.GatherAndLint(w.registry)
	w.must(err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A server has no space of its own, so it measures none.
func TestMetricsOfServerMeasureNoHost(t *testing.T) {
	w := newTallyWorld(t, &Server{})
	w.add(state.StorageParams{Name: "thin", Pool: "loop", Size: 4, Attributes: map[string]any{"allocation": "thin"}})
	w.made("volume-0-0", "thin", 4)
	w.want("", "stowage_storage_used_bytes", "stowage_host_size_bytes", "stowage_host_free_bytes", "stowage_host_thin_promised_bytes")
	w.want(`# HELP stowage_storage_made_bytes The sizes of what has been made, by pool.
# TYPE stowage_storage_made_bytes gauge
stowage_storage_made_bytes{pool="loop"} 4.194304e+06
`, "stowage_storage_made_bytes")
}

// A scrape costs what has changed since the last one, however much storage there is.
func TestMetricsReadWhatChanged(t *testing.T) {
	w := newTallyWorld(t, nil)
	all := make([]state.StorageParams, 500)
	for i := range all {
		all[i] = state.StorageParams{Name: fmt.Sprint("s", i), Pool: "loop", Size: 1}
	}
	w.add(all...)
	scrape := func() int {
		t.Helper()
		before := w.store.reads
		_, err := w.registry.Gather()
		w.must(err)
		return w.store.reads - before
	}
	first := scrape()
	if again := scrape(); again != 0 {
		t.Errorf("without a change, %d records are read; at first %d", again, first)
	}
	w.changed(func() { w.add(state.StorageParams{Name: "more", Pool: "loop", Size: 1}) })
	if one := scrape(); one == 0 || one > 10 {
		t.Errorf("for one change, %d records are read; at first %d", one, first)
	}
	// A journal that has lost changes, or that is another one, says nothing of what was counted.
	w.journal.add(make([]change, 2*maxChanges+1))
	if all := scrape(); all < first {
		t.Errorf("after changes that the journal has lost, %d records are read, at first %d", all, first)
	}
}

// BenchmarkScrape measures requests of Prometheus with 10,000 instances: the first one, and further ones
// without a change between them.
func BenchmarkScrape(b *testing.B) {
	w := newTallyWorld(b, nil)
	all := make([]state.StorageParams, 10_000)
	for i := range all {
		all[i] = state.StorageParams{Name: fmt.Sprint("s", i), Pool: "loop", Size: 1}
	}
	w.add(all...)
	for _, name := range []string{"first", "unchanged"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				registry := w.registry
				if name == "first" {
					registry = prometheus.NewRegistry()
					registry.MustRegister(w.StorageMetrics())
				}
				if _, err := registry.Gather(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
