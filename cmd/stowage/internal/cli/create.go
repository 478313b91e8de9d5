package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/storage"
)

func (c *common) createCommand() *cobra.Command {
	var (
		wanted             user.Declaration
		pool, size, labels string
		count              int
		detached           bool
		waiting            waitFlags
	)
	cmd := &cobra.Command{
		Use:   "create NAME --size SIZE",
		Short: "Create storage without a file",
		Long: `Creates one storage instance, or several with --count: a filesystem that is mounted with --mount,
or else a block device. If there is storage of that name, the command changes nothing and
fails; "stowage apply" compares a file with what there is.`,
		Example: `  stowage create data --size 1G --mount /srv/data --wait
  stowage create raw --pool fast --size 64M
  stowage create restored --size 1G --mount /srv/restored --from monday`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			if _, err := storage.ParseSize(size); err != nil {
				return errors.WithType(errors.Annotate(err, "--size"), errUsage)
			}
			if pool == "" || strings.Contains(pool, ",") {
				return errors.WithType(errors.Errorf("--pool %q is not the name of a pool: \"stowage pools\" lists them", pool), errUsage)
			}
			wanted.Directive = pool + "," + size
			if count != 1 {
				wanted.Directive += fmt.Sprintf(",%d", count)
			}
			wanted.Kind = "block"
			if wanted.Mount != "" {
				wanted.Kind = "filesystem"
			}
			if wanted.Labels, err = label.ParseSelector(labels); err != nil {
				return errors.WithType(errors.Annotate(err, "--labels"), errUsage)
			}
			if detached {
				attach := false
				wanted.Attached = &attach
			}
			made, err := client.Create(ctx, args[0], wanted)
			if errors.Is(err, user.ErrPrecondition) {
				return errors.Errorf("there is storage %q already: \"stowage describe %s\" shows it", args[0], args[0])
			}
			if err != nil {
				return err
			}
			goal := attached
			var names []string
			for _, s := range made {
				names = append(names, s.Name)
				if !waiting.wait {
					fmt.Fprintln(c.Stdout, table.Line(s))
				}
			}
			if detached {
				goal = goal.orDetached(names)
			}
			return waiting.waitFor(ctx, client, args, goal, c.Stdout)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&pool, "pool", "loop", "pool that it is from")
	flags.StringVar(&size, "size", "", "size of each instance, such as 512M or 2G")
	flags.IntVar(&count, "count", 1, "number of instances, NAME/0, NAME/1, and so on, if more than 1")
	flags.StringVar(&wanted.Mount, "mount", "", "directory to mount a filesystem on")
	flags.StringVar(&wanted.Filesystem, "filesystem", "", "type of the filesystem on a volume: ext4, xfs or btrfs (default: as the pool says)")
	flags.StringVar(&wanted.MkfsOptions, "mkfs-options", "", "options for making the filesystem on a volume")
	flags.StringVar(&wanted.MountOptions, "mount-options", "", "options for mounting the filesystem")
	flags.StringVar(&wanted.Machine, "machine", "", "name of the machine that gets it, or any (default: that of the agent)")
	flags.StringVar(&wanted.From, "from", "", "snapshot whose contents it gets")
	flags.StringVar(&labels, "labels", "", "labels, such as tier=fast,zone=a")
	flags.BoolVar(&detached, "detached", false, "do not attach it")
	waiting.addTo(cmd, "attached")
	if err := cmd.MarkFlagRequired("size"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
