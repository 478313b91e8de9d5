package table

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// Sort orders storage by name.
func Sort(rows []user.Storage) {
	slices.SortFunc(rows, func(a, b user.Storage) int { return CompareNames(a.Name, b.Name) })
}

// Write writes a table of storage in the given order.
func Write(w io.Writer, rows []user.Storage, now time.Time) error {
	lines := render(rows, now)
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// render returns the lines of a table.
func render(rows []user.Storage, now time.Time) []string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	named := slices.ContainsFunc(rows, func(r user.Storage) bool { return namedMachine(r) != "" })
	machine := func(cell string) string {
		if !named {
			return ""
		}
		return cell + "\t"
	}
	fmt.Fprintf(w, "NAME\tKIND\tPOOL\tSIZE\tSTATUS\tSINCE\t%sLOCATION\tMESSAGE\n", machine("MACHINE"))
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s%s\t%s\n",
			Escape(r.Name), Escape(r.Kind), Escape(r.Pool), formatSize(r), Escape(formatStatus(r)),
			Age(now.Sub(r.Since)), machine(orDash(Escape(namedMachine(r)))), orDash(Escape(r.Location)), Escape(r.Message))
	}
	w.Flush() // cannot fail, since it writes to memory
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
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

// formatStatus returns the status, with the life if the storage is being removed.
func formatStatus(r user.Storage) string {
	if r.Life == life.Alive || r.Life == "" {
		return string(r.Status)
	}
	return fmt.Sprintf("%s (%s)", r.Status, r.Life)
}

// formatSize returns the size, and the size to grow to if there is one.
func formatSize(r user.Storage) string {
	if r.SizeMiB >= r.WantedMiB {
		return Size(r.SizeMiB)
	}
	return formatGrowth(r)
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
