package backend

import (
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage/provider"
)

// StorageMetrics returns the metrics of the storage in the state and, in a process on a machine, of the host.
func (b *Backend) StorageMetrics() prometheus.Collector { return &tally{backend: b} }

// tally has what metrics say about each instance. It reads all instances once, and then only those
// that have changed since the metrics were last collected: a request of Prometheus must not cost more
// the more storage there is.
type tally struct {
	backend *Backend

	mu sync.Mutex
	// journal and at say up to which change counted is right; nil before the first request.
	journal *journal
	at      uint64
	counted map[string]counted
}

// counted is what metrics say about an instance.
type counted struct {
	pool, kind string
	status     status.Status
	since      time.Time
	// wantedMiB and madeMiB are the sizes that are wanted and made.
	wantedMiB, madeMiB uint64
	// isLoop says that the instance is a loop volume of this machine, and file is the path of a thin
	// one, which takes less than its size.
	isLoop bool
	file   string
}

// count returns what metrics say about storage.
func (t *tally) count(s *state.Storage) counted {
	c := counted{
		pool: s.Pool, kind: s.Kind.String(), status: s.Status, since: s.Since,
		wantedMiB: s.RequestedMiB,
	}
	if made := lowest(s); made != nil && made.ProviderID != "" {
		c.madeMiB = s.SizeMiB
	}
	if t.backend.isLocal() && s.Provider == provider.LoopProviderType && s.Volume != nil && s.Volume.ProviderID != "" {
		c.isLoop = true
		if isThin(*s) {
			c.file = provider.LoopVolumePath(filepath.Join(t.backend.dir.Storage(), string(provider.LoopProviderType)), s.Volume.ProviderID)
		}
	}
	return c
}

// lowest returns the entity that takes the space of storage: its volume, if it has one.
func lowest(s *state.Storage) *state.Entity {
	if s.Volume != nil {
		return s.Volume
	}
	return s.Filesystem
}

// update makes the tally that of the state.
func (t *tally) update() error {
	j, err := t.backend.openJournal()
	if err != nil {
		return errors.Trace(err)
	}
	if j == t.journal {
		if changed, last, _, ok := j.since(t.at); ok {
			names := make([]string, 0, len(changed.names))
			for name := range changed.names {
				names = append(names, name)
			}
			if err := t.read(names); err != nil {
				return errors.Trace(err)
			}
			t.at = last
			return nil
		}
	}
	// What changes while all storage is read is in the journal after this.
	last, _ := j.end()
	names, err := t.backend.state.StorageNames()
	if err != nil {
		return errors.Trace(err)
	}
	t.journal, t.counted = nil, make(map[string]counted, len(names))
	if err := t.read(names); err != nil {
		return errors.Trace(err)
	}
	t.journal, t.at = j, last
	return nil
}

// read reads the named storage.
func (t *tally) read(names []string) error {
	for chunk := range slices.Chunk(names, maxEventNames) {
		found, missing, err := t.backend.state.FindStorage(chunk...)
		if err != nil {
			return errors.Trace(err)
		}
		for i := range found {
			t.counted[found[i].Name] = t.count(&found[i])
		}
		for _, name := range missing {
			delete(t.counted, name)
		}
	}
	return nil
}

var (
	storageInstances = prometheus.NewDesc("stowage_storage_instances", "Storage instances, by pool, kind and status.", []string{"pool", "kind", "status"}, nil)
	storageOldest    = prometheus.NewDesc("stowage_storage_oldest_timestamp_seconds", "The time since which the status and message of some storage with this status have not changed, in seconds since 1970: the earliest.", []string{"status"}, nil)
	storageWanted    = prometheus.NewDesc("stowage_storage_wanted_bytes", "The sizes that users want, by pool.", []string{"pool"}, nil)
	storageMade      = prometheus.NewDesc("stowage_storage_made_bytes", "The sizes of what has been made, by pool.", []string{"pool"}, nil)
	storageUsed      = prometheus.NewDesc("stowage_storage_used_bytes", "The space that loop volumes take in the filesystem that they are on, by pool.", []string{"pool"}, nil)
)

// statuses are those that storage can have.
var statuses = []status.Status{
	status.Pending, status.Attaching, status.Attached, status.Detaching, status.Detached, status.Destroying, status.Error,
}

// Describe implements prometheus.Collector.
func (t *tally) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{storageInstances, storageOldest, storageWanted, storageMade, storageUsed} {
		descs <- desc
	}
	if t.backend.isLocal() {
		t.host(nil).Describe(descs)
	}
}

// Collect implements prometheus.Collector. It omits metrics that it cannot measure.
func (t *tally) Collect(found chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		found <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	err := t.update()
	sum := t.sum()
	if t.backend.isLocal() {
		t.host(func() (uint64, error) { return sum.promised, err }).Collect(found)
	}
	if err != nil {
		return
	}
	for of, counts := range sum.instances {
		for _, status := range statuses {
			gauge(storageInstances, float64(counts[status]), of.pool, of.kind, string(status))
		}
	}
	for status, since := range sum.oldest {
		gauge(storageOldest, float64(since.Unix()), string(status))
	}
	for pool, size := range sum.pools {
		gauge(storageWanted, float64(size.wanted), pool)
		gauge(storageMade, float64(size.made), pool)
		if size.hasUsed {
			gauge(storageUsed, float64(size.used), pool)
		}
	}
}

// host returns the metrics of the host.
func (t *tally) host(promised func() (uint64, error)) space.Metrics {
	return space.Metrics{Dir: t.backend.dir.Storage(), Promised: promised}
}

// sums are what metrics say about all storage.
type sums struct {
	instances map[poolKind]map[status.Status]int
	oldest    map[status.Status]time.Time
	pools     map[string]poolSize
	promised  uint64
}

type poolKind struct{ pool, kind string }

// poolSize is the size of the storage of a pool, in bytes. hasUsed says that used is known.
type poolSize struct {
	wanted, made, used uint64
	hasUsed            bool
}

// sum adds the instances up. Thin volumes are measured.
func (t *tally) sum() sums {
	s := sums{instances: map[poolKind]map[status.Status]int{}, oldest: map[status.Status]time.Time{}, pools: map[string]poolSize{}}
	for _, c := range t.counted {
		of := poolKind{c.pool, c.kind}
		if s.instances[of] == nil {
			s.instances[of] = map[status.Status]int{}
		}
		s.instances[of][c.status]++
		if oldest, ok := s.oldest[c.status]; !ok || c.since.Before(oldest) {
			s.oldest[c.status] = c.since
		}
		size := s.pools[c.pool]
		size.wanted += c.wantedMiB << 20
		size.made += c.madeMiB << 20
		if c.isLoop {
			used := c.madeMiB << 20
			if c.file != "" {
				// The storage provisioner reports a missing file.
				unallocated := space.Unallocated(c.file)
				s.promised += unallocated
				used -= min(used, unallocated)
			}
			size.used, size.hasUsed = size.used+used, true
		}
		s.pools[c.pool] = size
	}
	return s
}
