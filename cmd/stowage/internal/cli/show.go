package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/term"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// view is the storage that a stream of events tells of.
type view struct {
	byName map[string]control.Storage
	// seen are the names of all that was ever there.
	seen map[string]bool
}

func newView() *view {
	return &view{byName: map[string]control.Storage{}, seen: map[string]bool{}}
}

// apply takes an event in, and returns what differs to a person's eyes.
func (v *view) apply(event control.Event) (changed []control.Storage, gone []string) {
	for _, s := range event.Storage {
		v.seen[s.Name] = true
		old, known := v.byName[s.Name]
		v.byName[s.Name] = s
		if !known || table.Line(old) != table.Line(s) {
			changed = append(changed, s)
		}
	}
	for _, name := range event.Gone {
		if _, known := v.byName[name]; known {
			delete(v.byName, name)
			gone = append(gone, name)
		}
	}
	return changed, gone
}

// rows returns all storage, in order.
func (v *view) rows() []control.Storage {
	rows := slices.Collect(maps.Values(v.byName))
	table.Sort(rows)
	return rows
}

// display shows a view as it changes.
type display interface {
	// show is called after every event, with what the event changed.
	show(v *view, changed []control.Storage, gone []string) error
	// tick is called now and then.
	tick(v *view) error
	// finish is called last, where all went well, with what there is to say.
	finish(word string) error
}

// newDisplay returns a live table where out is a terminal, and lines elsewhere.
func newDisplay(out io.Writer) display {
	if file, ok := terminal(out); ok {
		return &liveDisplay{newLive(file)}
	}
	return &lineDisplay{out}
}

func newLive(file *os.File) *table.Live {
	return table.NewLive(file, func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24 // what a serial line does not tell
		}
		return width, height
	})
}

func isTerminal(file *os.File) bool { return term.IsTerminal(int(file.Fd())) }

type liveDisplay struct{ live *table.Live }

func (d *liveDisplay) show(v *view, _ []control.Storage, _ []string) error { return d.tick(v) }

func (d *liveDisplay) tick(v *view) error { return d.live.Show(v.rows(), time.Now()) }

func (d *liveDisplay) finish(word string) error { return d.live.Finish(word) }

type lineDisplay struct{ out io.Writer }

func (d *lineDisplay) show(_ *view, changed []control.Storage, gone []string) error {
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

func (d *lineDisplay) tick(*view) error { return nil }

func (d *lineDisplay) finish(word string) error {
	_, err := fmt.Fprintln(d.out, word)
	return err
}
