package state

import (
	"strconv"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// An import is noted before the provider is called, and the note is consumed when the import
// is recorded. So if the agent is killed in between, an object that the provider has taken
// over is recognized by its UUID, and is imported only once.

// importNote is the identity that an import will have.
type importNote struct {
	UUID string    `cbor:"1,keyasint,omitempty"`
	Tag  entityTag `cbor:"2,keyasint,omitempty"`
}

// check returns an error unless the rest of the code can rely on the record.
func (n *importNote) check() error {
	if n.UUID == "" {
		return errors.New("no UUID")
	}
	_, err := parseEntityTag(string(n.Tag))
	return err
}

// imported describes the part of an instance that exists already.
type imported struct {
	st *State
	// part returns the volume or filesystem that was imported, or nil if the instance has
	// none.
	part func(*instance) *entity
	info entityInfo
	// context is that of a volume; see SetVolumeContexts.
	context map[string]string
	note    importNote
}

// apply marks the imported part of a new instance as provisioned.
func (im *imported) apply(tx *txn, i *instance) error {
	e := im.part(i)
	if e == nil {
		return errors.NewNotSupported(nil, "the imported object is not what provider "+strconv.Quote(i.Provider)+" makes for "+i.Kind+" storage")
	}
	if taken, ok := read[indexEntry](&tx.reader, importedKey(i.Provider, im.info.ID)); ok {
		return errors.NewAlreadyExists(nil, "the source was already imported as storage "+strconv.Quote(taken.Storage))
	}
	if err := im.st.setContext(tx, e, im.context); err != nil {
		return err
	}
	e.Imported = true
	if im.note.UUID != "" {
		e.UUID = im.note.UUID
	}
	return tx.recordProvisioned(i, e, im.info)
}

// PrepareImport notes that an instance is to be imported from p.Source, and returns the
// resource tags to call its provider with. Call it before the provider. The same source has
// the same UUID each time, until the import is recorded or cancelled. PrepareImport refuses an
// import that could not be recorded: errors are those of AddStorage. The size may be zero.
func (st *State) PrepareImport(p StorageParams) (tags map[string]string, err error) {
	rules, err := poolmanager.NewRules(st.registry)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if p.Size == 0 {
		p.Size = 1 // not known yet, and not recorded
	}
	err = st.updateIfSpace(func(tx *txn) error {
		if p.Source == "" {
			return errors.NotValidf("empty source")
		}
		d, err := st.design(&tx.reader, rules, p)
		if err != nil {
			return errors.Trace(err)
		}
		note, ok := read[importNote](&tx.reader, importKey(d.Provider, p.Source))
		if !ok {
			note.UUID = uuid.NewString()
		}
		kind, target := names.FilesystemTagKind, &d.Filesystem
		if d.volume {
			kind, target = names.VolumeTagKind, &d.Volume
		}
		note.Tag = tx.nextTag(d, kind, &imported{note: note})
		*target = tx.newEntity(note.Tag)
		(*target).UUID = note.UUID
		tx.write(importKey(d.Provider, p.Source), &note)
		tags, err = tx.resourceTags(p.Name, &d.instance, *target)
		return errors.Trace(err)
	})
	return tags, errors.Annotatef(err, "preparing to import storage %q", p.Name)
}

// CancelImport forgets an import that a pool's provider has refused. Cancelling an import that
// was not prepared is not an error.
func (st *State) CancelImport(pool, source string) error {
	rules, err := poolmanager.NewRules(st.registry)
	if err != nil {
		return errors.Trace(err)
	}
	err = st.update(func(tx *txn) error {
		p, err := tx.pool(rules, pool)
		if err != nil {
			return errors.Trace(err)
		}
		tx.remove(importKey(string(p.Provider()), source))
		return nil
	})
	return errors.Annotatef(err, "cancelling the import of %q", source)
}

// ImportVolume adds a storage instance whose volume exists already: the pool's provider has
// taken it over (see [storage.VolumeImporter]) as info describes. The machine takes over or
// makes a filesystem on it, as Attributes say. If Size is zero, it is the volume's size. The
// UUID is the one that was noted for Source; without a source it is a new one. Errors are
// those of AddStorage. An error that satisfies errors.IsAlreadyExists may also mean that
// another instance has the volume, and one that satisfies errors.IsNotFound that nothing was
// noted for the source.
func (st *State) ImportVolume(p StorageParams, info storage.VolumeInfo) error {
	return st.importStorage(p, (*instance).volume, entityInfo{
		ID:         info.VolumeId,
		HardwareID: info.HardwareId,
		WWN:        info.WWN,
		Size:       info.Size,
		Persistent: info.Persistent,
	})
}

// ImportFilesystem is ImportVolume for a provider that makes filesystems itself (see
// [storage.FilesystemImporter]).
func (st *State) ImportFilesystem(p StorageParams, info storage.FilesystemInfo) error {
	return st.importStorage(p, (*instance).nativeFilesystem, entityInfo{ID: info.FilesystemId, Size: info.Size})
}

func (st *State) importStorage(p StorageParams, part func(*instance) *entity, info entityInfo) error {
	rules, err := poolmanager.NewRules(st.registry)
	if err != nil {
		return errors.Trace(err)
	}
	if p.Size == 0 {
		p.Size = info.Size
	}
	err = st.update(func(tx *txn) error {
		tx.by = p.By
		im := &imported{st: st, part: part, info: info, context: p.VolumeContext}
		if p.Source != "" {
			pool, err := tx.pool(rules, p.Pool)
			if err != nil {
				return errors.Trace(err)
			}
			key, ok := importKey(string(pool.Provider()), p.Source), false
			if im.note, ok = read[importNote](&tx.reader, key); !ok {
				return errors.NotFoundf("prepared import from %q", p.Source)
			}
			tx.remove(key)
		}
		return st.addStorage(tx, rules, p, im)
	})
	return errors.Annotatef(err, "importing storage %q", p.Name)
}

// volume returns the instance's volume, or nil.
func (i *instance) volume() *entity { return i.Volume }

// nativeFilesystem returns the instance's filesystem, or nil if it has a backing volume.
func (i *instance) nativeFilesystem() *entity {
	if i.Volume != nil {
		return nil
	}
	return i.Filesystem
}
