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
	"github.com/stowage-io/stowage/cmd/stowage/internal/remote"
	"github.com/stowage-io/stowage/cmd/stowage/internal/rescue"
	"github.com/stowage-io/stowage/cmd/stowage/internal/server"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/state"
)

// withStoppedAgent is runE for commands on the data directory of a stopped agent.
func (c *common) withStoppedAgent(f func(ctx context.Context, config rescue.Config, args []string) error) func(*cobra.Command, []string) error {
	return runE(func(cmd *cobra.Command, args []string) error {
		config, err := c.rescueConfig(providerFlags{})
		if err != nil {
			return err
		}
		return f(cmd.Context(), config, args)
	})
}

// rescueConfig returns the data directory of a stopped agent, with its providers.
func (c *common) rescueConfig(flags providerFlags) (rescue.Config, error) {
	dataDir, socket, err := c.paths()
	if err != nil {
		return rescue.Config{}, err
	}
	registry, err := flags.open(machineEnviron(dataDir))
	if err != nil {
		return rescue.Config{}, err
	}
	if err := control.CheckAnswered(socket); err != nil {
		return rescue.Config{}, errors.Annotate(err, "stop the agent first")
	}
	return rescue.Config{Dir: datadir.Dir(dataDir), Registry: registry, Clock: clock.WallClock}, nil
}

// requireState returns an error for a directory whose state is elsewhere: on a server, or in etcd.
func requireState(config rescue.Config) error {
	use, err := config.Dir.Use()
	if err == nil && use == datadir.UseAgent {
		err = errors.Errorf("%s has no state, since it is that of a server's agent: use the --data-dir of the server", config.Dir)
	}
	if err != nil {
		return err
	}
	place, err := config.Dir.Place()
	switch {
	case err != nil:
	case place == datadir.PlaceCluster:
		err = errors.Errorf("%s has the state of several servers: see --cluster-reset in `stowage server --help`", config.Dir)
	case place != "":
		err = errors.Errorf("%s has no state, since that is in etcd: use etcd's own tools", config.Dir)
	}
	return err
}

func (c *common) adoptDirCommand() *cobra.Command {
	var moved, copied bool
	cmd := &cobra.Command{
		Use:   "adopt-dir --moved|--copy",
		Short: "Confirm that the data directory was moved or copied",
		Long: `The agent does not start if its data directory is not the one in which the state was
created, a server joined others, or a server's agent enrolled. With the agent or the
server stopped, confirm what happened:

  --moved   The directory was moved here as a whole, and the original no longer exists.
            The identities of files and directories in the records are read again.
  --copy    The directory is a copy, and the original may still be in use. The state
            and all storage in the copy get new UUIDs, and filesystems are mounted below
            the data directory instead of at the mount points of the original. Storage
            of program providers stays with the original. A server's agent, and one of
            several servers, cannot be copied: start a new one.

A clone of a whole machine with the same machine ID cannot be detected: run
"stowage adopt-dir --copy" in it before it can reach anything that the original uses.`,
		Args: noArgs("name the directory with --data-dir"),
		RunE: c.withStoppedAgent(func(ctx context.Context, config rescue.Config, _ []string) error {
			adopt, what := rescue.AdoptMoved, "the directory of its state"
			use, err := config.Dir.Use()
			place := ""
			if err == nil {
				place, err = config.Dir.Place()
			}
			switch {
			case moved == copied:
				return errors.WithType(errors.New("use either --moved or --copy"), errUsage)
			case err != nil:
				return err
			case place == datadir.PlaceCluster && copied:
				return errors.Errorf("%s is a copy of the directory of one of several servers, which only the original can use: delete the copy, and let a server with an empty directory join with a token", config.Dir)
			case place == datadir.PlaceCluster:
				adopt = func(_ context.Context, config rescue.Config) error { return server.AdoptMoved(config.Dir) }
				what = "the directory of its server"
			case use == datadir.UseAgent && copied:
				return errors.Errorf("%s is a copy of the directory of a server's agent, which only the original can use: delete the copy, and start an agent in an empty directory with a token of its own", config.Dir)
			case use == datadir.UseAgent:
				adopt = func(ctx context.Context, config rescue.Config) error { return remote.AdoptMoved(ctx, config.Dir) }
				what = "the directory of its agent"
			case copied:
				adopt, what = rescue.AdoptCopy, "a directory of its own"
			}
			if err := adopt(ctx, config); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "%s is now %s\n", table.Escape(string(config.Dir)), what)
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
		Short: "Restore the state from a backup; needs a stopped agent",
		Long: `Replaces the agent's state with the state in FILE, a file that "stowage backup" wrote.
The replaced file is kept beside it. No storage is touched.

The restored state is a new generation: before the agent attaches or destroys storage
for the first time, it asks the provider who owns it. "stowage orphans" lists storage
that was created since the backup, and "stowage adopt" brings it back. Storage that was
removed since the backup is shown as missing.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withStoppedAgent(func(_ context.Context, config rescue.Config, args []string) error {
			if err := requireState(config); err != nil {
				return err
			}
			restored, err := rescue.Restore(config, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "restored state %s of %s\n", restored.UUID, restored.Time.UTC().Format("2006-01-02 15:04:05Z"))
			if err == nil && restored.Replaced != "" {
				_, err = fmt.Fprintf(c.Stdout, "the replaced state is kept as %s\n", table.Escape(restored.Replaced))
			}
			return err
		}),
	}
}

func (c *common) recoverCommand() *cobra.Command {
	var (
		yes   bool
		flags providerFlags
	)
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Rebuild a lost or damaged state; needs a stopped agent",
		Long: `Starts from the newest intact file among state.db and its copies, and adds the storage
in the providers' records in the data directory. If no intact file is left, the records
alone are used: the environment's settings, pools and history are lost then, and so is
the storage of programs that keep no tags.

Recovered storage is detached; attach it with "stowage attach". Storage whose name is
taken is called NAME.recovered-1. Storage that was only being created or destroyed is
listed and left alone.

Without --yes, the command shows what it would do and changes nothing. A replaced state
is kept beside the new one.`,
		Args: noArgs("name the directory with --data-dir"),
		RunE: runE(func(cmd *cobra.Command, _ []string) error {
			config, err := c.rescueConfig(flags)
			if err != nil {
				return err
			}
			if err := requireState(config); err != nil {
				return err
			}
			recovery, err := rescue.Recover(cmd.Context(), config, flags.hasAny(), yes)
			if err != nil {
				return err
			}
			return writeRecovery(c.Stdout, recovery, yes)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "write the recovered state")
	flags.addTo(cmd)
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
	last := "nothing was changed: repeat with --yes to write the recovered state"
	if yes {
		last = "done; all added storage is detached"
		if r.Replaced != "" {
			last += ", and the replaced state is kept as " + table.Escape(r.Replaced)
		}
	}
	_, err := fmt.Fprintln(out, last)
	return err
}
