package poolmanager

import "github.com/stowage-io/stowage/storage"

// Settings are what is kept of a pool under its name.
type Settings struct {
	Provider   storage.ProviderType
	Attributes storage.Attrs

	// InUse tells that there is storage of the pool. It is for the store to say; a
	// store that does not know leaves it false, and then pools in use are not
	// protected. What a [Change] makes of it means nothing.
	InUse bool
}

// Store keeps the pools that users make. It knows no rules: what may be kept is for
// the changes to say. Its methods are safe for concurrent use.
type Store interface {
	// PoolSettings returns all that is kept, by name. It is the caller's.
	PoolSettings() (map[string]Settings, error)

	// ChangePools makes changes one after the other, all or none: if one returns an
	// error, nothing is changed, and that error is returned, annotated at most. No
	// other change, and nothing that puts a pool in use, comes between what a change
	// is given and what it makes of that. When ChangePools returns nil, the
	// changes are kept.
	ChangePools(changes ...Change) error
}

// Change is a change of what is kept under a name.
type Change struct {
	Name string

	// Make is given what is kept, the changes before it included, or nil. It returns
	// what is to be kept instead, or nil for nothing. It may be called more than
	// once; the last call counts.
	Make func(old *Settings) (*Settings, error)
}
