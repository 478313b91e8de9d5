package storage

import (
	"maps"

	"github.com/juju/errors"
)

// Attrs are the settings of a pool, by name.
type Attrs map[string]any

// Config is a pool: a provider with named settings. A Config is immutable.
type Config struct {
	name     string
	provider ProviderType
	attrs    Attrs
}

// NewConfig returns the pool of that name. It copies the attributes and does not check them:
// [Provider].ValidateConfig does. If name or provider is empty, the error satisfies
// errors.IsNotValid.
func NewConfig(name string, provider ProviderType, attrs Attrs) (*Config, error) {
	if name == "" {
		return nil, errors.NotValidf("storage pool with an empty name")
	}
	if provider == "" {
		return nil, errors.NotValidf("storage pool %q with an empty provider", name)
	}
	return &Config{name: name, provider: provider, attrs: maps.Clone(attrs)}, nil
}

// Name returns the pool's name.
func (c *Config) Name() string {
	return c.name
}

// Provider returns the type of the pool's provider.
func (c *Config) Provider() ProviderType {
	return c.provider
}

// Attrs returns a copy of the pool's settings.
func (c *Config) Attrs() Attrs {
	return maps.Clone(c.attrs)
}

// ValueString returns the setting of that name, and whether it exists and is a string.
func (c *Config) ValueString(name string) (string, bool) {
	value, ok := c.attrs[name].(string)
	return value, ok
}
