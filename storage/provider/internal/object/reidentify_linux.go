package object

import (
	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Failures contains one or more errors, each of one object.
type Failures []error

func (f Failures) Error() string {
	text := f[0].Error()
	for _, err := range f[1:] {
		text += "\n" + err.Error()
	}
	return text
}

// Unwrap makes errors.Is look at each error.
func (f Failures) Unwrap() []error { return f }

// ReidentifyAll calls reidentify for every object after the directory was moved. The error
// contains one for each object that does not match its record.
func (c *Call) ReidentifyAll(reidentify func(id string) error) error {
	ids, err := c.Records.List()
	if err != nil {
		return errors.Trace(err)
	}
	var failures Failures
	for _, id := range ids {
		if err := c.Err(); err != nil {
			return errors.Trace(err)
		}
		if err := reidentify(id); err != nil {
			failures = append(failures, errors.Annotate(err, id))
		}
	}
	if len(failures) > 0 {
		return failures
	}
	return nil
}

// ReidentifyPlacement updates the placement of a filesystem after its directory was moved or
// copied. If the directory was moved, it checks that the filesystem is not still mounted for
// the old directory, and clears the ID of the mount; isIt reports whether a mount may be of
// the filesystem. If the directory was copied, it clears the placement: the mount point, and
// the directories made for it, belong to the original. A placement of this agent's own mounts
// stays unchanged.
func (c *MountCall) ReidentifyPlacement(how Relocation, place *Placement, isIt func(*mountinfo.Info) bool) error {
	if place.InPlace && how == Copied {
		*place = Placement{}
	}
	if place.MountPoint == "" || place.Mark == c.Mark {
		return nil
	}
	if how == Copied {
		*place = Placement{}
		return nil
	}
	table, err := c.Table()
	if err != nil {
		return errors.Trace(err)
	}
	if at := table.At(place.MountPoint); at != nil && isIt(at) {
		return errors.Errorf("%s is still mounted at %s, for the directory that this one was moved from: unmount it first",
			mount.Describe(at), place.MountPoint)
	}
	place.Mark, place.MountID, place.MountNamespace = c.Mark, 0, c.namespace
	return nil
}
