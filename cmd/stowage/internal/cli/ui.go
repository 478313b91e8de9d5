package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	userclient "github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/ui"
)

func (c *common) uiCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show storage, machines, pools and events on a web page",
		Long: `Serves a web page that shows what "stowage status", "describe", "machines", "pools" and
"events" show, as it changes, and prints the link to it. The link can be opened in one
browser of this host. The page changes nothing. It ends with the command: Ctrl-C.

The requests are made with your own access: on the socket, or with a context of "stowage
login". To open the page on another host, forward the port:

  ssh -t -L 7118:127.0.0.1:7118 root@host stowage ui --listen 127.0.0.1:7118`,
		Example: `  stowage ui
  stowage ui --listen 127.0.0.1:7118`,
		Args: noArgs("the page shows all storage"),
		RunE: c.withClient(func(ctx context.Context, client *userclient.Client, _ []string) error {
			if err := checkLoopback(listen); err != nil {
				return err
			}
			if _, err := client.Pools(ctx); err != nil { // better said here than on the page
				return err
			}
			return c.serveUI(ctx, client, listen)
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback `ADDRESS:PORT` of the page; port 0: a free one")
	return cmd
}

// checkLoopback returns an error unless the address is one that other hosts cannot reach.
func checkLoopback(address string) error {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return errors.WithType(errors.Errorf("--listen %q: write an address with a port, such as 127.0.0.1:7118", address), errUsage)
	}
	if !parsed.Addr().IsLoopback() {
		return errors.WithType(errors.Errorf("--listen %s: other hosts can reach this address, and the page is not encrypted: "+
			"listen on 127.0.0.1, and forward the port with ssh", address), errUsage)
	}
	return nil
}

// serveUI serves the page until the context ends.
func (c *common) serveUI(ctx context.Context, client *userclient.Client, listen string) error {
	page, err := ui.New(ui.Config{Reader: client, Source: client.Name()})
	if err != nil {
		return errors.Trace(err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return errors.Annotate(err, "serving the page")
	}
	server := &http.Server{
		Handler:           page,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // streams end with the command
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(c.Stdout, "http://%s%s\n", listener.Addr(), page.Link())
	fmt.Fprintln(c.Stderr, "The link can be opened in one browser. The page ends with this command: Ctrl-C.")
	select {
	case err = <-served:
		return errors.Annotate(err, "serving the page")
	case <-ctx.Done():
	}
	// Requests end with the context. A browser that keeps its connection open has a second.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if server.Shutdown(ending) != nil {
		_ = server.Close()
	}
	<-served
	return nil
}
