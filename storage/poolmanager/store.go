package poolmanager

import "github.com/stowage-io/stowage/storage"

// Settings are what a store keeps of a pool under its name.
type Settings struct {
	Provider   storage.ProviderType
	Attributes storage.Attrs

	// InUse reports that storage of the pool exists. The store sets it. A store that does not
	// know leaves it false, and then pools in use are not protected. A store ignores the InUse
	// of settings that a [Change] returns.
	InUse bool
}

// Store keeps the pools that users make. It applies no rules: the changes decide what it may
// keep. Its methods are safe for concurrent use.
type Store interface {
	// PoolSettings returns the settings of all pools, by name. The caller owns the map.
	PoolSettings() (map[string]Settings, error)

	// ChangePools makes changes one after the other, all or none: if a change returns an
	// error, ChangePools changes nothing and returns that error, at most annotated. Between
	// the time at which a change reads the settings and the time at which its result is
	// stored, no other change is made and no pool comes into use. When ChangePools returns
	// nil, the changes are stored.
	ChangePools(changes ...Change) error
}

// Change is a change of the settings under one name.
type Change struct {
	Name string

	// Make gets the present settings, including the changes before this one, or nil. It
	// returns the new settings, or nil to remove them. Make may be called more than once; the
	// last call counts.
	Make func(old *Settings) (*Settings, error)
}
