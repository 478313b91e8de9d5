package params

// Pool is a storage pool.
type Pool struct {
	Name string `json:"name"`

	// Attributes are the pool's own settings.
	Attributes map[string]any `json:"attributes,omitempty"`
}
