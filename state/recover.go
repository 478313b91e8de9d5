package state

import (
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
	"github.com/stowage-io/stowage/storage"
)

// Recovered is a volume or filesystem that a source has, as its resource tags tell of it.
type Recovered struct {
	// Of is StorageKindBlock for a volume, StorageKindFilesystem for a filesystem.
	Of storage.StorageKind

	// Provider is that of the storage instance. A filesystem on a volume has the
	// volume's, whatever it says.
	Provider   storage.ProviderType
	ProviderID string
	Size       uint64 // MiB
	Owner      storage.Owner

	// VolumeUUID is the UUID of the volume that a filesystem is on, empty for all
	// else.
	VolumeUUID string

	// Tag is what the volume or filesystem was called, nil where the tags do not say.
	Tag names.Tag

	// Name, Kind, Pool, Attributes, MountPoint and ReadOnly are those of the storage
	// instance; Machine is the zero tag for what is bound to none. Those of a volume
	// that are empty are those of the filesystem on it.
	Name       string
	Kind       storage.StorageKind
	Pool       string
	Attributes map[string]any
	Machine    names.MachineTag
	MountPoint string
	ReadOnly   bool
}

// NewRecovered reads the resource tags of a volume (StorageKindBlock) or filesystem
// (StorageKindFilesystem) that a provider's source has. The error satisfies
// errors.IsNotValid and names the tag that cannot be read.
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

// RecoverOutcome is what becomes of a [Recovered].
type RecoverOutcome string

const (
	// RecoverAdded is for what is, or is a part of, a new storage instance.
	RecoverAdded RecoverOutcome = "added"

	// RecoverKnown is for what the state has already. It stays as it is.
	RecoverKnown RecoverOutcome = "known"

	// RecoverSkipped is for what cannot be in the state.
	RecoverSkipped RecoverOutcome = "skipped"
)

// RecoverResult says what becomes of a [Recovered].
type RecoverResult struct {
	Outcome RecoverOutcome

	// Name is that of the storage instance; it differs from that of the Recovered
	// where that is another instance's. What is skipped has none.
	Name string

	// Reason says why something is skipped, or what else there is to know.
	Reason string
}

// Recover puts the state together again from what sources have. What it does not have is
// added, detached and with the same UUIDs. A name that is taken becomes
// NAME.recovered-N, and so does NAME/N where there is NAME, or NAME where there is NAME/N.
// All numbers are above those that have been seen, and the state is of
// a new generation. Pools are not recovered: an instance has the settings of its own. The
// results are those of the objects, in order. The resource tags of what was added are then
// to be set, see [State.PendingStamps].
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

// PlanRecovery returns what Recover would, and changes nothing.
func (st *State) PlanRecovery(objects []Recovered) ([]RecoverResult, error) {
	const planned = errors.ConstError("planned")
	results, err := st.recover(objects, func(*txn, []RecoverResult) error { return planned })
	if errors.Is(err, planned) {
		err = nil
	}
	return results, errors.Annotate(err, "planning to recover storage")
}

// Adopt makes the parts of a storage instance that sources have and the state does not an
// instance of that name, detached and with the same UUIDs: a volume with the filesystem
// that is on it, or one of them. Errors satisfy errors.IsAlreadyExists for a name that is
// taken, and errors.IsNotValid for what cannot be in the state. It is all or nothing. The
// resource tags are then to be set, see [State.PendingStamps].
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
				return errors.NewAlreadyExists(nil, objects[n].ProviderID+" is of storage "+strconv.Quote(result.Name)+" already")
			case result.Name != name:
				return errors.NewAlreadyExists(nil, "the name is taken (there cannot be both NAME and NAME/N)")
			}
		}
		return nil
	})
	return errors.Annotatef(err, "adopting storage %q", name)
}

// recover commits if commit returns nil, and ends with its error otherwise.
func (st *State) recover(objects []Recovered, commit func(*txn, []RecoverResult) error) ([]RecoverResult, error) {
	var results []RecoverResult
	err := st.updateAll(func(tx *txn, keys []string) error {
		r := &recovery{
			st:        st,
			tx:        tx,
			instances: make(map[string]string),
			names:     make(map[string]bool),
			baseNames: make(map[string]bool),
			tags:      make(map[entityTag]bool),
			ids:       make(map[objectID]entityTag),
			added:     make(map[string]*instance),
		}
		for _, key := range keys {
			name := strings.TrimPrefix(key, storagePrefix)
			i, ok := read[instance](&tx.reader, key)
			if !ok {
				continue
			}
			r.reserveName(name)
			for _, e := range i.entities() {
				r.register(name, i.Provider, e)
			}
		}
		tx.requireMark()
		results = r.run(objects)
		return commit(tx, results)
	}, storagePrefix)
	return results, err
}

// recovery is a Recover in its transaction.
type recovery struct {
	st *State
	tx *txn

	// instances are the names of those that have an entity, by its UUID; names are
	// all that are taken, and baseNames each NAME of a NAME/N; tags and ids are those of
	// all entities.
	instances map[string]string
	names     map[string]bool
	baseNames map[string]bool
	tags      map[entityTag]bool
	ids       map[objectID]entityTag

	// added are the new instances.
	added map[string]*instance
}

// objectID is how a source knows an object.
type objectID struct {
	kind         storage.StorageKind
	provider, id string
}

// register records an entity of an instance.
func (r *recovery) register(name, provider string, e *entity) {
	r.instances[e.UUID] = name
	r.tags[e.Tag] = true
	if e.Info != nil {
		r.ids[objectID{e.Tag.storageKind(), provider, e.Info.ID}] = e.Tag
	}
}

