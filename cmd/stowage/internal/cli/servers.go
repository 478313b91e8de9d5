package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/server"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func (c *common) serversCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   "servers",
		Short: "List the servers that keep the state together",
		Long: `Lists the servers of a cluster that "stowage server --cluster-init" has begun. STATUS is "up"
for a server that answers, "joining" until it has all of the state, and otherwise
"unreachable". More than half of the servers have to be up: otherwise nothing can be changed.`,
	}, (*user.Client).Servers, writeServers)
}

func writeServers(out io.Writer, servers []user.Server) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tADDRESS\tSTATUS\tETCD")
	for _, s := range servers {
		name, status := orElse(s.Name, "-"), string(s.Status)
		if s.Leader {
			status += ", leader"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", table.Escape(name), table.Escape(s.Address), table.Escape(status), table.Escape(orElse(s.EtcdVersion, "-")))
	}
	return w.Flush()
}

func (c *common) serverRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove another server from those that keep the state together",
		Long: `Removes a server from those that keep the state together, for example one whose machine is
lost. NAME is as "stowage servers" shows it, or the address of a server that has no name yet.
If the server runs, it ends. Its data directory is of no use from then on: to use the
machine again, delete the directory, and let the server join with a token.

More than half of the servers have to be up, and have to be up without the one that is removed.`,
		Args: cobra.ExactArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			return client.RemoveServer(ctx, user.RemoveServerArgs{Server: names[0]})
		}),
	}
}

// resetCluster makes a server that does not run the only one.
func (c *common) resetCluster(ctx context.Context, flags serverFlags) error {
	dataDir, socket, err := c.paths()
	if err != nil {
		return err
	}
	if err := control.CheckAnswered(socket); err != nil {
		return errors.Annotate(err, "stop the server first")
	}
	inEtcd := len(flags.etcd.Endpoints) > 0
	if inEtcd && flags.restore == "" {
		return errors.WithType(errors.New("--cluster-reset with --etcd-endpoints needs --restore: there is no cluster of servers"), errUsage)
	}
	logger, _, err := c.startLogging("stowage.server", flags.logLevel, flags.logForm)
	if err != nil {
		return err
	}
	result, err := server.Reset(ctx, server.ResetConfig{
		DataDir: dataDir, Restore: flags.restore, Etcd: flags.etcd, Clock: clock.WallClock, Logger: logger,
	})
	if err != nil {
		return err
	}
	if flags.restore != "" {
		fmt.Fprintf(c.Stdout, "restored state %s of %s\n", result.UUID, result.Time.UTC().Format("2006-01-02 15:04:05Z"))
	}
	if inEtcd {
		if result.Replaced != "" {
			fmt.Fprintf(c.Stdout, "the replaced state is kept as %s\n", table.Escape(result.Replaced))
		}
		_, err = fmt.Fprintf(c.Stdout, "start the server in %s first, so that it notices what was restored\n", table.Escape(dataDir))
		return errors.Trace(err)
	}
	if result.Replaced != "" {
		fmt.Fprintf(c.Stdout, "the replaced database is kept as %s\n", table.Escape(result.Replaced))
	}
	_, err = fmt.Fprintf(c.Stdout, `the server in %s is the only one now: start it without --cluster-reset
delete the data directories of the other servers, and let them join again with a token
`, table.Escape(dataDir))
	return errors.Trace(err)
}
