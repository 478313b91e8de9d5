package cli

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/cmd/stowage/internal/remote"
	"github.com/stowage-io/stowage/cmd/stowage/internal/server"
	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
)

// serverFlags are the flags of a server.
type serverFlags struct {
	processFlags
	listen           string
	acceptRestored   bool
	absence          time.Duration
	fenceProgram     string
	fenceAfter       time.Duration
	etcd             server.Etcd
	join             []string
	token, tokenFile string
	clusterInit      bool
	clusterReset     bool
	restore          string
	peerAddress      string
	csi              csiFlags
}

func (c *common) serverCommand() *cobra.Command {
	var flags serverFlags
	cmd := &cobra.Command{
		Use:   "server --listen ADDRESS",
		Short: "Run a server, which has the state of several machines",
		Long: `Runs a server in the foreground until it is interrupted. Agents connect to it over
HTTPS: see "stowage token create --help" and "stowage agent --help". The other commands
use the server's --data-dir, on the same machine. A file that is applied says which
machine gets the storage, as in "machine: web".

The server is no machine: to have storage on the same machine, run an agent beside it.
It provisions the environment's storage itself: --provider NAME=PATH adds a provider
whose volumes a program of yours makes and attaches to the machines.

When the server stops, the storage stays in place, and the agents wait.

Several servers can have one state: agents can use any of them, and one at a time provisions
the environment's storage. The first one is started with --cluster-init, also if it has a
state already. The second server and each further one needs --join with the URL of another one
and, the first time, a token, which "stowage token create --role server" prints there. Each
has all of the state in its --data-dir, and more than half of them have to run: have three.
They reach each other at --peer-address. "stowage servers" lists them.

With --etcd-endpoints, the state is in an etcd that you run, and the number of servers does not
matter.

With --csi-endpoint, the server is also the controller of a CSI driver, csi.stowage.io: an
orchestrator that runs as root on the same machine makes volumes on all machines. Their
agents serve the rest: see "stowage agent --help". Each of several servers can serve it.

--cluster-reset makes a server that does not run the only one, after more than half of the
servers were lost for good, and ends. With --restore it gets the state of a backup. The
other servers must not run: delete their data directories. With --etcd-endpoints, --cluster-reset
only restores a backup: no server may run, and all can be started again.`,
		Args: noArgs("leave the argument out"),
		RunE: runE(func(cmd *cobra.Command, _ []string) error {
			switch {
			case flags.clusterReset:
				return c.resetCluster(cmd.Context(), flags)
			case flags.listen == "":
				return errors.WithType(errors.New("say where agents are served with --listen, such as --listen 0.0.0.0:7117"), errUsage)
			}
			return c.runServer(cmd.Context(), flags)
		}),
	}
	flags.addTo(cmd)
	cmd.AddCommand(c.serverRemoveCommand())
	cmd.Flags().BoolVar(&flags.clusterInit, "cluster-init", false, "begin a cluster of servers that keep the state together")
	cmd.Flags().BoolVar(&flags.clusterReset, "cluster-reset", false, "make this server the only one of its cluster, and end")
	cmd.Flags().StringVar(&flags.restore, "restore", "", "with --cluster-reset: `FILE` with a backup whose state the server, or the etcd of --etcd-endpoints, gets")
	cmd.Flags().StringVar(&flags.peerAddress, "peer-address", "", "`HOST:PORT` at which the other servers of the cluster reach this one (default: the host of --listen, and the next port)")
	cmd.Flags().StringVar(&flags.listen, "listen", "", "host and port on which agents are served, such as 0.0.0.0:7117")
	cmd.Flags().DurationVar(&flags.absence, "unreachable-after", 40*time.Second, "how long an agent may be without a connection before its machine is shown as unreachable")
	cmd.Flags().StringVar(&flags.fenceProgram, "fence-program", "", "`PATH` of a program that switches a machine off, for \"stowage machine fence\" without --confirmed")
	cmd.Flags().DurationVar(&flags.fenceAfter, "fence-after", 0, "run that program for a machine that has been unreachable for this long, such as 2m (default: only on request)")
	cmd.Flags().BoolVar(&flags.acceptRestored, "accept-restored", false,
		"after the state was restored from a backup: the machines have the environment's storage as it says, and no other")
	cmd.Flags().StringSliceVar(&flags.etcd.Endpoints, "etcd-endpoints", nil, "keep the state in the etcd with these `URLs`, such as https://10.0.0.1:2379 (default: in a file in --data-dir)")
	cmd.Flags().StringVar(&flags.etcd.Prefix, "etcd-prefix", "/stowage/", "beginning of the keys in etcd")
	cmd.Flags().StringVar(&flags.etcd.CAFile, "etcd-ca", "", "`FILE` with the certificates of the authorities of etcd's members, in PEM (default: those that the machine trusts)")
	cmd.Flags().StringVar(&flags.etcd.CertFile, "etcd-cert", "", "`FILE` with the certificate with which etcd knows this server, in PEM")
	cmd.Flags().StringVar(&flags.etcd.KeyFile, "etcd-key", "", "`FILE` with the key of that certificate, in PEM")
	cmd.Flags().StringSliceVar(&flags.join, "join", nil, "`URL` of another server of the cluster, or with the same state in etcd")
	cmd.Flags().StringVar(&flags.token, "token", "", "token with which the server joins the others ($STOWAGE_TOKEN)")
	cmd.Flags().StringVar(&flags.tokenFile, "token-file", "", "file with the token; - is the standard input")
	flags.csi.addEndpoint(cmd, "the controller of CSI", "server")
	flags.csi.addPool(cmd)
	cmd.MarkFlagsMutuallyExclusive("listen", "cluster-reset")
	return cmd
}

