package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
)

func (c *common) renameCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rename NAME NEW-NAME",
		Short: "Give storage another name",
		Long: `Gives storage another name. Its data, its attachments, its snapshots and its events stay as they
are, and it stays in use. NAME is the full name, such as data/0: it does not select several.

Change the name in the file that declares the storage, too: otherwise "stowage apply" makes storage
of the former name, empty.

Refused is storage that a claim or another program has asked for, and storage that is not made yet or
is being removed.`,
		Args: cobra.ExactArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			rows, err := client.Storage(ctx, args[:1])
			if err != nil {
				return err
			}
			result, err := client.Rename(ctx, user.RenameArgs{Name: args[0], To: args[1]})
			if err != nil {
				return err
			}
			for _, s := range rows {
				if s.Name == args[0] && s.Spec != "" {
					c.warn("the agent applies %s whenever it starts: change the name there, or storage %s is made again, empty", s.Spec, s.Name)
				}
			}
			return writeChanges(c.Stdout, result.Changes, false)
		}),
	}
}
