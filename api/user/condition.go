package user

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/juju/errors"
)

// ErrPrecondition is the error of a change whose [Condition] is not met. Nothing was changed.
const ErrPrecondition = errors.ConstError("precondition failed")

// Condition is what storage must be like for a change to be made. The zero value is always met.
type Condition struct {
	// Name is that of the storage: NAME, which stands for all its instances, or NAME/N.
	Name string
	// Revisions are those that the storage may have ([RevisionOf]); none: any.
	Revisions []string
	// Exists says that there must be such storage, and Absent that there must be none.
	Exists, Absent bool
}

// Check returns an error that satisfies errors.Is(err, [ErrPrecondition]) unless the revision of the
// storage meets the condition.
func (c Condition) Check(revision string) error {
	problem := ""
	switch {
	case c.Absent && revision != "":
		problem = fmt.Sprintf("storage %q exists, with revision %s: to change it, leave out If-None-Match", c.Name, revision)
	case (c.Exists || len(c.Revisions) > 0) && revision == "":
		problem = fmt.Sprintf("storage %q does not exist: to add it, leave out If-Match", c.Name)
	case len(c.Revisions) > 0 && !slices.Contains(c.Revisions, revision):
		problem = fmt.Sprintf("storage %q has revision %s: somebody has changed it; look at it again (GET /v1/storage/%s), and send its revision in If-Match",
			c.Name, revision, c.Name)
	default:
		return nil
	}
	return errors.WithType(errors.New(problem), ErrPrecondition)
}

// RevisionOf returns the revision of storage that one name stands for: that of a single instance, or
// one that differs if any of several instances has changed, was added, or is gone. It is empty for no
// storage.
func RevisionOf(all []Storage) string {
	switch len(all) {
	case 0:
		return ""
	case 1:
		return all[0].Revision
	}
	hash := fnv.New64a()
	for _, s := range all {
		_, _ = fmt.Fprintf(hash, "%s %s\n", s.Name, s.Revision) // it never fails
	}
	return strconv.FormatUint(hash.Sum64(), 36)
}
