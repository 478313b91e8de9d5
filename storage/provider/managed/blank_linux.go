package managed

import (
	"fmt"
	"os"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// proveBlank returns nil when nothing is on the device, which is claimed and free. When
// something is, or the device cannot be read in time, the error is permanent, says what was
// found and what can be done, and wraps a *signature.NotBlankError or *signature.UnreadError.
func (f *filesystem) proveBlank() error {
	err := f.readBlank()
	var notBlank *signature.NotBlankError
	if errors.As(err, &notBlank) {
		return storage.Permanent(fmt.Errorf("%s is not formatted: %w; to give that up, \"stowage format\" formats it all the same, or \"blkdiscard --zeroout %s\" clears it",
			f.dev.Path(), err, f.dev.Path()))
	}
	var unread *signature.UnreadError
	if errors.As(err, &unread) {
		if f.consent >= storage.ConsentUnread {
			return nil
		}
		return storage.Permanent(fmt.Errorf("%s is not formatted: it cannot be proven blank: %w; if nothing is on it, \"stowage format\" formats it all the same, and so does what its provider says of a new volume",
			f.dev.Path(), err))
	}
	return errors.Annotatef(err, "%s is not formatted: it cannot be proven blank", f.dev.Path())
}

// consent returns on what a filesystem may be made on a volume beside a blank device.
func (c *call) consent(volume names.VolumeTag) storage.FormatConsent {
	if consents, ok := c.devices.(storage.FormatConsents); ok {
		return consents.FormatConsent(volume)
	}
	return storage.ConsentNone
}

// readBlank proves the device blank by the file behind it, if that is known and its
// filesystem tells what was written, and else by reading the device.
func (f *filesystem) readBlank() error {
	c := f.call
	file, err := f.openBacking()
	if errors.Is(err, errors.NotFound) {
		return c.prober.ProveBlank(c, f.dev.File, f.dev.Size)
	} else if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	if err := f.dev.Sync(); err != nil {
		return errors.Trace(err)
	}
	return c.prober.ProveFileBlank(c, f.dev.File, file, f.dev.Size)
}

// openBacking opens the file behind the device. The error satisfies errors.IsNotFound if no
// file is known, or if the file proves nothing because its filesystem does not tell what
// was written.
func (f *filesystem) openBacking() (*os.File, error) {
	files, ok := f.call.devices.(storage.BackingFiles)
	if !ok {
		return nil, errors.NotFoundf("knowledge of backing files")
	}
	volume, err := f.volume()
	if err != nil {
		return nil, errors.Trace(err)
	}
	path, ok := files.BackingFile(volume)
	if !ok {
		return nil, errors.NotFoundf("file of volume %s", volume.Id())
	}
	file, err := loopdev.OpenBacking(f.dev.File, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if !signature.TellsHoles(file) {
		file.Close()
		return nil, errors.NotFoundf("filesystem of %s that tells what was written", path)
	}
	return file, nil
}
