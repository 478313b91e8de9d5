package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
)

// describedEvents is how many of its last events the description of storage has.
const describedEvents = 10

// describedWidth is how wide a description is, in characters, unless a terminal has another width.
const describedWidth = 80

// description is all that there is to say about storage.
type description struct {
	Storage user.Storage `json:"storage" yaml:"storage"`
	// Look is what its machine has of it, and what is done for it.
	Look      user.StorageLook    `json:"look" yaml:"look"`
	Snapshots []user.Snapshot     `json:"snapshots" yaml:"snapshots"`
	Events    []user.StorageEvent `json:"events" yaml:"events"`
}

func (c *common) describeCommand() *cobra.Command {
	var output, field string
	cmd := &cobra.Command{
		Use:   "describe NAME...",
		Short: "Show all about storage: what it is, what it waits for, and what happened to it",
		Long: `Shows all that is known about storage: its sizes, its machine, its volume and filesystem,
where it is from and who asked for it, its snapshots, and the last ten events. NAME also
selects NAME/0, NAME/1, and so on.

The machine that has the storage is asked for its files, devices and mounts, for the space that
is used, and for the processes that use it. If it does not answer, the description says why.
What has not been done yet is shown with what it waits for, its last error and its next attempt.`,
		Example: `  stowage describe data
  stowage describe data -o json
  stowage describe data --field look.usage.used-bytes`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			write, err := writerOf(output, c.writeDescriptions)
			if err == nil && field != "" {
				write, err = fieldWriter[description](field)
			}
			if err != nil {
				return err
			}
			all, err := describe(ctx, client, names)
			if err != nil {
				return err
			}
			return write(c.Stdout, all)
		}),
	}
	addOutput(cmd, &output)
	addField(cmd, &field)
	return cmd
}

// describe returns all about the named storage. An older server does not know what machines have.
func describe(ctx context.Context, client *user.Client, names []string) ([]description, error) {
	rows, err := client.Storage(ctx, names)
	if err != nil {
		return nil, err
	}
	looks, err := client.Look(ctx, names)
	if isUnknownRequest(err) {
		looks = nil
		for _, s := range rows {
			looks = append(looks, user.StorageLook{Name: s.Name, NotAsked: "the agent or server is older than this command: install its version there"})
		}
	} else if err != nil {
		return nil, err
	}
	snapshots, err := client.Snapshots(ctx)
	if err != nil && !isUnknownRequest(err) {
		return nil, err
	}
	table.Sort(rows)
	all := make([]description, len(rows))
	for i, s := range rows {
		// Each by its own name: the latest events of all together may be those of one.
		events, err := client.Events(ctx, user.EventsArgs{Names: []string{s.Name}, Limit: describedEvents})
		if err != nil {
			return nil, err
		}
		all[i] = description{Storage: s, Look: user.StorageLook{Name: s.Name}, Events: orEmpty(events)}
		all[i].Snapshots = orEmpty(slices.DeleteFunc(slices.Clone(snapshots), func(o user.Snapshot) bool { return o.StorageName != s.Name }))
		for _, look := range looks {
			if look.Name == s.Name {
				all[i].Look = look
			}
		}
	}
	return all, nil
}

// isUnknownRequest reports whether an agent or server is too old for a request.
func isUnknownRequest(err error) bool {
	return errors.Is(err, errors.NotImplemented) || errors.Is(err, errors.NotFound)
}

func (c *common) writeDescriptions(out io.Writer, all []description) error {
	width := describedWidth
	if file, ok := terminal(c.Stdout); ok {
		width, _ = sizeOf(file)
	}
	now := c.Clock.Now()
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteString("\n")
		}
		d.write(&b, now, width)
	}
	_, err := io.WriteString(out, b.String())
	return errors.Trace(err)
}

// item is a text about something.
type item struct{ name, text string }

// write writes the description. Fields without a value are left out.
func (d description) write(out *strings.Builder, now time.Time, width int) {
	s := d.Storage
	var fields []item
	field := func(name, value string) {
		if value != "" {
			fields = append(fields, item{name + ":", value})
		}
	}
	field("Name", s.Name)
	status := string(s.Status)
	if s.Life != life.Alive {
		status += ", to be removed"
	}
	field("Status", status+", since "+moment(s.Since)+" ("+table.Age(now.Sub(s.Since))+")")
	field("Message", s.Message)
	field("Kind", s.Kind)
	field("Pool", fmt.Sprintf("%s (provider %s)", s.Pool, s.Provider))
	size := table.Size(s.SizeMiB)
	if s.WantedMiB > s.SizeMiB {
		size += ", to grow to " + table.Size(s.WantedMiB)
	}
	if s.CannotGrowToMiB > 0 {
		size += ", cannot grow to " + table.Size(s.CannotGrowToMiB)
	}
	if s.VolumeMiB > 0 {
		size += ", on a volume of " + table.Size(s.VolumeMiB)
	}
	field("Size", size)
	field("Used", describeUsage(d.Look.Usage))
	if len(s.Attachments) == 0 {
		field("Attached", "no")
	}
	for _, a := range s.Attachments {
		where := "to machine " + a.Machine
		if a.Location != "" {
			where += ", at " + a.Location
		}
		if a.ReadOnly {
			where += ", read-only"
		}
		if a.Life != life.Alive {
			where += ", to be detached"
		}
		field("Attached", where)
	}
	field("Volume", s.Volume)
	field("Filesystem", s.Filesystem)
	field("Labels", label.FormatSelector(s.Labels))
	if s.Asker != nil {
		field("Asked for by", s.Asker.Way+", as "+s.Asker.Name)
	}
	switch {
	case s.Claim != "" && s.Retained:
		field("Claim", s.Claim+", which was deleted: see stowage offer --help")
	case s.Claim != "":
		field("Claim", s.Claim)
	}
	if s.From != nil {
		field("Made from", strings.TrimSpace(prefixed("snapshot ", s.From.Snapshot)+prefixed("storage ", s.From.Storage)))
	}
	writeItems(out, fields, "", width)
	d.writeLook(out, now, width)
	var snapshots, events []item
	for _, o := range d.Snapshots {
		text := table.Size(o.SizeMiB) + ", " + string(o.Status)
		if o.TakenAt != nil {
			text += ", taken " + moment(*o.TakenAt)
		}
		snapshots = append(snapshots, item{o.Name, text + prefixed(": ", o.Message)})
	}
	writeSection(out, "Snapshots", snapshots, width)
	for _, e := range d.Events {
		events = append(events, item{moment(e.Time), table.Event(e) + prefixed(", by ", e.By)})
	}
	writeSection(out, "Events", events, width)
}

