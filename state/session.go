package state

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// A machine has one agent at a time. A session is the time in which one connection of that agent
// is the current one: what the agent requests is carried out only if its session is current when
// the transaction commits. So a request that is still under way on an older connection, or on
// another server, has no effect any more.
//
// A session begins with a secret, which the agent stores and then confirms. The next session
// needs that secret. Of a data directory and its copy, which have the same secret, only the
// first to open a session can continue.

// sessionRecord is the current session of a machine. Secrets are kept as hashes.
type sessionRecord struct {
	Number    uint64 `cbor:"1,keyasint"`
	Secret    []byte `cbor:"2,keyasint"`
	Confirmed bool   `cbor:"3,keyasint,omitempty"`
	// Former is the secret that opened this session, until the session is confirmed.
	Former []byte `cbor:"4,keyasint,omitempty"`
	// Refused is when an agent was last refused for its secret.
	Refused time.Time `cbor:"5,keyasint,omitzero"`
	// Generation is that of the state in which the session began. After a restore, the secrets
	// that agents have may be newer than those in the state.
	Generation uint64 `cbor:"6,keyasint"`
	// BootID is that of the machine when the session began.
	BootID string `cbor:"7,keyasint,omitempty"`
}

// Session is a session of a machine's agent.
type Session struct {
	Machine names.MachineTag
	Number  uint64
	// Secret opens the next session. The agent stores it durably, with Opener, and then confirms the
	// session.
	Secret string
	// Opener is the secret that opened this session. It opens the next one if the session is not
	// confirmed. The agent may have stored Secret already, and another request of it that was delayed
	// may open a session, whose secret it never gets, before the session is confirmed.
	Opener string
}

// ErrSessionEnded is the error of a call in a session that is not the machine's current one, or
// not confirmed.
const ErrSessionEnded = errors.ConstError("the session has ended")

// OpenSession begins a session of a machine's agent, and ends the one before. secrets are those that
// the agent has stored, Secret and Opener of its last session; an agent has no secret for its first
// session. In a new generation of the state, the first session of a machine needs no secret. bootID
// identifies the time since the machine was started. The error satisfies errors.IsNotFound if there is no such machine,
// errors.IsUnauthorized if no secret is the current one, since another agent uses a copy of
// the agent's directory, and errors.IsForbidden if the machine was fenced and has not been
// restarted.
func (st *State) OpenSession(machine names.MachineTag, secrets []string, bootID string) (Session, error) {
	if len(secrets) == 0 {
		secrets = []string{""}
	}
	at := newMachineTag(machine)
	opened := Session{Machine: machine, Secret: rand.Text()}
	var refusal error
	err := st.update(func(tx *txn) error {
		refusal = nil
		if !tx.has(machineKey(at)) {
			return errors.NewNotFound(nil, "there is no such machine")
		}
		record, _ := read[sessionRecord](&tx.reader, sessionKey(at))
		generation := tx.identity().Generation
		opener := slices.IndexFunc(secrets, record.admits)
		if opener < 0 && record.Generation == generation {
			record.Refused = tx.now
			tx.write(sessionKey(at), &record)
			refusal = errors.NewUnauthorized(nil,
				"the secret of its last session is not the current one: another agent uses a copy of its directory, or the directory was restored from a backup")
			return nil
		}
		if refusal = tx.endFence(at, bootID); refusal != nil {
			return nil
		}
		opener = max(0, opener) // none is needed in a new generation
		record.Former, record.Confirmed = nil, false
		if secrets[opener] != "" {
			record.Former = hashSecret(secrets[opener])
		}
		record.Number++
		record.Generation = generation
		record.BootID = bootID
		record.Secret = hashSecret(opened.Secret)
		opened.Number, opened.Opener = record.Number, secrets[opener]
		tx.write(sessionKey(at), &record)
		return nil
	})
	if err == nil {
		err = refusal
	}
	if err != nil {
		return Session{}, errors.Annotatef(err, "opening a session of machine %s", machine.Id())
	}
	return opened, nil
}

