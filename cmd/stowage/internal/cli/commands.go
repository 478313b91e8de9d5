package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// waitFlags are the flags of commands that can wait.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (w *waitFlags) addTo(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait until all the storage is "+what)
	cmd.Flags().DurationVar(&w.timeout, "timeout", 5*time.Minute, "time limit of the command with --wait; 0: no limit")
}

// withTimeout returns the context of a command that may wait: the timeout covers all
// that the command does.
func (w *waitFlags) withTimeout(ctx context.Context, clock clock.Clock) (context.Context, context.CancelFunc, error) {
	switch {
	case w.timeout < 0:
		return nil, nil, errors.WithType(errors.Errorf("--timeout %s is negative", w.timeout), errUsage)
	case !w.wait || w.timeout == 0:
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := clock.AfterFunc(w.timeout, func() { cancel(timeoutError{w.timeout}) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}, nil
}

// waitFor waits for the goal if the flags say so. It returns at once without names.
func (w *waitFlags) waitFor(ctx context.Context, client *user.Client, names []string, g goal, out io.Writer) error {
	if !w.wait || len(names) == 0 {
		return nil
	}
	return wait(ctx, client.Follow, names, 0, g, newDisplay(out, true))
}

// noArgs is for commands that take none: the error says what to do instead.
func noArgs(remedy string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return errors.WithType(errors.Errorf("%q is one argument too many for %q: %s", args[0], cmd.CommandPath(), remedy), errUsage)
	}
}

func (c *common) applyCommand() *cobra.Command {
	var (
		file    string
		dryRun  bool
		status  bool
		prune   pruning
		waiting waitFlags
	)
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create the storage that a file declares",
		Long: `Compares the file with the agent's state. Storage and pools that do not exist are
created, detached storage is attached, and storage smaller than declared is grown.
Applying the same file again changes nothing, but retries failed operations of its
storage at once. Any other difference, such as a smaller size, is an error, and then
nothing in the file is applied.

Storage that is not in the file is left alone; --dry-run lists it. With --prune LABELS,
such storage is removed if it has all of the labels, as "stowage remove" does; all storage
in the file must have them too. Storage of claims and of other programs, such as an
orchestrator, stays. On a terminal, the command shows what is destroyed, and asks first.

With --dry-run --exit-code, the exit status is 0 if nothing would change, and 2 if
something would.`,
		Example: `  stowage apply -f storage.yaml --wait
  stowage apply -f storage.yaml --dry-run --exit-code
  stowage apply -f storage.yaml --prune app=web --dry-run`,
		Args: noArgs("name the file with -f"),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, _ []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			if status && !dryRun {
				return errors.WithType(errors.New("--exit-code is about what would change: use it with --dry-run"), errUsage)
			}
			args, parsed, err := c.readSpec(ctx, file)
			if err != nil {
				return err
			}
			args.DryRun = dryRun
			if err := prune.choose(ctx, c, client, args, parsed); err != nil {
				return err
			}
			result, err := client.Apply(ctx, args)
			if err != nil {
				return err
			}
			if !dryRun {
				err = prune.remove(ctx, c, client)
			}
			changes := result.Changes
			if err == nil {
				changes = prune.in(changes)
			}
			if werr := writeChanges(c.Stdout, changes, dryRun); err == nil {
				err = werr
			}
			if err != nil {
				return err
			}
			if dryRun {
				if status && slices.ContainsFunc(changes, isChange) {
					return errChanges
				}
				return nil
			}
			if err := waiting.waitFor(ctx, client, prune.names(), removed, c.Stdout); err != nil {
				return err
			}
			goal := attached
			if slices.ContainsFunc(result.Changes, func(c user.Change) bool { return c.Action == user.ActionGrow }) {
				goal = grown
			}
			goal = goal.orDetached(result.Detached)
			if result.Attached == 0 || !waiting.wait {
				return waiting.waitFor(ctx, client, result.Names, goal, c.Stdout)
			}
			return wait(ctx, client.Follow, append(result.Unfinished, result.Detached...), result.Attached, goal, newDisplay(c.Stdout, true))
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file to apply; - is the standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, without changing anything")
	cmd.Flags().BoolVar(&status, "exit-code", false, "with --dry-run, exit with status 2 if something would change")
	prune.addTo(cmd)
	waiting.addTo(cmd, "attached")
	if err := cmd.MarkFlagRequired("file"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// readSpec reads a file and checks its form before the agent is asked.
func (c *common) readSpec(ctx context.Context, name string) (user.ApplyArgs, *spec.File, error) {
	args := user.ApplyArgs{File: name}
	if name == "-" {
		args.File = "stdin"
	}
	// Reading a pipe or a terminal can block for any time. A goroutine that still reads
	// when the command is interrupted ends with the process.
	type read struct {
		content []byte
		err     error
	}
	done := make(chan read, 1)
	go func() {
		content, err := c.readFile(name)
		done <- read{content, err}
	}()
	select {
	case <-ctx.Done():
		return args, nil, context.Cause(ctx)
	case r := <-done:
		if r.err != nil {
			return args, nil, errors.Trace(r.err)
		}
		args.Content = string(r.content)
	}
	file, err := spec.Parse(args.File, []byte(args.Content))
	return args, file, err
}

// readFile reads at most one byte more than a file may have: the file may be a device.
func (c *common) readFile(name string) ([]byte, error) {
	in := c.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	content, err := io.ReadAll(io.LimitReader(in, spec.MaxBytes+1))
	return content, errors.Annotatef(err, "reading %s", name)
}

var actionSymbols = map[user.Action]string{
	user.ActionAdd: "+", user.ActionImport: "+", user.ActionAdopt: "+", user.ActionAttach: "~", user.ActionDetach: "~", user.ActionGrow: "~", user.ActionLabel: "~", user.ActionRename: "~", user.ActionRetry: "~", user.ActionLeave: "!",
	user.ActionRemove: "-", user.ActionRelease: "-",
}

// isChange reports whether something is done, and storage is not only listed.
func isChange(change user.Change) bool { return change.Action != user.ActionLeave }

// writeChanges lists the changes that were made or, with dryRun, would be made. Storage
// that is left alone is listed with dryRun only.
func writeChanges(out io.Writer, changes []user.Change, dryRun bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	done := 0
	for _, change := range changes {
		if isChange(change) {
			done++
		} else if !dryRun {
			continue
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\n", actionSymbols[change.Action], table.Escape(changedName(change)), change.Action, table.Escape(change.Detail))
	}
	if done == 0 {
		fmt.Fprintln(w, "nothing to change")
	}
	return w.Flush()
}

// changedName returns the name of what a change is about, for users.
func changedName(change user.Change) string {
	if change.Item == "storage" {
		return change.Name
	}
	return change.Item + " " + change.Name
}

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "output format: table, json, yaml or jsonpath=PATH, such as jsonpath='$[*].name'")
}

// listCommand completes a command that writes a list of the agent or server, in the format of -o.
func listCommand[T any](c *common, cmd *cobra.Command, read func(*user.Client, context.Context) ([]T, error), table func(io.Writer, []T) error) *cobra.Command {
	var output string
	cmd.Args = noArgs("leave the argument out")
	cmd.RunE = c.withClient(func(ctx context.Context, client *user.Client, _ []string) error {
		write, err := writerOf(output, table)
		if err != nil {
			return err
		}
		all, err := read(client, ctx)
		if err != nil {
			return err
		}
		return write(c.Stdout, all)
	})
	addOutput(cmd, &output)
	return cmd
}

// writerOf returns the function that writes a list in the format of -o.
func writerOf[T any](output string, table func(io.Writer, []T) error) (func(io.Writer, []T) error, error) {
	switch output {
	case "table":
		return table, nil
	case "json":
		return func(w io.Writer, rows []T) error { return writeJSON(w, orEmpty(rows)) }, nil
	case "yaml":
		return func(w io.Writer, rows []T) error { return writeYAML(w, orEmpty(rows)) }, nil
	}
	if query, ok := strings.CutPrefix(output, jsonPathPrefix); ok {
		return jsonPathWriter[T](query)
	}
	return nil, errors.WithType(errors.Errorf("-o %q is not known: write table, json, yaml or jsonpath=PATH", output), errUsage)
}

// orEmpty returns an empty list for nil, so that it is encoded as [] and not as null.
func orEmpty[T any](rows []T) []T {
	if rows == nil {
		return []T{}
	}
	return rows
}

// writeJSON writes a value with everything escaped that could control a terminal.
func writeJSON(w io.Writer, value any) error {
	text, err := encodeJSON(value)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, table.EscapeJSON(text))
	return err
}

func encodeJSON(value any) (string, error) {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return b.String(), err
}

// writeYAML does the same in YAML. The encoder leaves some unprintable characters as they
// are: a value with any is written as JSON, which is also YAML and has escapes for them.
func writeYAML(w io.Writer, value any) error {
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	if err := encoder.Close(); err != nil {
		return err
	}
	text := b.String()
	if table.EscapeYAML(text) != text {
		plain, err := encodeJSON(value)
		if err != nil {
			return err
		}
		text = table.EscapeYAML(plain)
	}
	_, err := io.WriteString(w, text)
	return err
}

// changeCommand returns the command that requests a change of named storage.
func (c *common) changeCommand(
	verb, short string, g goal, change func(*user.Client, context.Context, []string) error,
) *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   verb + " NAME...",
		Short: short,
		Long:  short + ". NAME also selects NAME/0, NAME/1, and so on.",
		Args:  cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			if err := change(client, ctx, names); err != nil {
				return err
			}
			return waiting.waitFor(ctx, client, names, g, c.Stdout)
		}),
	}
	waiting.addTo(cmd, g.name)
	return cmd
}

