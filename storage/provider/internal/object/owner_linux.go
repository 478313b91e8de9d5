package object

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
)

// Ownership is the part of a record that says who owns the object.
type Ownership struct {
	// ResourceTags are the tags with which the object was created, imported or last tagged. A
	// record of an older version has none: the owner of its object is unknown.
	ResourceTags map[string]string `json:"resource-tags,omitempty"`
}

// Owner returns the owner of the object.
func (o Ownership) Owner() storage.Owner {
	return storage.OwnerOf(o.ResourceTags)
}

// uuidLength is the length of a UUID as text.
const uuidLength = 36

// NewID returns the ID of a new object: the name, such as a tag, followed by the UUID of the
// owner if there is one. The error satisfies errors.IsNotValid if the owner's UUID is not a
// valid one.
func NewID(name string, owner storage.Owner) (string, error) {
	if owner.EntityUUID == "" {
		return name, nil
	}
	parsed, err := uuid.Parse(owner.EntityUUID)
	if err != nil || parsed.String() != owner.EntityUUID {
		return "", errors.NewNotValid(nil, fmt.Sprintf("resource tag %s is %q, which is not a UUID in lower case", storage.EntityUUIDTag, owner.EntityUUID))
	}
	return name + "-" + owner.EntityUUID, nil
}

// HasUUID reports whether an ID contains the UUID of an owner, and so belongs to one object
// only.
func HasUUID(id string) bool {
	_, _, ok := splitID(id)
	return ok
}

// splitID is the inverse of NewID.
func splitID(id string) (name, entityUUID string, ok bool) {
	at := len(id) - uuidLength
	if at < 2 || id[at-1] != '-' {
		return "", "", false
	}
	parsed, err := uuid.Parse(id[at:])
	return id[:at-1], id[at:], err == nil && parsed.String() == id[at:]
}

// ownedRecord is the part that all records have in common.
type ownedRecord struct {
	Ownership
	Phase Phase `json:"phase"`
}

// ReleasedAt returns the ID of the object at a path in Files, if the object has been released
// or already belongs to the importer. Otherwise it returns "".
func (c *Call) ReleasedAt(path string, importer storage.Owner) (string, error) {
	files, err := c.Files.RealPath()
	if err != nil {
		return "", errors.Trace(err)
	}
	dir, id := filepath.Split(path)
	if dir = filepath.Clean(dir); dir != files && dir != c.Files.Path() || record.ValidateID(id) != nil {
		return "", nil
	}
	var rec ownedRecord
	if err := c.Records.Load(id, &rec); errors.Is(err, errors.NotFound) || errors.Is(err, errors.NotValid) {
		return "", nil
	} else if err != nil {
		return "", errors.Trace(err)
	}
	if rec.Phase != PhaseReleased && (importer.EntityUUID == "" || rec.Owner() != importer) {
		return "", nil
	}
	return id, nil
}

// Load loads the record of an object and returns the ID under which the record is stored. An
// object that an older version made, without a UUID in its ID, is also found by the ID that it
// would get today, if its record contains the UUID.
func (c *Call) Load(id string, rec any) (string, error) {
	err := c.Records.Load(id, rec)
	name, entityUUID, ok := splitID(id)
	if !errors.Is(err, errors.NotFound) || !ok {
		return id, errors.Trace(err)
	}
	var old Ownership
	if oerr := c.Records.Load(name, &old); oerr != nil && !errors.Is(oerr, errors.NotFound) {
		return id, errors.Trace(oerr) // the record may be this object's
	} else if oerr != nil || old.Owner().EntityUUID != entityUUID {
		return id, errors.Trace(err)
	}
	return name, errors.Trace(c.Records.Load(name, rec))
}

