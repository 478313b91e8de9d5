package rescue

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state/statefile"
)

// Restored is the result of a restore.
type Restored struct {
	statefile.Meta

	// Replaced is the new name of the replaced state file, empty if there was none.
	Replaced string
}

// Restore replaces the state with a backup. It first advances the mark, so that the next agent
// to open the state detects the restore, wherever this is interrupted.
func Restore(c Config, file string) (Restored, error) {
	meta, err := statefile.Verify(file, datadir.Identify)
	if err != nil {
		return Restored{}, errors.Trace(err)
	}
	if err := c.Dir.Prepare(); err != nil {
		return Restored{}, errors.Trace(err)
	}
	advance := func() error { return c.Dir.AdvanceMark(file, meta.Identity, c.Clock.Now()) }
	restored, replaced, err := statefile.Restore(file, c.Dir.StateFile(), datadir.Identify, c.Clock.Now(), advance)
	if err != nil {
		return Restored{}, c.explain(err)
	}
	return Restored{restored, replaced}, nil
}
