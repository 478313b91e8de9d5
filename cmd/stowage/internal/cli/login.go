package cli

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api"
	userclient "github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/contexts"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// loginTimeout bounds the wait for a server.
const loginTimeout = 20 * time.Second

func (c *common) loginCommand() *cobra.Command {
	var token, tokenFile, name, contextName string
	cmd := &cobra.Command{
		Use:   "login URL... --token TOKEN",
		Short: "Get access to a server from this host",
		Long: `Gets a certificate from the server at the URL, such as https://storage.example.com:7117,
for you, and keeps it as a context. The other commands then make their requests there,
unless --data-dir or --socket says otherwise. Of several servers with one state, name all.

The token is one that "stowage token create --role admin" (or viewer, who may only read)
prints on the server. It is needed once. The certificate is renewed when it is used; on the
server, "stowage user remove" makes it worthless.

"stowage context" lists the contexts, and chooses another one.`,
		Args: cobra.MinimumNArgs(1),
		RunE: runE(func(cmd *cobra.Command, urls []string) error {
			text, err := c.readToken(token, tokenFile)
			if err != nil {
				return err
			}
			parsed, err := trust.ParseToken(text)
			if err != nil {
				return errors.WithType(err, errUsage)
			}
			if name == "" {
				name = userName()
			}
			access := &contexts.Context{Name: cmp.Or(contextName, hostOf(urls[0])), User: name}
			for _, u := range urls {
				access.Servers = append(access.Servers, strings.TrimRight(u, "/"))
			}
			return c.logIn(cmd.Context(), parsed, access)
		}),
	}
	cmd.Flags().StringVar(&token, "token", "", "token that the server has created for you ($STOWAGE_TOKEN)")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token; - is the standard input")
	cmd.Flags().StringVar(&name, "name", "", "your name on the server (default: that of your user here)")
	cmd.Flags().StringVar(&contextName, "as", "", "`NAME` of the context (default: the host of the URL)")
	return cmd
}

// userName returns the name of the user of this process, or nothing.
func userName() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Username)
}

// hostOf returns the host of a URL in the form of a context's name.
func hostOf(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return strings.Trim(strings.ReplaceAll(strings.ToLower(parsed.Hostname()), ":", "-"), "-")
}

// logIn gets a certificate with the token, stores the context, and makes it the current one.
func (c *common) logIn(ctx context.Context, token trust.Token, access *contexts.Context) error {
	dir := contexts.DirOf(c.Getenv)
	if _, err := dir.Load(access.Name); err == nil {
		return errors.New(fmt.Sprintf("there is a context %s already: choose another name with --as, or remove it with `stowage context remove %s`", access.Name, access.Name))
	} else if !errors.Is(err, errors.NotFound) {
		return errors.Trace(err)
	}
	key, keyPEM, err := trust.NewKey()
	if err != nil {
		return errors.Trace(err)
	}
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	config := api.Config{URLs: access.Servers, Clock: c.Clock, Logger: plainLogger{c.Stderr}}
	certificate, ca, err := api.LogIn(ctx, config, token, access.User, key.Public())
	if err != nil {
		return errors.Trace(err)
	}
	access.Certificate, access.Key, access.CA = string(certificate), string(keyPEM), string(ca)
	leaf, err := access.Credentials().Leaf()
	if err != nil {
		return errors.Trace(err)
	}
	identity, err := trust.IdentityOf(leaf)
	if err != nil {
		return errors.Trace(err)
	}
	access.Role = string(identity.Role)
	if err := dir.Save(access); err != nil {
		return errors.Trace(err)
	}
	if err := dir.Use(access.Name); err != nil {
		return errors.Trace(err)
	}
	_, err = fmt.Fprintf(c.Stdout, "logged in as %s, with role %s; context %s is the current one\n", access.User, access.Role, access.Name)
	return errors.Trace(err)
}

// plainLogger writes the messages of a client as those of a command.
type plainLogger struct{ out io.Writer }

func (plainLogger) Infof(string, ...any) {}

func (l plainLogger) Warningf(format string, args ...any) {
	fmt.Fprintf(l.out, "stowage: %s\n", table.Escape(fmt.Sprintf(format, args...)))
}

// newClient returns a client of the agent or server that the flags and the environment choose: by
// its socket, or by a context.
func (c *common) newClient(ctx context.Context, cmd *cobra.Command) (*userclient.Client, error) {
	flags := cmd.Flags()
	local := flags.Changed("data-dir") || flags.Changed("socket")
	dir, name := contexts.DirOf(c.Getenv), c.context
	switch {
	case local && flags.Changed("context"):
		return nil, errors.WithType(errors.New("--context chooses a server of another host, and --data-dir or --socket one of this host: use one of them"), errUsage)
	case flags.Changed("context"):
	case local, c.Getenv("STOWAGE_DIR") != "", c.Getenv("STOWAGE_SOCKET") != "":
		name = ""
	case name == "":
		current, err := dir.Current()
		if err != nil {
			return nil, errors.Trace(err)
		}
		name = current
	}
	if name == "" {
		_, socket, err := c.paths()
		if err != nil {
			return nil, err
		}
		return control.NewClient(socket), nil
	}
	access, err := dir.Load(name)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := c.renew(ctx, dir, access); err != nil {
		c.warn("the certificate of context %s was not renewed: %v", name, err)
	}
	return remoteClient(access, c.Clock.Now)
}

