package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/storage/provider"
)

func (c *common) machinesCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   "machines",
		Short: "List the machines",
		Long: `Lists the machines. STATUS is "up" for a machine whose agent is connected,
"unreachable" once it has not been connected for 40 seconds, "fenced" if somebody has said
that it is off, and "pending" until it connects for the first time. Storage of a machine
that is unreachable stays as it is. A machine that is drained gets no storage: see
"stowage machine drain --help".

FREE is the space that is left on the disk for loop volumes and directories, as the agent
last reported it. "stowage machines -o yaml" shows the space by provider.`,
	}, (*user.Client).Machines, writeMachines)
}

func writeMachines(out io.Writer, machines []user.Machine) error {
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	labelled := slices.ContainsFunc(machines, func(m user.Machine) bool { return len(m.Labels) > 0 })
	labels := func(text string) string {
		if !labelled {
			return ""
		}
		return text + "\t"
	}
	fmt.Fprintf(w, "NAME\tNUMBER\tSTATUS\tLAST SEEN\tFREE\t%sMESSAGE\n", labels("LABELS"))
	for _, m := range machines {
		seen, free, message := "-", "-", ""
		if disk, ok := m.Space[string(provider.LoopProviderType)]; ok {
			free = fmt.Sprintf("%s of %s", table.Size(disk.FreeMiB), table.Size(disk.SizeMiB))
		}
		if !m.LastSeen.IsZero() {
			seen = table.Age(now.Sub(m.LastSeen))
		}
		if !m.Refused.IsZero() {
			message = fmt.Sprintf("another agent, with a copy of its directory, was refused at %s", m.Refused.UTC().Format(time.RFC3339))
		}
		status := string(m.Status)
		if m.Drained {
			status += ", drained"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\n", table.Escape(m.Name), table.Escape(m.Number), table.Escape(status), seen, free,
			labels(table.Escape(strings.Join(label.Format(m.Labels), ","))), message)
	}
	return w.Flush()
}

// machineCommand has the commands about one machine.
func (c *common) machineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "machine",
		Short: "Label, drain, fence or remove a machine",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return errors.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return errors.Errorf("name a command for %q: label, drain, undrain, fence or remove; `stowage machines` lists the machines", cmd.CommandPath())
		},
	}
	cmd.AddCommand(c.machineLabelCommand(), c.machineDrainCommand(), c.machineUndrainCommand(), c.machineFenceCommand(), c.machineRemoveCommand())
	return cmd
}

func (c *common) machineLabelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "label NAME KEY=VALUE... KEY-...",
		Short: "Set labels of a machine, and remove others",
		Long: `Sets labels of a machine, such as zone=a, and removes those that are followed by a hyphen,
such as zone-. Storage with "machine: any" and "machine-labels: zone=a" in its file is given
to a machine with that label. Storage that a machine has already stays there.

"stowage machines -o yaml" shows the labels.`,
		Args: cobra.MinimumNArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			args := user.LabelMachineArgs{Machine: names[0]}
			var set []string
			for _, text := range names[1:] {
				if key, ok := strings.CutSuffix(text, "-"); ok && !strings.Contains(text, "=") {
					args.Remove = append(args.Remove, key)
				} else {
					set = append(set, text)
				}
			}
			var err error
			if args.Set, err = label.Parse(set); err != nil {
				return errors.WithType(err, errUsage)
			}
			return client.LabelMachine(ctx, args)
		}),
	}
}

func (c *common) machineDrainCommand() *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "Move the storage of a machine to others, and give it none from then on",
		Long: `Keeps a machine from getting storage, and moves what it has of the environment's storage
to other machines: each to one that is connected, and that has the least storage. Use it
before the machine is switched off. "stowage machine undrain" ends it; what was moved stays
where it is then.

Storage that is on the disk or in the memory of the machine, such as that of pools loop,
rootfs and tmpfs, stays there. The output names it, and says where the other storage moves.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			drained, err := client.DrainMachine(ctx, user.MachineArgs{Machine: args[0]})
			if err != nil {
				return err
			}
			moving := slices.SortedFunc(maps.Keys(drained.Machines), table.CompareNames)
			w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
			for _, name := range moving {
				fmt.Fprintf(w, "%s\tmoves to %s\n", table.Escape(name), table.Escape(drained.Machines[name]))
			}
			for _, name := range drained.Stays {
				fmt.Fprintf(w, "%s\tstays: it cannot leave the machine\n", table.Escape(name))
			}
			if err := w.Flush(); err != nil || len(moving) == 0 {
				return err
			}
			return waiting.waitFor(ctx, client, moving, movedTo(drained.Machines), c.Stdout)
		}),
	}
	waiting.addTo(cmd, "attached elsewhere")
	return cmd
}

func (c *common) machineUndrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain NAME",
		Short: "Let a machine that was drained get storage again",
		Args:  cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			return client.UndrainMachine(ctx, user.MachineArgs{Machine: args[0]})
		}),
	}
}

func (c *common) machineFenceCommand() *cobra.Command {
	var confirmed bool
	cmd := &cobra.Command{
		Use:   "fence NAME [--confirmed]",
		Short: "Switch a machine off, or say that it is off",
		Long: `Makes a machine that is not connected count as off: what it had of the environment's
storage can then be attached to another machine. Two machines that use it destroy the data.

With --confirmed, you say that the machine is off, or has been restarted since it was
last connected. Make sure of that first. Without it, the server's --fence-program switches
the machine off.

