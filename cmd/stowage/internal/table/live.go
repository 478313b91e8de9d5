package table

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/core/status"
)

// Live draws a table on a terminal, again and again in the same place. What is
// written to it as an io.Writer appears above the table, so that logs and table
// can share a terminal. It is safe for concurrent use.
type Live struct {
	out io.Writer
	// size returns the terminal's width and height, which change.
	size func() (width, height int)

	mu sync.Mutex
	// drawn are the lines on the terminal that the next drawing replaces.
	drawn []string
}

// NewLive returns a Live on a terminal whose size is asked for at every drawing.
func NewLive(terminal io.Writer, size func() (width, height int)) *Live {
	return &Live{out: terminal, size: size}
}

// Show replaces what is drawn by a table of rows, which are in order.
func (l *Live) Show(rows []control.Storage, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	width, height := l.size()
	// The summary, the table's head, the line on what is left out and the line
	// of the cursor take a line each.
	shown, left := fit(rows, height-4)
	var lines []string
	if len(rows) > 0 {
		lines = render(shown, now)
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", left))
	}
	lines = append(lines, Summary(rows))
	for i, line := range lines {
		lines[i] = truncate(line, width)
	}
	previous := len(l.drawn)
	l.drawn = lines
	return l.draw(previous, "")
}

// Finish puts a last word in the place of the summary, and leaves the table as it is.
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

// draw goes up over the lines that were drawn, clears from there, and writes
// what goes above the table, then the table.
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

// fit chooses at most maxRows rows, those that are not attached before the others, and
// keeps their order. It also returns how many it left out.
func fit(rows []control.Storage, maxRows int) ([]control.Storage, int) {
	maxRows = max(maxRows, 1)
	if len(rows) <= maxRows {
		return rows, 0
	}
	unfinished := 0
	for _, r := range rows {
		if r.Status != status.Attached {
			unfinished++
		}
	}
	finished := max(maxRows-unfinished, 0)
	shown := make([]control.Storage, 0, maxRows)
	for _, r := range rows {
		if len(shown) == maxRows {
			break
		}
		if r.Status == status.Attached {
			if finished == 0 {
				continue
			}
			finished--
		}
		shown = append(shown, r)
	}
	return shown, len(rows) - len(shown)
}

// truncate shortens a line to width characters: one that wraps would take two lines
// where one is cleared.
func truncate(line string, width int) string {
	if width <= 1 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
