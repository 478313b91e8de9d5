package table

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// Sort orders storage by name.
func Sort(rows []user.Storage) {
	slices.SortFunc(rows, func(a, b user.Storage) int { return CompareNames(a.Name, b.Name) })
}

// SortProblemsFirst orders storage by what needs attention, then by name.
func SortProblemsFirst(rows []user.Storage) {
	slices.SortFunc(rows, func(a, b user.Storage) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), CompareNames(a.Name, b.Name))
	})
}

// urgency is smaller for storage that more needs the attention of a user.
func urgency(r user.Storage) int {
	stable := r.Status == status.Attached || r.Status == status.Detached
	switch {
	case r.Status == status.Error:
		return 0
	case r.Message != "" && !stable:
		return 1
	case !stable:
		return 2
	}
	return 3
}

// Layout says how a table is written.
type Layout struct {
	// Width is that of the terminal, in characters. What does not fit is below its line, or left out
	// if it is the same for most storage. Zero: each storage is one line of any length.
	Width int
	// Color shows statuses in colours.
	Color bool
	// Wide adds columns, and leaves none out.
	Wide bool
	// Used has the usage of storage by name, as far as it is known. Nil: it is not shown.
	Used map[string]user.StorageUsage
}

// Write writes a table of storage in the given order.
func Write(w io.Writer, rows []user.Storage, now time.Time, layout Layout) error {
	var b strings.Builder
	for _, lines := range layout.render(rows, now) {
		for _, line := range lines {
			b.WriteString(line.String() + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// The columns of tables.
const (
	colName       = "NAME"
	colKind       = "KIND"
	colPool       = "POOL"
	colSize       = "SIZE"
	colUsed       = "USED"
	colStatus     = "STATUS"
	colSince      = "SINCE"
	colMachine    = "MACHINE"
	colVolume     = "VOLUME"
	colFilesystem = "FILESYSTEM"
	colLabels     = "LABELS"
	colLocation   = "LOCATION"
	colMessage    = "MESSAGE"
)

// cell returns the content of a cell.
func (l Layout) cell(column string, r user.Storage, now time.Time) string {
	switch column {
	case colName:
		return Escape(r.Name)
	case colKind:
		return Escape(r.Kind)
	case colPool:
		return Escape(r.Pool)
	case colSize:
		return formatSize(r)
	case colUsed:
		return formatUsed(l.Used[r.Name])
	case colStatus:
		return Escape(formatStatus(r))
	case colSince:
		return Age(now.Sub(r.Since))
	case colMachine:
		return orDash(Escape(namedMachine(r)))
	case colVolume:
		return orDash(Escape(r.Volume))
	case colFilesystem:
		return orDash(Escape(r.Filesystem))
	case colLabels:
		return orDash(Escape(label.FormatSelector(r.Labels)))
	case colLocation:
		return orDash(Escape(r.Location))
	}
	return strings.TrimPrefix(Escape(r.Message)+prefixed("; ", Escape(progress(r.Operations, now))), "; ")
}

// progress says how far the operation is that has come farthest.
func progress(operations []user.StorageOperation, now time.Time) string {
	states := []string{"running", "publishing", "queued", "scheduled", "unreadable", "stalled", "waiting"}
	rank := func(o user.StorageOperation) int { return slices.Index(states, o.State) }
	operations = slices.SortedStableFunc(slices.Values(operations), func(a, b user.StorageOperation) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), -cmp.Compare(a.Entity, b.Entity)) // volumes first
	})
	if len(operations) == 0 {
		return ""
	}
	o := operations[0]
	switch age := Age(now.Sub(o.Since)); {
	case o.WaitsFor != "":
		return fmt.Sprintf("%s has waited %s for %s", o.Operation, age, o.WaitsFor)
	case o.State == "running":
		return fmt.Sprintf("%s has run for %s", o.Operation, age)
	case !o.NextAttempt.IsZero():
		return fmt.Sprintf("next attempt in %s, after %d failures", Age(o.NextAttempt.Sub(now)), o.Failures)
	}
	return o.Operation + " is " + o.State
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// indent is that of what is below the line of storage.
const indent = "    "

// render returns the lines of a table: those of the header, and those of each storage.
func (l Layout) render(rows []user.Storage, now time.Time) [][]line {
	columns := []string{colName, colKind, colPool, colSize, colStatus, colSince}
	if l.Used != nil {
		columns = slices.Insert(columns, 4, colUsed)
	}
	if slices.ContainsFunc(rows, func(r user.Storage) bool { return namedMachine(r) != "" }) {
		columns = append(columns, colMachine)
	}
	if l.Wide {
		columns = append(columns, colVolume, colFilesystem, colLabels)
	}
	columns = append(columns, colLocation, colMessage)
	widths := make(map[string]int)
	for _, column := range columns {
		widths[column] = utf8.RuneCountInString(column)
		for _, r := range rows {
			widths[column] = max(widths[column], utf8.RuneCountInString(l.cell(column, r, now)))
		}
	}
	fits := func() bool {
		width := -len(gap)
		for _, column := range columns {
			width += widths[column] + len(gap)
		}
		return l.Width == 0 || l.Wide || width <= l.Width
	}
	without := func(names ...string) {
		columns = slices.DeleteFunc(columns, func(c string) bool { return slices.Contains(names, c) })
	}
	var below []string
	if !fits() {
		without(colMessage)
		below = []string{colMessage}
	}
	if !fits() {
		without(colKind, colPool)
	}
	narrow := !fits()
	if narrow {
		widths[colLocation] = len(colLocation) // the last column needs no padding
		if !fits() {
			without(colLocation)
			below, narrow = []string{colLocation, colMessage}, false
		}
	}

	header := newLine(columns, widths, func(column string) string { return column })
	lines := [][]line{{header}}
	for _, r := range rows {
		cells := func(column string) string { return l.cell(column, r, now) }
		first, moved := newLine(columns, widths, cells), below
		if narrow && utf8.RuneCountInString(first.text) > l.Width { // its location is long
			first = newLine(columns[:len(columns)-1], widths, cells)
			moved = []string{colLocation, colMessage}
		}
		if l.Color {
			first.color = colorOf(r)
		}
		group := []line{first}
		for _, column := range moved {
			text := l.cell(column, r, now)
			if text == "" || text == "-" {
				continue
			}
			for _, part := range Wrap(text, l.Width-len(indent)) {
				group = append(group, line{text: indent + part})
			}
		}
		lines = append(lines, group)
	}
	return lines
}

// gap is between two columns.
const gap = "  "

// line is a line of a table. Some of its characters may be in a colour.
type line struct {
	text string
	// color is the number of the colour; 0: none. It is that of the characters from start to end.
	color, start, end int
}

// newLine returns a line of cells. A colour is that of the status.
func newLine(columns []string, widths map[string]int, cell func(column string) string) line {
	var b strings.Builder
	var start, end, length int
	for i, column := range columns {
		text := cell(column)
		width := utf8.RuneCountInString(text)
		if column == colStatus {
			start, end = length, length+width
		}
		b.WriteString(text)
		length += width
		if i < len(columns)-1 {
			pad := widths[column] - width + len(gap)
			b.WriteString(strings.Repeat(" ", pad))
			length += pad
		}
	}
	return line{text: strings.TrimRight(b.String(), " "), start: start, end: end}
}

// truncate shortens the line to width characters: a line that wraps would take two lines, of
// which only one would be cleared.
func (l line) truncate(width int) line {
	if width > 1 && utf8.RuneCountInString(l.text) > width {
		l.text = string([]rune(l.text)[:width-1]) + "…"
		l.end = min(l.end, width)
	}
	return l
}

// String returns the line with its colour.
func (l line) String() string {
	if l.color == 0 || l.start >= l.end {
		return l.text
	}
	runes := []rune(l.text)
	return fmt.Sprintf("%s\x1b[%dm%s\x1b[0m%s", string(runes[:l.start]), l.color, string(runes[l.start:l.end]), string(runes[l.end:]))
}

// The numbers of colours of terminals.
const (
	red    = 31
	green  = 32
	yellow = 33
)

func colorOf(r user.Storage) int {
	switch {
	case urgency(r) == 0:
		return red
	case urgency(r) < 3:
		return yellow
	case r.Status == status.Attached:
		return green
	}
	return 0
}

// Wrap breaks a text between words into lines of at most width characters. A longer word has a line
// of its own, as it is, so that it can be copied.
func Wrap(text string, width int) (lines []string) {
	for word := range strings.SplitSeq(text, " ") {
		last := len(lines) - 1
		if last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// namedMachine returns the machine that the storage is attached to, if it has a name: an agent
// without a server has one machine, which has none.
func namedMachine(r user.Storage) string {
	if len(r.Attachments) == 0 || strings.Trim(r.Attachments[0].Machine, "0123456789") == "" {
		return ""
	}
	return r.Attachments[0].Machine
}

// formatStatus returns the status, and says whether the storage is being removed.
func formatStatus(r user.Storage) string {
	if r.Life == life.Alive || r.Life == "" {
		return string(r.Status)
	}
	return string(r.Status) + " (removing)"
}

// formatSize returns the size, and the size to grow to if there is one.
func formatSize(r user.Storage) string {
	if r.SizeMiB >= r.WantedMiB {
		return Size(r.SizeMiB)
	}
	return formatGrowth(r)
}

// formatUsed returns how much of storage is used. That of a directory is not known if the kernel counts only
// the whole filesystem that it is on.
func formatUsed(u user.StorageUsage) string {
	if u.SizeBytes == 0 || u.Shared {
		return "-"
	}
	return fmt.Sprintf("%s (%d%%)", Bytes(u.UsedBytes), (u.UsedBytes*100+u.SizeBytes/2)/u.SizeBytes)
}

func formatGrowth(r user.Storage) string {
	now, wanted := Size(r.SizeMiB), Size(r.WantedMiB)
	if now == wanted {
		now, wanted = ExactSize(r.SizeMiB), ExactSize(r.WantedMiB)
	}
	return now + " → " + wanted
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Line describes one storage instance on one line, without its age, for logs.
func Line(r user.Storage) string {
	line := Escape(r.Name) + " " + Escape(formatStatus(r))
	if machine := namedMachine(r); machine != "" {
		line += " on " + Escape(machine)
	}
	switch {
	case r.Location != "":
		line += " at " + Escape(r.Location)
	case r.Status == status.Attached:
		line += ", its location is not known yet"
	}
	if r.SizeMiB < r.WantedMiB {
		line += ", " + formatGrowth(r)
	}
	if r.Message != "" {
		line += ": " + Escape(r.Message)
	}
	return line
}

// Summary counts storage by status, attached first: "3/4 attached, 1 error".
func Summary(rows []user.Storage) string {
	if len(rows) == 0 {
		return "no storage"
	}
	counts := map[status.Status]int{}
	for _, r := range rows {
		counts[r.Status]++
	}
	parts := []string{fmt.Sprintf("%d/%d attached", counts[status.Attached], len(rows))}
	for _, s := range []status.Status{
		status.Pending, status.Attaching, status.Detaching, status.Detached, status.Destroying, status.Error,
	} {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	return strings.Join(parts, ", ")
}
