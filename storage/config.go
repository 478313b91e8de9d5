package storage

import (
	"fmt"
	"maps"

	"github.com/juju/errors"
)

// Attrs are the settings of a pool, by name.
type Attrs map[string]any

// ConfigDefaultSize is an attribute that every pool may have: the size of storage for which none is asked,
// such as "10G". It is not for the provider: see [Config.ForProvider].
const ConfigDefaultSize = "default-size"

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

// ForProvider returns the pool as its provider knows it: without the attributes that every pool may have.
func (c *Config) ForProvider() *Config {
	own := *c
	own.attrs = maps.Clone(c.attrs)
	delete(own.attrs, ConfigDefaultSize)
	return &own
}

// DefaultSize returns the size in MiB of storage for which none is asked; 0 if the pool does not say. The
// error satisfies errors.IsNotValid.
func (c *Config) DefaultSize() (uint64, error) {
	value, ok := c.attrs[ConfigDefaultSize]
	if !ok {
		return 0, nil
	}
	size, err := ParseSize(fmt.Sprint(value))
	return size, errors.Annotatef(err, "storage pool %q: attribute %q", c.name, ConfigDefaultSize)
}

// ValueString returns the setting of that name, and whether it exists and is a string.
func (c *Config) ValueString(name string) (string, bool) {
	value, ok := c.attrs[name].(string)
	return value, ok
}
