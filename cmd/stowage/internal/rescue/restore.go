package rescue

import (
	"fmt"
	"os"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/markfile"
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
	advance := func() error { return c.advanceMark(file, meta) }
	restored, replaced, err := statefile.Restore(file, c.Dir.StateFile(), datadir.Identify, c.Clock.Now(), advance)
	if err != nil {
		return Restored{}, c.explain(err)
	}
	return Restored{restored, replaced}, nil
}

// advanceMark sets the mark to a generation after that of the backup and of any state that was
// in the directory before.
func (c Config) advanceMark(file string, meta statefile.Meta) error {
	if meta.UUID == "" {
		return nil // a state of an older schema has no mark; it gets one later
	}
	marks := c.Dir.Marks()
	mark, ok, err := marks.Read()
	switch {
	case errors.Is(err, markfile.ErrDamaged):
		if err := c.moveDamagedMark(); err != nil {
			return errors.Trace(err)
		}
	case err != nil:
		return errors.Trace(err)
	case ok && mark.UUID != meta.UUID:
		return errors.NewNotValid(nil, fmt.Sprintf("%s is of state %s, and %s belongs to state %s: restore it into its own --data-dir, or into an empty one",
			file, meta.UUID, c.Dir, mark.UUID))
	}
	return errors.Trace(marks.Write(state.Mark{
		UUID:       meta.UUID,
		Generation: max(mark.Generation, meta.Generation) + 1,
		Before:     mark.After,
		After:      mark.After,
	}))
}

// moveDamagedMark renames a damaged mark file, so that a new one can be written.
func (c Config) moveDamagedMark() error {
	newPath := fmt.Sprintf("%s.damaged-%s", c.Dir.MarkFile(), c.Clock.Now().UTC().Format("20060102T150405Z"))
	return errors.Trace(os.Rename(c.Dir.MarkFile(), newPath))
}
