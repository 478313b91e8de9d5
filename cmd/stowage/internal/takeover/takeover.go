// Package takeover keeps a volume from being attached to two machines when one of several servers
// takes over from another one.
//
// The server that is replaced may be paused just before it calls a provider: then the call comes
// late. Therefore each call that attaches or detaches a volume is noted in the state first, under
// the term of the server's lease, and the note is removed when the outcome is known. The server that
// takes over finds the notes of earlier terms. A volume with such a note for one machine is attached
// to no other one
//
//   - until the window of the note has passed since the takeover, by this server's own clock, even if
//     the machine is fenced, since the provider can still get the call, and
//   - until the volume has been detached from the machine after that; a source that lists
//     attachments ([storage.AttachmentLister]) is asked first whether the machine has the volume.
//
// Nor is such a volume destroyed or released before that. If the late call may detach the volume, it
// is not attached to the same machine during the window either.
//
// A source that lists attachments does so before anything is attached after a takeover. A volume that
// is listed where the state has it is not attached again. One that is listed on another machine is not
// attached, unless that machine is fenced: then it is detached there first.
//
// A server makes no call that it has noted more than half a window ago. So a late call comes within
// the window, unless the server is paused between its last look at the clock and the call. If that
// pause is longer than the window, only a provider can refuse the call, by its term.
//
// A [Takeover] is between the environment's worker and the sources of volumes. A server that alone
// has its state needs no takeover. All methods are safe for concurrent use.
package takeover

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// defaultWindow is more than it takes to begin a call that was just noted, by far.
const defaultWindow = time.Minute

// State is what a takeover needs of the state. The accessors of the holder of a lease implement it.
type State interface {
	// Term is that of the notes.
	Term() uint64

	NoteAttachmentCalls([]state.AttachmentCall) error
	RemoveAttachmentCalls([]state.AttachmentCall) error
	AttachmentCalls() ([]state.AttachmentCall, error)

	Life([]names.Tag) ([]params.LifeResult, error)
	AttachmentLife([]params.MachineStorageId) ([]params.LifeResult, error)
	VolumeAttachments([]params.MachineStorageId) ([]params.VolumeAttachmentResult, error)
}

// Config configures a takeover. All fields but Window are required.
type Config struct {
	State State
	// Machine returns a machine. The error satisfies errors.IsNotFound if there is no such machine.
	Machine func(names.MachineTag) (state.Machine, error)
	// Lease is that of the server.
	Lease kv.Lease
	Clock clock.Clock
	// Window is how long after another server has taken over a call of this one may still reach a
	// provider. Zero: a minute.
	Window time.Duration
}

// Takeover guards the calls of the server that has the lease, as long as it has it.
type Takeover struct {
	config Config
	began  time.Time

	mu sync.Mutex
	// earlier has the notes of earlier terms that are not settled, by volume, and tags has the
	// volumes with such notes by their IDs. kept is false once those have been removed that the
	// window settles.
	earlier map[names.VolumeTag][]state.AttachmentCall
	tags    map[volumeKey]names.VolumeTag
	kept    bool
	// listings has what the sources have listed.
	listings map[sourceKey]*listing
}

type volumeKey struct {
	provider storage.ProviderType
	id       string
}

type sourceKey struct {
	provider storage.ProviderType
	pool     string
}

// New returns the takeover of a server that has just acquired its lease.
func New(config Config) (*Takeover, error) {
	config.Window = cmp.Or(config.Window, defaultWindow)
	t := &Takeover{
		config:   config,
		began:    config.Clock.Now(),
		earlier:  make(map[names.VolumeTag][]state.AttachmentCall),
		tags:     make(map[volumeKey]names.VolumeTag),
		listings: make(map[sourceKey]*listing),
	}
	calls, err := config.State.AttachmentCalls()
	if err != nil {
		return nil, errors.Annotate(err, "reading the calls of the servers before this one")
	}
	for _, c := range calls {
		t.kept = true
		t.earlier[c.Volume] = append(t.earlier[c.Volume], c)
		t.learn(c)
	}
	return t, nil
}

// Registry returns a function that returns the registry of open, with the providers of the
// environment's volumes guarded.
func (t *Takeover) Registry(open func(*config.Config) (storage.ProviderRegistry, error)) func(*config.Config) (storage.ProviderRegistry, error) {
	return func(c *config.Config) (storage.ProviderRegistry, error) {
		inner, err := open(c)
		if err != nil || inner == nil {
			return nil, err
		}
		return registry{inner, t}, nil
	}
}

// checkLease returns an error if the lease has ended.
func (t *Takeover) checkLease() error {
	select {
	case <-t.config.Lease.Done():
		return errors.Trace(kv.ErrLeaseLost)
	default:
		return nil
	}
}

