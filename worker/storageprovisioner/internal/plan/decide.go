package plan

// decide returns the operation that an entity's facts call for, and the key of
// what that must wait for; a zero key when nothing. It changes nothing.
//
// The rules that keep data safe stand here alone: nothing is destroyed while an
// attachment of it is attached or being attached, no volume is detached beneath
// a filesystem that is mounted or being made, no detachment begins while what is
// detached grows, and nothing is attached to what is being taken away.
func (c *Core) decide(e *entity) (Op, Key) {
	switch {
	case e.unresolved:
		return e.op, Key{}
	case e.fact.Life == Gone, e.stale:
		return None, Key{}
	case e.fact.Key.Kind.Attachment():
		return c.decideAttachment(e)
	}
	return c.decideStorage(e)
}

// doubted reports whether it must be known what the last attempt to make a volume
// or filesystem has done, because it is not wanted any more as it was. The creation
// is repeated to learn that. What is on a volume goes with the volume.
func (e *entity) doubted() bool {
	f := &e.fact
	return e.uncertain && !f.Recorded && !f.Key.Kind.Attachment() && f.Backing == "" && (f.Life != Alive || f.Args == nil)
}

func (c *Core) decideStorage(e *entity) (Op, Key) {
	f := &e.fact
	class := c.class(e)
	switch {
	case class == Foreign:
		return None, Key{}
	case e.doubted():
		return Create, Key{}
	case f.Life == Dead && (!f.Recorded || class == Static):
		return Remove, Key{}
	case f.Life == Dead:
		if e.users > 0 {
			return Destroy, f.Key
		}
		return Destroy, Key{}
	case f.Life != Alive || class == Static:
		return None, Key{}
	case f.Recorded && f.Wanted > f.Size:
		return Resize, c.ungrown(e)
	case f.Recorded || f.Args == nil:
		return None, Key{}
	}
	if f.Key.Kind == Filesystem {
		// It needs the machine to be attached, not to be made.
		return Create, c.unready(f.Backing)
	}
	if need, ok := c.unprovisioned(f.Host); ok {
		return Create, need
	}
	attachment := Key{Kind: VolumeAttachment, ID: f.Key.ID, Host: f.Host}
	if former := c.entities[attachment]; former != nil && former.op != Attach && former.underway() {
		// The creation may attach what is still being detached.
		return Create, attachment
	}
	return Create, Key{}
}

// unready returns the key of what must happen before a filesystem can be made or
// mounted on a volume, if there is one: the volume is attached and its plan carried
// out, where that is up to this worker, and its block device is known.
func (c *Core) unready(volume string) Key {
	if volume == "" {
		return Key{}
	}
	under := c.under(volume)
	for _, key := range []Key{under, {Kind: Plan, ID: under.ID, Host: under.Host}} {
		if e := c.entities[key]; e != nil && e.op != None {
			return key
		}
	}
	if !c.devices[volume].known {
		return DeviceKey(volume)
	}
	return Key{}
}

// ungrown returns the key of what must happen before a volume or filesystem can
// grow, if there is anything: a filesystem is attached here, and what it stands on
// has grown before.
func (c *Core) ungrown(e *entity) Key {
	f := &e.fact
	if f.Key.Kind == Volume {
		return Key{}
	}
	if f.Backing != "" {
		volume := Key{Kind: Volume, ID: f.Backing}
		if v := c.entities[volume]; v != nil && v.op == Resize && v.fact.Size < f.Wanted {
			return volume
		}
		if d := c.devices[f.Backing]; !d.known || d.size < f.Wanted {
			return DeviceKey(f.Backing)
		}
	}
	for host := range c.machines {
		a := c.entities[Key{Kind: FilesystemAttachment, ID: f.Key.ID, Host: host}]
		if a != nil && a.attached && a.op == None && (c.options.Host == "" || c.options.Host == host) {
			return Key{}
		}
	}
	return f.Key
}

// inUse returns the key of what says that an attachment is still stood on, and
// that tells when it no longer is.
func (c *Core) inUse(e *entity) (Key, bool) {
	if e.fact.Key.Kind != Plan {
		return e.fact.Key, e.users > 0
	}
	under := planned(e.fact.Key)
	users := 0
	if va := c.entities[under]; va != nil {
		users = va.users
	}
	if e.held {
		users-- // the plan itself
	}
	return under, users > 0
}

func (c *Core) decideAttachment(e *entity) (Op, Key) {
	f := &e.fact
	storageKey := f.Key.Storage()
	storage := c.entities[storageKey]
	if f.Key.Kind == FilesystemAttachment && !e.orphan && !f.BackingKnown && (storage == nil || !storage.observed) {
		// Whether the filesystem is on a volume decides whose it is.
		return Attach, storageKey
	}
	if storage != nil && storage.op == Create && (storage.underway() || storage.doubted()) {
		// The creation may attach as well.
		return Attach, storageKey
	}
	class := c.class(e)
	switch {
	case class == Foreign:
		return None, Key{}
	case f.Life != Alive && (!f.Recorded && !e.uncertain || class == Static):
		return Remove, Key{}
	case f.Life != Alive:
		if key, ok := c.inUse(e); ok {
			return Detach, key
		}
		if storage != nil && storage.op == Resize && (storage.phase == running || storage.unresolved) {
			return Detach, storageKey
		}
		return Detach, Key{}
	case e.attached && f.Recorded || class == Static || f.Args == nil:
		return None, Key{}
	}
	switch {
	case storage != nil && storage.op == Destroy:
		return Attach, storageKey
	case f.ID == "" && (storage == nil || !storage.fact.Recorded):
		return Attach, storageKey
	}
	if need, ok := c.unprovisioned(f.Host); ok {
		return Attach, need
	}
	return Attach, c.unready(c.backing(e))
}

// unprovisioned returns the key of a machine that must be provisioned first.
func (c *Core) unprovisioned(host string) (Key, bool) {
	if host == "" || c.machines[host].instance != "" {
		return Key{}, false
	}
	return MachineKey(host), true
}

// backing returns the id of the volume beneath a filesystem or its attachment.
// That of a held one stays, whatever becomes of the filesystem's record.
func (c *Core) backing(e *entity) string {
	if e.held {
		return e.beneath
	}
	if e.fact.Key.Kind != FilesystemAttachment || e.fact.BackingKnown {
		return e.fact.Backing
	}
	if filesystem, ok := c.entities[e.fact.Key.Storage()]; ok {
		return filesystem.fact.Backing
	}
	return ""
}

// class returns what this worker may do about an entity. Filesystems on volumes
// belong to the worker that manages them, whoever provides the volume.
func (c *Core) class(e *entity) Class {
	switch {
	case c.backing(e) == "":
		return e.fact.Class
	case c.options.Host != "":
		return Ours
	}
	return Foreign
}

// source returns the source that an entity's operations go to.
func (c *Core) source(e *entity) Source {
	if c.backing(e) != "" {
		return Managed
	}
	return e.fact.Source
}
