// Package statefile keeps copies of an agent's state file: backups, and the two copies
// that the agent itself keeps. It restores them, and finds the newest.
//
// A copy is a state file with a trailer: one page that says which state it is a copy of
// and when it was made, and has a checksum of all. Every copy is read back before it gets
// its name. What a copy is used as in place of a state file works, too: a store ignores
// what follows its pages.
//
// A copy has the state alone, not the storage. Making one holds a snapshot open, for as
// long as writing takes: until then the state file grows by what is deleted.
package statefile

import (
	"time"

	"github.com/stowage-io/stowage/state/kv"
)

// Identity is what a state says of itself.
type Identity struct {
	// Schema is the version of its records and keys.
	Schema int `json:"schema"`

	// UUID and Generation say which state it is, and how often it has been restored.
	// States of schema 3 and before have none.
	UUID       string `json:"uuid"`
	Generation uint64 `json:"generation"`
}

// Identify reads the identity of a state, and may check what else is in it. Its error
// says that the state is damaged, or that this version does not read it.
type Identify func(kv.Snapshot) (Identity, error)

// Kind is what is known of a file.
type Kind string

const (
	// KindState is a state file: its structure was checked, and what Identify checks.
	KindState Kind = "state file"

	// KindCopy is a copy with a trailer: its checksum was compared, too.
	KindCopy Kind = "copy"
)

// Meta is what is known of a state file or copy.
type Meta struct {
	Kind Kind `json:"-"`

	Identity

	// Version is the number of the state's last transaction: of two states of the
	// same UUID and generation that with the higher is the newer.
	Version uint64 `json:"version"`

	// Time is when a copy was made, or when a state file was last written to.
	Time time.Time `json:"time"`

	// Size is how many bytes of the file are the state's.
	Size int64 `json:"size"`
}

// newer reports whether m is the newer of two states, if they are the same state.
func (m Meta) newer(other Meta) bool {
	switch {
	case m.Generation != other.Generation:
		return m.Generation > other.Generation
	case m.Version != other.Version:
		return m.Version > other.Version
	}
	return m.Time.After(other.Time)
}
