package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// Asker says who asked for an instance: a way in, such as csi, and the name that the asker gave. No two
// instances have the same one. The zero value stands for users, who name instances themselves.
type Asker struct{ Way, Name string }

// String returns "WAY NAME".
func (a Asker) String() string { return a.Way + " " + a.Name }

// key is the key of the index entry of the asker's instance.
func (a Asker) key() string { return askerIndex + "/" + a.Way + "/" + a.Name }

// maxAskerName is the most bytes of an asker's name, as the specification of CSI has it.
const maxAskerName = 128

var validWay = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// Validate returns an error that satisfies errors.IsNotValid unless an instance can have the asker.
func (a Asker) Validate() error {
	switch {
	case a == Asker{}:
		return nil
	case !validWay.MatchString(a.Way):
		return errors.NotValidf("way in %q: up to 31 lower-case letters, digits and hyphens, a letter first", a.Way)
	case a.Name == "" || len(a.Name) > maxAskerName || !utf8.ValidString(a.Name) || strings.ContainsFunc(a.Name, unicode.IsControl):
		return errors.NotValidf("name %q: 1 to %d bytes of text in UTF-8, without control characters", a.Name, maxAskerName)
	}
	return nil
}

// asker is the record of an [Asker].
type asker struct {
	Way  string `cbor:"1,keyasint,omitempty"`
	Name string `cbor:"2,keyasint,omitempty"`
}

func newAsker(a Asker) *asker {
	if a == (Asker{}) {
		return nil
	}
	return &asker{a.Way, a.Name}
}

func (a *asker) view() Asker {
	if a == nil {
		return Asker{}
	}
	return Asker(*a)
}

// index returns the keys of the index entries of an instance that has the asker and the UUID.
func (a *asker) index(uuid string) []indexKey {
	return []indexKey{{askerIndex, a.Way, a.Name}, {askedIndex, a.Way, uuid}}
}

// askedKey is the key of the index entry of the instance that has the UUID and was asked for by a way in.
func askedKey(way, uuid string) string { return askedIndex + "/" + way + "/" + uuid }

// UUID returns that of the volume, or of a filesystem that is not on a volume. It never changes, and no
// other instance has it.
func (s Storage) UUID() string {
	if s.Volume != nil {
		return s.Volume.UUID
	}
	if s.Filesystem != nil {
		return s.Filesystem.UUID
	}
	return ""
}

// uuid returns what [Storage.UUID] returns.
func (i *instance) uuid() string { return i.entities()[0].UUID }

// Asked returns the instance that an asker has asked for. The error satisfies errors.IsNotFound if
// nobody has asked for one by that name.
func (st *State) Asked(by Asker) (Storage, error) { return st.asked(by.key(), by) }

// AskedByUUID returns the instance with a UUID, see [Storage.UUID], if it was asked for by a way in. The
// error satisfies errors.IsNotFound if no such instance exists.
func (st *State) AskedByUUID(way, uuid string) (Storage, error) {
	return st.asked(askedKey(way, uuid), Asker{way, uuid})
}

func (st *State) asked(key string, as Asker) (found Storage, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		entry, ok := read[indexEntry](r, key)
		if !ok {
			return errors.NotFoundf("storage of %s", as)
		}
		i, ok := read[instance](r, storageKey(entry.Storage))
		if !ok {
			return errors.Errorf("the index has storage %q, which does not exist", entry.Storage)
		}
		found = i.view(r, entry.Storage)
		return nil
	})
	return found, errors.Trace(err)
}

// WatchAsked returns a watcher that notifies when the instance that [State.AskedByUUID] returns may have
// changed, or is removed. It does not report changes of block devices; see [State.WatchBlockDevices].
func (st *State) WatchAsked(way, uuid string) (watcher.NotifyWatcher, error) {
	s, err := st.AskedByUUID(way, uuid)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return st.watchKey(storagePrefix, storageKey(s.Name))
}

// AskedUUIDs returns the UUIDs of the instances that were asked for by a way in, sorted.
func (st *State) AskedUUIDs(way string) (uuids []string, err error) {
	prefix := askedKey(way, "")
	err = st.view(func(_ *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(prefix, func(key string, _ []byte) error {
			uuids = append(uuids, key[len(prefix):])
			return nil
		})
	})
	return uuids, errors.Trace(err)
}

// NameFor returns a name for an instance that an asker asks for: the name that it gave, if no instance has
// that one and it can be the name of an instance, and otherwise the way in and a hash of the name.
func (st *State) NameFor(by Asker) (string, error) {
	if validName.MatchString(by.Name) && !strings.Contains(by.Name, "/") {
		taken, err := st.StorageNames(by.Name)
		if err != nil || len(taken) == 0 {
			return by.Name, errors.Trace(err)
		}
	}
	return by.hashed(), nil
}

// hashed returns the way in and a hash of the name.
func (a Asker) hashed() string {
	hash := sha256.Sum256([]byte(a.Name))
	return a.Way + "-" + hex.EncodeToString(hash[:8])
}

// checkAsker returns an error that satisfies errors.IsNotValid if the instance is not for those who come
// by a way to remove.
func (i *instance) checkAsker(way string, force bool) error {
	if i.Asker == nil || i.Asker.Way == way || force {
		return nil
	}
	return errors.NewNotValid(nil, fmt.Sprintf("it was asked for by %s, as %q: remove it there, or add --force to remove it all the same", i.Asker.Way, i.Asker.Name))
}

// checkFree returns an error that satisfies errors.IsAlreadyExists if an instance has the asker.
func (st *State) checkFree(r *reader, by Asker) error {
	if by == (Asker{}) {
		return nil
	}
	if err := st.checkFeature(r, askersSchema, "storage that other programs ask for"); err != nil {
		return err
	}
	if entry, ok := read[indexEntry](r, by.key()); ok {
		return errors.NewAlreadyExists(nil, fmt.Sprintf("%s has asked for storage %q by this name", by, entry.Storage))
	}
	return nil
}
