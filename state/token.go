package state

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	coreinstance "github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state/kv"
)

// TokenParams describes a token to create.
type TokenParams struct {
	Role role.Value
	// Machine is the name of the machine that the token is for, which may exist: then its agent
	// is replaced. Empty: the token is for a machine whose name is new. It must be empty for
	// other roles.
	Machine string
	// Lifetime is how long the token is valid.
	Lifetime time.Duration
	// Uses is how often it can be used, at least once.
	Uses int
}

func (p TokenParams) validate() error {
	if err := p.Role.Validate(); err != nil {
		return errors.Trace(err)
	}
	switch {
	case p.Machine != "" && p.Role != role.Machine:
		return errors.NewNotValid(nil, fmt.Sprintf("a token with role %s is for no machine", p.Role))
	case p.Machine != "":
		if err := CheckMachineName(p.Machine); err != nil {
			return errors.Trace(err)
		}
	}
	switch {
	case p.Lifetime <= 0:
		return errors.NewNotValid(nil, fmt.Sprintf("a token that is valid for %v", p.Lifetime))
	case p.Uses < 1:
		return errors.NewNotValid(nil, fmt.Sprintf("a token with %d uses", p.Uses))
	}
	return nil
}

// Token is a token as it is listed: without its secret.
type Token struct {
	ID      string
	Role    role.Value
	Machine string
	Expires time.Time
	Uses    int // that are left
}

// tokenRecord is a token. The secret is kept as a hash.
type tokenRecord struct {
	Role    role.Value `cbor:"1,keyasint"`
	Machine string     `cbor:"2,keyasint,omitempty"`
	Secret  []byte     `cbor:"3,keyasint"`
	Expires time.Time  `cbor:"4,keyasint"`
	Uses    int        `cbor:"5,keyasint"`
}

func (t *tokenRecord) token(id string) Token {
	return Token{ID: id, Role: t.Role, Machine: t.Machine, Expires: t.Expires, Uses: t.Uses}
}

// CreateToken creates a token, and returns it with its secret, which has the form ID.SECRET. The
// state does not keep the secret.
func (st *State) CreateToken(p TokenParams) (Token, string, error) {
	if err := p.validate(); err != nil {
		return Token{}, "", errors.Annotate(err, "creating a token")
	}
	id, secret := strings.ToLower(rand.Text()[:8]), rand.Text()
	var record tokenRecord
	err := st.updateIfSpace(func(tx *txn) error {
		if tx.has(tokenKey(id)) {
			return errors.NewAlreadyExists(nil, "its ID is that of another token: try again")
		}
		record = tokenRecord{
			Role: p.Role, Machine: p.Machine, Secret: hashSecret(secret), Expires: tx.now.Add(p.Lifetime), Uses: p.Uses,
		}
		tx.write(tokenKey(id), &record)
		return nil
	})
	if err != nil {
		return Token{}, "", errors.Annotate(err, "creating a token")
	}
	return record.token(id), id + "." + secret, nil
}

// Tokens returns the tokens that can be used, sorted by ID.
func (st *State) Tokens() (all []Token, err error) {
	now := st.clock.Now()
	err = st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(tokenPrefix, func(key string, data []byte) error {
			record, err := decodeAt[tokenRecord](key, data)
			if err == nil && now.Before(record.Expires) {
				all = append(all, record.token(key[len(tokenPrefix):]))
			}
			return errors.Trace(err)
		})
	})
	return all, errors.Trace(err)
}

// RemoveToken removes a token. The error satisfies errors.IsNotFound if there is no such token.
func (st *State) RemoveToken(id string) error {
	err := st.update(func(tx *txn) error {
		if !tx.has(tokenKey(id)) {
			return errors.NewNotFound(nil, "there is no such token")
		}
		tx.remove(tokenKey(id))
		return nil
	})
	return errors.Annotatef(err, "removing token %q", id)
}

// RemoveExpiredTokens removes the tokens that can no longer be used.
func (st *State) RemoveExpiredTokens() error {
	var expired []string
	now := st.clock.Now()
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(tokenPrefix, func(key string, data []byte) error {
			record, err := decodeAt[tokenRecord](key, data)
			if err == nil && !now.Before(record.Expires) {
				expired = append(expired, key)
			}
			return errors.Trace(err)
		})
	})
	if err == nil && len(expired) > 0 {
		err = st.update(func(tx *txn) error {
			for _, key := range expired {
				tx.remove(key)
			}
			return nil
		})
	}
	return errors.Annotate(err, "removing expired tokens")
}

// useToken uses up one use of a token with one of the roles, and returns it. The error does not say what is wrong with
// a token that is not valid.
func (tx *txn) useToken(text string, want ...role.Value) (*tokenRecord, error) {
	id, secret, _ := strings.Cut(text, ".")
	record, ok := read[tokenRecord](&tx.reader, tokenKey(id))
	same := subtle.ConstantTimeCompare(record.Secret, hashSecret(secret)) == 1
	if !ok || !same || !slices.Contains(want, record.Role) || !tx.now.Before(record.Expires) {
		return nil, errors.NewUnauthorized(nil, fmt.Sprintf(
			"the token is not valid for role %s: it may have expired, or been used before", joinRoles(want)))
	}
	record.Uses--
	if record.Uses == 0 {
		tx.remove(tokenKey(id))
	} else {
		tx.write(tokenKey(id), &record)
	}
	return &record, nil
}

