package storageprovisioner

import (
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// machineWatch watches a machine that is not provisioned yet.
type machineWatch struct {
	host    string
	watcher worker.Worker
	changes <-chan struct{}
	// stop is closed when the machine need not be watched any more.
	stop chan struct{}
}

// machineReading is what has been read of a machine.
type machineReading struct {
	host     string
	instance string
	err      *params.Error
	// watcher is the watcher that the reading has started, or nil.
	watcher worker.Worker
	changes <-chan struct{}
}

// readMachines reads the instance IDs of machines, and starts to watch the new hosts that have
// no ID. The first event of a watcher makes the loop read the ID again, so an ID that is set
// in between is not missed.
func readMachines(config setup, hosts, watched []string) ([]machineReading, error) {
	var readings []machineReading
	var tags []names.MachineTag
	for _, host := range append(hosts[:len(hosts):len(hosts)], watched...) {
		tag, _ := names.ParseMachineTag(host) // no operation waits for an invalid tag
		tags = append(tags, tag)
		readings = append(readings, machineReading{host: host})
	}
	results, err := translate.CallAccessor(config.guard, "reading instance ids", config.Machines.InstanceIds, tags)
	if err != nil {
		return nil, err
	}
	for i, result := range results {
		readings[i].instance = result.Result
		readings[i].err = result.Error
	}
	group := newWatcherGroup(config.guard)
	for i := range hosts {
		r := &readings[i]
		if r.provisioned() {
			continue
		}
		r.changes = startWatcher(group, r.host, func() (watcher.NotifyWatcher, error) {
			return config.Machines.WatchMachine(tags[i])
		})
		r.watcher = group.watchers[r.host]
		if r.gone() && r.watcher == nil {
			group.err = nil
		}
		if group.err != nil {
			return nil, group.result()
		}
	}
	return readings, nil
}

func (r *machineReading) provisioned() bool { return r.err == nil && r.instance != "" }
func (r *machineReading) gone() bool        { return r.err != nil && params.IsCodeNotFound(r.err) }

// machinesRead handles readings of machines.
func (l *loop) machinesRead(readings []machineReading) {
	for _, r := range readings {
		w := l.machines[r.host]
		if r.watcher != nil {
			l.watch(r)
		}
		switch {
		case r.provisioned():
			l.unwatch(w)
			l.core.Provisioned(r.host, r.instance)
		case r.watcher != nil:
			// The first event of the watcher makes the loop read the ID again.
		case r.gone():
			l.config.Logger.Warningf("%s not found: operations that wait for it keep waiting", r.host)
			l.unwatch(w)
		case r.err != nil && !params.IsCodeNotProvisioned(r.err):
			l.config.Logger.Warningf("reading the instance id of %s: %v", r.host, r.err)
		}
	}
}

// watch makes the loop the owner of a machine's watcher. A goroutine for each machine passes
// the watcher's events to the loop.
func (l *loop) watch(r machineReading) {
	w := &machineWatch{host: r.host, watcher: r.watcher, changes: r.changes, stop: make(chan struct{})}
	l.machines[w.host] = w
	l.others.Go(func() { l.reportEnd(w.watcher, endedWatch{what: w.host, machine: w}) })
	l.others.Go(func() {
		var changed chan<- string // nil unless there is a change to report
		for {
			select {
			case <-w.stop:
				return
			case _, ok := <-w.changes:
				if !ok {
					// reportEnd waits for the watcher and reports its end.
					w.watcher.Kill()
					return
				}
				changed = l.machineChanged
			case changed <- w.host:
				changed = nil
			}
		}
	})
}

// unwatch stops the watch of a machine; w may be nil. The goroutines of the watch end by
// themselves, and the worker waits for them when it ends.
func (l *loop) unwatch(w *machineWatch) {
	if w == nil {
		return
	}
	delete(l.machines, w.host)
	close(w.stop)
	w.watcher.Kill()
}
