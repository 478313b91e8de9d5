package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func (c *common) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Make, list and delete snapshots of storage",
		Long: `A snapshot is a copy of storage as it was at one time. New storage is made from it with
"from: NAME" in a file for "stowage apply". It stays when the storage is removed, and
storage that was made from it stays when the snapshot is deleted.`,
	}
	cmd.AddCommand(c.createSnapshotCommand(), c.listSnapshotsCommand(), c.deleteSnapshotCommand())
	return cmd
}

// snapshotPoll is how long an answer may take until a snapshot is as wanted.
const snapshotPoll = 30 * time.Second

func (c *common) createSnapshotCommand() *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   "create NAME STORAGE",
		Short: "Make a snapshot of storage",
		Long: `Makes a snapshot of storage. A filesystem that is mounted from a volume is frozen for a moment.
If that would take too long, or if the storage is a directory that is attached, the error says
what to do.

Repeating the command has no further effect.`,
		Args: cobra.ExactArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			name := args[0]
			made, err := client.CreateSnapshot(ctx, name, user.SnapshotRequest{Storage: args[1]}, 0)
			if err != nil {
				return err
			}
			message := ""
			for waiting.wait && made.Status != user.SnapshotReady {
				switch {
				case made.Status == user.SnapshotFailed:
					// Nothing is made of it, so that nothing is to be left.
					if _, err := client.DeleteSnapshot(ctx, name, false, snapshotPoll); err != nil {
						return err
					}
					return errors.Errorf("snapshot %q of storage %q: %s", name, args[1], made.Message)
				case made.Status == user.SnapshotDeleting:
					return errors.Errorf("snapshot %q: somebody else has deleted it", name)
				case made.Message != message:
					message = made.Message
					fmt.Fprintf(c.Stderr, "snapshot %q: %s: will be retried\n", name, message)
				}
				if made, err = client.GetSnapshot(ctx, name, snapshotPoll); err != nil {
					return err
				}
			}
			return writeSnapshots(c.Stdout, []user.Snapshot{made})
		}),
	}
	addSnapshotWait(cmd, &waiting, "the snapshot is made")
	return cmd
}

func (c *common) listSnapshotsCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   "list",
		Short: "List the snapshots",
	}, (*user.Client).Snapshots, writeSnapshots)
}

func writeSnapshots(out io.Writer, snapshots []user.Snapshot) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTORAGE\tKIND\tSIZE\tTAKEN\tMACHINE\tSTATUS\tMESSAGE")
	for _, s := range snapshots {
		taken := "-"
		if s.TakenAt != nil {
			taken = s.TakenAt.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", table.Escape(s.Name), table.Escape(s.StorageName), table.Escape(s.Kind), table.Size(s.SizeMiB),
			taken, table.Escape(orElse(s.Machine, "-")), table.Escape(string(s.Status)), table.Escape(orElse(s.Message, "-")))
	}
	return w.Flush()
}

func (c *common) deleteSnapshotCommand() *cobra.Command {
	var force, ignoreMissing bool
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete snapshots",
		Long: `Deletes snapshots. If the machine that has one is not connected, that one is deleted when
it is. A snapshot that a program has asked for is only deleted with --force.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			for _, name := range names {
				_, err := client.DeleteSnapshot(ctx, name, force, 0)
				if err != nil && !(ignoreMissing && errors.Is(err, errors.NotFound)) {
					return err
				}
			}
			for _, name := range names {
				message := ""
				for waiting.wait {
					s, err := client.GetSnapshot(ctx, name, snapshotPoll)
					if errors.Is(err, errors.NotFound) {
						break
					} else if err != nil {
						return err
					}
					if s.Message != message {
						message = s.Message
						fmt.Fprintf(c.Stderr, "snapshot %q: %s: will be retried\n", name, message)
					}
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete snapshots that programs have asked for, too")
	cmd.Flags().BoolVar(&ignoreMissing, "ignore-missing", false, "succeed for names of no snapshot, as scripts that may repeat the command want it")
	addSnapshotWait(cmd, &waiting, "the snapshots are gone")
	return cmd
}

// addSnapshotWait adds the flags of commands that can wait for snapshots.
func addSnapshotWait(cmd *cobra.Command, waiting *waitFlags, what string) {
	waiting.addTo(cmd, "")
	cmd.Flags().Lookup("wait").Usage = "wait until " + what
}