// Resolve returns the ID under which a creation makes its object, or has made it before. It
// checks that an existing object belongs to the owner: it must have the same UUID and the same
// state. An object without a known owner belongs to requests that name no owner.
func (c *Call) Resolve(tag string, resourceTags map[string]string) (string, error) {
	owner := storage.OwnerOf(resourceTags)
	id, err := NewID(tag, owner)
	if err != nil {
		return "", errors.Trace(err)
	}
	var rec ownedRecord
	err = c.Records.Load(id, &rec)
	if errors.Is(err, errors.NotFound) && id != tag {
		// An older version may have made the object, which got its UUID later.
		err = c.Records.Load(tag, &rec)
		if err == nil && rec.Owner().EntityUUID != owner.EntityUUID {
			return id, nil
		}
		if err == nil {
			id = tag
		}
	}
	switch {
	case errors.Is(err, errors.NotFound):
		return id, nil
	case err != nil:
		return "", errors.Trace(err)
	case rec.Phase == PhaseReleased || rec.Owner() == owner:
		return id, nil
	}
	return "", storage.Permanent(errors.Errorf("%s exists and belongs to %s, not to %s: remove it there, or adopt it first", id, describeOwner(rec.Owner()), describeOwner(owner)))
}

// CheckImport checks that an object with a record may be imported: it must already belong to
// the importer, or to nobody.
func (o Ownership) CheckImport(id string, phase Phase, resourceTags map[string]string) error {
	owner, importer := o.Owner(), storage.OwnerOf(resourceTags)
	if phase == PhaseReleased || owner.EntityUUID == "" || owner == importer {
		return nil
	}
	return errors.NewNotValid(nil, fmt.Sprintf("it is %s and belongs to %s: release or remove it there first", id, describeOwner(owner)))
}

// ErrReleased returns the error of an operation that is refused because the object was
// released.
func ErrReleased(id string) error {
	return errors.NewNotValid(nil, fmt.Sprintf("%s was released and has no owner: import it first", id))
}

// Adopt replaces the resource tags of an object, which name its owner, with an importer's, if
// the importer has any. It reports whether the tags change.
func (o *Ownership) Adopt(resourceTags map[string]string) (changed bool) {
	if len(resourceTags) == 0 || maps.Equal(o.ResourceTags, resourceTags) {
		return false
	}
	o.ResourceTags = resourceTags
	return true
}

// describeOwner returns a text for errors.
func describeOwner(owner storage.Owner) string {
	if owner == (storage.Owner{}) {
		return "an unknown owner"
	}
	var parts []string
	if owner.EntityUUID != "" {
		parts = append(parts, "storage "+owner.EntityUUID)
	}
	if owner.ModelUUID != "" {
		parts = append(parts, "state "+owner.ModelUUID)
	}
	return strings.Join(parts, " of ")
}

// ListOwned returns the result of describe for each object, in the order of their IDs. For an
// object whose record is damaged, or of a newer version, it returns only the ID. An object
// that describe does not find is omitted.
func (c *Call) ListOwned(describe func(id string) (storage.OwnedObject, error)) ([]storage.OwnedObject, error) {
	ids, err := c.Records.List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	all := make([]storage.OwnedObject, 0, len(ids))
	for _, id := range ids {
		if err := c.Err(); err != nil {
			return nil, errors.Trace(err)
		}
		found, err := describe(id)
		switch {
		case errors.Is(err, errors.NotValid):
			found = storage.OwnedObject{ID: id}
		case errors.Is(err, errors.NotFound):
			continue
		case err != nil:
			return nil, errors.Annotate(err, id)
		}
		all = append(all, found)
	}
	return all, nil
}

// Tagging describes the bulk call that replaces resource tags.
func Tagging(objects string) Bulk[storage.ObjectTags] {
	id := func(t storage.ObjectTags) string { return t.ID }
	return Bulk[storage.ObjectTags]{Verb: "tagging", Objects: objects, Name: id, Key: id}
}

// Tag replaces the resource tags of an object and changes nothing else in its record.
func (c *Call) Tag(t storage.ObjectTags) error {
	if _, err := NewID(t.ID, storage.OwnerOf(t.ResourceTags)); err != nil {
		return errors.Trace(err)
	}
	unlock, err := c.LockObject(t.ID)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	var rec map[string]json.RawMessage
	id, err := c.Load(t.ID, &rec)
	if err != nil {
		return errors.Trace(err)
	}
	tags, err := json.Marshal(t.ResourceTags)
	if err != nil {
		return errors.Trace(err)
	}
	if bytes.Equal(rec["resource-tags"], tags) {
		return nil
	}
	delete(rec, "format") // the store writes it
	rec["resource-tags"] = tags
	return errors.Trace(c.Records.Save(id, rec))
}
