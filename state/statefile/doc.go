// Package statefile keeps copies of an agent's state file: backups, and the two copies that
// the agent itself keeps. It restores them, and finds the newest.
//
// A copy is a state file with a trailer: one page that names the state and the time of the
// copy, and has a checksum of everything. Every copy is read back before it gets its name. A
// copy can also be used in place of a state file: a store ignores the data after its pages.
//
// A copy contains only the state, not the storage. Making one holds a snapshot open while it
// is written: until then, the state file retains everything that is deleted.
package statefile

import (
	"time"

	"github.com/stowage-io/stowage/state/kv"
)

// Identity is what identifies a state.
type Identity struct {
	// Schema is the version of the state's records and keys.
	Schema int `json:"schema"`

	// UUID identifies the state, and Generation is how often it has been restored, from 1.
	// States of schema 3 and before have neither.
	UUID       string `json:"uuid"`
	Generation uint64 `json:"generation"`
}

// Identify reads the identity of a state, and may check its other contents. It returns an
// error if the state is damaged, or if this version cannot read it.
type Identify func(kv.Snapshot) (Identity, error)

// Kind is the kind of a file.
type Kind string

const (
	// KindState is a state file. Its structure is verified, and whatever Identify verifies.
	KindState Kind = "state file"

	// KindCopy is a copy with a trailer. Its checksum is verified too.
	KindCopy Kind = "copy"
)

// Meta describes a state file or copy.
type Meta struct {
	Kind Kind `json:"-"`

	Identity

	// Version is the number of the state's last transaction: of two files with the same UUID
	// and generation, the one with the higher version is newer.
	Version uint64 `json:"version"`

	// Time is when the copy was made, or when the state file was last written to.
	Time time.Time `json:"time"`

	// Size is how many bytes of the file belong to the state.
	Size int64 `json:"size"`
}

// newer reports whether m is newer than other, another file of the same state.
func (m Meta) newer(other Meta) bool {
	switch {
	case m.Generation != other.Generation:
		return m.Generation > other.Generation
	case m.Version != other.Version:
		return m.Version > other.Version
	}
	return m.Time.After(other.Time)
}
