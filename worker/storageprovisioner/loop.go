package storageprovisioner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/delay"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/schedule"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// loop owns everything that the worker knows. It runs on one goroutine, which waits for
// nothing but its next event; no other goroutine touches its fields.
type loop struct {
	config   setup
	tomb     *tomb.Tomb
	core     *plan.Core
	schedule *schedule.Schedule
	backing  *backing
	// environ is nil until the environment's configuration has been read. Until then the
	// worker does not watch volumes, filesystems or attachments, and starts no operation.
	environ *environ

	// ctx is the context of provider calls, cancelled when the worker ends.
	ctx    context.Context
	cancel context.CancelFunc
	// others counts the goroutines that the loop has started.
	others sync.WaitGroup

	// jobs carries jobs to the clerk, one at a time; clerkBusy says that the clerk has one.
	jobs      chan job
	answers   chan answer
	clerkBusy bool
	// factBuffer is an empty slice for the clerk's next reading to reuse, or nil.
	factBuffer []plan.Fact
	// todo is what the loop will ask of the clerk next.
	todo todo
	// unset holds the statuses that could not be set.
	unset unsetStatuses

	// runners holds the runners of each source; busy counts the requests under way.
	runners   map[plan.Source]*runners
	responses chan response
	busy      int

	watches  watches
	machines map[string]*machineWatch
	// ended receives the watchers that have ended by themselves.
	ended chan endedWatch
	// machineChanged receives the machines whose watchers have fired.
	machineChanged chan string

	// nextMountCheck is the earliest time of the next check of filesystems after a change of
	// mounts.
	nextMountCheck time.Time

	observer observer
	reports  <-chan reportRequest

	// invalidIDs holds the messages about invalid IDs from watchers that have been logged.
	invalidIDs guard.Set[string]
}

// maxInvalidIDs caps how many messages about invalid IDs are logged and remembered.
const maxInvalidIDs = 1000

// watches holds the watchers that live as long as the worker. The channel of a watcher that
// has not been started is nil.
type watches struct {
	all map[string]worker.Worker

	environ               <-chan struct{}
	blockDevices          <-chan struct{}
	mounts                <-chan struct{}
	changedMounts         changedMounts
	volumes               <-chan []string
	filesystems           <-chan []string
	volumeAttachments     <-chan []params.MachineStorageId
	filesystemAttachments <-chan []params.MachineStorageId
	plans                 <-chan []params.MachineStorageId
	retries               <-chan []string
	formats               <-chan []string
}

// changedMounts is an optional capability of a watcher of mounts: it says what has changed.
type changedMounts interface {
	// ChangedMounts returns the paths at which mounts have come, gone or changed since the
	// previous call. It need not return a path at which a mount has come and gone since. all
	// says that any mount may have changed.
	ChangedMounts() (paths []string, all bool)
}

// endedWatch reports the end of a watcher. machine is nil unless the watcher is a machine's.
type endedWatch struct {
	what    string
	err     error
	machine *machineWatch
}

// resync and mountCheck are values of the schedule. When a resync is due, the loop reads
// everything again. When a mountCheck is due, it checks filesystems, because mounts have
// changed.
type (
	resync     struct{}
	mountCheck struct{}
)

// mountCheckPause limits checks for changes of mounts: after a check of filesystems, or after
// reading what has changed, the next one waits for this many times the duration. A busy host
// mounts all the time.
const mountCheckPause = 50

func newLoop(config setup, tomb *tomb.Tomb, reports <-chan reportRequest) *loop {
	ctx, cancel := context.WithCancel(context.Background())
	l := &loop{
		config:         config,
		tomb:           tomb,
		schedule:       schedule.NewSchedule(config.Clock),
		ctx:            ctx,
		cancel:         cancel,
		jobs:           make(chan job),
		answers:        make(chan answer),
		runners:        make(map[plan.Source]*runners),
		responses:      make(chan response),
		watches:        watches{all: make(map[string]worker.Worker)},
		machines:       make(map[string]*machineWatch),
		ended:          make(chan endedWatch),
		machineChanged: make(chan string),
		observer:       observer{Observer: config.Observer, guard: config.guard},
		reports:        reports,
		invalidIDs:     guard.Set[string]{Limit: maxInvalidIDs},
	}
	var host string
	if machine, ok := config.machine(); ok {
		host = machine.String()
		l.backing = &backing{}
	}
	l.unset = unsetStatuses{schedule: l.schedule, retry: config.Retry.plan(), byTag: make(map[string]*unsetStatus)}
	_, attempts := config.attempts()
	l.core = plan.New(plan.Options{
		Retry:     config.Retry.plan(),
		MaxBatch:  config.MaxBatch,
		Host:      host,
		Attempts:  attempts,
		Mounts:    config.Mounts != nil,
		Timetable: l.schedule,
	})
	return l
}

