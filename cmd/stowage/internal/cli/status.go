package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
)

// The formats of stowage status, besides those of all lists.
const (
	outputWide = "wide"
	outputName = "name"

	outputField = "field" // of --field
)

func (c *common) statusCommand() *cobra.Command {
	var (
		output, selector, order, field string
		watch                          bool
	)
	cmd := &cobra.Command{
		Use:     "status [NAME...]",
		Aliases: []string{"ls", "get"},
		Short:   "Show storage and its status",
		Long: `Shows the named storage, or all storage. NAME also selects NAME/0, NAME/1, and so on.
What needs attention comes first. A SIZE such as 256M → 512M means that the storage has
256M and is to grow to 512M. On a terminal, what does not fit is shown below its line,
and the pool and the kind are left out: -o wide shows all. $NO_COLOR turns off colours.
What is not done says whether it waits, runs, or is tried again, if the agent or server that is
asked does it; "stowage describe" asks the machine. With -o wide, the machines are asked how much of each filesystem is used.

With --selector, only storage is shown that has all of the labels.

With --watch, the table is redrawn as storage changes, until the command is
interrupted. If the output is not a terminal, each change is one line; with -o json,
each line is an object {"storage": …} with storage that is new or has changed, or
{"gone": NAME}. If the connection is lost, the command tries for 30 seconds to connect
again.`,
		Example: `  stowage status
  stowage status data --watch
  stowage status data --field location
  stowage status --selector tier=fast -o json
  stowage status -o jsonpath='$[?@.status=="error"].message'`,
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			layout := table.Layout{Wide: output == outputWide}
			write, err := c.statusWriter(output, &layout)
			if err == nil && field != "" {
				output = outputField
				write, err = fieldWriter[user.Storage](field)
			}
			if err != nil {
				return err
			}
			if order == "" && (output == "table" || output == outputWide) {
				order = "problems"
			}
			sort, ok := statusOrders[cmp.Or(order, "name")]
			if !ok {
				return errors.WithType(errors.Errorf("--sort %q is not known: write problems, name, size or since", order), errUsage)
			}
			if watch && output != "table" && output != "json" {
				return errors.WithType(errors.New("--watch needs -o table or -o json"), errUsage)
			}
			labels, err := label.ParseSelector(selector)
			if err != nil {
				return errors.WithType(errors.Annotate(err, "--selector"), errUsage)
			}
			if watch {
				return c.watchStatus(ctx, selecting(client.Follow, labels), names, output)
			}
			rows, err := client.Storage(ctx, names)
			if err != nil {
				return err
			}
			rows = slices.DeleteFunc(rows, func(s user.Storage) bool { return !label.Selects(labels, s.Labels) })
			sort(rows)
			if layout.Wide {
				if layout.Used, err = c.usage(ctx, client, rows); err != nil {
					return err
				}
			}
			return write(c.Stdout, rows)
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "output format: table, wide, name, json, yaml or jsonpath=PATH, such as jsonpath='$[*].name'")
	addField(cmd, &field)
	cmd.Flags().StringVar(&order, "sort", "", "order: problems, name, size (the largest first) or since (the latest first) (default problems for tables, otherwise name)")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep showing changes")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "labels that the storage must have, such as tier=fast,zone=a")
	return cmd
}

// statusOrders are the orders of --sort.
var statusOrders = map[string]func([]user.Storage){
	"problems": table.SortProblemsFirst,
	"name":     table.Sort,
	"size": func(rows []user.Storage) {
		table.Sort(rows)
		slices.SortStableFunc(rows, func(a, b user.Storage) int { return cmp.Compare(b.SizeMiB, a.SizeMiB) })
	},
	"since": func(rows []user.Storage) {
		table.Sort(rows)
		slices.SortStableFunc(rows, func(a, b user.Storage) int { return b.Since.Compare(a.Since) })
	},
}

