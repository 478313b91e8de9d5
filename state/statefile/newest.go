package statefile

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
)

// copyNames returns the names of the agent's own copies of the state file.
func copyNames(path string) []string { return []string{path + ".copy-1", path + ".copy-2"} }

// schemaSuffix is the suffix of copies that are made before a state is migrated to another
// schema.
const schemaSuffix = ".schema"

// SchemaCopy returns the name of the copy of a state file with an older schema.
func SchemaCopy(path string, schema int) string { return path + schemaSuffix + strconv.Itoa(schema) }

// Candidate is a file from which a state may be restored.
type Candidate struct {
	Path string
	Meta Meta
	// Err says why the file cannot be used; Meta is meaningless then.
	Err error
}

// Candidates verifies the state file at path and all copies that were made beside it, and
// returns those that exist: the newest first, and those that cannot be used last. A higher
// generation is newer, whatever the versions are.
func Candidates(path string, identify Identify) ([]Candidate, error) {
	schemas, err := filepath.Glob(escape(path) + schemaSuffix + "[0-9]*")
	if err != nil {
		return nil, errors.Trace(err)
	}
	var all []Candidate
	// Skip leftovers of interrupted copies.
	schemas = slices.DeleteFunc(schemas, func(name string) bool { return strings.Contains(filepath.Base(name), temporarySuffix) })
	for _, name := range slices.Concat([]string{path}, copyNames(path), schemas) {
		meta, err := Verify(name, identify)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		all = append(all, Candidate{name, meta, err})
	}
	slices.SortStableFunc(all, func(a, b Candidate) int {
		switch {
		case a.Err != nil && b.Err != nil:
			return 0
		case a.Err != nil:
			return 1
		case b.Err != nil, a.Meta.newer(b.Meta):
			return -1
		case b.Meta.newer(a.Meta):
			return 1
		}
		return 0
	})
	return all, nil
}

// Newest returns the newest of the intact candidates of the state with the UUID, or of any
// state if the UUID is empty. States of schema 3 and before have no UUID, and are assumed to
// be that state. If no candidate is usable, the error satisfies errors.IsNotFound, and says
// what is wrong with each.
func Newest(path, uuid string, identify Identify) (Candidate, error) {
	all, err := Candidates(path, identify)
	if err != nil {
		return Candidate{}, err
	}
	problems := ""
	for _, candidate := range all {
		switch found := candidate.Meta.UUID; {
		case candidate.Err != nil:
			problems += "; " + candidate.Err.Error()
		case uuid != "" && found != "" && found != uuid:
			problems += "; " + candidate.Path + " is of state " + found
		default:
			return candidate, nil
		}
	}
	return Candidate{}, errors.NewNotFound(nil, "no usable copy of "+path+problems)
}
