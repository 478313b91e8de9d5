package bench

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/cputime"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// resyncEntities is the number of volumes, filesystems and attachments in total, and
// resyncLimit the CPU time that a resync of them may take in the worker and the state
// together.
const (
	resyncEntities = 100_000
	resyncLimit    = 2 * time.Second
)

// BenchmarkResync measures a resync when nothing has changed.
func BenchmarkResync(b *testing.B) {
	w := newWorld(b, resyncEntities/4)
	defer func() { w.must(w.close()) }()
	w.must(w.apply(declaration("data", w.n)))
	w.must(w.recordVolumes())
	w.must(w.state.SetMachineBlockDevices(machine, loopDevices(w.n)))
	w.must(w.recordFilesystems())
	w.must(w.state.SetEnvironConfig(map[string]any{"name": "bench", "type": "bench", "uuid": w.state.UUID()}))

	read := &countingAccessor{Accessor: w.Accessor}
	clock := clocktest.New()
	cfg := storageprovisioner.Config{
		Scope: machine, StorageDir: b.TempDir(), Clock: clock, ResyncInterval: time.Hour,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) {
			return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"loop": attacher{}}}, nil
		},
		ManagedFilesystems: func(storage.BackingDevices) storage.FilesystemSource { return attachingFilesystems{} },
		Logger:             nopLogger{},
	}
	p, err := storageprovisioner.New(cfg.WithAccessors(read))
	w.must(err)
	defer func() {
		p.Kill()
		w.must(p.Wait())
	}()
	// At its start the worker reads everything once, and attaches it.
	waitIdle(p, resyncEntities)

	var total time.Duration
	for b.Loop() {
		start, done := cputime.Used(), read.expect(resyncEntities)
		clock.Step(b, time.Hour, 1)
		<-done
		waitIdle(p, resyncEntities)
		total += cputime.Used() - start
	}
	each := total / time.Duration(b.N)
	b.ReportMetric(each.Seconds(), "cpu-s/op")
	if each > resyncLimit {
		b.Errorf("a resync of %d entities takes %v of CPU time, want at most %v", resyncEntities, each, resyncLimit)
	}
}

// countingAccessor counts the lives that are read, one for each entity, and the records of
// filesystem attachments, which are read last.
type countingAccessor struct {
	*state.Accessor
	mu       sync.Mutex
	lives    int
	mounts   int
	expected int
	// read is closed when the expected number of entities has been read.
	read chan struct{}
}

// expect returns a channel that is closed when so many more entities have been read.
func (a *countingAccessor) expect(entities int) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lives, a.mounts, a.expected = 0, 0, entities
	a.read = make(chan struct{})
	return a.read
}

func (a *countingAccessor) count(lives, mounts int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := func() bool { return a.lives >= a.expected && a.mounts >= a.expected/4 }
	before := all()
	a.lives += lives
	a.mounts += mounts
	if a.read != nil && !before && all() {
		close(a.read)
	}
}

func (a *countingAccessor) Life(tags []names.Tag) ([]params.LifeResult, error) {
	defer a.count(len(tags), 0)
	return a.Accessor.Life(tags)
}

func (a *countingAccessor) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	defer a.count(len(ids), 0)
	return a.Accessor.AttachmentLife(ids)
}

func (a *countingAccessor) FilesystemAttachments(ids []params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	defer a.count(0, len(ids))
	return a.Accessor.FilesystemAttachments(ids)
}

// waitIdle waits until a worker knows so many entities, and has no unfinished work.
func waitIdle(w worker.Worker, entities int) {
	for {
		report := w.(interface{ Report() map[string]any }).Report()
		known, _ := report["entities"].(map[string]int)
		n := 0
		for _, ofKind := range known {
			n += ofKind
		}
		if _, busy := report["unfinished"]; !busy && n == entities {
			return
		}
	}
}

// attacher is a provider of existing storage, whose attaching does nothing and succeeds.
type attacher struct{ storage.Provider }

func (p attacher) Scope() storage.Scope { return storage.ScopeMachine }
func (p attacher) Dynamic() bool        { return true }

func (p attacher) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return attachingVolumes{}, nil
}

type attachingVolumes struct{ storage.VolumeSource }

func (attachingVolumes) AttachVolumes(_ envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	results := make([]storage.AttachVolumesResult, len(all))
	for i, p := range all {
		_, number, _ := strings.Cut(p.Volume.Id(), "/")
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, errors.Trace(err)
		}
		results[i].VolumeAttachment = &storage.VolumeAttachment{Volume: p.Volume, Machine: p.Machine}
		results[i].VolumeAttachment.BusAddress = busAddress(n)
	}
	return results, nil
}

type attachingFilesystems struct{ storage.FilesystemSource }

func (attachingFilesystems) AttachFilesystems(_ envcontext.ProviderCallContext, all []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	results := make([]storage.AttachFilesystemsResult, len(all))
	for i, p := range all {
		results[i].FilesystemAttachment = &storage.FilesystemAttachment{Filesystem: p.Filesystem, Machine: p.Machine}
		results[i].FilesystemAttachment.Path = p.Path
	}
	return results, nil
}

type nopLogger struct{}

func (nopLogger) Tracef(string, ...any)   {}
func (nopLogger) Debugf(string, ...any)   {}
func (nopLogger) Warningf(string, ...any) {}
func (nopLogger) Errorf(string, ...any)   {}
