package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// view is the storage that a stream of events tells of. What an event costs goes with
// what it tells, not with all there is.
type view struct {
	rows []user.Storage
	// index has the positions in rows, by name.
	index map[string]int
	// sorted says that rows are in order.
	sorted bool
	// seen are the names of all that was ever there.
	seen map[string]bool
}

func newView() *view {
	return &view{index: map[string]int{}, seen: map[string]bool{}}
}

// apply takes an event in, and returns what differs to a person's eyes.
func (v *view) apply(event user.Event) (changed []user.Storage, gone []string) {
	for _, s := range event.Storage {
		v.seen[s.Name] = true
		at, known := v.index[s.Name]
		if !known {
			at = len(v.rows)
			v.index[s.Name], v.sorted = at, false
			v.rows = append(v.rows, user.Storage{})
		}
		if !known || table.Line(v.rows[at]) != table.Line(s) {
			changed = append(changed, s)
		}
		v.rows[at] = s
	}
	for _, name := range event.Gone {
		if _, known := v.get(name); known {
			v.remove(name)
			gone = append(gone, name)
		}
	}
	return changed, gone
}

// remove puts the last row in the place of the named one.
func (v *view) remove(name string) {
	at, last := v.index[name], len(v.rows)-1
	v.rows[at] = v.rows[last]
	v.index[v.rows[at].Name] = at
	v.rows = v.rows[:last]
	delete(v.index, name)
	v.sorted = false
}

// get returns the named row, if it is there.
func (v *view) get(name string) (user.Storage, bool) {
	at, ok := v.index[name]
	if !ok {
		return user.Storage{}, false
	}
	return v.rows[at], true
}

// sortedRows returns all rows in order. They belong to the view.
func (v *view) sortedRows() []user.Storage {
	if !v.sorted {
		table.Sort(v.rows)
		for i, s := range v.rows {
			v.index[s.Name] = i
		}
		v.sorted = true
	}
	return v.rows
}

// display shows a view as it changes.
type display interface {
	// show is called after every event, with what the event changed.
	show(v *view, changed []user.Storage, gone []string) error
	// tick is called now and then.
	tick(v *view) error
	// finish is called last, where all went well, with what there is to say.
	finish(word string) error
}

// newDisplay returns a live table where out is a terminal, and lines elsewhere: one for
// each change, or, with summaries, one a second while many change at once.
func newDisplay(out io.Writer, summaries bool) display {
	if file, ok := terminal(out); ok {
		return &liveDisplay{newLive(file)}
	}
	return &lineDisplay{out: out, summaries: summaries}
}

func newLive(file *os.File) *table.Live {
	return table.NewLive(file, hasColors(), func() (int, int) { return sizeOf(file) })
}

// sizeOf returns the width and height of a terminal.
func sizeOf(file *os.File) (width, height int) {
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24 // what a serial line does not tell
	}
	return width, height
}

// hasColors reports whether terminals get colours, see https://no-color.org.
func hasColors() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }

func isTerminal(file *os.File) bool { return term.IsTerminal(int(file.Fd())) }

type liveDisplay struct{ live *table.Live }

func (d *liveDisplay) show(v *view, _ []user.Storage, _ []string) error { return d.tick(v) }

func (d *liveDisplay) tick(v *view) error { return d.live.Show(v.sortedRows(), time.Now()) }

func (d *liveDisplay) finish(word string) error { return d.live.Finish(word) }

type lineDisplay struct {
	out       io.Writer
	summaries bool
	// summaryDue is set if changes since the last summary were not shown.
	summaryDue bool
}

// manyChanges is how many changes at once nobody reads one by one.
const manyChanges = 100

func (d *lineDisplay) show(_ *view, changed []user.Storage, gone []string) error {
	if d.summaries && len(changed)+len(gone) > manyChanges {
		d.summaryDue = true
		return nil
	}
	for _, s := range changed {
		if _, err := fmt.Fprintln(d.out, table.Line(s)); err != nil {
			return err
		}
	}
	for _, name := range gone {
		if _, err := fmt.Fprintln(d.out, table.Escape(name)+" removed"); err != nil {
			return err
		}
	}
	return nil
}

func (d *lineDisplay) tick(v *view) error {
	if !d.summaryDue {
		return nil
	}
	d.summaryDue = false
	_, err := fmt.Fprintln(d.out, table.Summary(v.rows))
	return err
}

func (d *lineDisplay) finish(word string) error {
	_, err := fmt.Fprintln(d.out, word)
	return err
}
