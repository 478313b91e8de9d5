package loop

import (
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/extents"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// CheckVolumes implements [storage.VolumeChecker].
func (s *source) CheckVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	checking := object.Bulk[string]{Verb: "checking", Objects: "volumes", Key: object.ByID}
	return object.DoEach(ctx, checking, s.begin, ids, (*call).check)
}

// check returns an error that says what happened to an attached volume, or nil if it is as it
// was attached.
func (c *call) check(volumeID string) error {
	id, rec, err := c.loadExisting(volumeID)
	if err != nil {
		return errors.Trace(err)
	}
	device, err := c.device(id, rec)
	if err != nil {
		return errors.Trace(err)
	}
	if device == nil {
		return storage.Permanent(errors.Errorf("its loop device %s was detached: attach it again", rec.Device))
	}
	// A volume that was not thick when it was attached has a remark that says so.
	if rec.ReadOnly || rec.Allocation == thin || strings.Contains(c.remarks.Of(volumeID), notThick) {
		return nil
	}
	f, _, err := c.openBacking(id, rec, unix.O_RDONLY)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.Close()
	missing, err := extents.Find(f, rec.Size)
	if errors.Is(err, errors.NotSupported) {
		return nil // if extents cannot be read, thick was not promised
	} else if err != nil {
		return errors.Trace(err)
	}
	why, err := c.whyNotThick(f, rec.Size)
	if err != nil {
		return errors.Trace(err)
	}
	if why == "" && len(missing.Holes) > 0 {
		why = "parts of its file are no longer allocated"
	}
	if why != "" {
		return storage.Permanent(errors.Errorf("its space is no longer guaranteed: %s: attach it again to restore the guarantee", why))
	}
	return nil
}
