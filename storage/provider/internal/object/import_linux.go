package object

import (
	"fmt"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

// NewImportID returns the ID of an object that is to be imported for an owner. It fails if the
// owner has already imported one. what is what is imported, for the error.
func (c *Call) NewImportID(resourceTags map[string]string, what string) (string, error) {
	owner := storage.OwnerOf(resourceTags)
	if owner.EntityUUID == "" {
		owner.EntityUUID = uuid.NewString()
	}
	id, err := NewID("imported", owner)
	if err != nil {
		return "", errors.Trace(err)
	}
	var rec ownedRecord
	if err := c.Records.Load(id, &rec); err == nil {
		return "", errors.NewNotValid(nil, fmt.Sprintf("this owner has already imported %s: import the %s for another owner", id, what))
	} else if !errors.Is(err, errors.NotFound) {
		return "", errors.Trace(err)
	}
	return id, nil
}

// SyncMove makes it durable that an object was moved here from a path: first that it is here,
// then that it is no longer there. The directory in which it was may no longer exist.
func (c *Call) SyncMove(from string) error {
	if err := c.Files.Sync(); err != nil {
		return errors.Trace(err)
	}
	dir, err := safepath.OpenReal(filepath.Dir(from))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errors.NotValid) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	return errors.Trace(dir.Sync())
}
