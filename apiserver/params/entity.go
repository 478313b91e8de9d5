package params

import "github.com/stowage-io/stowage/core/life"

// Entity identifies an entity by its tag.
type Entity struct {
	Tag string `json:"tag"`
}

// Entities identifies the entities that a bulk call is about.
type Entities struct {
	Entities []Entity `json:"entities"`
}

// StringResult is a string or an error.
type StringResult struct {
	Error  *Error `json:"error,omitempty"`
	Result string `json:"result"`
}

// StringResults holds the results of a bulk call.
type StringResults struct {
	Results []StringResult `json:"results"`
}

// SizeResult is a size in MiB, or an error.
type SizeResult struct {
	Error  *Error `json:"error,omitempty"`
	Result uint64 `json:"result"`
}

// SizeResults holds the results of a bulk call.
type SizeResults struct {
	Results []SizeResult `json:"results"`
}

// LifeResult is the life of an entity or an attachment, or an error.
type LifeResult struct {
	Life  life.Value `json:"life"`
	Error *Error     `json:"error,omitempty"`
}

// LifeResults holds the results of a bulk call.
type LifeResults struct {
	Results []LifeResult `json:"results"`
}

// Attempt says whether a volume, filesystem or attachment that is not recorded may have been
// made all the same.
type Attempt struct {
	// Id is the ID of an attachment, or, without a machine, of a volume or filesystem.
	Id        MachineStorageId `json:"id"`
	Attempted bool             `json:"attempted"`
	// Ended says that the attempt is over: no worker is making the entity any more, but the
	// attempt may have left something.
	Ended bool `json:"ended,omitempty"`
}

// AttemptResult says whether an entity or attachment may have been made, or is an error.
type AttemptResult struct {
	Attempted bool   `json:"attempted"`
	Error     *Error `json:"error,omitempty"`
}

// EntityStatusArgs sets the status of an entity.
type EntityStatusArgs struct {
	Tag    string         `json:"tag"`
	Status string         `json:"status"`
	Info   string         `json:"info"`
	Data   map[string]any `json:"data"`
}

// OwnerResult is the owner of a volume or filesystem, or an error.
type OwnerResult struct {
	// ModelUUID is the UUID of the state; EntityUUID is the UUID of the volume or filesystem.
	ModelUUID  string `json:"model-uuid"`
	EntityUUID string `json:"entity-uuid"`

	// Check says that the owner must be compared with the one that the provider knows before
	// anything is done to the storage, because the storage was recorded, or may have been made,
	// before the state was restored.
	Check bool `json:"check,omitempty"`

	Error *Error `json:"error,omitempty"`
}

// OwnerResults holds the results of a bulk call.
type OwnerResults struct {
	Results []OwnerResult `json:"results"`
}