func (c *common) warn(format string, args ...any) { plainLogger{c.Stderr}.Warningf(format, args...) }

// renew renews the certificate of a context, if it is time.
func (c *common) renew(ctx context.Context, dir contexts.Dir, access *contexts.Context) error {
	leaf, err := access.Credentials().Leaf()
	if err != nil || c.Clock.Now().Before(trust.RenewAt(leaf)) {
		return errors.Trace(err)
	}
	key, err := trust.ParseKey([]byte(access.Key))
	if err != nil {
		return errors.Trace(err)
	}
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	certificate, err := c.requestCertificate(ctx, access, key.Public())
	if err != nil {
		return errors.Trace(err)
	}
	access.Certificate = string(certificate)
	return errors.Trace(dir.Save(access))
}

func (c *common) requestCertificate(ctx context.Context, access *contexts.Context, key crypto.PublicKey) ([]byte, error) {
	config, err := trust.ClientConfig(access.Credentials, c.Clock.Now)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return api.RenewUser(ctx, api.Config{URLs: access.Servers, TLS: config, Clock: c.Clock, Logger: plainLogger{c.Stderr}}, key)
}

// remoteClient returns a client of the servers of a context. It uses the first that it can open a
// connection with: a server that has just been killed may accept one and answer nothing.
func remoteClient(access *contexts.Context, now func() time.Time) (*userclient.Client, error) {
	config, err := trust.ClientConfig(access.Credentials, now)
	if err != nil {
		return nil, errors.Annotatef(err, "context %s", access.Name)
	}
	var addresses []string
	for _, text := range access.Servers {
		parsed, err := url.Parse(text)
		if err != nil {
			return nil, errors.Annotatef(err, "context %s", access.Name)
		}
		addresses = append(addresses, net.JoinHostPort(parsed.Hostname(), cmp.Or(parsed.Port(), "443")))
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: loginTimeout / 4}, Config: config}
	return userclient.NewClient(userclient.Config{
		URL:  "https://" + trust.ServerName,
		Name: strings.Join(access.Servers, ", "),
		Transport: &http.Transport{
			DialTLSContext: func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
				for _, address := range addresses {
					if conn, err = dialer.DialContext(ctx, network, address); err == nil {
						return conn, nil
					}
				}
				return nil, err
			},
			ForceAttemptHTTP2: true,
		},
	})
}

// contextCommand lists contexts; so does its subcommand list.
func (c *common) contextCommand() *cobra.Command {
	cmd := c.contextListCommand("context")
	cmd.Args = cobra.NoArgs // an argument is an unknown subcommand
	var none bool
	use := &cobra.Command{
		Use:   "use NAME",
		Short: "Choose the context of the commands that follow",
		Args:  cobra.MaximumNArgs(1),
		RunE: runE(func(_ *cobra.Command, args []string) error {
			if (len(args) == 0) != none {
				return errors.WithType(errors.New("name a context, or write --none for the agent of this host"), errUsage)
			}
			return contexts.DirOf(c.Getenv).Use(strings.Join(args, ""))
		}),
	}
	use.Flags().BoolVar(&none, "none", false, "use the agent of this host")
	cmd.AddCommand(c.contextListCommand("list"), use, &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a context, with its certificate and key",
		Args:  cobra.ExactArgs(1),
		RunE: runE(func(_ *cobra.Command, args []string) error {
			return contexts.DirOf(c.Getenv).Remove(args[0])
		}),
	})
	return cmd
}

func (c *common) contextListCommand(use string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: "List the servers that this user has logged in to",
		Args:  noArgs("leave the argument out"),
		RunE: runE(func(*cobra.Command, []string) error {
			dir := contexts.DirOf(c.Getenv)
			names, err := dir.List()
			if err != nil {
				return errors.Trace(err)
			}
			current, err := dir.Current()
			if err != nil {
				return errors.Trace(err)
			}
			w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "CURRENT\tNAME\tUSER\tROLE\tSERVERS")
			for _, name := range names {
				access, err := dir.Load(name)
				if err != nil {
					return errors.Trace(err)
				}
				mark := ""
				if name == current {
					mark = "*"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", mark, name, table.Escape(access.User), table.Escape(access.Role), table.Escape(strings.Join(access.Servers, " ")))
			}
			return errors.Trace(w.Flush())
		}),
	}
}

// userCommand lists users; so does its subcommand list.
func (c *common) userCommand() *cobra.Command {
	cmd := c.userListCommand("user")
	cmd.Args = cobra.NoArgs // an argument is an unknown subcommand
	cmd.AddCommand(c.userListCommand("list"), &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove users, whose certificates are worthless from then on",
		Args:  cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *userclient.Client, names []string) error {
			return client.RemoveUsers(ctx, names)
		}),
	})
	return cmd
}

func (c *common) userListCommand(use string) *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   use,
		Short: "List the users who have logged in to a server from other hosts",
	}, (*userclient.Client).Users, writeUsers)
}

func writeUsers(out io.Writer, users []userclient.User) error {
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tROLE\tAGE")
	for _, u := range users {
		fmt.Fprintf(w, "%s\t%s\t%s\n", table.Escape(u.Name), table.Escape(u.Role), table.Age(now.Sub(u.Enrolled)))
	}
	return w.Flush()
}