// begin notes calls. If it returns nil, they may be made now.
func (t *Takeover) begin(calls []state.AttachmentCall) error {
	if len(calls) == 0 {
		return t.checkLease()
	}
	before := t.config.Clock.Now()
	if err := t.config.State.NoteAttachmentCalls(calls); err != nil {
		return errors.Trace(err)
	}
	// If another server takes over, it does so after the calls were noted.
	if took := t.config.Clock.Now().Sub(before); took > t.config.Window/2 {
		return errors.Errorf("noting the calls has taken %s: another server may have taken over", took)
	}
	return t.checkLease()
}

// end removes the notes of calls whose outcome is known. If that fails, the next server takes care
// not to do too much: that is not worth an error.
func (t *Takeover) end(calls []state.AttachmentCall) {
	if len(calls) == 0 {
		return
	}
	for i := range calls {
		calls[i].Term = t.config.State.Term()
	}
	_ = t.config.State.RemoveAttachmentCalls(calls)
}

// isKnown reports whether the outcome of a call is known from its error. After any other error,
// something may still come of the call.
func isKnown(err error) bool {
	return err == nil || storage.IsPermanent(err) || storage.IsNothingMade(err) || errors.Is(err, storage.ErrIgnored)
}

// earlierCalls returns the notes of earlier terms for a volume.
func (t *Takeover) earlierCalls(volume names.VolumeTag) []state.AttachmentCall {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.earlier[volume]
}

// volumeOf returns the volume with an ID, if it has notes of earlier terms.
func (t *Takeover) volumeOf(provider storage.ProviderType, id string) (names.VolumeTag, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tag, ok := t.tags[volumeKey{provider, id}]
	return tag, ok
}

// isPast reports whether an earlier call cannot come any more.
func (t *Takeover) isPast(c state.AttachmentCall) bool {
	return t.config.Clock.Now().Sub(t.began) > c.Window
}

// settled removes notes of earlier terms. If that fails, they stay until they are settled again.
func (t *Takeover) settled(calls []state.AttachmentCall) error {
	if len(calls) == 0 {
		return nil
	}
	if err := t.config.State.RemoveAttachmentCalls(calls); err != nil {
		return errors.Trace(err)
	}
	gone := make(map[state.AttachmentCall]bool, len(calls))
	for _, c := range calls {
		gone[c] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range gone {
		var rest []state.AttachmentCall
		for _, other := range t.earlier[c.Volume] {
			if gone[other] {
				delete(t.tags, volumeKey{other.Provider, other.VolumeID})
			} else {
				rest = append(rest, other)
			}
		}
		for _, other := range rest {
			t.learn(other)
		}
		if t.earlier[c.Volume] = rest; len(rest) == 0 {
			delete(t.earlier, c.Volume)
		}
	}
	return nil
}

// learn lets volumeOf find the volume of a note. The caller has locked mu.
func (t *Takeover) learn(c state.AttachmentCall) {
	if c.VolumeID != "" {
		t.tags[volumeKey{c.Provider, c.VolumeID}] = c.Volume
	}
}

// learnID lets volumeOf find a volume that has been made, if it has notes of earlier terms.
func (t *Takeover) learnID(provider storage.ProviderType, id string, volume names.VolumeTag) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.earlier[volume]; ok {
		t.tags[volumeKey{provider, id}] = volume
	}
}

// settlePast settles, once, the notes whose window has passed of volumes that the state says are on
// the machine, and of volumes that do not exist any more. The worker detaches a volume from the
// machine of the state before it attaches the volume elsewhere. If the state fails, the next call
// tries again.
func (t *Takeover) settlePast() {
	calls := t.past()
	if len(calls) == 0 {
		return
	}
	ids, tags := make([]params.MachineStorageId, len(calls)), make([]names.Tag, len(calls))
	for i, c := range calls {
		ids[i] = params.MachineStorageId{MachineTag: c.Machine.String(), AttachmentTag: c.Volume.String()}
		tags[i] = c.Volume
	}
	attachments, err := t.config.State.AttachmentLife(ids)
	if err != nil {
		return
	}
	volumes, err := t.config.State.Life(tags)
	if err != nil {
		return
	}
	var settled []state.AttachmentCall
	for i, c := range calls {
		if attachments[i].Error == nil || volumes[i].Error != nil && params.IsCodeNotFound(volumes[i].Error) {
			settled = append(settled, c)
		}
	}
	if t.settled(settled) == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.kept = false
	}
}

// past returns all notes once the windows of all have passed, and none after settlePast has looked
// at them.
func (t *Takeover) past() []state.AttachmentCall {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.kept {
		return nil
	}
	var calls []state.AttachmentCall
	for _, of := range t.earlier {
		calls = append(calls, of...)
	}
	if !slices.ContainsFunc(calls, func(c state.AttachmentCall) bool { return !t.isPast(c) }) {
		return calls
	}
	return nil
}
