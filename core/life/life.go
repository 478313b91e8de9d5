// Package life defines the stages of an entity's life, from its creation to its removal.
package life

// Value is the stage of an entity's life. It only ever moves forward: Alive,
// Dying, Dead, and then the entity is removed.
type Value string

const (
	// Alive entities are wanted: their storage is made and kept.
	Alive Value = "alive"
	// Dying entities are no longer wanted, but something still depends on them.
	Dying Value = "dying"
	// Dead entities have nothing that depends on them. Their storage is destroyed or released,
	// and then the entity is removed.
	Dead Value = "dead"
)
