package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// completionTimeout bounds how long a shell waits for names of an agent or server.
const completionTimeout = time.Second

// completer returns the names that an argument or the value of a flag can be.
type completer func(context.Context, *user.Client) ([]string, error)

// namesOf makes a completer of a request that lists something.
func namesOf[T any](list func(*user.Client, context.Context) ([]T, error), name func(T) string) completer {
	return func(ctx context.Context, client *user.Client) ([]string, error) {
		all, err := list(client, ctx)
		names := make([]string, len(all))
		for i, one := range all {
			names[i] = name(one)
		}
		return names, err
	}
}

var (
	completeStorage = namesOf(func(c *user.Client, ctx context.Context) ([]user.Storage, error) { return c.Storage(ctx, nil) },
		func(s user.Storage) string { return s.Name })
	completePools     = namesOf((*user.Client).Pools, func(p user.Pool) string { return p.Name })
	completeMachines  = namesOf((*user.Client).Machines, func(m user.Machine) string { return m.Name })
	completeSnapshots = namesOf((*user.Client).Snapshots, func(s user.Snapshot) string { return s.Name })
	completeClaims    = namesOf((*user.Client).Claims, func(c user.Claim) string { return c.Name })
)

// argument says what the arguments of a command are: from the first on, at most as many as most; 0: any
// number.
type argument struct {
	first, most int
	names       completer
}

// completedArguments are those of the commands, by their paths below "stowage".
var completedArguments = map[string]argument{
	"status": {names: completeStorage}, "events": {names: completeStorage}, "describe": {names: completeStorage},
	"attach": {names: completeStorage}, "detach": {names: completeStorage}, "retry": {names: completeStorage},
	"remove": {names: completeStorage}, "release": {names: completeStorage}, "format": {names: completeStorage},
	"move": {names: completeStorage}, "offer": {names: completeStorage}, "resize": {most: 1, names: completeStorage},
	"rename":          {most: 1, names: completeStorage},
	"snapshot create": {first: 1, most: 1, names: completeStorage}, "snapshot delete": {names: completeSnapshots},
	"unclaim": {most: 1, names: completeClaims}, "pools remove": {names: completePools},
	"machine label": {most: 1, names: completeMachines}, "machine drain": {most: 1, names: completeMachines},
	"machine undrain": {most: 1, names: completeMachines}, "machine fence": {most: 1, names: completeMachines},
	"machine remove": {most: 1, names: completeMachines},
}

// completedFlags are flags with the same values in all commands.
var completedFlags = map[string]completer{
	"pool": completePools, "machine": completeMachines, "to": completeMachines, "from": completeSnapshots,
}

// addCompletions lets shells complete the arguments and flags of a command and those below it.
func (c *common) addCompletions(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		c.addCompletions(sub)
	}
	if arg, ok := completedArguments[strings.TrimPrefix(cmd.CommandPath(), "stowage ")]; ok {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) < arg.first || arg.most > 0 && len(args) >= arg.first+arg.most {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.complete(cmd, args, begun, arg.names), cobra.ShellCompDirectiveNoFileComp
		}
	}
	complete := func(flag string, f cobra.CompletionFunc) {
		if cmd.LocalNonPersistentFlags().Lookup(flag) == nil {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
			panic(err) // the flag exists, and has no other function
		}
	}
	for flag, names := range completedFlags {
		complete(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return c.complete(cmd, nil, begun, names), cobra.ShellCompDirectiveNoFileComp
		})
	}
	complete("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		formats := []string{"table", "json", "yaml", jsonPathPrefix}
		if cmd.Name() == "status" {
			formats = append(formats, outputWide, outputName)
		}
		return formats, cobra.ShellCompDirectiveNoFileComp
	})
}

// complete returns the names that the agent or server has, that begin as the user has begun, and that are
// not given already. It returns none, without a message, if there is no answer: the user is typing.
func (c *common) complete(cmd *cobra.Command, given []string, begun string, names completer) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	client, err := c.newClient(ctx, cmd)
	if err != nil {
		return nil
	}
	defer client.Close()
	found, err := names(ctx, client)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(found, func(name string) bool {
		// Shells split at white space, and a line is a name.
		return !strings.HasPrefix(name, begun) || slices.Contains(given, name) || table.Escape(name) != name || strings.ContainsAny(name, " \t")
	})
}