// writeLook writes what the machine has of the storage, and what is done for it.
func (d description) writeLook(out *strings.Builder, now time.Time, width int) {
	look := d.Look
	var unfinished, machine, users []item
	for _, o := range look.Operations {
		text := fmt.Sprintf("%s, %s since %s (%s)", o.Operation, o.State, moment(o.Since), table.Age(now.Sub(o.Since)))
		text += prefixed(", for ", o.WaitsFor)
		if o.Failures > 0 {
			text += fmt.Sprintf(", after %d failures", o.Failures)
		}
		if !o.NextAttempt.IsZero() {
			text += ", next attempt at " + moment(o.NextAttempt)
		}
		unfinished = append(unfinished, item{o.Entity, text + prefixed(": ", o.LastFailure)})
	}
	writeSection(out, "Unfinished", unfinished, width)
	for _, f := range look.Files {
		text := f.Path
		switch {
		case f.Missing:
			text = "missing: " + text
		case f.Kind == "file":
			text = fmt.Sprintf("%s, %s allocated: %s", table.Bytes(f.SizeBytes), table.Bytes(f.AllocatedBytes), text)
		}
		machine = append(machine, item{f.Kind, text})
	}
	for _, path := range look.Devices {
		machine = append(machine, item{"device", path})
	}
	for _, m := range look.Mounts {
		text := m.Path
		if m.ReadOnly {
			text += ", read-only"
		}
		machine = append(machine, item{"mount", text})
	}
	for _, note := range look.Notes {
		machine = append(machine, item{"unknown", note})
	}
	if look.NotAsked != "" {
		machine = append(machine, item{"unknown", look.NotAsked})
	}
	writeSection(out, "On the machine", machine, width)
	for _, h := range look.Holders {
		name := h.Name
		if h.PID != 0 {
			name = fmt.Sprintf("%d %s", h.PID, h.Name)
		}
		users = append(users, item{name, h.Use})
	}
	writeSection(out, "Used by", users, width)
}

// describeUsage says how much of a filesystem is used.
func describeUsage(u *user.StorageUsage) string {
	switch {
	case u == nil:
		return ""
	case u.Shared:
		return fmt.Sprintf("not known; its filesystem, which has other data too, has %s of %s in use", table.Bytes(u.UsedBytes), table.Bytes(u.SizeBytes))
	}
	return fmt.Sprintf("%s of %s, %s available", table.Bytes(u.UsedBytes), table.Bytes(u.SizeBytes), table.Bytes(u.AvailableBytes))
}

// moment formats a time.
func moment(t time.Time) string { return t.Local().Format(time.DateTime) }

// writeSection writes items below a title, or nothing if there are none.
func writeSection(out *strings.Builder, title string, items []item, width int) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n", title)
	writeItems(out, items, "  ", width)
}

// longName is the length of the longest name that has its text on the same line.
const longName = 20

// writeItems writes names and texts in two columns. A text that does not fit is wrapped, and one with a
// long name begins on the next line.
func writeItems(out *strings.Builder, items []item, indent string, width int) {
	column := 0
	for i := range items {
		items[i].name, items[i].text = table.Escape(items[i].name), table.Escape(items[i].text)
		if n := utf8.RuneCountInString(items[i].name); n <= longName {
			column = max(column, n)
		}
	}
	column = max(column+2, 4)
	rest := indent + strings.Repeat(" ", column)
	for _, it := range items {
		begin := indent + it.name
		if n := utf8.RuneCountInString(it.name); n > longName {
			out.WriteString(begin + "\n")
			begin = rest
		} else {
			begin += strings.Repeat(" ", column-n)
		}
		for _, line := range table.Wrap(it.text, width-len(rest)) {
			out.WriteString(begin + line + "\n")
			begin = rest
		}
	}
}

// prefixed returns text after a prefix, or nothing if there is no text.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