func (c *common) attachCommand() *cobra.Command {
	var args user.AttachArgs
	var options string
	var cmd *cobra.Command
	cmd = c.changeCommand("attach", "Attach detached storage, and retry failed operations at once", attached,
		func(client *user.Client, ctx context.Context, names []string) error {
			args.Names = names
			if cmd.Flags().Changed("mount-options") {
				args.MountOptions = &options
			}
			result, err := client.Attach(ctx, args)
			if err != nil || len(result.Changes) == 0 {
				return err
			}
			return writeChanges(c.Stdout, result.Changes, false)
		})
	cmd.Long += `

Storage that has failed is tried again at once, also if it is attached or was given up: the
command lists it with what had failed.

With --mount, a filesystem that is detached is mounted elsewhere from now on, with its data, and
with --mount-options, it is mounted with other options. Write them in the file that declares the
storage, too: "stowage apply" refuses others, and an agent that is started with such a file warns
and goes on.`
	cmd.Example = `  stowage attach data --wait
  stowage detach data --wait && stowage attach data --mount /srv/other --wait
  stowage detach data --wait && stowage attach data --mount-options noatime --wait`
	cmd.Flags().StringVar(&args.Mount, "mount", "", "directory to mount a detached filesystem on from now on (default: where it was)")
	cmd.Flags().StringVar(&options, "mount-options", "", "options for mounting a detached filesystem from now on (default: those that it has)")
	cmd.Flags().StringVar(&args.Machine, "machine", "", "machine to attach it to (default: the one that it is bound to, or the agent's)")
	return cmd
}

