package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/rescue"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/state"
)

// withStoppedAgent is runE with the directory of an agent that does not run.
func (c *common) withStoppedAgent(f func(ctx context.Context, config rescue.Config, args []string) error) func(*cobra.Command, []string) error {
	return runE(func(cmd *cobra.Command, args []string) error {
		config, err := c.rescueConfig(nil)
		if err != nil {
			return err
		}
		return f(cmd.Context(), config, args)
	})
}

// rescueConfig returns the directory of an agent that does not run, with programs for
// providers.
func (c *common) rescueConfig(programs []string) (rescue.Config, error) {
	dataDir, socket, err := c.paths()
	if err != nil {
		return rescue.Config{}, err
	}
	registry, err := providers(programs)
	if err != nil {
		return rescue.Config{}, err
	}
	if err := control.CheckAnswered(socket); err != nil {
		return rescue.Config{}, errors.Annotate(err, "stop the agent first")
	}
	return rescue.Config{Dir: datadir.Dir(dataDir), Registry: registry, Clock: clock.WallClock}, nil
}

func (c *common) adoptDirCommand() *cobra.Command {
	var moved, copied bool
	cmd := &cobra.Command{
		Use:   "adopt-dir --moved|--copy",
		Short: "Say that the data directory was moved, or is a copy",
		Long: `The agent does not start in a directory that is not the one in which its state was made.
With the agent stopped, say what became of it:

  --moved   It was moved here, with all that is in it, and the original is gone. What the
            records know of files and directories is read again.
  --copy    It is a copy, and the original may still be used. The state and all storage
            in it become new ones: with UUIDs of their own, and mounted below the data
            directory rather than where the original is. Storage that programs make
            stays the original's.

A copy of a whole machine that kept its machine ID is not noticed: run "stowage adopt-dir
--copy" there before it can reach what the original uses.`,
		Args: noArgs("name the directory with --data-dir"),
		RunE: c.withStoppedAgent(func(ctx context.Context, config rescue.Config, _ []string) error {
			adopt, what := rescue.AdoptMoved, "the directory of its state"
			switch {
			case moved == copied:
				return errors.WithType(errors.New("say one of --moved and --copy"), errUsage)
			case copied:
				adopt, what = rescue.AdoptCopy, "a directory of its own"
			}
			if err := adopt(ctx, config); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.Stdout, "%s is %s now\n", table.Escape(string(config.Dir)), what)
			return err
		}),
	}
	cmd.Flags().BoolVar(&moved, "moved", false, "the directory was moved here")
	cmd.Flags().BoolVar(&copied, "copy", false, "the directory is a copy")
	return cmd
}

func (c *common) restoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE",
		Short: "Put back the state from a backup, with the agent stopped",
		Long: `Puts the state from FILE, which "stowage backup" has written, in the place of the
agent's. The file that is replaced is kept beside it. No storage is touched.

The restored state is of a new generation: before storage is attached or destroyed for
the first time, its provider is asked whose it is. Storage that was made since the
backup is shown by "stowage orphans", and "stowage adopt" brings it back; storage that
was removed since then is shown as missing.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withStoppedAgent(func(_ context.Context, config rescue.Config, args []string) error {
			restored, err := rescue.Restore(config, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "restored state %s of %s\n", restored.UUID, restored.Time.UTC().Format("2006-01-02 15:04:05Z"))
			if err == nil && restored.Replaced != "" {
				_, err = fmt.Fprintf(c.Stdout, "the state until now is kept as %s\n", table.Escape(restored.Replaced))
			}
			return err
		}),
	}
}

func (c *common) recoverCommand() *cobra.Command {
	var (
		yes      bool
		programs []string
	)
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Put the state together again from what there is, with the agent stopped",
		Long: `Begins with the newest of state.db and its copies that is whole, and adds what records
in the data directory tell of. Where no such file is left, the records alone are used:
then settings of the environment, pools and history are lost, and so is storage of
programs that keep no tags.

What is recovered is detached; attach it with "stowage attach". Storage whose name is
taken is called NAME.recovered-1. What was only being made, or being destroyed, is listed
and left alone.

Without --yes, this shows what would be done, and changes nothing. A state that is
replaced is kept beside the new one.`,
		Args: noArgs("name the directory with --data-dir"),
		RunE: runE(func(cmd *cobra.Command, _ []string) error {
			config, err := c.rescueConfig(programs)
			if err != nil {
				return err
			}
			recovery, err := rescue.Recover(cmd.Context(), config, len(programs) > 0, yes)
			if err != nil {
				return err
			}
			return writeRecovery(c.Stdout, recovery, yes)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().StringArrayVar(&programs, "provider", nil, "a provider of the environment's volumes, and the program that does its work, as `NAME=PATH`; may be repeated")
	return cmd
}

var recoverSymbols = map[state.RecoverOutcome]string{
	state.RecoverAdded: "+", state.RecoverKnown: "=", state.RecoverSkipped: "!",
}

func writeRecovery(out io.Writer, r rescue.Recovery, yes bool) error {
	for _, problem := range r.Problems {
		fmt.Fprintf(out, "not used: %s\n", table.Escape(problem))
	}
	base := "records alone"
	if r.Base != "" {
		base = r.Base + " and records"
	}
	fmt.Fprintf(out, "state %s from %s\n", r.UUID, table.Escape(base))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, o := range r.Objects {
		fmt.Fprintf(w, "%s %s\t%s\t%s %s\t%s\t%s\n", recoverSymbols[o.Outcome], cell(o.Name), o.Outcome,
			o.Kind, table.Escape(o.ID), table.Size(o.Size), table.Escape(o.Reason))
	}
	if err := w.Flush(); err != nil {
		return errors.Trace(err)
	}
	last := "nothing was changed: run it again with --yes to do this"
	if yes {
		last = "done; all that was added is detached"
		if r.Replaced != "" {
			last += ", and the state until now is kept as " + table.Escape(r.Replaced)
		}
	}
	_, err := fmt.Fprintln(out, last)
	return err
}
