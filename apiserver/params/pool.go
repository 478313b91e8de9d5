package params

// Pool is the pool that storage is of.
type Pool struct {
	Name string `json:"name"`

	// Attributes are the pool's own.
	Attributes map[string]any `json:"attributes,omitempty"`
}