func (c *common) retryCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "retry NAME... | --all",
		Short: "Retry failed operations at once",
		Long: `Retries failed operations of storage at once, without waiting for the delay that grows
with each failure. Operations that were given up are retried, too. NAME also selects
NAME/0, NAME/1, and so on. Attached storage is checked, and attached again if it was
detached or unmounted by somebody else. "stowage status --watch" shows the result.

Repeating a request (attach, detach, remove, release, resize, apply) also retries the
storage that it names.`,
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			if all == (len(names) > 0) {
				return errors.WithType(errors.New("name the storage to retry, or use --all"), errUsage)
			}
			return client.Retry(ctx, names)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "retry all storage")
	return cmd
}

func (c *common) formatCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "format NAME... --yes",
		Short: "Format a volume that is not provably blank",
		Long: `Creates the filesystem of storage whose volume was not formatted because it is not
provably blank. All data on the volume is lost. A volume that is in use is not
formatted, and neither is one that already has the filesystem of the storage. The
request is for one attempt, now. "stowage status" shows the result. After a failure,
repeat the command.

Without --yes, the command shows what was found on the volume and changes nothing.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			found, err := client.Storage(ctx, names)
			if err != nil {
				return err
			}
			for _, s := range found {
				if _, err := fmt.Fprintf(c.Stdout, "%s: %s\n", table.Escape(s.Name), table.Escape(orElse(s.Message, string(s.Status)))); err != nil {
					return errors.Trace(err)
				}
			}
			if !yes {
				_, err := fmt.Fprintln(c.Stdout, "nothing was changed: repeat with --yes to format the volume and lose its data")
				return errors.Trace(err)
			}
			return client.Format(ctx, names)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "format the volume")
	return cmd
}

func (c *common) reportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "report",
		Short: "Show what the agent's workers are doing",
		Args:  noArgs("leave the argument out"),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, _ []string) error {
			report, err := client.Report(ctx)
			if err != nil {
				return err
			}
			return writeYAML(c.Stdout, report)
		}),
	}
}

func (c *common) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of stowage",
		Args:  noArgs("leave the argument out"),
		RunE: runE(func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(c.Stdout, versions())
			return err
		}),
	}
}

// versions returns the versions of stowage and of Go.
func versions() string {
	return strings.TrimSpace("stowage "+process.Version()) + " " + runtime.Version()
}
