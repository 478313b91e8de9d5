package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	coreinstance "github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

type machineRecord struct {
	InstanceID coreinstance.Id `cbor:"1,keyasint,omitempty"`
	// Name is empty for a machine that EnsureMachine has added.
	Name string `cbor:"2,keyasint,omitempty"`
	// Enrolled is how many agents have been enrolled for the machine.
	Enrolled uint64 `cbor:"3,keyasint,omitempty"`
	// Enroller is a hash of the token and the public key of the last of them.
	Enroller []byte `cbor:"4,keyasint,omitempty"`
	// Fenced is set while the machine counts as off.
	Fenced *fence `cbor:"5,keyasint,omitempty"`
	// Labels are what users have said about the machine.
	Labels map[string]string `cbor:"6,keyasint,omitempty"`
	// Drained says that the machine is to get no storage.
	Drained bool `cbor:"7,keyasint,omitempty"`
}

// CheckMachineName returns an error that satisfies errors.IsNotValid unless the name can be that
// of a machine: up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at
// both ends. A number is no name, since machines have numbers too. The name "any" is reserved.
func CheckMachineName(name string) error {
	switch {
	case name == coremachine.Any:
		return errors.NewNotValid(nil, fmt.Sprintf("machine name %q: the name is reserved: choose another", name))
	case !coremachine.IsName(name):
		return errors.NewNotValid(nil, fmt.Sprintf(
			"machine name %q: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends, and is not a number", name))
	}
	return nil
}

// AddMachine adds a machine, and returns its tag. Its number is greater than that of every other
// machine that was ever added. The error satisfies errors.IsNotValid if the name is not valid
// (see [CheckMachineName]), and errors.IsAlreadyExists if another machine has it.
func (st *State) AddMachine(name string) (names.MachineTag, error) {
	if err := CheckMachineName(name); err != nil {
		return names.MachineTag{}, errors.Trace(err)
	}
	var added names.MachineTag
	err := st.updateIfSpace(func(tx *txn) error {
		if tx.has(machineNameKey(name)) {
			return errors.NewAlreadyExists(nil, "another machine has this name")
		}
		var err error
		added, err = names.ParseMachineTag(string(tx.addMachine(name)))
		return err
	})
	return added, errors.Annotatef(err, "adding machine %q", name)
}

// addMachine adds a machine whose name no other has.
func (tx *txn) addMachine(name string) machineTag {
	tx.requireMark()
	at := tx.nextMachine()
	tx.write(machineNameKey(name), &at)
	tx.write(machineKey(at), &machineRecord{Name: name})
	return at
}

// nextMachine returns the tag of the next machine. EnsureMachine may have used its number.
func (tx *txn) nextMachine() machineTag {
	for {
		number := tx.increment(sequenceKey(names.MachineTagKind))
		at := newMachineTag(names.NewMachineTag(strconv.FormatUint(number, 10)))
		if tx.err != nil || !tx.has(machineKey(at)) {
			return at
		}
	}
}

// Machine describes a machine.
type Machine struct {
	Tag names.MachineTag
	// Name is the machine's number if the machine was added without a name.
	Name string
	// InstanceID is empty for a machine that is not provisioned.
	InstanceID coreinstance.Id
	Session    SessionInfo
	Presence   Presence
	// Labels are what users have said about the machine.
	Labels map[string]string
	// Fenced is when the machine was fenced; the zero time for one that is not.
	Fenced time.Time
	// Drained says that the machine is to get no storage; see [State.DrainMachine].
	Drained bool
	// Space is the space that the machine has for the storage of its providers, as far as its agent
	// has reported it.
	Space map[storage.ProviderType]coremachine.Space
	// Drivers are what the CSI drivers of the machine say about it, by provider.
	Drivers map[storage.ProviderType]coremachine.Driver
}

// Machines returns all machines, sorted by name.
func (st *State) Machines() (all []Machine, err error) {
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(machinesPrefix, func(key string, data []byte) error {
			record, err := decodeAt[machineRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			at, _, _ := strings.Cut(strings.TrimPrefix(key, machinesPrefix), "/")
			tag, err := names.ParseMachineTag(at)
			if err != nil {
				return errors.Annotatef(err, "key %q", key)
			}
			all = append(all, r.machine(tag, record))
			return nil
		})
	})
	slices.SortFunc(all, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
	return all, errors.Trace(err)
}

