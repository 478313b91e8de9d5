package state

import (
	"path"
	"strconv"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	coreinstance "github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// AttachmentCall is a note of a call that attaches a volume of the environment to a machine, or
// detaches it, and whose outcome is not known. The one of several servers that makes the call notes
// it before, and removes the note when it knows the outcome. So another server that takes over
// knows which calls may still have an effect.
type AttachmentCall struct {
	Volume  names.VolumeTag
	Machine names.MachineTag

	// Term is that of the server's lease. Leader.NoteAttachmentCalls sets it.
	Term uint64

	// Detach says that the call, or an earlier one of the same term whose outcome is not known,
	// detaches the volume.
	Detach bool

	// VolumeID is empty for a volume that is being made.
	VolumeID   string
	InstanceID coreinstance.Id
	Provider   storage.ProviderType

	// Window is how long after another server has taken over the call may still reach the provider.
	// It is a duration, since no two machines' clocks agree.
	Window time.Duration
}

// attachmentCall is the record of an AttachmentCall. The key has the volume, the machine and the
// term.
type attachmentCall struct {
	Detach     bool          `cbor:"1,keyasint,omitempty"`
	VolumeID   string        `cbor:"2,keyasint,omitempty"`
	InstanceID string        `cbor:"3,keyasint,omitempty"`
	Provider   string        `cbor:"4,keyasint,omitempty"`
	Window     time.Duration `cbor:"5,keyasint,omitempty"`
}

// Leader has the accessors of the one of several servers that holds a lease of the state's store.
type Leader struct{ *Accessor }

// ForLeader is [State.ForEnviron] for the one of several servers that holds a lease of the state's
// store. Each change fails with [kv.ErrLeaseLost] once the lease has ended, or a server has noticed
// that the state was restored.
func (st *State) ForLeader(lease kv.Lease) (*Leader, error) {
	a := st.ForEnviron()
	a.lease = lease
	err := st.view(func(r *reader, _ kv.Snapshot) error {
		a.generation = r.identity().Generation
		return nil
	})
	return &Leader{a}, errors.Trace(err)
}

// termBits is how many bits of a term are the lease's. With 13 bits of the generation, a term is an
// integer that every program reads from JSON exactly.
const termBits = 40

// Term is a number that is greater for each holder of the lease, also after the state was restored
// into a new store, whose leases begin again.
func (a *Leader) Term() uint64 { return a.generation<<termBits | a.lease.Term() }

func (c AttachmentCall) key() string {
	return callPrefix + c.Volume.String() + "/" + c.Machine.String() + "/" + strconv.FormatUint(c.Term, 10)
}

// NoteAttachmentCalls notes calls that the holder of the lease is about to make.
func (a *Leader) NoteAttachmentCalls(calls []AttachmentCall) error {
	_, err := updateEach(a.Accessor, calls, func(tx *txn, c AttachmentCall) error {
		c.Term = a.Term()
		earlier, _ := read[attachmentCall](&tx.reader, c.key())
		tx.write(c.key(), &attachmentCall{
			Detach:     c.Detach || earlier.Detach,
			VolumeID:   c.VolumeID,
			InstanceID: string(c.InstanceID),
			Provider:   string(c.Provider),
			Window:     max(c.Window, earlier.Window),
		})
		return nil
	})
	return errors.Annotate(err, "noting calls of a provider")
}

// RemoveAttachmentCalls removes the notes with the volumes, machines and terms of the given ones.
func (a *Leader) RemoveAttachmentCalls(calls []AttachmentCall) error {
	_, err := updateEach(a.Accessor, calls, func(tx *txn, c AttachmentCall) error {
		tx.remove(c.key())
		return nil
	})
	return errors.Annotate(err, "removing the notes of calls of a provider")
}

// AttachmentCalls returns all notes, sorted by volume, machine and term as texts.
func (a *Leader) AttachmentCalls() (calls []AttachmentCall, err error) {
	err = a.st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(callPrefix, func(key string, data []byte) error {
			record, err := decodeAt[attachmentCall](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			c := AttachmentCall{
				Detach:     record.Detach,
				VolumeID:   record.VolumeID,
				InstanceID: coreinstance.Id(record.InstanceID),
				Provider:   storage.ProviderType(record.Provider),
				Window:     record.Window,
			}
			rest, term := path.Split(key[len(callPrefix):])
			volume, machine := path.Split(path.Clean(rest))
			if c.Volume, err = names.ParseVolumeTag(path.Clean(volume)); err == nil {
				c.Machine, err = names.ParseMachineTag(machine)
			}
			if err == nil {
				c.Term, err = strconv.ParseUint(term, 10, 64)
			}
			calls = append(calls, c)
			return errors.Annotatef(err, "key %q", key)
		})
	})
	return calls, errors.Trace(err)
}
