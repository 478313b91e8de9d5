package object

import (
	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Failures are several errors, of one object each.
type Failures []error

func (f Failures) Error() string {
	text := f[0].Error()
	for _, err := range f[1:] {
		text += "\n" + err.Error()
	}
	return text
}

// Unwrap lets errors.Is find each.
func (f Failures) Unwrap() []error { return f }

// ReidentifyAll calls reidentify for every object, after their directory was moved. The
// error has one for each object that is not what its record tells.
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

// ReidentifyPlacement makes sure that a filesystem is not mounted any more where the
// directory that this one was moved from had it, and forgets which mount it was. What
// this agent has mounted since stays. isIt tells whether a mount may be the filesystem.
// The mount point of a copy, and the directories made for it, are the original's.
func (c *MountCall) ReidentifyPlacement(how Relocation, place *Placement, isIt func(*mountinfo.Info) bool) error {
	if place.MountPoint == "" || place.Mark == c.Mark {
		return nil
	}
	if how == Copied {
		*place = Placement{}
		return nil
	}
	if at := c.Table().At(place.MountPoint); at != nil && isIt(at) {
		return errors.Errorf("%s is still mounted at %s, for the directory that this one was moved from: unmount it first",
			mount.Describe(at), place.MountPoint)
	}
	place.Mark, place.MountID, place.MountNamespace = c.Mark, 0, c.namespace
	return nil
}