// Machine returns a machine. The error satisfies errors.IsNotFound if there is no such machine.
func (st *State) Machine(tag names.MachineTag) (m Machine, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, ok := read[machineRecord](r, machineKey(newMachineTag(tag)))
		if !ok {
			return errors.NotFoundf("machine %s", tag.Id())
		}
		m = r.machine(tag, record)
		return nil
	})
	return m, errors.Trace(err)
}

func (r *reader) machine(tag names.MachineTag, record machineRecord) Machine {
	at := newMachineTag(tag)
	session, _ := read[sessionRecord](r, sessionKey(at))
	var fenced time.Time
	if record.Fenced != nil {
		fenced = record.Fenced.Time
	}
	return Machine{
		Tag:        tag,
		Name:       record.name(at),
		InstanceID: record.InstanceID,
		Session:    session.info(),
		Presence:   r.presence(at),
		Labels:     record.Labels,
		Fenced:     fenced,
		Drained:    record.Drained,
		Space:      r.space(at),
		Drivers:    r.drivers(at),
	}
}

// MachineNamed returns the tag of the machine with the name, or with the number. The error
// satisfies errors.IsNotFound if there is no such machine.
func (st *State) MachineNamed(name string) (tag names.MachineTag, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		at, ok := read[machineTag](r, machineNameKey(name))
		if !ok && names.IsValidMachine(name) {
			at = newMachineTag(names.NewMachineTag(name))
			ok = r.has(machineKey(at))
		}
		if !ok {
			return errors.NotFoundf("machine %q", name)
		}
		tag, err = names.ParseMachineTag(string(at))
		return err
	})
	return tag, errors.Trace(err)
}

// MachineName returns the name of the machine, or its number if it has none. The error satisfies
// errors.IsNotFound if there is no such machine.
func (st *State) MachineName(machine names.MachineTag) (name string, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, ok := read[machineRecord](r, machineKey(newMachineTag(machine)))
		if !ok {
			return errors.NotFoundf("machine %s", machine.Id())
		}
		name = cmp.Or(record.Name, machine.Id())
		return nil
	})
	return name, errors.Trace(err)
}

// EnsureMachine adds the machine unless it exists.
func (st *State) EnsureMachine(machine names.MachineTag) error {
	return st.update(func(tx *txn) error {
		if !tx.has(machineKey(newMachineTag(machine))) {
			tx.write(machineKey(newMachineTag(machine)), &machineRecord{})
		}
		return nil
	})
}

// SetInstanceId records that the machine is provisioned. The error satisfies errors.IsNotFound
// if there is no such machine, and errors.IsNotValid if the ID is empty or the machine has a
// different one.
func (st *State) SetInstanceId(machine names.MachineTag, id coreinstance.Id) error {
	return st.update(func(tx *txn) error { return tx.setInstanceID(newMachineTag(machine), id) })
}

func (tx *txn) setInstanceID(machine machineTag, id coreinstance.Id) error {
	record, ok := read[machineRecord](&tx.reader, machineKey(machine))
	switch {
	case !ok:
		return errors.NotFoundf("%s", machine)
	case id == "":
		return errors.NotValidf("%s: empty instance id", machine)
	case record.InstanceID == id:
		return nil
	case record.InstanceID != "":
		return errors.NotValidf("%s has instance id %q: instance id %q", machine, record.InstanceID, id)
	}
	record.InstanceID = id
	tx.write(machineKey(machine), &record)
	return nil
}

// InstanceId returns the machine's instance ID. The error satisfies errors.IsNotFound if there
// is no such machine, and errors.IsNotProvisioned if it has no instance ID yet.
func (st *State) InstanceId(machine names.MachineTag) (id coreinstance.Id, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		id, err = instanceID(r, newMachineTag(machine))
		return err
	})
	return id, errors.Trace(err)
}

func instanceID(r *reader, machine machineTag) (coreinstance.Id, error) {
	record, ok := read[machineRecord](r, machineKey(machine))
	switch {
	case !ok:
		return "", errors.NotFoundf("%s", machine)
	case record.InstanceID == "":
		return "", errors.NotProvisionedf("%s", machine)
	}
	return record.InstanceID, nil
}

// instanceID returns the instance ID of a machine, or "" if it has none.
func (r *reader) instanceID(machine machineTag) string {
	id, ok := r.instanceIDs[machine]
	if !ok {
		record, _ := read[machineRecord](r, machineKey(machine))
		if r.instanceIDs == nil {
			r.instanceIDs = make(map[machineTag]string)
		}
		id = string(record.InstanceID)
		r.instanceIDs[machine] = id
	}
	return id
}

// WatchMachine returns a watcher that notifies when the machine is added or provisioned.
func (st *State) WatchMachine(machine names.MachineTag) (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(machinePrefix(newMachineTag(machine)))
}

