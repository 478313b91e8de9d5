package table

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// Live draws a table on a terminal, repeatedly in the same place. Text that is written to it
// as an io.Writer appears above the table, so that logs and the table can share a terminal. It
// is safe for concurrent use.
type Live struct {
	out io.Writer
	// size returns the terminal's current width and height.
	size func() (width, height int)

	mu sync.Mutex
	// drawn are the lines on the terminal that the next drawing replaces.
	drawn []string
}

// NewLive returns a Live on a terminal, whose size it reads at every drawing.
func NewLive(terminal io.Writer, size func() (width, height int)) *Live {
	return &Live{out: terminal, size: size}
}

// Show replaces the drawn table by a table of rows, which must be in order.
func (l *Live) Show(rows []user.Storage, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	width, height := l.size()
	// The summary, the table's header, the line about omitted rows and the cursor's line take
	// one line each.
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

// fit chooses at most maxRows rows, in order, and prefers those that are not attached. It also
// returns how many it left out.
func fit(rows []user.Storage, maxRows int) ([]user.Storage, int) {
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
	shown := make([]user.Storage, 0, maxRows)
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

// truncate shortens a line to width characters: a line that wraps would take two lines, of
// which only one would be cleared.
func truncate(line string, width int) string {
	if width <= 1 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
