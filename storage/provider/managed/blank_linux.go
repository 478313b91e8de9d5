package managed

import (
	"fmt"
	"os"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// proveBlank returns nil if the device, which is claimed and free, is blank, or if it cannot
// be read in time and the volume's consent allows formatting it. Otherwise, the error for a
// device that is not blank, or that cannot be read in time, is permanent. It says what was
// found and what the user can do, and wraps a *signature.NotBlankError or
// *signature.UnreadError.
func (f *filesystem) proveBlank() error {
	err := f.readBlank()
	var notBlank *signature.NotBlankError
	if errors.As(err, &notBlank) {
		return storage.Permanent(fmt.Errorf("refusing to format %s: %w; to discard its contents, run \"stowage format\", or clear the device with \"blkdiscard --zeroout %s\"",
			f.dev.Path(), err, f.dev.Path()))
	}
	var unread *signature.UnreadError
	if errors.As(err, &unread) {
		if f.consent >= storage.ConsentUnread {
			return nil
		}
		return storage.Permanent(fmt.Errorf("refusing to format %s: it cannot be proven blank: %w; if it holds no data, run \"stowage format\"; a provider that reports new volumes as new avoids this",
			f.dev.Path(), err))
	}
	return errors.Annotatef(err, "refusing to format %s: it cannot be proven blank", f.dev.Path())
}

// consent returns the consent to format a volume that is not proven blank.
func (c *call) consent(volume names.VolumeTag) storage.FormatConsent {
	if consents, ok := c.devices.(storage.FormatConsents); ok {
		return consents.FormatConsent(volume)
	}
	return storage.ConsentNone
}

// readBlank proves the device blank by its backing file, if that is known and its filesystem
// reports which parts were written. Otherwise readBlank reads the device.
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

// backing identifies the backing file of the device. It is the zero value if no file is known.
func (f *filesystem) backing() (object.Identity, error) {
	file, err := f.openBacking()
	if errors.Is(err, errors.NotFound) {
		return object.Identity{}, nil
	} else if err != nil {
		return object.Identity{}, errors.Trace(err)
	}
	defer file.Close()
	st, err := f.call.Status(file)
	return st.Identity, errors.Trace(err)
}

// openBacking opens the backing file of the device. The error satisfies errors.IsNotFound if
// no file is known, or if the file proves nothing because its filesystem does not report which
// parts were written.
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
	if !signature.ReportsHoles(file) {
		file.Close()
		return nil, errors.NotFoundf("filesystem of %s that tells what was written", path)
	}
	return file, nil
}