func (l *loop) run() error {
	l.others.Go(func() { clerk(l.config.guard, l.jobs, l.answers) })
	l.sendJob(l.watchEnviron)
	err := l.serve()
	if err != nil {
		l.config.Logger.Errorf("the worker ends: %v", err)
	}
	l.stop()
	return err
}

// serve handles events until the worker must end.
func (l *loop) serve() error {
	for {
		delay.At(delay.LoopEvent)
		select {
		case <-l.tomb.Dying():
			return nil

		case a := <-l.answers:
			l.clerkBusy = false
			if a.err != nil {
				return errors.Trace(a.err)
			}
			l.core.At(l.config.Clock.Now())
			a.reply()

		case resp := <-l.responses:
			l.requestDone(resp)
			l.logFailures(resp)
			l.core.Finished(resp.batch.Source, resp.results)

		case <-l.schedule.Next():
			l.due()

		case _, ok := <-l.watches.environ:
			if !ok {
				return l.closed("environment config")
			}
			l.todo.config = configChanged

		case _, ok := <-l.watches.blockDevices:
			if !ok {
				return l.closed("block devices")
			}
			l.core.DevicesChanged()

		case _, ok := <-l.watches.mounts:
			if !ok {
				return l.closed("mounts")
			}
			l.mountsChanged()

		case ids, ok := <-l.watches.volumes:
			if !ok {
				return l.closed("volumes")
			}
			l.storageChanged(plan.Volume, ids, names.IsValidVolume)

		case ids, ok := <-l.watches.filesystems:
			if !ok {
				return l.closed("filesystems")
			}
			l.storageChanged(plan.Filesystem, ids, names.IsValidFilesystem)

		case ids, ok := <-l.watches.volumeAttachments:
			if !ok {
				return l.closed("volume attachments")
			}
			l.attachmentsChanged(plan.VolumeAttachment, ids)

		case ids, ok := <-l.watches.filesystemAttachments:
			if !ok {
				return l.closed("filesystem attachments")
			}
			l.attachmentsChanged(plan.FilesystemAttachment, ids)

		case ids, ok := <-l.watches.plans:
			if !ok {
				return l.closed("attachment plans")
			}
			l.attachmentsChanged(plan.Plan, ids)

		case tags, ok := <-l.watches.retries:
			if !ok {
				return l.closed("retries")
			}
			l.retry(tags)

		case tags, ok := <-l.watches.formats:
			if !ok {
				return l.closed("formats")
			}
			l.format(tags)

		case host := <-l.machineChanged:
			l.todo.instances.add(host)

		case e := <-l.ended:
			if e.machine == nil || l.machines[e.machine.host] == e.machine {
				return watchError(e.what, e.err)
			}

		case request := <-l.reports:
			l.answerReport(request)
		}
		if !l.tomb.Alive() {
			return nil
		}
		delay.At(delay.LoopAdvance)
		l.advance()
	}
}

// closed returns the error for a watcher whose channel has been closed.
func (l *loop) closed(what string) error {
	return watchError(what, watcher.EnsureErr(l.watches.all[what]))
}

func watchError(what string, err error) error {
	if err == nil {
		err = errors.New("watcher stopped")
	}
	return errors.Annotatef(err, "watching %s", what)
}

// due handles the values that the schedule returns as due.
func (l *loop) due() {
	now := l.config.Clock.Now()
	l.core.At(now)
	var planned []any
	for _, value := range l.schedule.Ready(now) {
		switch value := value.(type) {
		case statusDue:
			l.unset.due = append(l.unset.due, string(value))
		case *timedCall:
			l.overdue(value)
		case resync:
			l.scheduleResync(now)
			l.todo.config = max(l.todo.config, configDoubted)
			l.core.Resync()
		case mountCheck:
			l.checkMounts()
		default:
			planned = append(planned, value)
		}
	}
	l.core.Due(planned)
}

// mountsChanged checks the filesystems now, or schedules the check for when it is allowed.
func (l *loop) mountsChanged() {
	now := l.config.Clock.Now()
	l.core.At(now)
	if now.Before(l.nextMountCheck) {
		l.schedule.Add(mountCheck{}, mountCheck{}, l.nextMountCheck)
	} else {
		l.checkMounts()
	}
}

// checkMounts checks the filesystems that changes of mounts may concern: all of them, unless
// the watcher says what has changed.
func (l *loop) checkMounts() {
	if l.watches.changedMounts != nil {
		l.todo.mounts = true
	} else {
		l.core.CheckAllMounts()
	}
}

func (l *loop) scheduleResync(now time.Time) {
	if l.config.ResyncInterval > 0 {
		l.schedule.Add(resync{}, resync{}, now.Add(l.config.nextResync()))
	}
}

