package plan

import (
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// phase is the progress of an entity's operation.
type phase uint8

const (
	// idle: there is no operation, or it is stalled.
	idle phase = iota
	// waiting: the entity is registered with the fact that its operation waits for.
	waiting
	// scheduled: the operation has failed, and is tried again when it is due.
	scheduled
	// queued: the operation waits for its source to be free.
	queued
	// running: the operation has been handed to a provider.
	running
	// publishing: the operation has a result that the state has not accepted yet.
	publishing
)

// entity is the worker's record of one entity. There may be millions of entities at rest, so
// fields that matter only while there is something to do are in work.
type entity struct {
	// common is that of the volume or filesystem that the entity is, or that the attachment
	// attaches.
	common *common
	// storage is the volume or filesystem that an attachment attaches; a volume or filesystem
	// refers to itself.
	storage *entity
	// next and previous are an attachment's neighbours in common.attachments.
	next, previous *entity
	// host is the host of an attachment, which does not change, or the machine that a volume is
	// made for.
	host *host
	// backing is the device of a filesystem's backing volume according to the entity's facts,
	// or nil.
	backing *device
	waiters waiters

	// allIndex is the entity's index in Core.all.
	allIndex uint32
	// users counts the entities that must be released before this one: the held attachments of
	// a volume or filesystem, or the mounted filesystems on an attached volume.
	users uint32
	kind  Kind
	// pendingRead says what must be read of the entity.
	pendingRead pendingRead
	// mountIndex is the index of a mounted filesystem's attachment in Core.mounted.
	mountIndex uint32

	state
}

// common is what the records of a volume or filesystem and of its attachments share.
type common struct {
	// name is the ID in tag, and text is tag as text. These three do not change.
	name string
	tag  names.Tag
	text string

	attachments attachments
	// size is the size of a recorded volume or filesystem, and wanted its wanted size, in MiB.
	size, wanted uint64
	// lastStatus is the status that was last reported; statusText is nil unless it had a text.
	statusText *statusText
	lastStatus lastStatus
	// calls counts the operations under way on the volume or filesystem and its attachments.
	calls uint16
}

// state is the part of an entity's record that clear resets.
type state struct {
	// id is the provider's ID of the volume or filesystem, if it is known.
	id string
	// queue is the queue of the source that provides the entity.
	queue *queue
	// heldBacking is the device that backs a filesystem or its attachment while the entity is
	// held.
	heldBacking *device
	// work is nil unless there is something to do, or to remember about an attempt.
	work *work

	life  Life
	class Class
	phase phase
	op    Op
	// known says what is known of the entity from the state.
	known knowledge
	// made says whether the entity has been made or attached, as far as is known.
	made made
	// backingKnown says that the facts of a filesystem attachment include the filesystem's
	// backing volume, if any.
	backingKnown bool
	// release says that removing the entity means to release, not to destroy it.
	release bool
	// flags say how the entity is attached, and the results of checks.
	flags attachFlags
	// held says that the entity's dependencies must stay, because the entity is attached, may
	// be attached, or is being attached or made.
	held bool
	// orphan says that the state has removed the entity while it was being made; what was made
	// is destroyed or detached.
	orphan bool
	// outdated says that the environment's configuration has changed since the
	// operation began.
	outdated bool
	// unresolved says that the operation may still be going on; it is repeated unchanged until
	// its end is known.
	unresolved bool
	// attemptEnded says that an attempt to make the entity has ended since the entity was last
	// given out for reading, so that the fact from that reading is out of date about attempts.
	attemptEnded bool
	// stalled says whether, and why, the operation waits for a change.
	stalled stall
}

// knowledge says what is known of an entity from the state.
type knowledge uint8

const (
	// neverRead: only another entity that refers to it says that it exists.
	neverRead knowledge = iota
	// fresh: its last fact holds.
	fresh
	// stale: it must be read before anything else is done about it.
	stale
)

// made says whether an entity has been made or attached, as far as is known. Of an entity that
// may have been made, the attempt is repeated, and what it left is looked for before the entity
// is removed.
type made uint8

const (
	notMade made = iota
	// maybeMade: the attempts have ended, but did not say that they made nothing.
	maybeMade
	// unknownMade: it is not known what an attempt did, nor whether it has ended.
	unknownMade
	// recorded: the state has the entity's info: the entity is provisioned.
	recorded
)

// mayHaveLeftover reports whether attempts to make or attach the entity may have left anything
// that is not recorded.
func (e *entity) mayHaveLeftover() bool { return e.made == maybeMade || e.made == unknownMade }

// madeNothing notes that the attempts to make or attach the entity have left nothing.
func (e *entity) madeNothing() {
	if e.mayHaveLeftover() {
		e.made = notMade
	}
}

// pendingRead says what must be read of an entity.
type pendingRead uint8

const (
	readNothing pendingRead = iota
	// readFacts: the facts that decide its next operation.
	readFacts
	// readSource: the facts, and the source that provides it even if no operation needs that.
	readSource
)

// attachFlags say how something is attached, in one byte.
type attachFlags uint8

const (
	// attachedHere: this worker has attached it since it started.
	attachedHere attachFlags = 1 << iota
	// checkDue: a check is due, of whether the storage is still as it was attached.
	checkDue
	// checkFailed: the last check found that it is not.
	checkFailed
	// repairRequested: a user has asked for the check, and the storage is attached again if
	// the check fails.
	repairRequested
	// withoutUUID: the block device that backs the filesystem had no UUID when the filesystem
	// was attached.
	withoutUUID
)

func (f attachFlags) has(flags attachFlags) bool { return f&flags != 0 }

func (f *attachFlags) set(flags attachFlags, on bool) {
	*f &^= flags
	if on {
		*f |= flags
	}
}

// stall says why an operation is not tried.
type stall uint8

const (
	notStalled stall = iota
	// givenUp: the operation has failed for good, or too often in a row.
	givenUp
	// deferred: the source holds the operation back, or the parameters are incomplete; the
	// operation is tried again at the next change of the entity.
	deferred
)

// work is what there is to do about an entity.
type work struct {
	// since is when the operation was first wanted, or began or stopped waiting for something.
	since time.Time
	// args and owner are those of the entity's [Fact].
	args  any
	owner *storage.Owner
	// failures is nil unless the operation has failed, or is under way for too long.
	failures *failures
	// wait is what a waiting entity is registered with, nil for any other; next and previous
	// are its neighbours there.
	wait           awaited
	next, previous *entity
	// item is the operation as it was handed to a provider, until the operation ends; else
	// nil.
	item *Item
	// result is kept until it is published; refused describes the failures to publish it.
	result  *Result
	refused *refusal
}

// failures describes the failures of an operation.
type failures struct {
	// attempts counts the failures in a row; due is when the operation is tried next, zero if
	// it may start at once.
	attempts int
	due      time.Time
	// transient counts the transient failures, which attempts does not include.
	transient int
	// message is that of the last failure.
	message string
	// granted says that a resync allows one more attempt at an operation that has been
	// given up. The attempt is not counted, and a failure that the status already shows
	// is not reported again.
	granted bool
}

// failed returns the failures of the entity's operation.
func (e *entity) failed() failures {
	if e.work == nil || e.work.failures == nil {
		return failures{}
	}
	return *e.work.failures
}

// ensureFailures returns the failures of an operation, to be changed.
func (w *work) ensureFailures() *failures {
	if w.failures == nil {
		w.failures = &failures{}
	}
	return w.failures
}

// refusal describes the failed attempts to publish a result, or to read an entity.
type refusal struct {
	// attempts counts the failed attempts, message is that of the last, and due is the time of
	// the next.
	attempts int
	message  string
	due      time.Time
}

// lastStatus says which status was last reported for a volume or filesystem.
type lastStatus uint8

const (
	noStatus lastStatus = iota
	statusAttached
	statusDetached
	// statusOther is any other status: the volume or filesystem is not at rest.
	statusOther
)

// atRestStatuses are the statuses of a volume or filesystem at rest.
var atRestStatuses = [...]status.Status{statusAttached: status.Attached, statusDetached: status.Detached}

// statusText is what was last reported for a volume or filesystem besides its status: the
// message of an error or of a status at rest, and the remark that the source made when the
// storage was attached.
type statusText struct {
	message, remark string
}

// key returns the entity's key.
func (e *entity) key() Key {
	key := Key{Kind: e.kind, ID: e.common.name}
	if e.kind.Attachment() {
		key.Host = e.host.tag
	}
	return key
}

// args returns the arguments for the next operation, or nil if they are not known.
func (e *entity) args() any {
	if e.work == nil {
		return nil
	}
	return e.work.args
}

// busy reports whether the entity's operation must end before anything else can
// be done about it.
func (e *entity) busy() bool {
	return e.phase == running || e.phase == publishing
}

// underway reports whether the entity's operation has begun and has not ended, as
// far as is known.
func (e *entity) underway() bool {
	return e.busy() || e.unresolved
}

// ensureWork returns the entity's work, creating it if necessary.
func (e *entity) ensureWork() *work {
	if e.work == nil {
		e.work = &work{}
	}
	return e.work
}