The storage is detached. "stowage move" attaches it elsewhere. Storage of the machine
itself, such as that of pool loop, stays as it is.

The agent of the machine is refused until the machine has been restarted; then the
fence ends by itself. A machine whose agent is connected cannot be fenced.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			err := client.FenceMachine(ctx, user.FenceMachineArgs{Machine: args[0], Confirmed: confirmed})
			if !confirmed && errors.Is(err, errors.NotSupported) {
				return errors.WithType(errors.Errorf("make sure that machine %s is off, or has been restarted since it was last connected; then repeat with --confirmed", args[0]), errUsage)
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&confirmed, "confirmed", false, "you have made sure that the machine is off, or has been restarted")
	return cmd
}

func (c *common) machineRemoveCommand() *cobra.Command {
	var args user.RemoveMachineArgs
	cmd := &cobra.Command{
		Use:   "remove NAME [--lost STORAGE,...]",
		Short: "Remove a machine that no longer exists",
		Long: `Removes a machine from the state. Its agent is refused from then on. Storage that is on
the machine is lost with it, and must be named with --lost; the error without it lists
that storage. Storage of the environment is detached.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			args.Machine = names[0]
			return client.RemoveMachine(ctx, args)
		}),
	}
	cmd.Flags().StringSliceVar(&args.Lost, "lost", nil, "storage that is lost with the machine, separated by commas")
	return cmd
}

func (c *common) moveCommand() *cobra.Command {
	var (
		waiting waitFlags
		args    user.MoveArgs
	)
	cmd := &cobra.Command{
		Use:   "move NAME... --to MACHINE|any",
		Short: "Move storage of the environment to another machine",
		Long: `Detaches storage from its machine, and attaches it to another one, with its data. NAME
also selects NAME/0, NAME/1, and so on. Storage that is on the disk or in the memory of
a machine, such as that of pools loop, rootfs and tmpfs, cannot move.

With --to any, each instance moves to a machine that is connected and has the least
storage, of those with the labels of --machine-labels.

The machine that has the storage must be connected, so that it stops using it. If it is
off, say so with "stowage machine fence" first.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			args.Names = names
			moved, err := client.Move(ctx, args)
			if err != nil {
				return err
			}
			return waiting.waitFor(ctx, client, names, movedTo(moved.Machines), c.Stdout)
		}),
	}
	cmd.Flags().StringVar(&args.Machine, "to", "", "name of the machine that is to have the storage, or any")
	cmd.Flags().StringVar(&args.MachineLabels, "machine-labels", "", "labels that the machine must have, such as zone=a,disk=ssd, with --to any")
	waiting.addTo(cmd, "attached there")
	if err := cmd.MarkFlagRequired("to"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// tokenCommand lists tokens; so does its subcommand list.
func (c *common) tokenCommand() *cobra.Command {
	cmd := c.tokenListCommand("token")
	cmd.Args = cobra.NoArgs // an argument is an unknown subcommand
	cmd.AddCommand(c.tokenCreateCommand(), c.tokenListCommand("list"), c.tokenRemoveCommand())
	return cmd
}

func (c *common) tokenCreateCommand() *cobra.Command {
	var (
		args     user.CreateTokenArgs
		lifetime time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create --role machine|server|admin|viewer",
		Short: "Create a token",
		Long: `Creates a token and prints it. It is a secret, and is shown only once.

With a token for role machine, an agent joins the server as a machine with a new name:
see "stowage agent --help". A token that is created with --machine NAME is for that
machine alone. If the machine exists, its agent is replaced: the former one is not
admitted any more.

With a token for role server, another server joins, if the state is in etcd: see "stowage
server --help". That gives it the key of the certificate authority.

With a token for role admin or viewer, a user makes requests from another host: see
"stowage login --help". A viewer may only read.`,
		Args: noArgs("leave the argument out"),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, _ []string) error {
			if err := role.Value(args.Role).Validate(); err != nil {
				return errors.WithType(errors.Annotate(err, "--role"), errUsage)
			}
			args.LifetimeSeconds = int(lifetime / time.Second)
			token, err := client.CreateToken(ctx, args)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.Stdout, token)
			return errors.Trace(err)
		}),
	}
	cmd.Flags().StringVar(&args.Role, "role", "", "what the token is for: machine, server, admin or viewer")
	cmd.Flags().StringVar(&args.Machine, "machine", "", "name of the machine that the token is for")
	cmd.Flags().DurationVar(&lifetime, "ttl", time.Hour, "how long the token is valid")
	cmd.Flags().IntVar(&args.Uses, "uses", 1, "how often the token can be used")
	if err := cmd.MarkFlagRequired("role"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func (c *common) tokenListCommand(use string) *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   use,
		Short: "List the tokens that were not used",
	}, (*user.Client).Tokens, writeTokens)
}

func writeTokens(out io.Writer, tokens []user.Token) error {
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tROLE\tMACHINE\tEXPIRES IN\tUSES")
	for _, t := range tokens {
		machine := "-"
		if t.Machine != "" {
			machine = t.Machine
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", table.Escape(t.ID), table.Escape(t.Role), table.Escape(machine), table.Age(t.Expires.Sub(now)), t.Uses)
	}
	return w.Flush()
}

func (c *common) tokenRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove ID...",
		Short: "Remove tokens that were not used",
		Args:  cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, ids []string) error {
			return client.RemoveTokens(ctx, ids)
		}),
	}
}