// StaticVolumes returns the parameters of the machine's static volumes that are not
// provisioned. They must come with its instance (see [State.SetInstanceInfo]), since no worker
// makes them. The error satisfies errors.IsNotFound if there is no such machine.
func (st *State) StaticVolumes(machine names.MachineTag) (found []params.VolumeParams, err error) {
	at := newMachineTag(machine)
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		if !r.has(machineKey(at)) {
			return errors.NotFoundf("machine %s", machine.Id())
		}
		return snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			e := i.Volume
			if e == nil || e.Info != nil || e.Attachment == nil || e.Attachment.Machine != at || e.Attachment.detaching() {
				return nil
			}
			provider, err := st.registry.StorageProvider(storage.ProviderType(i.Provider))
			if err != nil || provider.Dynamic() {
				return nil // an unknown provider's volume cannot be requested
			}
			tags, err := r.resourceTags(key[len(storagePrefix):], &i, e)
			if err != nil {
				return errors.Trace(err)
			}
			found = append(found, volumeParams(r, &i, e, tags))
			return nil
		})
	})
	return found, errors.Trace(err)
}

// InstanceInfo describes a machine that has been provisioned.
type InstanceInfo struct {
	ID coreinstance.Id

	// Volumes are static volumes that came with the machine, and VolumeAttachments say where
	// they are on it.
	Volumes           []params.Volume
	VolumeAttachments []params.VolumeAttachment
}

// SetInstanceInfo is [State.SetInstanceId] for a machine that comes with volumes. It records
// everything or nothing. Errors about a volume satisfy the same predicates as those of
// [Accessor.SetVolumeInfo] and [Accessor.SetVolumeAttachmentInfo]; they also satisfy
// errors.IsNotValid if a volume's provider is not static, or if an attachment is another
// machine's.
func (st *State) SetInstanceInfo(machine names.MachineTag, info InstanceInfo) error {
	at := newMachineTag(machine)
	err := st.update(func(tx *txn) error {
		if err := tx.setInstanceID(at, info.ID); err != nil {
			return err
		}
		for _, v := range info.Volumes {
			tag, err := parseTagOf(names.VolumeTagKind, v.VolumeTag)
			if err != nil {
				return errors.Trace(err)
			}
			err = tx.changeEntity(tag, func(i *instance, e *entity) error {
				if provider, err := st.registry.StorageProvider(storage.ProviderType(i.Provider)); err != nil {
					return errors.Trace(err)
				} else if provider.Dynamic() {
					return errors.NewNotValid(nil, fmt.Sprintf("provider %q is not static: its worker makes the volume", i.Provider))
				}
				return tx.setVolumeInfo(i, e, v.Info)
			})
			if err != nil {
				return errors.Annotatef(err, "volume %s", tag)
			}
		}
		for _, va := range info.VolumeAttachments {
			tag, err := parseTagOf(names.VolumeTagKind, va.VolumeTag)
			if err != nil {
				return errors.Trace(err)
			}
			if va.MachineTag != machine.String() {
				return errors.NewNotValid(nil, fmt.Sprintf("volume %s is attached to %q, not to this machine", tag, va.MachineTag))
			}
			if err := tx.setAttachmentInfo(at, tag, newVolumeAttachmentInfo(va.Info)); err != nil {
				return errors.Annotatef(err, "attachment of volume %s", tag)
			}
		}
		return nil
	})
	return errors.Annotatef(err, "provisioning machine %s", machine.Id())
}

// LostWith returns the sorted names of the storage that is lost with a machine: the storage
// that cannot leave it, and the storage on volumes of the environment that are attached to it
// and are not persistent.
func (st *State) LostWith(machine names.MachineTag) (lost []string, err error) {
	at := newMachineTag(machine)
	err = st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err == nil && i.lostWith(at) {
				lost = append(lost, key[len(storagePrefix):])
			}
			return errors.Trace(err)
		})
	})
	slices.Sort(lost)
	return lost, errors.Trace(err)
}

