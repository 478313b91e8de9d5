package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/juju/errors"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// poolsCommand lists pools; so does its subcommand list.
func (c *common) poolsCommand() *cobra.Command {
	cmd := c.poolsListCommand("pools")
	cmd.Args = cobra.NoArgs // an argument is an unknown subcommand
	cmd.AddCommand(c.poolsListCommand("list"), c.poolsAddCommand(), c.poolsRemoveCommand())
	return cmd
}

func (c *common) poolsListCommand(use string) *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   use,
		Short: "List the pools",
	}, (*user.Client).Pools, writePools)
}

func writePools(out io.Writer, pools []user.Pool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tPROVIDER\tATTRIBUTES")
	for _, pool := range pools {
		attributes, err := json.Marshal(pool.Attributes)
		if err != nil {
			return errors.Trace(err)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", table.Escape(pool.Name), table.Escape(pool.Provider), table.Escape(string(attributes)))
	}
	return w.Flush()
}

func (c *common) poolsAddCommand() *cobra.Command {
	var replace bool
	cmd := &cobra.Command{
		Use:   "add NAME PROVIDER [KEY=VALUE...]",
		Short: "Add a pool",
		Long: `Adds a pool: a provider with attributes, under a name that storage directives use.

A VALUE that is a whole number, true or false has that type, as in a file. Any other
VALUE is a string, and so is one in quotes of its own: KEY='"4"'.

With --replace, the provider and attributes of an existing pool are replaced; none of
the old attributes are kept. Existing storage stays as it is. The provider of a pool
that has storage cannot change.`,
		Args: cobra.MinimumNArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			attributes, err := parseAttributes(args[2:])
			if err != nil {
				return errors.WithType(err, errUsage)
			}
			return client.AddPool(ctx, user.AddPoolArgs{
				Name: args[0], Provider: args[1], Attributes: attributes, Replace: replace,
			})
		}),
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "replace an existing pool")
	return cmd
}

func (c *common) poolsRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove pools that have no storage",
		Long: `Removes all the named pools, or none of them. Pools that have storage and the default
pools of providers cannot be removed.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			return client.RemovePools(ctx, names)
		}),
	}
}

// parseAttributes reads KEY=VALUE arguments.
func parseAttributes(args []string) (map[string]any, error) {
	attributes := make(map[string]any, len(args))
	for _, arg := range args {
		key, text, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, errors.Errorf("%q is not KEY=VALUE, such as fs=xfs", arg)
		}
		if _, ok := attributes[key]; ok {
			return nil, errors.Errorf("attribute %q is given twice", key)
		}
		value, err := parseValue(text)
		if err != nil {
			return nil, errors.Errorf("attribute %q: the quotes in %s do not match: close them, or leave them out", key, text)
		}
		attributes[key] = value
	}
	return attributes, nil
}

// parseValue reads a whole number, a boolean or a quoted string as a file has it. Any
// other text is a string.
func parseValue(text string) (any, error) {
	if strings.HasPrefix(text, `"`) || strings.HasPrefix(text, "'") {
		var quoted string
		err := yaml.Unmarshal([]byte(text), &quoted)
		return quoted, err
	}
	scalar := yaml.Node{Kind: yaml.ScalarNode, Value: text}
	switch scalar.ShortTag() {
	case "!!int", "!!bool":
		var value any
		err := scalar.Decode(&value)
		return value, err
	}
	return text, nil
}
