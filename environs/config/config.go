// Package config holds the settings of an environment, which providers receive.
package config

import (
	"maps"
	"regexp"
	"strings"

	"github.com/juju/errors"
)

// The settings that this package interprets. All others are kept unchanged, for the code that
// knows them.
const (
	nameKey         = "name"
	typeKey         = "type"
	uuidKey         = "uuid"
	resourceTagsKey = "resource-tags"
)

// Config is the valid settings of an environment. It is immutable.
type Config struct {
	attrs        map[string]any
	resourceTags map[string]string
}

// uuidPattern matches the canonical text of a UUID, as in model tags.
var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// New returns a Config with a copy of the settings. The keys name, type and uuid are required:
// non-empty strings, the last a UUID in lower case. The optional key resource-tags is a string
// of "key=value" pairs separated by spaces. Errors satisfy errors.IsNotValid and name the key.
func New(attrs map[string]any) (*Config, error) {
	for _, key := range []string{nameKey, typeKey, uuidKey} {
		value, ok := attrs[key]
		if !ok {
			return nil, errors.NotValidf("environment config without %q", key)
		}
		if s, ok := value.(string); !ok || s == "" {
			return nil, errors.NotValidf("environment config: %s %#v (want a non-empty string)", key, value)
		}
	}
	if uuid := attrs[uuidKey].(string); !uuidPattern.MatchString(uuid) {
		return nil, errors.NotValidf("environment config: uuid %q (want a UUID in lower case)", uuid)
	}
	c := &Config{attrs: maps.Clone(attrs)}
	if value, ok := attrs[resourceTagsKey]; ok {
		tags, err := parseResourceTags(value)
		if err != nil {
			return nil, errors.Annotate(err, "environment config: resource-tags")
		}
		c.resourceTags = tags
	}
	return c, nil
}

// parseResourceTags never returns a nil map without an error: an empty map means no tags, and
// nil means that the setting is absent.
func parseResourceTags(value any) (map[string]string, error) {
	s, ok := value.(string)
	if !ok {
		return nil, errors.NotValidf("%#v (want a string)", value)
	}
	tags := make(map[string]string)
	for _, field := range strings.Fields(s) {
		key, value, ok := strings.Cut(field, "=")
		if !ok || key == "" {
			return nil, errors.NotValidf("%q (want key=value)", field)
		}
		if _, ok := tags[key]; ok {
			return nil, errors.NotValidf("tag %q given more than once", key)
		}
		tags[key] = value
	}
	return tags, nil
}

// Name returns the environment's name.
func (c *Config) Name() string {
	return c.attrs[nameKey].(string)
}

// UUID returns the environment's UUID.
func (c *Config) UUID() string {
	return c.attrs[uuidKey].(string)
}

// Type returns the type of the environment's provider.
func (c *Config) Type() string {
	return c.attrs[typeKey].(string)
}

// ResourceTags returns a copy of the tags to set on everything that is made in the
// environment, and whether the setting is present.
func (c *Config) ResourceTags() (map[string]string, bool) {
	return maps.Clone(c.resourceTags), c.resourceTags != nil
}

// AllAttrs returns a copy of all settings, including unknown ones.
func (c *Config) AllAttrs() map[string]any {
	return maps.Clone(c.attrs)
}
