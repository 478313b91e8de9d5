package state

import (
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// Presence is what the servers know about the connection of a machine's agent.
type Presence struct {
	// Connected says that the agent has a connection, or had one a short time ago.
	Connected bool `cbor:"1,keyasint,omitempty"`
	// Since is when the first of its connections began, or when the last one was lost. It is the
	// zero time for an agent that never had a connection.
	Since time.Time `cbor:"2,keyasint,omitzero"`
	// Server is the name of the server that it is, or was last, connected to. It is empty if the
	// state has only one.
	Server string `cbor:"3,keyasint,omitempty"`
	// Session is the number of the last session in which the agent had a connection.
	Session uint64 `cbor:"4,keyasint,omitempty"`
}

func (r *reader) presence(machine machineTag) Presence {
	presence, _ := read[Presence](r, presenceKey(machine))
	return presence
}

// Presence returns what is known about the connection of a machine's agent.
func (st *State) Presence(machine names.MachineTag) (presence Presence, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		presence = r.presence(newMachineTag(machine))
		return nil
	})
	return presence, errors.Trace(err)
}

// WatchPresence returns a watcher that notifies when the connections of machines' agents change.
func (st *State) WatchPresence() (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(presencePrefix)
}

// SetPresence notes since when an agent has a connection to a server in its session, or has none. It
// changes nothing if there is a newer session, and so a newer connection, or if the agent has none to
// that server and one to another server. Since stays as it is unless Connected changes.
func (st *State) SetPresence(s Session, now Presence) error {
	at := newMachineTag(s.Machine)
	err := st.update(func(tx *txn) error {
		record, _ := read[sessionRecord](&tx.reader, sessionKey(at))
		if record.Number != s.Number {
			return nil
		}
		former := tx.presence(at)
		elsewhere := former.Connected && former.Session == s.Number && former.Server != now.Server
		if !now.Connected && (!former.Connected || elsewhere) {
			return nil
		}
		next := now
		next.Session = s.Number
		if !now.Connected {
			next.Session = former.Session
		}
		next.Since = now.Since.UTC()
		if former.Connected == now.Connected {
			next.Since = former.Since
		}
		tx.write(presenceKey(at), &next)
		return nil
	})
	return errors.Annotatef(err, "noting the connection of machine %s", s.Machine.Id())
}
