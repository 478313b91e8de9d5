package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// Recovered is a volume or filesystem that a source has, as its resource tags describe it.
type Recovered struct {
	// Of is StorageKindBlock for a volume, StorageKindFilesystem for a filesystem.
	Of storage.StorageKind

	// Provider is the provider of the storage instance. A filesystem on a volume gets the
	// volume's provider, whatever this field says.
	Provider   storage.ProviderType
	ProviderID string
	Size       uint64 // MiB
	Owner      storage.Owner

	// VolumeUUID is the UUID of a filesystem's backing volume, or empty.
	VolumeUUID string

	// Tag is the former tag of the volume or filesystem, nil if the resource tags do not name
	// it.
	Tag names.Tag

	// Name, Kind, Pool, Attributes, MountPoint, ReadOnly and Asker are those of the storage instance.
	// Machine is the zero tag for storage that is bound to no machine. A volume's empty values
	// are taken from the filesystem on it.
	Name       string
	Kind       storage.StorageKind
	Pool       string
	Attributes map[string]any
	Machine    names.MachineTag
	MountPoint string
	ReadOnly   bool
	Asker      Asker
}

// NewRecovered reads the resource tags of a volume (StorageKindBlock) or filesystem
// (StorageKindFilesystem) that a provider's source has. If it cannot read a tag, the error
// names it and satisfies errors.IsNotValid.
func NewRecovered(of storage.StorageKind, provider storage.ProviderType, object storage.OwnedObject) (Recovered, error) {
	tags := object.ResourceTags
	o := Recovered{
		Of:         of,
		Provider:   provider,
		ProviderID: object.ID,
		Size:       object.Size,
		Owner:      storage.OwnerOf(tags),
		VolumeUUID: tags[storage.VolumeUUIDTag],
		Name:       tags[storage.StorageNameTag],
		Pool:       tags[storage.PoolTag],
		MountPoint: tags[storage.MountPointTag],
	}
	refuse := func(key string, err error) (Recovered, error) {
		return Recovered{}, errors.NewNotValid(err, fmt.Sprintf("%s %q has resource tag %s=%q", provider, object.ID, key, tags[key]))
	}
	var err error
	if text, ok := tags[storage.EntityTag]; ok {
		if o.Tag, err = names.ParseTag(text); err != nil {
			return refuse(storage.EntityTag, err)
		}
	}
	if text, ok := tags[storage.MachineTag]; ok {
		if o.Machine, err = names.ParseMachineTag(text); err != nil {
			return refuse(storage.MachineTag, err)
		}
	}
	if text, ok := tags[storage.AttributesTag]; ok {
		if err := json.Unmarshal([]byte(text), &o.Attributes); err != nil {
			return refuse(storage.AttributesTag, err)
		}
	}
	if text, ok := tags[storage.ReadOnlyTag]; ok {
		if o.ReadOnly, err = strconv.ParseBool(text); err != nil {
			return refuse(storage.ReadOnlyTag, err)
		}
	}
	if text, ok := tags[storage.AskerTag]; ok {
		o.Asker.Way, o.Asker.Name, _ = strings.Cut(text, "/")
		if err := o.Asker.Validate(); err != nil {
			return refuse(storage.AskerTag, err)
		}
	}
	switch text, ok := tags[storage.KindTag]; {
	case text == storage.StorageKindFilesystem.String():
		o.Kind = storage.StorageKindFilesystem
	case text == storage.StorageKindBlock.String() || !ok:
		o.Kind = storage.StorageKindBlock
	default:
		return refuse(storage.KindTag, nil)
	}
	return o, nil
}

// RecoverOutcome is the outcome of recovering a [Recovered].
type RecoverOutcome string

const (
	// RecoverAdded is for an object that has become a new storage instance, or part of one.
	RecoverAdded RecoverOutcome = "added"

	// RecoverKnown is for an object that the state has already; it stays as it is.
	RecoverKnown RecoverOutcome = "known"

	// RecoverSkipped is for an object that cannot be in the state.
	RecoverSkipped RecoverOutcome = "skipped"
)

