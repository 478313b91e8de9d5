package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// What the process exits with.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitTimedOut = 3
)

// Env is what a command has of the process it runs in.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// Clock measures --timeout. Nil means the time of day.
	Clock clock.Clock
}

// Main runs the command that args give, the program's name not among them, and
// returns the exit status. When the context ends, so does the command.
func Main(ctx context.Context, args []string, env Env) int {
	if env.Clock == nil {
		env.Clock = clock.WallClock
	}
	root := newRoot(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		err = &failure{errors.New("interrupted")}
	}
	fmt.Fprintf(env.Stderr, "stowage: %s\n", table.Escape(err.Error()))
	var failed *failure
	if !errors.As(err, &failed) {
		fmt.Fprintln(env.Stderr, "Run `stowage --help` for how it is used.")
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

const (
	errTimedOut = errors.ConstError("timed out")
	errUsage    = errors.ConstError("usage")
)

// failure marks an error of a command that ran. All others are about how it was
// called.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// common are the flags and facts that all commands share.
type common struct {
	Env
	dataDir string
	socket  string
}

const defaultDataDir = "/var/lib/stowage"

func newRoot(env Env) *cobra.Command {
	c := &common{Env: env}
	root := &cobra.Command{
		Use:   "stowage",
		Short: "Makes the storage that a file declares, and keeps it",
		Long: `stowage makes storage on this machine: volumes in files, filesystems on them,
filesystems in memory, directories. "stowage run" is the agent that does the work;
the other commands tell it what is wanted and show how far it is.

Exit status: 0 done, 1 failed, 2 called wrongly, 3 timed out.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&c.dataDir, "data-dir", orElse(env.Getenv("STOWAGE_DIR"), defaultDataDir),
		"directory of the agent's state and storage ($STOWAGE_DIR)")
	flags.StringVar(&c.socket, "socket", env.Getenv("STOWAGE_SOCKET"),
		"socket of the agent, by default stowage.sock in the data directory ($STOWAGE_SOCKET)")
	root.AddCommand(
		c.runCommand(), c.applyCommand(), c.statusCommand(), c.importCommand(), c.resizeCommand(),
		c.changeCommand("attach", "Attach storage that is detached, and try again at once what has failed", attached, (*control.Client).Attach),
		c.changeCommand("detach", "Detach storage, and keep it", detached, (*control.Client).Detach),
		c.changeCommand("remove", "Detach and destroy storage, with its data", removed, (*control.Client).Remove),
		c.changeCommand("release", "Detach and forget storage, and keep its data", removed, (*control.Client).Release),
		c.retryCommand(), c.formatCommand(), c.orphansCommand(), c.adoptCommand(), c.deleteCommand(), c.backupCommand(),
		c.restoreCommand(), c.recoverCommand(), c.adoptDirCommand(),
		c.poolsCommand(), c.reportCommand(), c.versionCommand(),
	)
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

// runE makes a function into a RunE of cobra, and marks its errors.
func runE(f func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := f(cmd, args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

// withClient is runE with a client of the agent.
func (c *common) withClient(f func(ctx context.Context, client *control.Client, args []string) error) func(*cobra.Command, []string) error {
	return runE(func(cmd *cobra.Command, args []string) error {
		_, socket, err := c.paths()
		if err != nil {
			return err
		}
		client := control.NewClient(socket)
		defer client.Close()
		return f(cmd.Context(), client, args)
	})
}

// terminal returns the file behind a stream, if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	file, ok := stream.(*os.File)
	return file, ok && isTerminal(file)
}
