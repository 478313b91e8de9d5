package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func (c *common) eventsCommand() *cobra.Command {
	var (
		output string
		watch  bool
		since  time.Duration
		args   user.EventsArgs
	)
	cmd := &cobra.Command{
		Use:   "events [NAME...]",
		Short: "Show what happened to storage",
		Long: `Shows what happened to the named storage, or to all storage, and who asked for it: a user
of the host by ID, or a user of another host by name. NAME also selects NAME/0, NAME/1,
and so on. The last 50 events of each instance are kept, and for a day after it was removed.

With --watch, the command goes on with what happens until it is interrupted. With -o json
it then writes one object on each line.`,
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			write, err := writerOf(output, func(w io.Writer, events []user.StorageEvent) error { return writeEvents(w, events, true) })
			if err != nil {
				return err
			}
			args.Names = names
			if since > 0 {
				args.Since = c.Clock.Now().Add(-since)
			}
			if !watch {
				events, err := client.Events(ctx, args)
				if err != nil {
					return err
				}
				return write(c.Stdout, events)
			}
			w := eventWatch{client: client, args: args}
			switch output {
			case "table":
				w.write = func(events []user.StorageEvent) error { return writeEvents(c.Stdout, events, false) }
			case "json":
				w.write = func(events []user.StorageEvent) error { return writeObjects(c.Stdout, events) }
			default:
				return errors.WithType(errors.New("--watch needs -o table or -o json"), errUsage)
			}
			err = client.Follow(ctx, names, func(event user.Event) error { return w.next(ctx, event) })
			if ctx.Err() != nil {
				return nil // interrupted by the user
			}
			return err
		}),
	}
	addOutput(cmd, &output)
	cmd.Flags().BoolVar(&watch, "watch", false, "go on with what happens")
	cmd.Flags().DurationVar(&since, "since", 0, "only what happened in the last time of this length, such as 24h")
	cmd.Flags().IntVar(&args.Limit, "limit", 0, "only the last so many events, up to 10000 (default 1000)")
	return cmd
}

// maxEvents is the most events that an answer has.
const maxEvents = 10_000

// eventWatch writes events as they happen.
type eventWatch struct {
	client *user.Client
	args   user.EventsArgs
	write  func([]user.StorageEvent) error
	// last has the number of the last event of each name that was written. It is nil at first.
	last map[string]uint64
}

// next writes the events of the storage that has changed, and at first those that there are.
func (w *eventWatch) next(ctx context.Context, changed user.Event) error {
	if w.last != nil {
		w.args.Limit = maxEvents // --limit is for those that there are at first
		w.args.Names = slices.Clone(changed.Gone)
		for _, s := range changed.Storage {
			w.args.Names = append(w.args.Names, s.Name)
		}
		if len(w.args.Names) == 0 {
			return nil
		}
	} else {
		w.last = map[string]uint64{}
	}
	events, err := w.client.Events(ctx, w.args)
	if err != nil && !errors.Is(err, errors.NotFound) { // it may be added
		return err
	}
	var fresh []user.StorageEvent
	for _, e := range events {
		if e.Number > w.last[e.Storage] {
			fresh = append(fresh, e)
			w.last[e.Storage] = e.Number
		}
	}
	return w.write(fresh)
}

func writeObjects(out io.Writer, events []user.StorageEvent) error {
	encoder := json.NewEncoder(out)
	for _, e := range events {
		if err := encoder.Encode(e); err != nil {
			return errors.Trace(err)
		}
	}
	return nil
}

func writeEvents(out io.Writer, events []user.StorageEvent, heading bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if heading {
		fmt.Fprintln(w, "TIME\tSTORAGE\tBY\tEVENT")
	}
	for _, e := range events {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.Time.Local().Format(time.DateTime), table.Escape(e.Storage), table.Escape(cmp.Or(e.By, "-")), table.Event(e))
	}
	return w.Flush()
}