// RecoverResult is the result of recovering a [Recovered].
type RecoverResult struct {
	Outcome RecoverOutcome

	// Name is the name of the storage instance. It differs from the Recovered's if another
	// instance has that name. It is empty for a skipped object.
	Name string

	// Reason says why the object was skipped, or is a note to the user.
	Reason string
}

// Recover rebuilds the state from the objects that sources have. It adds those that the state
// does not have, detached and with the same UUIDs. An object whose name is taken becomes
// NAME.recovered-N; so does NAME/N if there is a NAME, and NAME if there is a NAME/N. All
// numbers continue above those that have been seen, and the state begins a new generation.
// Pools are not recovered: each instance keeps its own settings. The results have the order of
// the objects. The caller then sets the resource tags of what was added; see
// [State.PendingStamps].
func (st *State) Recover(objects []Recovered) ([]RecoverResult, error) {
	results, err := st.recover(objects, func(tx *txn, _ []RecoverResult) error {
		id := tx.identity()
		id.Generation++
		tx.setIdentity(&id)
		return nil
	})
	if err == nil {
		err = st.readIdentity()
	}
	return results, errors.Annotate(err, "recovering storage")
}

// PlanRecovery returns the results that Recover would return, and changes nothing.
func (st *State) PlanRecovery(objects []Recovered) ([]RecoverResult, error) {
	const planned = errors.ConstError("planned")
	results, err := st.recover(objects, func(*txn, []RecoverResult) error { return planned })
	if errors.Is(err, planned) {
		err = nil
	}
	return results, errors.Annotate(err, "planning to recover storage")
}

// Adopt adds a storage instance of the given name from parts that sources have and the state
// does not, detached and with the same UUIDs: a volume with the filesystem that is on it, or
// one of the two. Errors satisfy errors.IsAlreadyExists if the name is taken, and
// errors.IsNotValid if a part cannot be in the state. Either all parts are added, or none. The
// caller then sets the resource tags; see [State.PendingStamps].
func (st *State) Adopt(name string, objects []Recovered) error {
	if err := checkName(name); err != nil {
		return errors.Annotatef(err, "adopting storage %q", name)
	}
	if err := st.checkSpace(); err != nil {
		return errors.Annotatef(err, "adopting storage %q", name)
	}
	objects = slices.Clone(objects)
	for n := range objects {
		objects[n].Name = name
	}
	_, err := st.recover(objects, func(_ *txn, results []RecoverResult) error {
		for n, result := range results {
			switch {
			case result.Outcome == RecoverSkipped:
				return errors.NewNotValid(nil, objects[n].ProviderID+": "+result.Reason)
			case result.Outcome == RecoverKnown:
				return errors.NewAlreadyExists(nil, objects[n].ProviderID+" already belongs to storage "+strconv.Quote(result.Name))
			case result.Name != name:
				return errors.NewAlreadyExists(nil, "the name is taken (there cannot be both NAME and NAME/N)")
			}
		}
		return nil
	})
	return errors.Annotatef(err, "adopting storage %q", name)
}

// recover adds the objects in a transaction, and commits it if commit returns nil. Otherwise
// it returns the error of commit.
func (st *State) recover(objects []Recovered, commit func(*txn, []RecoverResult) error) ([]RecoverResult, error) {
	for {
		r, err := st.newRecovery(objects)
		if err != nil {
			return nil, errors.Trace(err)
		}
		var results []RecoverResult
		current := false
		err = st.update(func(tx *txn) error {
			if current = r.isCurrent(tx); !current {
				return tx.err
			}
			// The transaction may run again.
			again := r.clone()
			again.tx = tx
			tx.requireMark()
			results = again.run(objects)
			return commit(tx, results)
		})
		if err != nil || current {
			return results, errors.Trace(err)
		}
	}
}

