package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
)

// describedEvents is how many of its last events the description of storage has.
const describedEvents = 10

func (c *common) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe NAME...",
		Short: "Show all about storage: what it is, what it waits for, and what happened to it",
		Long: `Shows all that is known about storage: its sizes, its machine, its volume and filesystem,
where it is from and who asked for it, its snapshots, and the last ten events. NAME also
selects NAME/0, NAME/1, and so on. Programs read "stowage status NAME -o json" and
"stowage events NAME -o json".`,
		Example: "  stowage describe data",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			rows, err := client.Storage(ctx, names)
			if err != nil {
				return err
			}
			snapshots, err := client.Snapshots(ctx)
			if err != nil && !errors.Is(err, errors.NotImplemented) && !errors.Is(err, errors.NotFound) { // of an older server
				return err
			}
			table.Sort(rows)
			now := c.Clock.Now()
			for i, s := range rows {
				// Each by its own name: the latest events of all together may be those of one.
				events, err := client.Events(ctx, user.EventsArgs{Names: []string{s.Name}, Limit: describedEvents})
				if err != nil {
					return err
				}
				if i > 0 {
					fmt.Fprintln(c.Stdout)
				}
				own := slices.DeleteFunc(slices.Clone(snapshots), func(o user.Snapshot) bool { return o.StorageName != s.Name })
				if err := writeDescription(c.Stdout, s, own, events, now); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// writeDescription writes all about storage. Fields without a value are left out.
func writeDescription(out io.Writer, s user.Storage, snapshots []user.Snapshot, events []user.StorageEvent, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, table.Escape(value))
		}
	}
	field("Name", s.Name)
	status := string(s.Status)
	if s.Life != life.Alive {
		status += ", to be removed"
	}
	field("Status", fmt.Sprintf("%s, since %s (%s)", status, s.Since.Local().Format(time.DateTime), table.Age(now.Sub(s.Since))))
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
	field("Size", size)
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
	if err := w.Flush(); err != nil {
		return errors.Trace(err)
	}
	var b strings.Builder
	if len(snapshots) > 0 {
		if err := writeSnapshots(&b, snapshots); err != nil {
			return errors.Trace(err)
		}
		writeSection(out, "Snapshots", b.String())
	}
	if len(events) > 0 {
		b.Reset()
		if err := writeEvents(&b, events, true); err != nil {
			return errors.Trace(err)
		}
		writeSection(out, "Events", b.String())
	}
	return nil
}

// writeSection writes lines below a title.
func writeSection(out io.Writer, title, text string) {
	fmt.Fprintf(out, "\n%s:\n", title)
	for line := range strings.Lines(text) {
		fmt.Fprint(out, "  "+line)
	}
}

// prefixed returns text after a prefix, or nothing if there is no text.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
