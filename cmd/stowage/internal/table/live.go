package table

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// Live draws a table on a terminal, repeatedly in the same place. Text that is written to it
// as an io.Writer appears above the table, so that logs and the table can share a terminal. It
// is safe for concurrent use.
type Live struct {
	out io.Writer
	// size returns the terminal's current width and height.
	size  func() (width, height int)
	color bool

	mu sync.Mutex
	// drawn are the lines on the terminal that the next drawing replaces.
	drawn []string
}

// NewLive returns a Live on a terminal, whose size it reads at every drawing. color shows statuses in
// colours.
func NewLive(terminal io.Writer, color bool, size func() (width, height int)) *Live {
	return &Live{out: terminal, color: color, size: size}
}

// Show replaces the drawn table by a table of rows, which must be in order.
func (l *Live) Show(rows []user.Storage, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	width, height := l.size()
	var lines []string
	add := func(text line) { lines = append(lines, text.truncate(width).String()) }
	if len(rows) > 0 {
		groups := Layout{Width: width, Color: l.color}.render(rows, now)
		// The summary, the table's header, the line about omitted rows and the cursor's line take
		// one line each.
		shown := fit(rows, groups[1:], height-4)
		add(groups[0][0])
		left := 0
		for i, group := range groups[1:] {
			if !shown[i] {
				left++
				continue
			}
			for _, text := range group {
				add(text)
			}
		}
		if left > 0 {
			add(line{text: fmt.Sprintf("… and %d more", left)})
		}
	}
	add(line{text: Summary(rows)})
	previous := len(l.drawn)
	l.drawn = lines
	return l.draw(previous, "")
}

// Finish replaces the summary with a final word, and leaves the table on the terminal.
func (l *Live) Finish(word string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	previous := len(l.drawn)
	l.drawn = append(l.drawn[:max(previous-1, 0)], word)
	err := l.draw(previous, "")
	l.drawn = nil
	return err
}

// Write writes whole lines above the table.
func (l *Live) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(p), l.draw(len(l.drawn), string(p))
}

// draw moves up over the previously drawn lines, clears from there, and writes the text above
// the table, then the table.
func (l *Live) draw(previous int, above string) error {
	var b strings.Builder
	if previous > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", previous)
	}
	b.WriteString(above)
	for _, line := range l.drawn {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	_, err := io.WriteString(l.out, b.String())
	return err
}

// fit chooses the rows whose lines take at most maxLines together, and prefers those that are not
// attached. At least one is chosen.
func fit(rows []user.Storage, groups [][]line, maxLines int) (shown []bool) {
	shown = make([]bool, len(rows))
	left, any := maxLines, false
	for _, finished := range []bool{false, true} {
		for i, r := range rows {
			if (r.Status == status.Attached) == finished && (len(groups[i]) <= left || !any) {
				shown[i], any = true, true
				left -= len(groups[i])
			}
		}
	}
	return shown
}