// storageChanged notes that volumes or filesystems must be read.
func (l *loop) storageChanged(kind plan.Kind, ids []string, valid func(string) bool) {
	for i, id := range ids {
		if l.killedAt(i) {
			return
		}
		key := plan.Key{Kind: kind, ID: id}
		if len(id) > translate.MaxIDLength || !byid.IsNumber(id) && !l.core.Knows(key) && !valid(id) {
			l.logInvalidID(fmt.Sprintf("watching %[1]ss: %[2]q is not a %[1]s ID", kind, guard.TruncateTo(id, translate.MaxIDLength)))
			continue
		}
		l.core.Changed(key)
	}
	l.core.Listed(kind)
}

// retry retries the failed operations of volumes and filesystems at users' request.
func (l *loop) retry(tags []string) {
	l.userRequests("retries", "volume or filesystem", tags, func(tag names.Tag) bool {
		switch tag := tag.(type) {
		case names.VolumeTag:
			l.core.Retry(plan.Key{Kind: plan.Volume, ID: tag.Id()})
		case names.FilesystemTag:
			l.core.Retry(plan.Key{Kind: plan.Filesystem, ID: tag.Id()})
		default:
			return false
		}
		return true
	})
}

// format retries the creation of filesystems at users' request, whatever is on their volumes.
// A request is for the one attempt that it starts. It is refused unless an attempt on a known
// device has failed.
func (l *loop) format(tags []string) {
	l.userRequests("formats", "filesystem", tags, func(tag names.Tag) bool {
		filesystem, ok := tag.(names.FilesystemTag)
		if !ok {
			return false
		}
		key := plan.Key{Kind: plan.Filesystem, ID: filesystem.Id()}
		if volume, ok := l.core.FailedOn(key); !ok || !l.backing.requestFormat(volume) {
			l.config.Logger.Warningf("ignoring the format request for %s: no attempt to make it on a known block device has failed", key)
			return true
		}
		l.core.Retry(key)
		return true
	})
}

// userRequests calls do for each tag that a watcher of users' requests has sent. do returns
// false for a tag that is not of the wanted kind.
func (l *loop) userRequests(what, wanted string, tags []string, do func(names.Tag) bool) {
	l.core.At(l.config.Clock.Now())
	for i, text := range tags {
		if l.killedAt(i) {
			return
		}
		var tag names.Tag
		if len(text) <= translate.MaxIDLength {
			tag, _ = names.ParseTag(text)
		}
		if !do(tag) {
			l.logInvalidID(fmt.Sprintf("watching %s: %q is not the tag of a %s", what, guard.TruncateTo(text, translate.MaxIDLength), wanted))
		}
	}
}

// logInvalidID logs a message about an invalid ID from a watcher. It logs each message once,
// and at most maxInvalidIDs messages.
func (l *loop) logInvalidID(message string) {
	if !l.invalidIDs.Add(message) {
		return
	}
	l.config.Logger.Warningf("%s", message)
	if l.invalidIDs.Full() {
		l.config.Logger.Warningf("too many invalid IDs from watchers: further ones are not logged")
	}
}

// killedAt reports whether the worker is ending. It looks only at every maxRead-th element of
// a long list.
func (l *loop) killedAt(i int) bool {
	return i%maxRead == maxRead-1 && !l.tomb.Alive()
}

// attachmentsChanged notes that attachments must be read.
func (l *loop) attachmentsChanged(kind plan.Kind, ids []params.MachineStorageId) {
	for i, id := range ids {
		if l.killedAt(i) {
			return
		}
		if key, err := l.attachmentKey(kind, id); err != nil {
			l.logInvalidID(fmt.Sprintf("watching %ss: %v", kind, err))
		} else {
			l.core.Changed(key)
		}
	}
}

// attachmentKey returns the key of an attachment from the ID that a watcher sends.
func (l *loop) attachmentKey(kind plan.Kind, id params.MachineStorageId) (plan.Key, error) {
	if err := translate.CheckLength(id.MachineTag); err != nil {
		return plan.Key{}, err
	}
	if !l.core.KnowsHost(id.MachineTag) {
		if _, err := names.ParseTag(id.MachineTag); err != nil {
			return plan.Key{}, errors.Trace(err)
		}
	}
	storageID, err := translate.ParseStorageTag(kind.Storage(), id.AttachmentTag)
	return plan.Key{Kind: kind, ID: storageID, Host: id.MachineTag}, err
}

