package state

import (
	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// identity is the record that identifies the state.
type identity struct {
	// UUID is drawn when the store is empty, and is the state's until it becomes a
	// copy.
	UUID string `cbor:"1,keyasint,omitempty"`

	// Generation is how often the state has been restored, from 1.
	Generation uint64 `cbor:"2,keyasint,omitempty"`
}

// check returns an error unless the rest of the code can rely on what was read.
func (i *identity) check() error {
	if i.UUID == "" || i.Generation == 0 {
		return errors.New("no UUID or generation")
	}
	return nil
}

// newIdentity returns the identity of a new state.
func newIdentity(id string) *identity {
	if id == "" {
		id = uuid.NewString()
	}
	return &identity{UUID: id, Generation: 1}
}

// identity returns which state this is.
func (r *reader) identity() identity {
	if r.cachedIdentity == nil {
		known, ok := read[identity](r, identityKey)
		if !ok && r.err == nil {
			r.err = errors.Errorf("%q is missing", identityKey)
		}
		r.cachedIdentity = &known
	}
	return *r.cachedIdentity
}

// setIdentity changes which state this is.
func (tx *txn) setIdentity(i *identity) {
	tx.write(identityKey, i)
	tx.cachedIdentity = i
}

// UUID returns the state's UUID, which all that it makes carries as a resource tag.
func (st *State) UUID() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.identity.UUID
}

// Generation returns how often the state has been restored, from 1.
func (st *State) Generation() uint64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.identity.Generation
}

// readIdentity has UUID and Generation return what the store has.
func (st *State) readIdentity() error {
	var now identity
	err := st.view(func(r *reader, _ kv.Snapshot) error {
		now = r.identity()
		return nil
	})
	if err != nil {
		return errors.Trace(err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.identity = now
	return nil
}

// Fingerprint is what a directory is known by. A state whose directory has another
// fingerprint than it has noted was moved or copied.
type Fingerprint struct {
	// Device, within one boot, and Inode are those of the directory.
	Device uint64 `cbor:"1,keyasint,omitempty"`
	Inode  uint64 `cbor:"2,keyasint,omitempty"`

	// Born is when the directory was made, in nanoseconds since 1970; 0 where the
	// filesystem does not tell.
	Born int64 `cbor:"3,keyasint,omitempty"`

	// Subvolume is the ID of a btrfs subvolume, 0 elsewhere.
	Subvolume uint64 `cbor:"4,keyasint,omitempty"`

	MachineID string `cbor:"5,keyasint,omitempty"`
	BootID    string `cbor:"6,keyasint,omitempty"`
}

// Fingerprint returns what was last set, and false if nothing was. The state keeps it and
// does not look at it.
func (st *State) Fingerprint() (fingerprint Fingerprint, ok bool, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		fingerprint, ok = read[Fingerprint](r, fingerprintKey)
		return nil
	})
	return fingerprint, ok, errors.Trace(err)
}

// SetFingerprint notes what the state's directory is known by.
func (st *State) SetFingerprint(fingerprint Fingerprint) error {
	return st.update(func(tx *txn) error {
		tx.write(fingerprintKey, &fingerprint)
		return nil
	})
}
