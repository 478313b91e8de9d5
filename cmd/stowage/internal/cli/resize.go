package cli

import (
	"context"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/storage"
)

func (c *common) resizeCommand() *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   "resize NAME SIZE",
		Short: "Make storage larger, while it is in use",
		Long: `Makes storage larger: to SIZE, such as 512M or 2G, or by it, such as +256M. NAME is
also all of NAME/0, NAME/1, and so on. The data stays, and can be used while the storage
grows; a filesystem grows while it is attached. Nothing is ever made smaller; growing
that cannot be, or is still to be, is given up by asking for the size that there is.
Asking again for the same size has what has failed tried again at once.

A file that declares the storage is to give the new size too: applying one with a
smaller size is refused. An agent that is started with it says so and goes on.`,
		Args: cobra.ExactArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, args []string) error {
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
			result, err := client.Resize(ctx, control.ResizeArgs{Names: names, SizeMiB: size, More: more})
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
	d, err := storage.ParseDirective(size)
	if err != nil || d.Size == 0 || d.Pool != "" || strings.Contains(size, ",") {
		return 0, false, errors.Errorf("%q is not a size: write 512M or 2G, or +256M for so much more", text)
	}
	return d.Size, more, nil
}