// advance starts what can start now: it sends batches to free runners, and the most urgent job
// to the clerk if the clerk is free.
func (l *loop) advance() {
	if l.environ == nil {
		if l.todo.config != configKnown && !l.clerkBusy {
			l.sendJob(l.readEnviron())
		}
		return
	}
	for _, batch := range l.core.Batches() {
		if len(batch.Unnoted()) > 0 {
			l.todo.attempts = append(l.todo.attempts, batch)
		} else {
			l.dispatch(batch)
		}
	}
	l.observer.depths(l.core.Queued)
	if l.clerkBusy {
		return
	}
	out := l.core.Take()
	for _, host := range out.Machines {
		if l.machines[host] != nil {
			l.todo.instances.add(host)
		} else {
			l.todo.hosts.add(host)
		}
	}
	for _, volume := range out.Forgotten {
		l.backing.forgetDevice(volume)
	}
	switch {
	case !out.Publish.Empty():
		l.sendJob(l.publish(out.Publish))
	case l.unset.anyDue():
		l.sendJob(l.retryStatuses(l.unset.takeDue()))
	case len(l.todo.attempts) > 0:
		l.sendJob(l.noteAttempts(l.todo.attempts))
		l.todo.attempts = nil
	case l.todo.config != configKnown:
		l.sendJob(l.readEnviron())
	case l.todo.mounts:
		l.sendJob(l.readMounts())
	case !l.todo.empty() || l.core.HasUnread():
		l.sendJob(l.read())
	}
}

// sendJob sends a job to the clerk, which must be free.
func (l *loop) sendJob(j job) {
	l.clerkBusy = true
	l.jobs <- j
}

// dispatch sends a batch to a runner of its source.
func (l *loop) dispatch(batch plan.Batch) {
	r, ok := l.runners[batch.Source]
	if !ok {
		r = &runners{requests: make(chan request)}
		l.runners[batch.Source] = r
	}
	l.config.Logger.Debugf("%s: %s %d", batch.Source, batch.Op, len(batch.Items))
	l.observer.started(batch)
	l.busy++
	r.send(l.newRequest(batch), l.others.Go, l.responses)
}

// requestDone notes that a runner has carried out its request and is free.
func (l *loop) requestDone(resp response) {
	l.endCall(resp.timedCall)
	l.busy--
	l.runners[resp.batch.Source].busy--
	now := l.config.Clock.Now()
	l.core.At(now)
	if resp.batch.Op == plan.Check {
		l.pauseMountChecks(now, resp.took)
	}
	l.core.Claim(resp.batch.Source, resp.results)
	l.core.SetLimit(resp.batch.Source, resp.maxCalls)
	l.observer.finished(resp)
}

// pauseMountChecks delays the next check for a change of mounts after something has been done
// for such a check.
func (l *loop) pauseMountChecks(now time.Time, took time.Duration) {
	if next := now.Add(mountCheckPause * took); next.After(l.nextMountCheck) {
		l.nextMountCheck = next
	}
}

func (l *loop) logFailures(resp response) {
	var failed errorGroups
	for _, result := range resp.results {
		if result.Err != nil && !l.core.CheckFailureReported(result) {
			failed.add(result.Key(), result.Err)
		}
	}
	failed.each(func(of, err string) { l.config.Logger.Warningf("%s: %s", translate.DescribeBatch(resp.batch, of), err) })
}

// stop stops everything that the loop has started and waits for it. It still records what the
// runners make until they stop. It only logs the error of a watcher that does not stop
// cleanly: that is not why the worker ends.
func (l *loop) stop() {
	l.cancel()
	l.schedule.Stop()
	for l.busy > 0 {
		resp := <-l.responses
		l.requestDone(resp)
		l.core.Finished(resp.batch.Source, successes(resp.results))
	}
	for _, r := range l.runners {
		close(r.requests)
	}
	l.observer.depths(func(plan.Kind, plan.Op) int { return 0 })
	if l.clerkBusy {
		if a := <-l.answers; a.err == nil {
			a.reply()
		}
	}
	l.flush()
	close(l.jobs)
	for _, w := range l.machines {
		l.unwatch(w)
	}
	for _, w := range l.watches.all {
		w.Kill()
	}
	for what, w := range l.watches.all {
		if err := w.Wait(); err != nil {
			l.config.Logger.Warningf("stopping: %v", watchError(what, err))
		}
	}
	l.others.Wait()
}

// flush records the results that are still to be published. Results that the state refuses are
// left to the next start of the worker.
func (l *loop) flush() {
	for out := l.core.Take(); !out.Publish.Empty(); out = l.core.Take() {
		l.jobs <- l.publish(out.Publish)
		a := <-l.answers
		if a.err != nil {
			l.config.Logger.Errorf("recording results before the worker stops: %v", a.err)
			return
		}
		a.reply()
	}
}

// successes returns the results without the failures, which are left to the next start of the
// worker. It modifies results.
func successes(results []plan.Result) []plan.Result {
	return slices.DeleteFunc(results, func(r plan.Result) bool { return r.Err != nil })
}
