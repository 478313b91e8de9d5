package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func (c *common) machinesCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "machines",
		Short: "List the machines",
		Long: `Lists the machines. STATUS is "up" for a machine whose agent is connected,
"unreachable" once it has not been connected for 40 seconds, and "pending" until it
connects for the first time. Storage of a machine that is unreachable stays as it is.`,
		Args: noArgs("leave the argument out"),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, _ []string) error {
			write, err := writerOf(output, writeMachines)
			if err != nil {
				return err
			}
			machines, err := client.Machines(ctx)
			if err != nil {
				return err
			}
			return write(c.Stdout, machines)
		}),
	}
	addOutput(cmd, &output)
	return cmd
}

func writeMachines(out io.Writer, machines []control.Machine) error {
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tNUMBER\tSTATUS\tLAST SEEN\tMESSAGE")
	for _, m := range machines {
		seen, message := "-", ""
		if !m.LastSeen.IsZero() {
			seen = table.Age(now.Sub(m.LastSeen))
		}
		if !m.Refused.IsZero() {
			message = fmt.Sprintf("another agent, with a copy of its directory, was refused at %s", m.Refused.UTC().Format(time.RFC3339))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", table.Escape(m.Name), table.Escape(m.Number), table.Escape(string(m.Status)), seen, message)
	}
	return w.Flush()
}

// tokenCommand lists tokens; so does its subcommand list.
func (c *common) tokenCommand() *cobra.Command {
	cmd := c.tokenListCommand("token")
	cmd.Args = cobra.NoArgs // an argument is an unknown subcommand
	cmd.AddCommand(c.tokenCreateCommand(), c.tokenListCommand("list"), c.tokenRemoveCommand())
	return cmd
}

func (c *common) tokenCreateCommand() *cobra.Command {
	var args control.CreateTokenArgs
	cmd := &cobra.Command{
		Use:   "create --role machine",
		Short: "Create a token",
		Long: `Creates a token and prints it. It is a secret, and is shown only once.

With a token for role machine, an agent joins the server as a machine with a new name:
see "stowage agent --help". A token that is created with --machine NAME is for that
machine alone. If the machine exists, its agent is replaced: the former one is not
admitted any more.`,
		Args: noArgs("leave the argument out"),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, _ []string) error {
			if args.Role != "machine" {
				return errors.WithType(errors.Errorf("--role %q is not known: write machine", args.Role), errUsage)
			}
			token, err := client.CreateToken(ctx, args)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.Stdout, token)
			return errors.Trace(err)
		}),
	}
	cmd.Flags().StringVar(&args.Role, "role", "", "what the token is for: machine")
	cmd.Flags().StringVar(&args.Machine, "machine", "", "name of the machine that the token is for")
	cmd.Flags().DurationVar(&args.Lifetime, "ttl", time.Hour, "how long the token is valid")
	cmd.Flags().IntVar(&args.Uses, "uses", 1, "how many machines the token is for")
	if err := cmd.MarkFlagRequired("role"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func (c *common) tokenListCommand(use string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   use,
		Short: "List the tokens with which machines can join a server",
		Args:  noArgs("leave the argument out"),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, _ []string) error {
			write, err := writerOf(output, writeTokens)
			if err != nil {
				return err
			}
			tokens, err := client.Tokens(ctx)
			if err != nil {
				return err
			}
			return write(c.Stdout, tokens)
		}),
	}
	addOutput(cmd, &output)
	return cmd
}

func writeTokens(out io.Writer, tokens []control.Token) error {
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
		RunE: c.withClient(func(ctx context.Context, client *control.Client, ids []string) error {
			return client.RemoveTokens(ctx, ids)
		}),
	}
}
