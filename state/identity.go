package state

import (
	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
)

// identity is the record that identifies the state.
type identity struct {
	// UUID is drawn when the store is empty, and stays until the state becomes a copy.
	UUID string `cbor:"1,keyasint,omitempty"`

	// Generation is how often the state has been restored, from 1.
	Generation uint64 `cbor:"2,keyasint,omitempty"`

	// Accepted is the last generation that a user has accepted; the first needs none.
	Accepted uint64 `cbor:"3,keyasint,omitempty"`
}

// check returns an error unless the rest of the code can rely on the record.
func (i *identity) check() error {
	if i.UUID == "" || i.Generation == 0 {
		return errors.New("no UUID or generation")
	}
	return nil
}

// newIdentity returns the identity of a new state. If id is empty, it draws a UUID.
func newIdentity(id string) *identity {
	if id == "" {
		id = uuid.NewString()
	}
	return &identity{UUID: id, Generation: 1}
}

// identity returns the identity of the state.
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

// setIdentity changes the identity of the state.
func (tx *txn) setIdentity(i *identity) {
	tx.write(identityKey, i)
	tx.cachedIdentity = i
}

// UUID returns the state's UUID, which everything that the state makes carries as a resource
// tag.
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

// IsAccepted reports whether what the state records about the environment's storage may be acted
// on: it was never restored, or a user has accepted it since ([State.AcceptGeneration]).
func (st *State) IsAccepted() (accepted bool, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		now := r.identity()
		accepted = now.isAccepted()
		return nil
	})
	return accepted, errors.Trace(err)
}

func (i *identity) isAccepted() bool { return i.Generation == 1 || i.Accepted == i.Generation }

// AcceptGeneration says that a user has made sure that storage of the environment is in use on
// the machines that the restored state says, and on no others.
func (st *State) AcceptGeneration() error {
	err := st.update(func(tx *txn) error {
		now := tx.identity()
		now.Accepted = now.Generation
		tx.write(identityKey, &now)
		return nil
	})
	return errors.Annotate(err, "accepting the restored state")
}

// readIdentity updates the identity that UUID and Generation return from the store.
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

// Fingerprint identifies a directory. A state whose directory has a fingerprint other than the
// recorded one was moved or copied.
type Fingerprint struct {
	// Device and Inode are those of the directory; Device is valid within one boot.
	Device uint64 `cbor:"1,keyasint,omitempty"`
	Inode  uint64 `cbor:"2,keyasint,omitempty"`

	// Born is the birth time of the directory, in nanoseconds since 1970; 0 if the filesystem
	// does not record it.
	Born int64 `cbor:"3,keyasint,omitempty"`

	// Subvolume is the ID of a btrfs subvolume, 0 elsewhere.
	Subvolume uint64 `cbor:"4,keyasint,omitempty"`

	MachineID string `cbor:"5,keyasint,omitempty"`
	BootID    string `cbor:"6,keyasint,omitempty"`
}

// Fingerprint returns the fingerprint that was last set; ok is false if none was. The state
// stores it without interpreting it.
func (st *State) Fingerprint() (fingerprint Fingerprint, ok bool, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		fingerprint, ok = read[Fingerprint](r, fingerprintKey)
		return nil
	})
	return fingerprint, ok, errors.Trace(err)
}

// SetFingerprint records the fingerprint of the state's directory.
func (st *State) SetFingerprint(fingerprint Fingerprint) error {
	return st.update(func(tx *txn) error {
		tx.write(fingerprintKey, &fingerprint)
		return nil
	})
}
