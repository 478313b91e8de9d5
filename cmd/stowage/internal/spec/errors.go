package spec

import (
	"fmt"
	"strings"

	"github.com/juju/errors"
)

// maxErrors bounds how many errors are kept: a file that is no list of storage may have any number.
const maxErrors = 20

// Errors are what is wrong with a file, in its order. They satisfy errors.IsNotValid.
type Errors struct {
	All []error
	// More is how many more there are.
	More int
}

// add adds an error, or all of several, unless it is nil.
func (e *Errors) add(err error) {
	var several *Errors
	switch {
	case err == nil:
	case errors.As(err, &several):
		for _, one := range several.All {
			e.add(one)
		}
		e.More += several.More
	case len(e.All) == maxErrors:
		e.More++
	default:
		e.All = append(e.All, err)
	}
}

// err returns nil for no error, and a single one as it is.
func (e *Errors) err() error {
	switch len(e.All) {
	case 0:
		return nil
	case 1:
		return e.All[0]
	}
	return e
}

// Lines returns the text of each error.
func (e *Errors) Lines() []string {
	lines := make([]string, len(e.All), len(e.All)+1)
	for i, err := range e.All {
		lines[i] = err.Error()
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more errors", e.More))
	}
	return lines
}

// Error implements error.
func (e *Errors) Error() string { return strings.Join(e.Lines(), "; ") }

// Is implements what errors.Is looks for.
func (e *Errors) Is(target error) bool { return target == errors.NotValid }