func joinRoles(roles []role.Value) string {
	texts := make([]string, len(roles))
	for i, r := range roles {
		texts[i] = string(r)
	}
	return strings.Join(texts, " or ")
}

// UseToken uses up one use of a token with role server. See [State.Enrol] and [State.EnrolUser] for
// others. The error satisfies errors.IsUnauthorized if the token is not valid.
func (st *State) UseToken(token string, want role.Value) error {
	return st.update(func(tx *txn) error {
		_, err := tx.useToken(token, want)
		return err
	})
}

// EnsureAuthority records the hash of the certificate authority of the state's servers and agents,
// unless there is one already. The error satisfies errors.IsNotValid if that is another one.
func (st *State) EnsureAuthority(hash string) error {
	return st.update(func(tx *txn) error {
		known, ok := read[authorityRecord](&tx.reader, authorityKey)
		if ok && known.Hash != hash {
			return errors.NewNotValid(nil, "the state has servers with another certificate authority")
		}
		tx.write(authorityKey, &authorityRecord{hash})
		return nil
	})
}

// HasAuthority reports whether a certificate authority is recorded.
func (st *State) HasAuthority() (found bool, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		found = r.has(authorityKey)
		return nil
	})
	return found, errors.Trace(err)
}

type authorityRecord struct {
	Hash string `cbor:"1,keyasint"`
}

// Enrolment identifies the agent of a machine. Its certificates name both fields.
type Enrolment struct {
	Machine names.MachineTag
	// Number is how many agents have been enrolled for the machine. Only the last one is
	// admitted.
	Number uint64
}

// Enrol admits an agent with a token as that of the machine with the name: it adds the machine,
// or replaces the agent of an existing one if the token is for it. key is the agent's public key.
// An agent that did not get the answer repeats the call with the same token and key, which has
// no further effect until another agent replaces it. The error satisfies errors.IsUnauthorized
// if the token is not valid or is for another machine, errors.IsNotValid if the name is not
// valid, and errors.IsAlreadyExists if the machine exists and the token is for a new one.
func (st *State) Enrol(token, name string, key []byte) (enrolled Enrolment, err error) {
	if err := CheckMachineName(name); err != nil {
		return Enrolment{}, errors.Trace(err)
	}
	enroller := hashSecret(token + "\n" + string(key))
	err = st.updateIfSpace(func(tx *txn) error {
		at, exists := read[machineTag](&tx.reader, machineNameKey(name))
		record, _ := read[machineRecord](&tx.reader, machineKey(at))
		if !exists || subtle.ConstantTimeCompare(record.Enroller, enroller) == 0 {
			if at, err = tx.enrol(token, name, at); err != nil {
				return err
			}
			record, _ = read[machineRecord](&tx.reader, machineKey(at))
			record.Enroller = enroller
			record.Enrolled++
			record.InstanceID = cmp.Or(record.InstanceID, coreinstance.Id(uuid.NewString()))
			tx.write(machineKey(at), &record)
			tx.endSession(at)
		}
		tag, err := names.ParseMachineTag(string(at))
		enrolled = Enrolment{tag, record.Enrolled}
		return err
	})
	return enrolled, errors.Annotatef(err, "enrolling machine %q", name)
}

// enrol uses a token for the machine with the name, and adds the machine unless it exists:
// existing is its tag, or empty.
func (tx *txn) enrol(token, name string, existing machineTag) (machineTag, error) {
	used, err := tx.useToken(token, role.Machine)
	switch {
	case err != nil:
		return "", err
	case used.Machine != "" && used.Machine != name:
		return "", errors.NewUnauthorized(nil, fmt.Sprintf("the token is for machine %q", used.Machine))
	case existing == "":
		return tx.addMachine(name), nil
	case used.Machine == "":
		return "", errors.NewAlreadyExists(nil, fmt.Sprintf(
			"there is a machine with this name: choose another, or replace its agent with a token that was created with --machine %s", name))
	}
	return existing, nil
}

// CheckEnrolment returns an error that satisfies errors.IsUnauthorized unless the agent is the
// last one that was enrolled for its machine.
func (st *State) CheckEnrolment(e Enrolment) error {
	check := func(r *reader) error {
		record, ok := read[machineRecord](r, machineKey(newMachineTag(e.Machine)))
		switch {
		case !ok:
			return errors.NewUnauthorized(nil, "the machine was removed")
		case record.Enrolled != e.Number:
			return errors.NewUnauthorized(nil, "its agent was replaced by another one")
		}
		return nil
	}
	err := st.view(func(r *reader, _ kv.Snapshot) error { return check(r) })
	if errors.Is(err, errors.Unauthorized) {
		// A snapshot may not have an enrolment at another server yet. A transaction has it.
		err = st.update(func(tx *txn) error { return check(&tx.reader) })
	}
	return errors.Annotatef(err, "machine %s", e.Machine.Id())
}