func (c *common) runServer(ctx context.Context, flags serverFlags) error {
	if flags.restore != "" {
		return errors.WithType(errors.New("--restore is for --cluster-reset: `stowage restore` restores the state of a single server"), errUsage)
	}
	orchestrator := &storage.LateOrchestrator{}
	config, err := flags.check(storage.ProviderEnviron{Scope: storage.ScopeEnviron, Orchestrator: orchestrator})
	if err != nil {
		return err
	}
	config.Orchestrator = orchestrator
	if flags.absence <= 0 {
		return errors.WithType(errors.Errorf("--unreachable-after %s is not a time to wait: write 40s or 2m", flags.absence), errUsage)
	}
	if err := checkFenceProgram(flags); err != nil {
		return errors.WithType(err, errUsage)
	}
	dataDir, socket, err := c.paths()
	if err != nil {
		return err
	}
	csi, err := flags.csi.check(socket)
	if err != nil {
		return err
	}
	logger, logs, err := c.startLogging("stowage.server", flags.logLevel, flags.logForm)
	if err != nil {
		return err
	}
	config.Logger, config.Audit = logger, logs.audit
	token, err := c.readToken(flags.token, flags.tokenFile)
	if err != nil {
		return err
	}
	s, err := server.New(ctx, server.Config{
		Config:         config,
		DataDir:        dataDir,
		SocketPath:     socket,
		Listen:         flags.listen,
		Etcd:           flags.etcd,
		ClusterInit:    flags.clusterInit,
		PeerAddress:    flags.peerAddress,
		Join:           flags.join,
		Token:          token,
		AcceptRestored: flags.acceptRestored,
		Absence:        flags.absence,
		FenceProgram:   flags.fenceProgram,
		FenceAfter:     flags.fenceAfter,
		CSI:            csi,
	})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.Kill)
	defer stop()
	return s.Wait()
}

// checkFenceProgram returns an error if the program for fencing cannot be run.
func checkFenceProgram(flags serverFlags) error {
	switch {
	case flags.fenceAfter < 0:
		return errors.Errorf("--fence-after %s is not a time to wait: write 2m or 90s", flags.fenceAfter)
	case flags.fenceProgram == "" && flags.fenceAfter > 0:
		return errors.New("--fence-after needs --fence-program")
	case flags.fenceProgram == "":
		return nil
	}
	_, err := run.Resolve(flags.fenceProgram)
	return errors.Annotate(err, "--fence-program")
}