// RemoveMachine removes a machine that is gone for good: neither it nor its worker runs any
// more. The caller must name the storage that is lost with it in lost (see [State.LostWith]).
// Of that, the machine's own storage and static storage are removed from the state without a
// call to a provider. The environment's worker detaches volumes and filesystems of the
// environment; it then destroys a volume that is not persistent, and releases a persistent one
// whose filesystem cannot leave the machine. Errors satisfy errors.IsNotFound if there is no
// such machine, errors.IsNotValid if lost lacks a name, and errors.IsNotSupported if something
// has to be released and its provider does not support that.
//
// If RemoveMachine is interrupted, the machine is fenced, and has a part of what it had. Removing
// it again goes on.
func (st *State) RemoveMachine(machine names.MachineTag, lost ...string) error {
	at := newMachineTag(machine)
	named := make(map[string]bool, len(lost))
	for _, name := range lost {
		named[name] = true
	}
	err := st.checkRemoval(at, named)
	if err == nil {
		// Nothing is attached to a fenced machine any more, so what there is now is all.
		err = st.update(func(tx *txn) error { return tx.fence(at) })
	}
	if err == nil {
		err = st.emptyMachine(at, named)
	}
	if err == nil {
		err = st.update(func(tx *txn) error {
			if err := tx.checkFenced(at); err != nil {
				return err
			}
			if record, _ := read[machineRecord](&tx.reader, machineKey(at)); record.Name != "" {
				tx.remove(machineNameKey(record.Name))
			}
			tx.removeTasksOf(at)
			for _, key := range []string{changesKey(at), matchesKey(at), sessionKey(at), presenceKey(at), spaceKey(at), driversKey(at), machineKey(at)} {
				tx.remove(key)
			}
			return tx.err
		})
	}
	return errors.Annotatef(err, "removing machine %s", machine.Id())
}

// checkRemoval returns why a machine cannot be removed, if it cannot.
func (st *State) checkRemoval(at machineTag, lost map[string]bool) error {
	var unnamed, snapshots []string
	err := st.view(func(r *reader, snapshot kv.Snapshot) error {
		unnamed, snapshots = nil, nil
		err := scanSnapshotsOn(snapshot, at, func(key string, s *snapshotRecord) {
			if !s.Deleting {
				snapshots = append(snapshots, key[len(snapshotPrefix):])
			}
		})
		if err != nil {
			return errors.Trace(err)
		}
		if _, ok := read[machineRecord](r, machineKey(at)); !ok {
			return errors.NewNotFound(nil, "there is no such machine")
		}
		return snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			name := key[len(storagePrefix):]
			if i.lostWith(at) && !lost[name] {
				unnamed = append(unnamed, name)
			}
			return errors.Annotatef(st.removeFromMachine(&i, at, st.clock.Now()), "storage %q", name)
		})
	})
	switch {
	case err != nil:
	case len(snapshots) > 0:
		err = errors.NewNotValid(nil, fmt.Sprintf("it has snapshots, which are lost with it: delete them first, with `stowage snapshot delete %s`", strings.Join(snapshots, " ")))
	case len(unnamed) > 0:
		err = errUnnamed(unnamed)
	}
	return errors.Trace(err)
}

// scanSnapshotsOn calls fn for each snapshot that a machine has.
func scanSnapshotsOn(snapshot kv.Snapshot, at machineTag, fn func(key string, s *snapshotRecord)) error {
	return snapshot.Scan(snapshotPrefix, func(key string, data []byte) error {
		s, err := decodeAt[snapshotRecord](key, data)
		if err == nil && s.Scope == string(at) {
			fn(key, &s)
		}
		return errors.Trace(err)
	})
}

func errUnnamed(names []string) error {
	return errors.NewNotValid(nil, "the storage that is lost with it must be named: "+strings.Join(names, ", "))
}

