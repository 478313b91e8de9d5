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

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func (c *common) orphansCommand() *cobra.Command {
	var (
		output, machine string
		released        bool
	)
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "List volumes and filesystems that belong to no storage",
		Long: `Lists the volumes and filesystems that the providers have and that belong to no
storage. The agent never removes them by itself. STATE says what can be done:

  orphan     Belongs to this state. "stowage adopt" makes it storage again, and
             "stowage delete" destroys it.
  released   Was released. "stowage import" takes it over again, by its path. Listed
             with --released only.
  unknown    Has no owner recorded, like volumes of older versions. "stowage import"
             takes it over, by its path.

Objects that belong to another state are not listed. An object is listed as an orphan
if two looks, ten seconds apart, agree.

A server asks the agents of all machines that are connected, or of the one that
--machine names. Machines that could not be asked are named on standard error.`,
		Args: noArgs("leave the argument out"),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, _ []string) error {
			write, err := writerOf(output, writeOrphans)
			if err != nil {
				return err
			}
			list, err := client.Orphans(ctx, machine)
			if err != nil {
				return err
			}
			for _, m := range list.NotAsked {
				if _, err := fmt.Fprintf(c.Stderr, "not asked: %s\n", table.Escape(m.Reason)); err != nil {
					return errors.Trace(err)
				}
			}
			orphans := list.Orphans
			if !released {
				orphans = slices.DeleteFunc(orphans, func(o user.Orphan) bool { return o.State == user.OrphanReleased })
			}
			return write(c.Stdout, orphans)
		}),
	}
	addOutput(cmd, &output)
	cmd.Flags().StringVar(&machine, "machine", "", "list what this machine of a server has (default: all machines that are connected)")
	cmd.Flags().BoolVar(&released, "released", false, "list released objects, too")
	return cmd
}

func writeOrphans(out io.Writer, orphans []user.Orphan) error {
	if len(orphans) == 0 {
		_, err := fmt.Fprintln(out, "no orphans")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	ofServer := slices.ContainsFunc(orphans, func(o user.Orphan) bool { return o.Machine != "" })
	heading, machine := "", ""
	if ofServer {
		heading = "MACHINE\t"
	}
	fmt.Fprintf(w, "NAME\tSTATE\tKIND\tSIZE\tPOOL\t%sUUID\tPATH\n", heading)
	for _, o := range orphans {
		if ofServer {
			machine = cell(o.Machine) + "\t"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\t%s\n",
			cell(o.Name), o.State, o.Kind, table.Size(o.SizeMiB), cell(orElse(o.Pool, o.Provider)), machine, cell(o.UUID), cell(orElse(o.Path, o.ID)))
	}
	return w.Flush()
}

// cell returns the escaped text, or a dash for an empty one.
func cell(text string) string { return orElse(table.Escape(text), "-") }

// machineOfOrphan is the help of the flag --machine.
const machineOfOrphan = "machine of a server that has it (default: all machines that are connected are asked)"

func (c *common) adoptCommand() *cobra.Command {
	var args user.AdoptArgs
	cmd := &cobra.Command{
		Use:   "adopt NAME|UUID",
		Short: "Turn an orphan into storage again",
		Long: `Turns an orphan from the list of "stowage orphans" into storage again, detached, with
its data. The filesystem on an adopted volume is adopted with it. Attach the storage
with "stowage attach".`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, words []string) error {
			args.Orphan = words[0]
			result, err := client.Adopt(ctx, args)
			if err != nil {
				return err
			}
			return writeChanges(c.Stdout, result.Changes, false)
		}),
	}
	cmd.Flags().StringVar(&args.As, "as", "", "name of the storage, if its own is taken")
	cmd.Flags().StringVar(&args.Machine, "machine", "", machineOfOrphan)
	return cmd
}

func (c *common) deleteCommand() *cobra.Command {
	var args user.DeleteOrphanArgs
	cmd := &cobra.Command{
		Use:   "delete UUID",
		Short: "Destroy an orphan",
		Long: `Destroys an orphan from the list of "stowage orphans". An orphan that is attached to a
device or mounted anywhere is refused. Local data is kept in the trash of the
provider's directory for a week; --now destroys it at once. To remove storage, use
"stowage remove NAME".`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, words []string) error {
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
	cmd.Flags().StringVar(&args.Machine, "machine", "", machineOfOrphan)
	cmd.Flags().BoolVar(&args.Now, "now", false, "destroy the data at once")
	return cmd
}

func (c *common) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Back up the agent's state to a new file",
		Long: `Writes the state of the running agent to FILE, which must not exist. The state has the
storage, pools and settings, but not the data on the storage: copy the data after the
state. "stowage restore" restores the state.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, words []string) error {
			if words[0] == "" {
				return errors.WithType(errors.New("the file has no name"), errUsage)
			}
			path, err := filepath.Abs(words[0])
			if err != nil {
				return errors.Trace(err)
			}
			result, err := client.Backup(ctx, user.BackupArgs{Path: path})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "%s: state %s, generation %d, %d bytes; the data of the storage is not in it\n",
				table.Escape(words[0]), result.UUID, result.Generation, result.Bytes)
			return err
		}),
	}
}
