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
	raise := func() error { return c.raiseMark(file, meta) }
	restored, replaced, err := statefile.Restore(file, c.Dir.StateFile(), datadir.Identify, c.Clock.Now(), raise)
	if err != nil {
		return Restored{}, c.explain(err)
	}
	return Restored{restored, replaced}, nil
}

// raiseMark has the mark be of a generation after that of a state file and of any state
// that was here.
func (c Config) raiseMark(file string, meta statefile.Meta) error {
	if meta.UUID == "" {
		return nil // the state of an older schema knows no marks, and gets one
	}
	marks := c.Dir.Marks()
	mark, ok, err := marks.Read()
	switch {
	case errors.Is(err, markfile.ErrDamaged):
		if err := c.setMarkAside(); err != nil {
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

// setMarkAside makes place for a mark beside one that is damaged.
func (c Config) setMarkAside() error {
	kept := fmt.Sprintf("%s.damaged-%s", c.Dir.MarkFile(), c.Clock.Now().UTC().Format("20060102T150405Z"))
	return errors.Trace(os.Rename(c.Dir.MarkFile(), kept))
}