// storageKind is the StorageKind of a volume or filesystem.
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
	// What a filesystem is on comes first.
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
		r.tx.add(name, i)
	}
	r.addPendingStamps()
	for n, o := range objects {
		i := r.added[results[n].Name]
		if results[n].Outcome == RecoverAdded && o.Kind == storage.StorageKindFilesystem && i.Filesystem == nil {
			results[n].Reason = "its filesystem has no record: it is a block device"
		}
	}
	return results
}

// addPendingStamps records that the resource tags of what was added are to be set: they may
// have other names.
func (r *recovery) addPendingStamps() {
	pending, _ := read[copyRecord](&r.tx.reader, addedKey)
	pending.FormerUUID = r.tx.identity().UUID
	for _, name := range slices.Sorted(maps.Keys(r.added)) {
		i := r.added[name]
		for _, e := range i.entities() {
			stamp := newCopiedRecord(i, e)
			stamp.FormerUUID = e.UUID
			pending.Entities = append(pending.Entities, stamp)
		}
	}
	if len(r.added) > 0 {
		r.tx.write(addedKey, &pending)
	}
}

// maxNumber bounds the numbers of tags that were not handed out here.
const maxNumber = 1 << 48

// reserveNumber has numbers continue above that of a tag.
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

// number returns the number that only this volume, or filesystem, has in its tag, and
// false for one that cannot have been handed out.
func (t entityTag) number() (uint64, bool) {
	n, err := strconv.ParseUint(string(t[strings.LastIndexByte(string(t), '-')+1:]), 10, 64)
	return n, err == nil && n < maxNumber
}

// addObject adds an object to the state unless it is there, or cannot be.
func (r *recovery) addObject(o Recovered) RecoverResult {
	skip := func(format string, args ...any) RecoverResult {
		return RecoverResult{Outcome: RecoverSkipped, Reason: fmt.Sprintf(format, args...)}
	}
	own := r.tx.identity().UUID
	switch name, known := r.instances[o.Owner.EntityUUID]; {
	case uuid.Validate(o.Owner.EntityUUID) != nil || o.Owner.ModelUUID == "":
		return skip("no owner is known")
	case o.Owner.ModelUUID != own:
		return skip("it is of state %s, this is %s", o.Owner.ModelUUID, own)
	case known && r.added[name] != nil:
		return skip("storage %q has the same UUID already", name)
	case known:
		return RecoverResult{Outcome: RecoverKnown, Name: name}
	case o.ProviderID == "":
		return skip("it has no ID")
	}
	var i *instance
	if o.VolumeUUID != "" {
		name, ok := r.instances[o.VolumeUUID]
		i = r.added[name]
		switch {
		case !ok:
			return skip("its volume %s is not there", o.VolumeUUID)
		case i == nil:
			return skip("its volume is of storage %q, which has no such filesystem", name)
		case i.Filesystem != nil:
			return skip("its volume is of storage %q, which has filesystem %s already", name, i.Filesystem.Tag.id())
		}
		o.Name, o.Provider = name, storage.ProviderType(i.Provider)
	}
	if tag, ok := r.ids[objectID{o.Of, string(o.Provider), o.ProviderID}]; ok {
		return skip("its ID is that of %s", tag)
	}
	tag, err := r.chooseTag(o)
	if err != nil {
		return skip("%v", err)
	}
	e := r.tx.newEntity(tag)
	e.UUID, e.Info = o.Owner.EntityUUID, &entityInfo{ID: o.ProviderID, Size: o.Size}
	e.Generation = 0 // its owner is asked, as after a restore
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

// chooseTag returns the tag for an object: its own, or a new one where that is taken.
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
			return "", errors.Errorf("it cannot be %s", tag)
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

// addPart adds a volume or filesystem to an instance, and the settings that its object has.
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
}

// recoveredSuffix makes the name of a recovered instance another one.
const recoveredSuffix = ".recovered-"

var recoveredPattern = regexp.MustCompile(regexp.QuoteMeta(recoveredSuffix) + `[1-9][0-9]{0,8}$`)

// reserveName marks a name as taken.
func (r *recovery) reserveName(name string) {
	r.names[name] = true
	if base := BaseName(name); base != name {
		r.baseNames[base] = true
	}
}

// isNameFree reports whether an instance can have a name. NAME means NAME/N too, so that there
// are not both: who removes the one would remove the other.
func (r *recovery) isNameFree(name string) bool {
	base := BaseName(name)
	return !r.names[name] && !r.baseNames[name] && (base == name || !r.names[base])
}

// chooseName returns the object's name, or one like it where that is taken.
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

// addToPool counts an instance among those of its pool, and reports whether there is such a
// pool.
func (r *recovery) addToPool(i *instance) bool {
	record, ok := read[poolRecord](&r.tx.reader, poolKey(i.Pool))
	if !ok || string(record.Provider) != i.Provider {
		return false
	}
	addToPool(r.tx, i.Pool)
	return true
}

// checkMountPoint returns an error for what no filesystem can be asked to be at.
func checkMountPoint(mountPoint string) error {
	if mountPoint != "" && (!path.IsAbs(mountPoint) || path.Clean(mountPoint) != mountPoint || mountPoint == "/") {
		return errors.NewNotValid(nil, "mount point "+strconv.Quote(mountPoint)+" is not a clean absolute path")
	}
	return nil
}
