package cli

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
)

func (c *common) importCommand() *cobra.Command {
	var (
		args    control.ImportArgs
		waiting waitFlags
	)
	cmd := &cobra.Command{
		Use:   "import NAME PATH|UUID=... --pool POOL",
		Short: "Take over a file or directory with what is on it, as storage",
		Long: `Takes over what is there already, as storage called NAME, and attaches it. Nothing is
formatted. The provider of the pool says what it can take over:

  loop     the file of a volume, by its path, or by the UUID of the filesystem on the
           loop device that shows it. The file is moved into the agent's directory.
           A filesystem in it is mounted; with --block, the storage is the block
           device, whatever is on it.
  rootfs   a directory, by its path. It is moved into the agent's directory.

With --copy, the file of a volume is copied and left where it is: on another filesystem
than the agent's directory, or on btrfs, where only a file that was made for it (NOCOW)
has its space for itself. Do not attach both: they have the same UUID.

What is moved has to be on the filesystem of the agent's directory, and in use by
nobody. From then on it is the agent's: "stowage remove NAME" destroys it. An import
that was interrupted is finished by the same command; where that named a UUID, by the
path of the file.`,
		Args: cobra.ExactArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, words []string) error {
			args.Name, args.Source = words[0], words[1]
			if args.Block && args.Mount != "" {
				return errors.WithType(errors.New("--block and --mount exclude each other: a block device is not mounted"), errUsage)
			}
			if args.Source == "" {
				return errors.WithType(errors.New("the path is empty"), errUsage)
			}
			if !strings.HasPrefix(args.Source, "UUID=") {
				path, err := filepath.Abs(args.Source)
				if err != nil {
					return errors.Trace(err)
				}
				args.Source = path
			}
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			result, err := client.Import(ctx, args)
			if err != nil {
				return err
			}
			if err := writeChanges(c.Stdout, result.Changes, false); err != nil {
				return err
			}
			return waiting.waitFor(ctx, client, words[:1], attached, c.Stdout)
		}),
	}
	cmd.Flags().StringVar(&args.Pool, "pool", "", "the pool that the storage is to be of")
	cmd.Flags().StringVar(&args.Mount, "mount", "", "the directory to mount the filesystem on")
	cmd.Flags().BoolVar(&args.Block, "block", false, "take it over as a block device, whatever is on it")
	cmd.Flags().BoolVar(&args.Copy, "copy", false, "copy the file of a volume, and leave it where it is")
	waiting.addTo(cmd, "attached")
	if err := cmd.MarkFlagRequired("pool"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
