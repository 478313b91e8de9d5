package cli

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
)

func (c *common) importCommand() *cobra.Command {
	var (
		args    user.ImportArgs
		waiting waitFlags
	)
	cmd := &cobra.Command{
		Use:   "import NAME PATH|UUID=...|ID=... --pool POOL",
		Short: "Take over an existing file, directory or volume of a driver, with its data, as storage",
		Long: `Takes over existing data as storage called NAME, and attaches it. Nothing is formatted.
What can be imported depends on the provider of the pool:

  loop     The file of a volume, by its path, or by the UUID of the filesystem on an
           attached loop device. The file is moved into the data directory. The
           filesystem in it is mounted; with --block, the storage is the block device
           and its contents do not matter.
  rootfs   A directory, by its path. It is moved into the data directory.
  a CSI driver
           What the driver has, by its volume_id there: ID=... With --block, it is a
           block device, and otherwise a filesystem of the driver. The attributes of the
           pool are its volume_context.

With --copy, the file of a volume is copied and the original stays where it is. Use it
if the file is not on the filesystem of the data directory, or on btrfs if the file was
not created with NOCOW and so may share its blocks. Do not attach both copies: they
have the same UUID.

A file or directory that is moved must be on the filesystem of the data directory, and
must not be in use. From then on the agent owns it: "stowage remove NAME" destroys it.
To finish an interrupted import, repeat the command; if it named a UUID, name the path
of the file instead.

A server needs --machine, the machine that has the file or directory. PATH is a path on
that machine.`,
		Args: cobra.ExactArgs(2),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, words []string) error {
			args.Name, args.Source = words[0], words[1]
			if args.Block && args.Mount != "" {
				return errors.WithType(errors.New("--block and --mount exclude each other: a block device is not mounted"), errUsage)
			}
			if args.Source == "" {
				return errors.WithType(errors.New("the path is empty"), errUsage)
			}
			switch {
			case strings.HasPrefix(args.Source, "UUID="), strings.HasPrefix(args.Source, "ID="):
			case args.Machine != "" && !filepath.IsAbs(args.Source):
				return errors.WithType(errors.Errorf("%q is not absolute: name the path on machine %s", args.Source, args.Machine), errUsage)
			default:
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
	cmd.Flags().StringVar(&args.Pool, "pool", "", "pool of the storage")
	cmd.Flags().StringVar(&args.Machine, "machine", "", "machine of a server that has it")
	cmd.Flags().StringVar(&args.Mount, "mount", "", "directory to mount the filesystem on")
	cmd.Flags().BoolVar(&args.Block, "block", false, "import as a block device, whatever its contents")
	cmd.Flags().BoolVar(&args.Copy, "copy", false, "copy the file of a volume and leave the original in place")
	waiting.addTo(cmd, "attached")
	if err := cmd.MarkFlagRequired("pool"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
