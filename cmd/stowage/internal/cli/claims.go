package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

func (c *common) claimsCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   "claims",
		Short: "List the claims of storage",
	}, (*user.Client).Claims, writeClaims)
}

func writeClaims(out io.Writer, claims []user.Claim) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tCLAIM\tKIND\tLEAST SIZE\tSTORAGE\tSTATUS\tLOCATION")
	for _, claim := range claims {
		status, location := "-", "-"
		if s := claim.Storage; s != nil {
			status, location = string(s.Status), orElse(s.Location, "-")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", table.Escape(claim.Name), table.Escape(string(claim.Status)),
			table.Escape(claim.Request.Kind), table.Size(claim.Request.SizeMiB), table.Escape(claim.StorageName), table.Escape(status), table.Escape(location))
	}
	return w.Flush()
}

func (c *common) claimCommand() *cobra.Command {
	var (
		request user.ClaimRequest
		size    string
		policy  string
		waiting waitFlags
	)
	cmd := &cobra.Command{
		Use:   "claim NAME --size SIZE --kind KIND [--pool POOL] [--selector LABELS]",
		Short: "Claim storage that exists, or that is made",
		Long: `Makes a claim, which gets the smallest storage of at least SIZE that has all of the labels
and belongs to no other claim. If nothing fits, or no label is given, storage is made
in the pool, with the name of the claim and the labels. Detached storage is attached.

Repeating the command has no further effect. Storage that a claim has is not removed
until "stowage unclaim NAME".`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			mib, err := storage.ParseSize(size)
			if err != nil {
				return errors.WithType(errors.Annotate(err, "--size"), errUsage)
			}
			request.SizeMiB, request.ReclaimPolicy = mib, user.ReclaimPolicy(policy)
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			claim, err := client.Claim(ctx, args[0], request, 0)
			if err != nil {
				return err
			}
			if err := writeClaims(c.Stdout, []user.Claim{claim}); err != nil {
				return errors.Trace(err)
			}
			return waiting.waitFor(ctx, client, []string{claim.StorageName}, attached, c.Stdout)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Pool, "pool", "", "pool to make storage in")
	flags.StringVarP(&request.Selector, "selector", "l", "", "labels of storage that exists, such as tier=fast,zone=a")
	flags.StringVar(&size, "size", "", "least size, such as 512M or 2G")
	flags.StringVar(&request.Kind, "kind", "", "block or filesystem")
	flags.StringVar(&request.Mount, "mount", "", "where to mount a filesystem that is made")
	flags.StringVar(&request.Machine, "machine", "any", "machine where the storage is to be, or any")
	flags.StringVar(&request.MachineLabels, "machine-labels", "", "labels that the machine must have, such as zone=a,disk=ssd, with --machine any")
	flags.StringVar(&request.AccessMode, "access-mode", user.ReadWriteOnce, "access mode: there is only one")
	flags.StringVar(&policy, "reclaim-policy", string(user.ReclaimRetain), "what becomes of the storage after the claim: retain or delete")
	waiting.addTo(cmd, attached.name)
	for _, required := range []string{"size", "kind"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}

func (c *common) unclaimCommand() *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   "unclaim NAME",
		Short: "Delete a claim, and what its policy says",
		Long: `Deletes a claim. With reclaim policy delete, its storage is destroyed, including its data.
With retain, it stays as it is, and no claim gets it until "stowage offer NAME".`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, args []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			left, err := client.Unclaim(ctx, args[0], 0)
			if err != nil {
				return err
			}
			var destroyed []string
			for _, s := range left {
				if s.Life != life.Alive {
					destroyed = append(destroyed, s.Name)
				}
			}
			return waiting.waitFor(ctx, client, destroyed, removed, c.Stdout)
		}),
	}
	waiting.addTo(cmd, removed.name)
	return cmd
}

func (c *common) offerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "offer NAME...",
		Short: "Let claims get storage that a deleted claim has left",
		Long: `Lets claims get storage that was retained when its claim was deleted. It still has the data
of that claim. To destroy it, use "stowage remove". NAME also selects NAME/0, NAME/1,
and so on.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			return client.Offer(ctx, names)
		}),
	}
}
