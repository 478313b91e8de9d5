package plan

import "strings"

// mounted is the attachment of a filesystem that this worker has mounted. It is kept until the
// attachment's record is dropped, even if the filesystem is no longer mounted.
type mounted struct {
	entity *entity
	// mountPoint is empty if the provider did not say.
	mountPoint string
	// readings is how many readings of mounts had begun when the filesystem was attached.
	readings uint32
}

// ReadingMounts notes that a reading of the mounts begins. It ends with CheckMounts or
// CheckAllMounts.
func (c *Core) ReadingMounts() { c.mountReadings++ }

// CheckMounts ends a reading of the mounts that has shown changes at the given paths since the
// reading before. It checks the attached filesystems that these may concern: those mounted at
// such a path, or below it, where a mount hides them; and those attached since the
// reading before began, which may have been unmounted before a reading has shown them. A filesystem
// that is not as it was attached is always checked, since its error may name another path.
func (c *Core) CheckMounts(paths []string) {
	c.mountsChanged = c.now
	changed := make(map[string]struct{}, len(paths))
	for _, path := range paths {
		changed[path] = struct{}{}
	}
	var concerned []*entity
	for i := range c.mounted {
		m := &c.mounted[i]
		if m.entity.flags.has(attachedHere) &&
			(m.mountPoint == "" || m.readings+1 >= c.mountReadings || m.entity.flags.has(checkFailed) || isWithin(m.mountPoint, changed)) {
			concerned = append(concerned, m.entity)
		}
	}
	for _, e := range concerned {
		c.checkNow(e)
	}
}

// isWithin reports whether an absolute path is one of the given paths or below one.
func isWithin(path string, paths map[string]struct{}) bool {
	for end := len(path); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if _, ok := paths[path[:end]]; ok {
			return true
		}
	}
	_, ok := paths["/"]
	return ok
}

// noteMounted notes that a filesystem has been mounted. If mounts have changed since the
// operation was requested, the mount point may be among those that have been reported, so the
// filesystem is checked.
func (c *Core) noteMounted(e *entity, mountPoint string) {
	if !c.isMounted(e) {
		e.mountIndex = uint32(len(c.mounted))
		c.mounted = append(c.mounted, mounted{entity: e})
	}
	m := &c.mounted[e.mountIndex]
	m.mountPoint, m.readings = mountPoint, c.mountReadings
	if c.mountsChanged.After(e.work.since) {
		e.flags.set(checkDue, true)
	}
}

// isMounted reports whether c.mounted has the attachment.
func (c *Core) isMounted(e *entity) bool {
	return int(e.mountIndex) < len(c.mounted) && c.mounted[e.mountIndex].entity == e
}

// dropMounted removes an attachment from c.mounted, if it is there.
func (c *Core) dropMounted(e *entity) {
	if !c.isMounted(e) {
		return
	}
	last := len(c.mounted) - 1
	c.mounted[e.mountIndex] = c.mounted[last]
	c.mounted[e.mountIndex].entity.mountIndex = e.mountIndex
	c.mounted[last] = mounted{}
	c.mounted = c.mounted[:last]
	if last == 0 {
		c.mounted = nil // its capacity may be for many
	}
}
