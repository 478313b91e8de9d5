package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// Exit statuses of the process.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitTimedOut = 3
	// exitChanges is that of a dry run with --exit-code that found changes.
	exitChanges = 2
)

// Env is the process environment of a command.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// OnHangup makes SIGHUP call a function, which must not block, instead of ending the command. Nil:
	// nobody sends it.
	OnHangup func(func())
	// Clock measures --timeout. Nil means the wall clock.
	Clock clock.Clock
}

// Main runs the command in args, which do not include the program's name, and returns
// the exit status. The command ends when the context does.
func Main(ctx context.Context, args []string, env Env) int {
	if env.Clock == nil {
		env.Clock = clock.WallClock
	}
	root := newRoot(env)
	if isNomad(args, env.Getenv) {
		args = []string{"nomad-plugin", args[0]}
	}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errChanges) {
		return exitChanges
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		err = &failure{errors.New("interrupted")}
	}
	lines := []string{suggest(err.Error())}
	if several := (*spec.Errors)(nil); errors.As(err, &several) {
		lines = several.Lines()
	}
	for _, line := range lines {
		fmt.Fprintf(env.Stderr, "stowage: %s\n", table.Escape(line))
	}
	var failed *failure
	if !errors.As(err, &failed) {
		fmt.Fprintln(env.Stderr, "Run `stowage --help` for usage.")
		return exitUsage
	}
	if errors.Is(err, errTimedOut) {
		return exitTimedOut
	}
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitFailed
}

// suggest puts the names that cobra suggests for an unknown one on the line of the error.
func suggest(message string) string {
	message, suggestions, ok := strings.Cut(message, "\n\nDid you mean this?\n")
	if !ok {
		return message
	}
	return message + ": did you mean " + strings.Join(strings.Fields(suggestions), " or ") + "?"
}

// Command returns the whole command line, for what is generated from it.
func Command() *cobra.Command { return newRoot(Env{Getenv: func(string) string { return "" }}) }

const (
	errTimedOut = errors.ConstError("timed out")
	errUsage    = errors.ConstError("usage")
	errChanges  = errors.ConstError("there is something to change")
)

// failure marks the error of a command that ran. All other errors are usage errors.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// common has the flags that all commands share.
type common struct {
	Env
	dataDir string
	socket  string
	context string
}

const defaultDataDir = "/var/lib/stowage"

func newRoot(env Env) *cobra.Command {
	c := &common{Env: env}
	root := &cobra.Command{
		Use:   "stowage",
		Short: "Provision the storage that a file declares",
		Long: `stowage provisions storage on this machine: volumes in files, filesystems on
volumes, filesystems in memory, and directories. "stowage run" is the agent, which
does the work. The other commands send it requests and show the results.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 timeout.`,
		Version:           versions(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&c.dataDir, "data-dir", orElse(env.Getenv("STOWAGE_DIR"), defaultDataDir),
		"data directory of the agent: its state and storage ($STOWAGE_DIR)")
	flags.StringVar(&c.socket, "socket", env.Getenv("STOWAGE_SOCKET"),
		"socket of the agent (default: stowage.sock in the data directory; $STOWAGE_SOCKET)")
	flags.StringVar(&c.context, "context", env.Getenv("STOWAGE_CONTEXT"),
		"servers on other hosts, as `NAME` of a context of \"stowage login\" (default: the current context; $STOWAGE_CONTEXT)")
	root.AddCommand(
		c.runCommand(), c.applyCommand(), c.statusCommand(), c.eventsCommand(), c.importCommand(), c.resizeCommand(), c.renameCommand(),
		c.attachCommand(),
		c.changeCommand("detach", "Detach storage and keep its data", detached, (*user.Client).Detach),
		c.removeCommand(), c.releaseCommand(),
		c.retryCommand(), c.formatCommand(), c.orphansCommand(), c.adoptCommand(), c.deleteCommand(), c.backupCommand(),
		c.restoreCommand(), c.recoverCommand(), c.adoptDirCommand(),
		c.serverCommand(), c.serversCommand(), c.agentCommand(), c.machinesCommand(), c.machineCommand(), c.moveCommand(), c.tokenCommand(),
		c.claimsCommand(), c.claimCommand(), c.unclaimCommand(), c.offerCommand(),
		c.createCommand(), c.describeCommand(), c.snapshotCommand(), c.nomadPluginCommand(),
		c.loginCommand(), c.contextCommand(), c.userCommand(),
		c.poolsCommand(), c.reportCommand(), c.uiCommand(), c.versionCommand(),
	)
	c.addCompletions(root)
	addExamples(root)
	return root
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// paths returns the data directory and the socket, both absolute.
func (c *common) paths() (dataDir, socket string, err error) {
	if c.dataDir == "" {
		return "", "", errors.WithType(errors.New("--data-dir is empty"), errUsage)
	}
	if dataDir, err = filepath.Abs(c.dataDir); err != nil {
		return "", "", errors.Trace(err)
	}
	if socket, err = filepath.Abs(orElse(c.socket, filepath.Join(dataDir, "stowage.sock"))); err != nil {
		return "", "", errors.Trace(err)
	}
	if err := control.CheckSocketPath(socket); err != nil {
		return "", "", errors.WithType(err, errUsage)
	}
	return dataDir, socket, nil
}

// runE adapts a function to cobra's RunE and marks its errors as failures.
func runE(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := f(cmd, args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

// withClient is runE with a client of the agent or server that the command is for.
func (c *common) withClient(f func(ctx context.Context, client *user.Client, args []string) error) func(*cobra.Command, []string) error {
	return runE(func(cmd *cobra.Command, args []string) error {
		client, err := c.newClient(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		defer client.Close()
		return f(cmd.Context(), client, args)
	})
}

// terminal returns the file behind a stream, if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	file, ok := stream.(*os.File)
	return file, ok && isTerminal(file)
}