// agentFlags are the flags of a server's agent.
type agentFlags struct {
	processFlags
	servers                   []string
	token, tokenFile, machine string
	csi                       csiFlags
}

func (c *common) agentCommand() *cobra.Command {
	var flags agentFlags
	cmd := &cobra.Command{
		Use:   "agent --server URL",
		Short: "Run the agent of a machine whose state is on a server",
		Long: `Runs the agent of a machine in the foreground until it is interrupted. It makes and
attaches the storage that the server's state has for the machine.

The first time it needs a token, which "stowage token create --role machine" prints on
the server: with --token, --token-file or $STOWAGE_TOKEN. From then on it has a
certificate in its data directory, and the token may be empty.

--provider NAME=PATH is needed if the program of one of the server's providers has to act on
the machine itself. NAME is the same as on the server.

With --csi-endpoint, the agent is also the node of a CSI driver, csi.stowage.io, under the
machine's name: an orchestrator that runs as root on this machine uses volumes here which a
server has made: see "stowage server --help".

Storage in use is left alone when the agent stops, when the server is gone, and when the
server refuses the agent.`,
		Args: noArgs("leave the argument out"),
		RunE: runE(func(cmd *cobra.Command, _ []string) error {
			return c.runAgent(cmd.Context(), flags)
		}),
	}
	flags.addTo(cmd)
	cmd.Flags().StringSliceVar(&flags.servers, "server", nil, "`URL` of the server, such as https://storage.example.com:7117; of several servers with one state, name all")
	cmd.Flags().StringVar(&flags.token, "token", "", "token with which the agent joins the server ($STOWAGE_TOKEN)")
	cmd.Flags().StringVar(&flags.tokenFile, "token-file", "", "file with the token; - is the standard input")
	cmd.Flags().StringVar(&flags.machine, "machine", "", "name of the machine (default: the host name)")
	flags.csi.addEndpoint(cmd, "the node of CSI", "agent")
	if err := cmd.MarkFlagRequired("server"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

func (c *common) runAgent(ctx context.Context, flags agentFlags) error {
	dataDir, _, err := c.paths()
	if err != nil {
		return err
	}
	config, err := flags.check(machineEnviron(dataDir))
	if err != nil {
		return err
	}
	csi, err := flags.csi.check("")
	if err != nil {
		return err
	}
	token, err := c.readToken(flags.token, flags.tokenFile)
	if err != nil {
		return err
	}
	lacks, err := checkPrivileges()
	if err != nil {
		return err
	}
	logger, _, err := c.startLogging("stowage.agent", flags.logLevel, flags.logForm)
	if err != nil {
		return err
	}
	config.Logger = logger
	for _, lack := range lacks {
		logger.Warningf("%s", lack)
	}
	for {
		err := runAgentOnce(ctx, remote.Config{
			Config:  config,
			DataDir: dataDir,
			Servers: flags.servers,
			Token:   token,
			Machine: flags.machine,
			CSI:     csi,
		})
		if !errors.Is(err, api.ErrRestored) || ctx.Err() != nil {
			return err
		}
		logger.Warningf("%v: starting again", err)
	}
}

func runAgentOnce(ctx context.Context, config remote.Config) error {
	a, err := remote.New(ctx, config)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, a.Kill)
	defer stop()
	return a.Wait()
}

// maxToken bounds the size of a file with a token, in bytes.
const maxToken = 4096

// readToken returns the token of the flags or the environment, or an empty one.
func (c *common) readToken(token, tokenFile string) (string, error) {
	switch {
	case token != "" && tokenFile != "":
		return "", errors.WithType(errors.New("--token and --token-file are two tokens: use one of them"), errUsage)
	case tokenFile == "":
		return orElse(token, c.Getenv("STOWAGE_TOKEN")), nil
	}
	in := c.Stdin
	if tokenFile != "-" {
		file, err := os.Open(tokenFile)
		if err != nil {
			return "", errors.Trace(err)
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	content, err := io.ReadAll(io.LimitReader(in, maxToken))
	return strings.TrimSpace(string(content)), errors.Annotate(err, "reading the token")
}