// emptyMachine removes what a fenced machine has, in transactions that the store allows.
func (st *State) emptyMachine(at machineTag, lost map[string]bool) error {
	var keys []string
	err := st.view(func(_ *reader, snapshot kv.Snapshot) error {
		keys = nil
		err := snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err == nil && i.isOn(at) {
				keys = append(keys, key)
			}
			return errors.Trace(err)
		})
		if err == nil {
			err = scanSnapshotsOn(snapshot, at, func(key string, _ *snapshotRecord) { keys = append(keys, key) })
		}
		if err != nil {
			return errors.Trace(err)
		}
		return snapshot.Scan(devicePrefix(at), func(key string, _ []byte) error {
			keys = append(keys, key)
			return nil
		})
	})
	if err != nil {
		return errors.Trace(err)
	}
	for batch := range slices.Chunk(keys, st.maxEntities()) {
		if err := st.update(func(tx *txn) error { return st.emptyMachineOf(tx, at, batch, lost) }); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

// emptyMachineOf is emptyMachine for some keys of storage and of block devices.
func (st *State) emptyMachineOf(tx *txn, at machineTag, keys []string, lost map[string]bool) error {
	if err := tx.checkFenced(at); err != nil {
		return err
	}
	for _, key := range keys {
		if device, ok := strings.CutPrefix(key, devicePrefix(at)); ok {
			tx.setDevicesOf(at, device, nil)
			continue
		}
		if strings.HasPrefix(key, snapshotPrefix) {
			if s, ok := read[snapshotRecord](&tx.reader, key); ok {
				tx.remove(snapshotUUIDKey(s.UUID))
				tx.remove(key)
			}
			continue
		}
		name := key[len(storagePrefix):]
		i, ok := read[instance](&tx.reader, key)
		switch {
		case !ok:
			continue
		case i.lostWith(at) && !lost[name]:
			return errUnnamed([]string{name})
		}
		if err := tx.change(name, &i, func() error { return st.removeFromMachine(&i, at, tx.now) }); err != nil {
			return errors.Annotatef(err, "storage %q", name)
		}
	}
	return tx.err
}

// checkFenced returns an error unless the machine is fenced. Its agent may have returned, with another
// boot ID, and what is attached to it then is not known.
func (tx *txn) checkFenced(at machineTag) error {
	if record, _ := read[machineRecord](&tx.reader, machineKey(at)); record.Fenced == nil {
		return errors.NewNotValid(nil, "it has returned while it was removed: stop its agent, and remove it again")
	}
	return nil
}

// isOn reports whether a part of the instance belongs to the machine or is attached to it.
func (i *instance) isOn(machine machineTag) bool {
	for _, e := range i.entities() {
		if e.Tag.scope() == string(machine) || e.Attachment != nil && e.Attachment.Machine == machine {
			return true
		}
	}
	return false
}

// lostWith reports whether the instance is lost with the machine.
func (i *instance) lostWith(machine machineTag) bool {
	for _, e := range i.entities() {
		if e.Tag.scope() == string(machine) {
			return true
		}
	}
	v := i.Volume
	return v != nil && v.Info != nil && !v.Info.Persistent && v.Attachment != nil && v.Attachment.Machine == machine
}

// removeFromMachine detaches an instance from a machine that is gone. The environment's worker
// does the rest: it sees the attachments that are being detached. No worker does this for the
// machine's own storage, nor for static storage: removeFromMachine removes their records and
// attachments.
func (st *State) removeFromMachine(i *instance, machine machineTag, now time.Time) error {
	static, releasable := false, false
	if provider, err := st.registry.StorageProvider(storage.ProviderType(i.Provider)); err == nil {
		static, releasable = !provider.Dynamic(), provider.Releasable()
	}
	lost := i.lostWith(machine)
	switch {
	case i.entities()[0].Tag.scope() == string(machine), lost && static:
		i.Volume, i.Filesystem = nil, nil
		return nil
	case lost && i.Life == life.Alive:
		i.Life = life.Dying
		i.Release = i.Volume.Info != nil && i.Volume.Info.Persistent
		if i.Release && !releasable {
			return errors.NewNotSupported(nil, fmt.Sprintf(
				"its volume is persistent, its filesystem cannot leave the machine, and provider %q cannot release it", i.Provider))
		}
	}
	if f := i.Filesystem; f != nil && f.Tag.scope() == string(machine) {
		i.Filesystem = nil
	}
	for _, e := range i.entities() {
		a := e.Attachment
		if a == nil || a.Machine != machine {
			continue
		}
		a.Plan = nil // no worker can undo it
		e.beginDetach(now)
		if static {
			if err := e.removeAttachment(now); err != nil {
				return errors.Trace(err)
			}
		}
	}
	return nil
}

// LabelMachine sets labels of a machine, and removes others. Removing a label that there is not has no
// effect. Errors satisfy errors.IsNotFound if there is no such machine, and errors.IsNotValid if it
// would have too many labels.
func (st *State) LabelMachine(machine names.MachineTag, set map[string]string, remove []string) error {
	err := st.updateIfSpace(func(tx *txn) error {
		if err := st.checkLabels(&tx.reader); err != nil {
			return err
		}
		key := machineKey(newMachineTag(machine))
		record, ok := read[machineRecord](&tx.reader, key)
		if !ok {
			return errors.NewNotFound(nil, "there is no such machine")
		}
		labels := maps.Clone(record.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		for _, name := range remove {
			delete(labels, name)
		}
		maps.Copy(labels, set)
		if err := label.Check(labels); err != nil {
			return err
		}
		if record.Labels = labels; len(labels) == 0 {
			record.Labels = nil
		}
		tx.write(key, &record)
		return nil
	})
	return errors.Annotatef(err, "labelling machine %s", machine.Id())
}
