package managed

import (
	"fmt"
	"os"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// CheckFilesystems implements [storage.FilesystemChecker].
func (s *source) CheckFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return object.DoEach(ctx, object.CheckingFilesystems, s.begin, ids, (*call).check)
}

// check returns an error that says what happened to an attached filesystem, or nil if it is as
// it was attached.
func (c *call) check(id string) error {
	f, err := c.loadMade(id)
	if err != nil {
		return errors.Trace(err)
	}
	defer f.close()
	if f.rec.MountPoint == "" {
		return nil
	}
	if f.isMounted() {
		return errors.Trace(c.CheckAttached(f.bind(""), object.Unmounted))
	}
	if err := f.locate(); err != nil {
		return errors.Trace(err)
	}
	if err := c.CheckAttached(f, object.Unmounted); err != nil {
		return errors.Trace(err)
	}
	return f.checkErrors()
}

// checkErrors returns an error for an ext4 filesystem in which the kernel has ever found
// errors. The other types shut down when they find errors.
func (f *filesystem) checkErrors() error {
	if f.rec.Type != "ext4" || f.dev == nil {
		return nil
	}
	count, err := os.ReadFile(fmt.Sprintf("/sys/fs/ext4/%s/errors_count", f.dev.Name))
	if err != nil {
		return nil // some containers do not have the file
	}
	if n := strings.TrimSpace(string(count)); n != "0" {
		return storage.Permanent(errors.Errorf("the kernel has found %s errors in the ext4 on %s: unmount it, repair it with e2fsck -f, and attach it again",
			n, f.dev.Path()))
	}
	return nil
}
