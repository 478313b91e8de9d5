// Package plugins opens the providers of the command: the built-in ones, those of flags, and those that are
// described by the files of a directory. docs/reference/program-provider.md and csi-provider.md describe the files.
//
// A file says which program is run as root, so only root may be able to write to it, or to the path to it.
package plugins

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/juju/errors"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/internal/owner"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
	"github.com/stowage-io/stowage/storage/provider/program"
)

// Registry has the providers of a process. Make one with [New].
type Registry struct {
	factories storage.FactoryRegistry
	environ   storage.ProviderEnviron
	opened    storage.StaticProviderRegistry
}

// New returns a registry with the built-in providers. The others are opened for environ.
func New(environ storage.ProviderEnviron) (*Registry, error) {
	r := &Registry{environ: environ, opened: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{}}}
	common := provider.CommonStorageProviders()
	types, err := common.StorageProviderTypes()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, name := range types {
		p, err := common.StorageProvider(name)
		if err != nil {
			return nil, errors.Trace(err)
		}
		err = r.add(string(name), "", func(io.Reader, storage.ProviderEnviron) (storage.Provider, error) { return p, nil })
		if err != nil {
			return nil, errors.Trace(err)
		}
	}
	return r, nil
}

// StorageProviderTypes implements [storage.ProviderRegistry].
func (r *Registry) StorageProviderTypes() ([]storage.ProviderType, error) {
	return r.opened.StorageProviderTypes()
}

// StorageProvider implements [storage.ProviderRegistry].
func (r *Registry) StorageProvider(name storage.ProviderType) (storage.Provider, error) {
	return r.opened.StorageProvider(name)
}

// add opens a provider with the configuration in a file; empty: without one.
func (r *Registry) add(name, file string, factory storage.ProviderFactory) error {
	if r.factories.IsRegistered(name) {
		return errors.NewNotValid(nil, fmt.Sprintf("there is a provider %s already: choose another name", name))
	}
	if err := r.factories.Register(name, factory); err != nil {
		return errors.Trace(err)
	}
	plugin, err := r.factories.OpenFile(name, file, r.environ)
	if err != nil {
		return errors.Trace(err)
	}
	r.opened.Providers[storage.ProviderType(plugin.Name())] = plugin.Provider
	return nil
}

// AddProgram adds the provider that runs the program at a path.
func (r *Registry) AddProgram(name, path string) error {
	return r.add(name, "", func(_ io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
		return program.Open(program.Config{Name: storage.ProviderType(name), Path: path, Orchestrator: environ.Orchestrator})
	})
}

// maxFile bounds the size of a file, in bytes.
const maxFile = 64 << 10

// header is what each file has.
type header struct {
	Name string `yaml:"name"`
	Type string `yaml:"type"`
}

// AddDir adds the providers of the files in a directory whose names end in .yaml. Errors name the file.
func (r *Registry) AddDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.Trace(err)
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".yaml" {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		if err := r.addFile(path); err != nil {
			return errors.Annotate(err, path)
		}
	}
	return nil
}

func (r *Registry) addFile(path string) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return errors.Trace(err)
	}
	switch at, err := owner.Check(absolute); {
	case err != nil:
		return errors.Trace(err)
	case at != "":
		return errors.NewNotValid(nil, fmt.Sprintf("others than root can write to %s: chown it to root, and chmod go-w it", at))
	}
	file, err := os.Open(absolute)
	if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	var h header
	if _, err := decode(file, &h, nil); err != nil {
		return err
	}
	if h.Name == "" {
		return errors.NewNotValid(nil, "name: missing: write the name of the provider")
	}
	factory, ok := types[h.Type]
	if !ok {
		return errors.NewNotValid(nil, fmt.Sprintf("type: %q: the types are %s", h.Type, strings.Join(slices.Sorted(maps.Keys(types)), ", ")))
	}
	return r.add(h.Name, absolute, factory)
}

// types has the factory for each type of file.
var types = map[string]storage.ProviderFactory{"program": openProgram, "csi": openCSI}

// programFile is a file with the type program.
type programFile struct {
	header `yaml:",inline"`
	Path   string `yaml:"path"`
	Delete *bool  `yaml:"delete"`
}

func openProgram(config io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
	var f programFile
	if _, err := decode(config, &f, []string{"name", "type", "path", "delete"}); err != nil {
		return nil, err
	}
	return program.Open(program.Config{
		Name: storage.ProviderType(f.Name), Path: f.Path, KeepVolumes: f.Delete != nil && !*f.Delete,
		Orchestrator: environ.Orchestrator,
	})
}

// decode reads the only document of a file, and returns the lines of its fields. fields are those that it
// may have; nil: any.
func decode(file io.Reader, into any, fields []string) (lines map[string]int, err error) {
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, errors.Trace(err)
	case len(data) > maxFile:
		return nil, errors.NewNotValid(nil, fmt.Sprintf("the file is larger than %d KiB", maxFile>>10))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case err == io.EOF:
		return nil, errors.NewNotValid(nil, "the file is empty")
	case err != nil:
		return nil, errors.WithType(err, errors.NotValid)
	}
	if err := decoder.Decode(new(yaml.Node)); err != io.EOF {
		return nil, errors.NewNotValid(nil, "a second document: write a file for each provider")
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("line %d: not a mapping: write `name: NAME`", root.Line))
	}
	lines = make(map[string]int)
	for i := 0; i < len(root.Content); i += 2 {
		lines[root.Content[i].Value] = root.Content[i].Line
		if key := root.Content[i]; fields != nil && !slices.Contains(fields, key.Value) {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("line %d: unknown field %q: the fields are %s", key.Line, key.Value, strings.Join(fields, ", ")))
		}
	}
	var wrong *yaml.TypeError
	if err := root.Decode(into); errors.As(err, &wrong) {
		return nil, errors.NewNotValid(nil, wrong.Errors[0])
	} else if err != nil {
		return nil, errors.WithType(err, errors.NotValid)
	}
	return lines, nil
}
