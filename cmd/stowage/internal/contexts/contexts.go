// Package contexts keeps what a user needs to make requests to servers from another host: their
// addresses, and a certificate. Each is a file in a directory of the user's configuration, which
// "stowage login" writes.
package contexts

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/juju/errors"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	coremachine "github.com/stowage-io/stowage/core/machine"
)

// Context is access to servers.
type Context struct {
	// Name is that of the context, by which commands choose it.
	Name string `yaml:"-"`
	// Servers are the URLs of servers with one state.
	Servers []string `yaml:"servers"`
	// User is the name of the user there, and Role the user's role.
	User string `yaml:"user"`
	Role string `yaml:"role"`
	// CA is the certificate of the servers' authority; Certificate and Key are the user's. All are
	// in PEM.
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
}

// Credentials returns the certificates and the key.
func (c *Context) Credentials() trust.Credentials {
	return trust.Credentials{Certificate: []byte(c.Certificate), Key: []byte(c.Key), CA: []byte(c.CA)}
}

// Dir is the directory of a user's contexts. Empty: the user has none, and cannot have any.
type Dir string

// DirOf returns the directory, as the environment says.
func DirOf(getenv func(string) string) Dir {
	if config := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(config) {
		return Dir(filepath.Join(config, "stowage"))
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return Dir(filepath.Join(home, ".config", "stowage"))
	}
	return ""
}

const (
	suffix      = ".yaml"
	currentFile = "current-context"
)

// CheckName returns an error that satisfies errors.IsNotValid unless a context can have the name.
func CheckName(name string) error {
	if !coremachine.IsName(name) {
		return errors.NewNotValid(nil, fmt.Sprintf("the name %q of a context: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends", name))
	}
	return nil
}

func (d Dir) contexts() string { return filepath.Join(string(d), "contexts") }

func (d Dir) path(name string) string { return filepath.Join(d.contexts(), name+suffix) }

// Load returns the context with the name. The error satisfies errors.IsNotFound if there is no such context.
func (d Dir) Load(name string) (*Context, error) {
	if err := CheckName(name); err != nil {
		return nil, errors.Trace(err)
	}
	missing := errors.NewNotFound(nil, fmt.Sprintf("there is no context %q: `stowage context` lists the contexts, `stowage login` adds one", name))
	if d == "" {
		return nil, missing
	}
	content, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, errors.Annotatef(err, "context %s", name)
	}
	c := &Context{Name: name}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(c); err != nil {
		return nil, errors.Annotatef(err, "context %s: %s", name, d.path(name))
	}
	if len(c.Servers) == 0 {
		return nil, errors.New(fmt.Sprintf("context %s: %s names no servers", name, d.path(name)))
	}
	return c, nil
}

// Save writes a context, which only its owner can read.
func (d Dir) Save(c *Context) error {
	if err := CheckName(c.Name); err != nil {
		return errors.Trace(err)
	}
	if d == "" {
		return errors.New("there is no directory for contexts: set HOME or XDG_CONFIG_HOME")
	}
	content, err := yaml.Marshal(c)
	if err != nil {
		return errors.Trace(err)
	}
	if err := os.MkdirAll(d.contexts(), 0o700); err != nil {
		return errors.Annotatef(err, "context %s", c.Name)
	}
	return errors.Annotatef(datadir.WriteFile(d.path(c.Name), content), "context %s", c.Name)
}

// Remove removes a context. The error satisfies errors.IsNotFound if there is no such context.
func (d Dir) Remove(name string) error {
	if _, err := d.Load(name); errors.Is(err, errors.NotFound) || errors.Is(err, errors.NotValid) {
		return errors.Trace(err) // a damaged one can be removed
	}
	if current, err := d.Current(); err == nil && current == name {
		if err := os.Remove(filepath.Join(string(d), currentFile)); err != nil {
			return errors.Annotatef(err, "context %s", name)
		}
	}
	return errors.Annotatef(os.Remove(d.path(name)), "context %s", name)
}

// List returns the names of the contexts, sorted.
func (d Dir) List() ([]string, error) {
	if d == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(d.contexts())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Annotate(err, "listing the contexts")
	}
	var all []string
	for _, entry := range entries {
		if name, ok := strings.CutSuffix(entry.Name(), suffix); ok && coremachine.IsName(name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all, nil
}

// Current returns the name of the context that commands use if nothing else is chosen, or nothing.
func (d Dir) Current() (string, error) {
	if d == "" {
		return "", nil
	}
	content, err := os.ReadFile(filepath.Join(string(d), currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(content)), errors.Annotate(err, "reading the current context")
}

// Use makes a context the current one. No name: commands use the agent of this host.
func (d Dir) Use(name string) error {
	if name == "" {
		err := os.Remove(filepath.Join(string(d), currentFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return errors.Annotate(err, "leaving the current context")
	}
	if _, err := d.Load(name); err != nil {
		return errors.Trace(err)
	}
	return errors.Annotate(datadir.WriteFile(filepath.Join(string(d), currentFile), []byte(name+"\n")), "choosing the current context")
}