// admits reports whether an agent with the secret may open the next session. An agent that could
// not store the secret of a session, and so has not confirmed it, has the one before.
func (s *sessionRecord) admits(secret string) bool {
	if s.Former == nil && !s.Confirmed {
		return secret == "" || s.is(s.Secret, secret)
	}
	return s.is(s.Secret, secret) || !s.Confirmed && s.is(s.Former, secret)
}

func (s *sessionRecord) is(hash []byte, secret string) bool {
	return subtle.ConstantTimeCompare(hash, hashSecret(secret)) == 1
}

func hashSecret(secret string) []byte {
	hash := sha256.Sum256([]byte(secret))
	return hash[:]
}

// ConfirmSession makes the secret of the session the only one that opens the next session. The
// agent calls it once it has stored the secret, and before any call in the session. The error
// satisfies errors.Is(err, [ErrSessionEnded]) if there is a newer session.
func (st *State) ConfirmSession(s Session) error {
	at := newMachineTag(s.Machine)
	err := st.update(func(tx *txn) error {
		record, _ := read[sessionRecord](&tx.reader, sessionKey(at))
		if record.Number != s.Number {
			return errors.Trace(ErrSessionEnded)
		}
		record.Confirmed, record.Former = true, nil
		tx.write(sessionKey(at), &record)
		return nil
	})
	return errors.Annotatef(err, "confirming session %d of machine %s", s.Number, s.Machine.Id())
}

// endSession ends the session of a machine, if there is one, and lets another agent open the
// next one without a secret.
func (tx *txn) endSession(machine machineTag) {
	record, ok := read[sessionRecord](&tx.reader, sessionKey(machine))
	if ok {
		// The boot ID is still that of the machine.
		ended := sessionRecord{Number: record.Number + 1, Generation: record.Generation, BootID: record.BootID}
		tx.write(sessionKey(machine), &ended)
	}
}

// SessionInfo describes the current session of a machine.
type SessionInfo struct {
	// Number is 0 if there was no session yet.
	Number uint64
	// Refused is when another agent was last refused, since it had the secret of another session.
	Refused time.Time
	// BootID identifies the time since the machine was started, as its agent has said.
	BootID string
}

// CurrentSession returns the current session of a machine.
func (st *State) CurrentSession(machine names.MachineTag) (info SessionInfo, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, _ := read[sessionRecord](r, sessionKey(newMachineTag(machine)))
		info = record.info()
		return nil
	})
	return info, errors.Trace(err)
}

func (s *sessionRecord) info() SessionInfo { return SessionInfo{s.Number, s.Refused, s.BootID} }

// WatchSession returns a watcher that notifies when the session of a machine changes, or an
// agent is refused.
func (st *State) WatchSession(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(sessionPrefix(newMachineTag(machine)))
}

// ForSession returns the accessors of a machine's worker for its agent. Each call fails with
// [ErrSessionEnded] unless the session is confirmed and current.
func (st *State) ForSession(s Session) *Accessor {
	a := st.ForMachine(s.Machine)
	a.session = s.Number
	return a
}

// CheckSession returns an error that satisfies errors.Is(err, [ErrSessionEnded]) unless a session is
// confirmed and current.
func (st *State) CheckSession(s Session) error {
	return st.view(func(r *reader, _ kv.Snapshot) error { return st.ForSession(s).checkSession(r) })
}

// checkSession returns an error unless the session of the accessor, if it has one, is current.
func (a *Accessor) checkSession(r *reader) error {
	if a.session == 0 {
		return nil
	}
	record, _ := read[sessionRecord](r, sessionKey(a.machine))
	if record.Number != a.session || !record.Confirmed {
		return errors.Annotatef(ErrSessionEnded, "session %d of %s", a.session, a.machine)
	}
	return nil
}
