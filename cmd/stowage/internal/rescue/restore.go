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

// Restored is what was restored.
type Restored struct {
	statefile.Meta

	// Replaced is what the file is called that was the state until then, empty where
	// there was none.
	Replaced string
}

// Restore puts a backup in the place of the state. The mark says first that the state is
// one of an older generation: so the agent that opens it next notices that it has been
// restored, wherever this is cut off.
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

// advanceMark gives the mark a generation after that of the state file and of any state
// that was in the directory before.
func (c Config) advanceMark(file string, meta statefile.Meta) error {
	if meta.UUID == "" {
		return nil // the state of an older schema knows no marks, and gets one
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
		return errors.NewNotValid(nil, fmt.Sprintf("%s is of state %s, and %s belongs to state %s: restore it into a --data-dir that is its own, or empty",
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
