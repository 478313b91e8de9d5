package state

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/juju/errors"

	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state/kv"
)

// User is a user who may make requests to the servers.
type User struct {
	Name string
	Role role.Value
	// Number is that of the user's enrolment. It is random, so that who gets the name of a user who
	// was removed is another user, even after an older state was restored.
	Number uint64
	// Enrolled is when that was.
	Enrolled time.Time
}

type userRecord struct {
	Role     role.Value `cbor:"1,keyasint"`
	Number   uint64     `cbor:"2,keyasint"`
	Enrolled time.Time  `cbor:"3,keyasint"`
	// Enroller is a hash of the token and the key, by which the enrolment can be repeated.
	Enroller []byte `cbor:"4,keyasint"`
}

func (u *userRecord) user(name string) User {
	return User{Name: name, Role: u.Role, Number: u.Number, Enrolled: u.Enrolled}
}

// CheckUserName returns an error that satisfies errors.IsNotValid unless a user can have the name.
func CheckUserName(name string) error {
	if !coremachine.IsName(name) {
		return errors.NewNotValid(nil, fmt.Sprintf("the name %q of a user: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends", name))
	}
	return nil
}

// EnrolUser admits a user with a token for role admin or viewer, which becomes the user's. key is
// the user's public key. A user who did not get the answer repeats the call with the same token
// and key, which has no further effect. The error satisfies errors.IsUnauthorized if the token is
// not valid, errors.IsNotValid if the name is not valid, and errors.IsAlreadyExists if there is
// such a user.
func (st *State) EnrolUser(token, name string, key []byte) (enrolled User, err error) {
	if err := CheckUserName(name); err != nil {
		return User{}, errors.Trace(err)
	}
	enroller := hashSecret(token + "\n" + string(key))
	number := newUserNumber()
	err = st.updateIfSpace(func(tx *txn) error {
		record, exists := read[userRecord](&tx.reader, userKey(name))
		if !exists || subtle.ConstantTimeCompare(record.Enroller, enroller) == 0 {
			used, err := tx.useToken(token, role.Admin, role.Viewer)
			switch {
			case err != nil:
				return err
			case exists:
				return errors.NewAlreadyExists(nil, "there is a user with this name: choose another, or remove that user first")
			}
			record = userRecord{
				Role: used.Role, Number: number, Enrolled: tx.now, Enroller: enroller,
			}
			tx.write(userKey(name), &record)
		}
		enrolled = record.user(name)
		return nil
	})
	return enrolled, errors.Annotatef(err, "enrolling user %q", name)
}

func newUserNumber() uint64 {
	var data [8]byte
	_, _ = rand.Read(data[:])                      // it never fails
	return binary.NativeEndian.Uint64(data[:]) | 1 // not 0
}

// User returns the user with the name and the number. The error satisfies errors.IsUnauthorized if
// there is no such user.
func (st *State) User(name string, number uint64) (found User, err error) {
	get := func(r *reader) error {
		record, ok := read[userRecord](r, userKey(name))
		if !ok || record.Number != number {
			return errors.NewUnauthorized(nil, fmt.Sprintf("user %q was removed", name))
		}
		found = record.user(name)
		return nil
	}
	err = st.view(func(r *reader, _ kv.Snapshot) error { return get(r) })
	if errors.Is(err, errors.Unauthorized) {
		// A snapshot may not have an enrolment at another server yet. A transaction has it.
		err = st.update(func(tx *txn) error { return get(&tx.reader) })
	}
	return found, errors.Trace(err)
}

// Users returns the users, sorted by name.
func (st *State) Users() (all []User, err error) {
	err = st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(userPrefix, func(key string, data []byte) error {
			record, err := decodeAt[userRecord](key, data)
			all = append(all, record.user(key[len(userPrefix):]))
			return errors.Trace(err)
		})
	})
	return all, errors.Trace(err)
}

// RemoveUsers removes users, all or none. Their certificates are worthless from then on. The error
// satisfies errors.IsNotFound if there is no such user.
func (st *State) RemoveUsers(names ...string) error {
	return st.update(func(tx *txn) error {
		for _, name := range names {
			if !tx.has(userKey(name)) {
				return errors.NotFoundf("user %q", name)
			}
			tx.remove(userKey(name))
		}
		return nil
	})
}