// usage returns how much of storage is used, by name. What is not known is left out, and machines that were
// not asked are named on standard error.
func (c *common) usage(ctx context.Context, client *user.Client, rows []user.Storage) (map[string]user.StorageUsage, error) {
	used := make(map[string]user.StorageUsage)
	var names []string
	for _, s := range rows {
		if s.Filesystem != "" && s.Location != "" {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return used, nil
	}
	if len(names) > user.MaxUsages {
		fmt.Fprintf(c.Stderr, "what is used is shown for up to %d filesystems: name or select fewer\n", user.MaxUsages)
		return used, nil
	}
	list, err := client.Usage(ctx, names)
	if isUnknownRequest(err) { // an older server, or storage that was removed just now
		return used, nil
	} else if err != nil {
		return nil, err
	}
	for _, not := range list.NotAsked {
		fmt.Fprintf(c.Stderr, "not asked: %s\n", table.Escape(not.Reason))
	}
	for _, m := range list.Storage {
		used[m.Name] = m.Usage
	}
	return used, nil
}

// statusWriter returns the function that writes storage in the format of -o. Tables have the layout, as it
// is when they are written.
func (c *common) statusWriter(output string, layout *table.Layout) (func(io.Writer, []user.Storage) error, error) {
	if output == outputName {
		return func(w io.Writer, rows []user.Storage) error {
			for _, s := range rows {
				if _, err := fmt.Fprintln(w, table.Escape(s.Name)); err != nil {
					return errors.Trace(err)
				}
			}
			return nil
		}, nil
	}
	if file, ok := terminal(c.Stdout); ok {
		layout.Width, _ = sizeOf(file)
		layout.Color = hasColors()
	}
	if output == outputWide {
		output = "table"
	}
	write, err := writerOf(output, func(w io.Writer, rows []user.Storage) error { return table.Write(w, rows, time.Now(), *layout) })
	if err != nil && !strings.HasPrefix(output, jsonPathPrefix) {
		err = errors.WithType(errors.Errorf("-o %q is not known: write table, wide, name, json, yaml or jsonpath=PATH", output), errUsage)
	}
	return write, err
}

// selecting returns the part of a source that is about storage with the labels. Storage that loses them is
// gone.
func selecting(all source, labels map[string]string) source {
	if len(labels) == 0 {
		return all
	}
	return func(ctx context.Context, names []string, each func(user.Event) error) error {
		known := make(map[string]bool)
		return all(ctx, names, func(event user.Event) error {
			part := user.Event{Position: event.Position}
			for _, s := range event.Storage {
				if label.Selects(labels, s.Labels) {
					part.Storage = append(part.Storage, s)
					known[s.Name] = true
				} else {
					event.Gone = append(event.Gone, s.Name)
				}
			}
			for _, name := range event.Gone {
				if known[name] {
					part.Gone = append(part.Gone, name)
					delete(known, name)
				}
			}
			return each(part)
		})
	}
}

// watchStatus shows storage as it changes, until the user interrupts it.
func (c *common) watchStatus(ctx context.Context, from source, names []string, output string) error {
	d, each := newDisplay(c.Stdout, false), func(user.Event) error { return nil }
	if output == "json" {
		d, each = hidden{}, func(event user.Event) error { return writeChangesAsObjects(c.Stdout, event) }
	}
	err := follow(ctx, from, names, newView(), d, each)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// hidden is a display that shows nothing.
type hidden struct{}

func (hidden) show(*view, []user.Storage, []string) error { return nil }
func (hidden) tick(*view) error                           { return nil }
func (hidden) finish(string) error                        { return nil }

// changedStorage is a change as an object: storage that is new or has changed, or the name of storage that is
// gone.
type changedStorage struct {
	Storage *user.Storage `json:"storage,omitempty"`
	Gone    string        `json:"gone,omitempty"`
}

func writeChangesAsObjects(out io.Writer, event user.Event) error {
	write := func(change changedStorage) error {
		text, err := json.Marshal(change)
		if err == nil {
			_, err = fmt.Fprintln(out, table.EscapeJSON(string(text)))
		}
		return errors.Trace(err)
	}
	for i := range event.Storage {
		if err := write(changedStorage{Storage: &event.Storage[i]}); err != nil {
			return err
		}
	}
	for _, name := range event.Gone {
		if err := write(changedStorage{Gone: name}); err != nil {
			return err
		}
	}
	return nil
}
