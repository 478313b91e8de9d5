package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func (c *common) orphansCommand() *cobra.Command {
	var (
		output   string
		released bool
	)
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "Show volumes and filesystems that belong to no storage",
		Long: `Shows what the providers have and no storage has. Nothing of it is ever removed
unasked. The STATE of each says what can be done:

  orphan     it is of this state: "stowage adopt" makes it storage again,
             "stowage delete" destroys it.
  released   it was released: "stowage import" takes it over again, by its path. It is
             shown with --released.
  unknown    it does not tell whose it is. Older versions made such volumes. It can
             be imported, by its path.

What belongs to another state is not shown. An orphan is looked at twice, ten seconds
apart, before it is called one.`,
		Args: noArgs("leave it out"),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, _ []string) error {
			write, err := writerOf(output, writeOrphans)
			if err != nil {
				return err
			}
			orphans, err := client.Orphans(ctx)
			if err != nil {
				return err
			}
			if !released {
				orphans = slices.DeleteFunc(orphans, func(o control.Orphan) bool { return o.State == control.OrphanReleased })
			}
			return write(c.Stdout, orphans)
		}),
	}
	addOutput(cmd, &output)
	cmd.Flags().BoolVar(&released, "released", false, "show what was released, too")
	return cmd
}

func writeOrphans(out io.Writer, orphans []control.Orphan) error {
	if len(orphans) == 0 {
		_, err := fmt.Fprintln(out, "no orphans")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tKIND\tSIZE\tPOOL\tUUID\tPATH")
	for _, o := range orphans {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			cell(o.Name), o.State, o.Kind, table.Size(o.SizeMiB), cell(orElse(o.Pool, o.Provider)), cell(o.UUID), cell(orElse(o.Path, o.ID)))
	}
	return w.Flush()
}

// cell shows that there is nothing where there is nothing.
func cell(text string) string { return orElse(table.Escape(text), "-") }

func (c *common) adoptCommand() *cobra.Command {
	var args control.AdoptArgs
	cmd := &cobra.Command{
		Use:   "adopt NAME|UUID",
		Short: "Make an orphan storage again",
		Long: `Makes an orphan that "stowage orphans" shows storage again, detached, with its data.
A volume brings the filesystem that is on it. Attach it with "stowage attach".`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, words []string) error {
			args.Orphan = words[0]
			result, err := client.Adopt(ctx, args)
			if err != nil {
				return err
			}
			return writeChanges(c.Stdout, result.Changes, false)
		}),
	}
	cmd.Flags().StringVar(&args.As, "as", "", "the name that the storage is to have, where its own is taken")
	return cmd
}

func (c *common) deleteCommand() *cobra.Command {
	var args control.DeleteOrphanArgs
	cmd := &cobra.Command{
		Use:   "delete UUID",
		Short: "Destroy an orphan",
		Long: `Destroys an orphan that "stowage orphans" shows. One that a device shows, or that is
mounted anywhere, is refused. The data of what is on this machine is kept in the trash
of its provider's directory for a week; --now destroys it at once. Storage is removed
by "stowage remove NAME".`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, words []string) error {
			args.UUID = words[0]
			result, err := client.DeleteOrphan(ctx, args)
			if err != nil {
				return err
			}
			for _, o := range result.Deleted {
				line := fmt.Sprintf("- %s %s deleted", o.Kind, table.Escape(o.ID))
				if !result.Until.IsZero() {
					line += ": its data is in the trash until " + result.Until.UTC().Format(time.RFC3339)
				}
				if _, err := fmt.Fprintln(c.Stdout, line); err != nil {
					return errors.Trace(err)
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&args.Now, "now", false, "destroy the data at once")
	return cmd
}

func (c *common) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the agent's state to a new file",
		Long: `Writes the state of the running agent, what storage there is and how it is made, to
FILE, which is not there yet. The data of the storage is not in it: copy that after the
state. "stowage restore" brings the state back.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, words []string) error {
			if words[0] == "" {
				return errors.WithType(errors.New("the file has no name"), errUsage)
			}
			path, err := filepath.Abs(words[0])
			if err != nil {
				return errors.Trace(err)
			}
			result, err := client.Backup(ctx, control.BackupArgs{Path: path})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "%s: state %s, generation %d, %d bytes; the data of the storage is not in it\n",
				table.Escape(words[0]), result.UUID, result.Generation, result.Bytes)
			return err
		}),
	}
}