// newRecovery returns a recovery of objects that knows what the state has.
func (st *State) newRecovery(objects []Recovered) (*recovery, error) {
	providers := make(map[string]bool)
	for _, o := range objects {
		providers[string(o.Provider)] = true
	}
	var r *recovery
	err := st.view(func(all *reader, snapshot kv.Snapshot) error {
		r = &recovery{
			st:        st,
			seen:      all.numbers(),
			open:      make(map[string][]byte),
			instances: make(map[string]string),
			names:     make(map[string]bool),
			baseNames: make(map[string]bool),
			tags:      make(map[entityTag]bool),
			ids:       make(map[objectID]entityTag),
			added:     make(map[string]*instance),
		}
		return snapshot.Scan(storagePrefix, func(key string, data []byte) error {
			i, err := decodeAt[instance](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			name := strings.TrimPrefix(key, storagePrefix)
			r.reserveName(name)
			for _, e := range i.entities() {
				r.register(name, i.Provider, e)
				if e.Info == nil && providers[i.Provider] {
					r.open[key] = slices.Clone(data)
				}
			}
			return nil
		})
	})
	return r, errors.Trace(err)
}

// isCurrent reports whether the state is as it was. Adding an instance hands out a number. What else
// matters of an instance, only its provider's IDs, is recorded once.
func (r *recovery) isCurrent(tx *txn) bool {
	if tx.numbers() != r.seen {
		return false
	}
	for key, data := range r.open {
		if !bytes.Equal(tx.get(key), data) {
			return false
		}
	}
	return tx.err == nil
}

// clone returns a copy that run can change.
func (r *recovery) clone() *recovery {
	c := *r
	c.instances, c.names, c.baseNames = maps.Clone(r.instances), maps.Clone(r.names), maps.Clone(r.baseNames)
	c.tags, c.ids, c.added = maps.Clone(r.tags), maps.Clone(r.ids), maps.Clone(r.added)
	return &c
}

// recovery is the transaction of one Recover.
type recovery struct {
	st *State
	tx *txn

	// seen are the numbers of the state as it was read, and open the records, by key, of instances
	// whose provider may record an ID that an object has.
	seen Numbers
	open map[string][]byte

	// instances maps UUIDs of entities to the names of their instances. names holds all names
	// that are taken, and baseNames the NAME of each NAME/N. tags and ids hold those of all
	// entities.
	instances map[string]string
	names     map[string]bool
	baseNames map[string]bool
	tags      map[entityTag]bool
	ids       map[objectID]entityTag

	// added are the new instances.
	added map[string]*instance
}

// objectID identifies an object in its source.
type objectID struct {
	kind         storage.StorageKind
	provider, id string
}

// register records an entity of an instance as known.
func (r *recovery) register(name, provider string, e *entity) {
	r.instances[e.UUID] = name
	r.tags[e.Tag] = true
	if e.Info != nil {
		r.ids[objectID{e.Tag.storageKind(), provider, e.Info.ID}] = e.Tag
	}
}

// storageKind returns the StorageKind of a volume or filesystem.
func (t entityTag) storageKind() storage.StorageKind {
	if t.kind() == names.VolumeTagKind {
		return storage.StorageKindBlock
	}
	return storage.StorageKindFilesystem
}

func (r *recovery) run(objects []Recovered) []RecoverResult {
	for _, o := range objects {
		r.reserveNumber(o.Tag)
	}
	results := make([]RecoverResult, len(objects))
	// Add backing volumes before the filesystems on them.
	for _, onVolume := range []bool{false, true} {
		for n, o := range objects {
			if (o.VolumeUUID != "") == onVolume {
				results[n] = r.addObject(o)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.added)) {
		i := r.added[name]
		i.Uncounted = !r.addToPool(i)
		if i.Asker != nil && r.tx.has(i.Asker.view().key()) {
			i.Asker = nil // that asker has asked again since
		}
		r.tx.add(name, i)
	}
	r.addPendingStamps()
	for n, o := range objects {
		i := r.added[results[n].Name]
		if results[n].Outcome == RecoverAdded && o.Kind == storage.StorageKindFilesystem && i.Filesystem == nil {
			results[n].Reason = "added as a block device: its filesystem has no record"
		}
	}
	return results
}

// addPendingStamps records that the resource tags of the added entities are to be set, since
// their names may have changed.
func (r *recovery) addPendingStamps() {
	all := make([]*instance, 0, len(r.added))
	for _, name := range slices.Sorted(maps.Keys(r.added)) {
		all = append(all, r.added[name])
	}
	if len(all) > 0 {
		r.tx.addPendingStamps(all...)
	}
}

// addPendingStamps records that the resource tags of what instances have are to be set.
func (tx *txn) addPendingStamps(instances ...*instance) {
	pending, _ := read[copyRecord](&tx.reader, addedKey)
	pending.FormerUUID = tx.identity().UUID
	for _, i := range instances {
		for _, e := range i.entities() {
			stamp := newCopiedRecord(i, e)
			stamp.FormerUUID = e.UUID
			pending.Entities = slices.DeleteFunc(pending.Entities, func(p copiedRecord) bool { return p.Tag == e.Tag })
			pending.Entities = append(pending.Entities, stamp)
		}
	}
	tx.write(addedKey, &pending)
}

// maxNumber bounds the numbers in tags that this state did not hand out.
const maxNumber = 1 << 48

// reserveNumber makes numbers continue above the one in a tag.
func (r *recovery) reserveNumber(tag names.Tag) {
	own, err := newEntityTag(tag)
	if err != nil {
		return
	}
	if number, ok := own.number(); ok {
		after := Numbers{Volume: number + 1}
		if own.storageKind() == storage.StorageKindFilesystem {
			after = Numbers{Filesystem: number + 1}
		}
		r.tx.setNumbers(r.tx.numbers().max(after))
	}
}

// number returns the number in the tag, which no other volume, or no other filesystem, has. It
// returns false for a number that cannot have been handed out.
func (t entityTag) number() (uint64, bool) {
	n, err := strconv.ParseUint(string(t[strings.LastIndexByte(string(t), '-')+1:]), 10, 64)
	return n, err == nil && n < maxNumber
}

// addObject adds an object to the state, unless it is there already or cannot be.
func (r *recovery) addObject(o Recovered) RecoverResult {
	skip := func(format string, args ...any) RecoverResult {
		return RecoverResult{Outcome: RecoverSkipped, Reason: fmt.Sprintf(format, args...)}
	}
	own := r.tx.identity().UUID
	switch name, known := r.instances[o.Owner.EntityUUID]; {
	case uuid.Validate(o.Owner.EntityUUID) != nil || o.Owner.ModelUUID == "":
		return skip("its owner is not known")
	case o.Owner.ModelUUID != own:
		return skip("it belongs to state %s, not to this state, %s", o.Owner.ModelUUID, own)
	case known && r.added[name] != nil:
		return skip("storage %q already has this UUID", name)
	case known:
		return RecoverResult{Outcome: RecoverKnown, Name: name}
	case o.ProviderID == "":
		return skip("it has no ID")
	case r.tx.has(deletionKey(o.Owner.EntityUUID)):
		return skip("it is being deleted")
	}
	var i *instance
	if o.VolumeUUID != "" {
		name, ok := r.instances[o.VolumeUUID]
		i = r.added[name]
		switch {
		case !ok:
			return skip("its volume %s is missing", o.VolumeUUID)
		case i == nil:
			return skip("its volume belongs to storage %q, which does not have this filesystem", name)
		case i.Filesystem != nil:
			return skip("its volume belongs to storage %q, which already has filesystem %s", name, i.Filesystem.Tag.id())
		}
		o.Name, o.Provider = name, storage.ProviderType(i.Provider)
	}
	if tag, ok := r.ids[objectID{o.Of, string(o.Provider), o.ProviderID}]; ok {
		return skip("its ID already belongs to %s", tag)
	}
	tag, err := r.chooseTag(o)
	if err != nil {
		return skip("%v", err)
	}
	e := r.tx.newEntity(tag)
	e.UUID, e.Info = o.Owner.EntityUUID, &entityInfo{ID: o.ProviderID, Size: o.Size}
	e.Generation = 0 // so that its owner is verified, as after a restore
	e.Status.set(status.Detached, "recovered", r.tx.now)
	if i == nil {
		i = &instance{Kind: o.Of.String(), Provider: string(o.Provider), Size: max(1, o.Size), Life: life.Alive}
		o.Name = r.chooseName(o, e)
		r.reserveName(o.Name)
		r.added[o.Name] = i
	}
	i.addPart(o, e)
	r.register(o.Name, i.Provider, e)
	return RecoverResult{Outcome: RecoverAdded, Name: o.Name}
}

// chooseTag returns the tag for an object: its own, or a new one if that is taken.
func (r *recovery) chooseTag(o Recovered) (entityTag, error) {
	provider, err := r.st.registry.StorageProvider(o.Provider)
	if err != nil {
		return "", err
	}
	kind := names.VolumeTagKind
	if o.Of == storage.StorageKindFilesystem {
		kind = names.FilesystemTagKind
	}
	bound := provider.Scope() == storage.ScopeMachine || o.VolumeUUID != ""
	if o.Tag != nil {
		tag, err := newEntityTag(o.Tag)
		if err != nil {
			return "", err
		}
		if _, ok := tag.number(); !ok || tag.kind() != kind || bound != (tag.scope() != environScope) {
			return "", errors.Errorf("its tag, %s, cannot be used for it", tag)
		}
		if !r.tags[tag] {
			return tag, nil
		}
		if bound {
			machine, err := names.ParseMachineTag(tag.scope())
			if err != nil {
				return "", err
			}
			o.Machine = machine
		}
	}
	if bound && o.Machine == (names.MachineTag{}) {
		return "", errors.New("its machine is not known")
	}
	return r.tx.newTag(tagPrefix(kind, bound, o.Machine)), nil
}

// addPart adds a volume or filesystem to an instance, with the settings of its object.
func (i *instance) addPart(o Recovered, e *entity) {
	if o.Of == storage.StorageKindBlock {
		i.Volume = e
	} else {
		i.Filesystem, i.Kind = e, o.Of.String()
		if checkMountPoint(o.MountPoint) == nil {
			i.MountPoint = o.MountPoint
		}
	}
	if i.Pool == "" {
		i.Pool = o.Pool
	}
	if i.Attributes.IsZero() {
		i.Attributes = o.Attributes
	}
	i.ReadOnly = i.ReadOnly || o.ReadOnly
	if i.Asker == nil {
		i.Asker = newAsker(o.Asker)
	}
}

// recoveredSuffix precedes the number in the new name of a recovered instance.
const recoveredSuffix = ".recovered-"

var recoveredPattern = regexp.MustCompile(regexp.QuoteMeta(recoveredSuffix) + `[1-9][0-9]{0,8}$`)

// reserveName marks a name as taken.
func (r *recovery) reserveName(name string) {
	r.names[name] = true
	if base := BaseName(name); base != name {
		r.baseNames[base] = true
	}
}

// isNameFree reports whether an instance can have a name. NAME also refers to every NAME/N, so
// the two must not coexist: removing the one would remove the other.
func (r *recovery) isNameFree(name string) bool {
	base := BaseName(name)
	return !r.names[name] && !r.baseNames[name] && (base == name || !r.names[base])
}

// chooseName returns the object's name, or a similar one if that is taken.
func (r *recovery) chooseName(o Recovered, e *entity) string {
	base := recoveredPattern.ReplaceAllString(o.Name, "")
	if !validName.MatchString(base) {
		base = string(e.Tag)
	} else if r.isNameFree(o.Name) {
		return o.Name
	}
	base = BaseName(base)
	name := base
	for n := 1; !r.isNameFree(name); n++ {
		name = base + recoveredSuffix + strconv.Itoa(n)
	}
	return name
}

// addToPool adds an instance to the count of its pool, and reports whether the pool exists.
func (r *recovery) addToPool(i *instance) bool {
	record, ok := read[poolRecord](&r.tx.reader, poolKey(i.Pool))
	if !ok || string(record.Provider) != i.Provider {
		return false
	}
	addToPool(r.tx, i.Pool)
	return true
}

// checkMountPoint returns an error if a filesystem cannot be requested at the mount point.
func checkMountPoint(mountPoint string) error {
	if mountPoint != "" && (!path.IsAbs(mountPoint) || path.Clean(mountPoint) != mountPoint || mountPoint == "/") {
		return errors.NewNotValid(nil, "mount point "+strconv.Quote(mountPoint)+" is not a clean absolute path")
	}
	return nil
}
