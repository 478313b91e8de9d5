package params

import "github.com/stowage-io/stowage/core/life"

// Entity names an entity by its tag.
type Entity struct {
	Tag string `json:"tag"`
}

// Entities names the entities that a bulk call is about.
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

// LifeResult is the life of an entity or of an attachment, or an error.
type LifeResult struct {
	Life  life.Value `json:"life"`
	Error *Error     `json:"error,omitempty"`
}

// LifeResults holds the results of a bulk call.
type LifeResults struct {
	Results []LifeResult `json:"results"`
}

// Attempt says of a volume, filesystem or attachment that is not recorded whether it may
// have been made all the same.
type Attempt struct {
	// Id is that of an attachment; that of a volume or filesystem has no machine.
	Id        MachineStorageId `json:"id"`
	Attempted bool             `json:"attempted"`
	// Ended says of what was attempted that nobody is making it any more: something may be
	// left of that.
	Ended bool `json:"ended,omitempty"`
}

// AttemptResult says whether something may have been made, or has an error.
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

// OwnerResult says whose a volume or filesystem is, or has an error.
type OwnerResult struct {
	// ModelUUID is the UUID of the state, EntityUUID that of the volume or
	// filesystem.
	ModelUUID  string `json:"model-uuid"`
	EntityUUID string `json:"entity-uuid"`

	// Check asks for the owner to be compared with what the provider knows, before
	// anything is done to what is provisioned: it was recorded before the state was
	// restored.
	Check bool `json:"check,omitempty"`

	Error *Error `json:"error,omitempty"`
}

// OwnerResults holds the results of a bulk call.
type OwnerResults struct {
	Results []OwnerResult `json:"results"`
}
