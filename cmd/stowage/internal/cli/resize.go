package cli

import (
	"context"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/storage"
)

func (c *common) resizeCommand() *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   "resize NAME SIZE",
		Short: "Grow storage while it is in use",
		Long: `Grows storage to SIZE, such as 512M or 2G, or by SIZE, such as +256M. NAME also selects
NAME/0, NAME/1, and so on. The data is kept and stays in use while the storage grows. A
filesystem grows while it is attached. Storage never shrinks. To cancel growth that
failed or has not begun, ask for the present size. To retry it at once, repeat the
command.

Change the size in the file that declares the storage, too: "stowage apply" refuses a
file with a smaller size, and an agent that is started with such a file warns and goes
on.`,
		Args: cobra.ExactArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			size, more, err := parseSize(args[1])
			if err != nil {
				return errors.WithType(err, errUsage)
			}
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			names := args[:1]
			result, err := client.Resize(ctx, user.ResizeArgs{Names: names, SizeMiB: size, More: more})
			if err != nil {
				return err
			}
			if err := writeChanges(c.Stdout, result.Changes, false); err != nil {
				return err
			}
			return waiting.waitFor(ctx, client, names, resized, c.Stdout)
		}),
	}
	waiting.addTo(cmd, resized.name)
	return cmd
}

// parseSize reads SIZE or +SIZE, in MiB.
func parseSize(text string) (mib uint64, more bool, err error) {
	size, more := strings.CutPrefix(text, "+")
	mib, err = storage.ParseSize(size)
	if err != nil {
		return 0, false, errors.Errorf("%s; +256M grows by that much", err)
	}
	return mib, more, nil
}
