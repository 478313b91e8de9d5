package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// waitFlags are the flags of commands that can wait.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (w *waitFlags) addTo(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "wait until all of it is "+what)
	cmd.Flags().DurationVar(&w.timeout, "timeout", 5*time.Minute, "how long the command may take with --wait; 0 means for ever")
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
func (w *waitFlags) waitFor(ctx context.Context, client *control.Client, names []string, g goal, out io.Writer) error {
	if !w.wait || len(names) == 0 {
		return nil
	}
	return wait(ctx, client, names, g, newDisplay(out, true))
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
		waiting waitFlags
	)
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the storage that a file declares",
		Long: `Adds the storage and pools in the file that are not there yet, attaches the storage
that is there and detached, and makes storage grow that is there with a smaller size.
What is there already stays as it is: applying a file again changes nothing, but has
what has failed of its storage tried again at once. A declaration that differs in
another way from what is there, a smaller size among them, is an error, and then
nothing of the file is applied.

Storage that is not in the file is left alone, and --dry-run lists it. Data goes
away only by "stowage remove NAME".`,
		Args: noArgs("name the file with -f"),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, _ []string) error {
			ctx, cancel, err := waiting.withTimeout(ctx, c.Clock)
			if err != nil {
				return err
			}
			defer cancel()
			args, _, err := c.readSpec(ctx, file)
			if err != nil {
				return err
			}
			args.DryRun = dryRun
			result, err := client.Apply(ctx, args)
			if err != nil {
				return err
			}
			if err := writeChanges(c.Stdout, result.Changes, dryRun); err != nil || dryRun {
				return err
			}
			goal := attached
			if slices.ContainsFunc(result.Changes, func(c control.Change) bool { return c.Action == control.ActionGrow }) {
				goal = grown
			}
			return waiting.waitFor(ctx, client, result.Names, goal, c.Stdout)
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file to apply; - is the standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would change, and change nothing")
	waiting.addTo(cmd, "attached")
	if err := cmd.MarkFlagRequired("file"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// readSpec reads a file and checks its form before the agent is asked.
func (c *common) readSpec(ctx context.Context, name string) (control.ApplyArgs, *spec.File, error) {
	args := control.ApplyArgs{File: name}
	if name == "-" {
		args.File = "stdin"
	}
	// A pipe, or a terminal, may say nothing for as long as it likes. What still waits
	// for it when the command is interrupted ends with the process.
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
		args.Content = r.content
	}
	file, err := spec.Parse(args.File, args.Content)
	return args, file, err
}

// readFile reads as much as a file may have, and a byte more: it may be a device.
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

var actionSymbols = map[control.Action]string{
	control.ActionAdd: "+", control.ActionImport: "+", control.ActionAdopt: "+", control.ActionAttach: "~", control.ActionGrow: "~", control.ActionLeave: "!",
}

// writeChanges tells what was done, or would be. What is left alone is part of
// the difference, but nothing that was done.
func writeChanges(out io.Writer, changes []control.Change, dryRun bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	done := 0
	for _, change := range changes {
		if change.Action == control.ActionLeave {
			if !dryRun {
				continue
			}
		} else {
			done++
		}
		name := change.Name
		if change.Item != "storage" {
			name = change.Item + " " + name
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\n", actionSymbols[change.Action], table.Escape(name), change.Action, table.Escape(change.Detail))
	}
	if done == 0 {
		fmt.Fprintln(w, "nothing to change")
	}
	return w.Flush()
}

func (c *common) statusCommand() *cobra.Command {
	var (
		output string
		watch  bool
	)
	cmd := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show storage and how far it is",
		Long: `Shows the named storage, or all. NAME is also all of NAME/0, NAME/1, and so on. A
SIZE such as 256M → 512M is that of storage which is to grow, and has 256M now.

With --watch, a table that is redrawn as things change, until it is interrupted;
where the output is no terminal, one line per change.`,
		RunE: c.withClient(func(ctx context.Context, client *control.Client, names []string) error {
			write, err := writerOf(output, func(w io.Writer, rows []control.Storage) error {
				return table.Write(w, rows, time.Now())
			})
			if err != nil {
				return err
			}
			if watch && output != "table" {
				return errors.WithType(errors.New("--watch goes with -o table only"), errUsage)
			}
			rows, err := client.Storage(ctx, names)
			if err != nil {
				return err
			}
			if !watch {
				table.Sort(rows)
				return write(c.Stdout, rows)
			}
			err = follow(ctx, client, names, newView(), newDisplay(c.Stdout, false),
				func(control.Event) error { return nil })
			if ctx.Err() != nil {
				return nil // interrupted: the user has seen enough
			}
			return err
		}),
	}
	addOutput(cmd, &output)
	cmd.Flags().BoolVar(&watch, "watch", false, "go on showing what changes")
	return cmd
}

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "table, json or yaml")
}

// writerOf returns what writes a list in the form that -o asks for.
func writerOf[T any](output string, table func(io.Writer, []T) error) (func(io.Writer, []T) error, error) {
	switch output {
	case "table":
		return table, nil
	case "json":
		return func(w io.Writer, rows []T) error { return writeJSON(w, orEmpty(rows)) }, nil
	case "yaml":
		return func(w io.Writer, rows []T) error { return writeYAML(w, orEmpty(rows)) }, nil
	}
	return nil, errors.WithType(errors.Errorf("-o %q is not known: write table, json or yaml", output), errUsage)
}

// orEmpty makes nothing an empty list rather than a null.
func orEmpty[T any](rows []T) []T {
	if rows == nil {
		return []T{}
	}
	return rows
}

// writeJSON writes a value so that nothing in it is more than text to a terminal.
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

// writeYAML does as writeJSON. Some of what is not printable the encoder writes as it
// is: a value with that is written as JSON, which is YAML where its escapes are.
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

// changeCommand returns the command that asks for one change of named storage.
func (c *common) changeCommand(
	verb, short string, g goal, change func(*control.Client, context.Context, []string) error,
) *cobra.Command {
	var waiting waitFlags
	cmd := &cobra.Command{
		Use:   verb + " NAME...",
		Short: short,
		Long:  short + ". NAME is also all of NAME/0, NAME/1, and so on.",
		Args:  cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, names []string) error {
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

func (c *common) retryCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "retry NAME... | --all",
		Short: "Try again at once what has failed",
		Long: `Tries again at once what has failed of storage, without the delay that grows with each
failure, and what was given up too. NAME is also all of NAME/0, NAME/1, and so on. What
is attached is checked, and attached again if somebody has detached or unmounted it.
"stowage status --watch" shows what comes of it.

To ask once more for what is wanted already does the same for what is named: attach,
detach, remove, release, resize and apply.`,
		RunE: c.withClient(func(ctx context.Context, client *control.Client, names []string) error {
			if all == (len(names) > 0) {
				return errors.WithType(errors.New("name the storage to try again, or give --all"), errUsage)
			}
			return client.Retry(ctx, names)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "all storage")
	return cmd
}

func (c *common) formatCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "format NAME... --yes",
		Short: "Make a filesystem on a volume whatever is on that",
		Long: `Makes the filesystem of storage that could not be made because its volume is not
provably blank. What is on the volume is lost. A volume that anything has in use is not
formatted, nor one that has its filesystem. The request is for one attempt, now: what comes
of it shows "stowage status", and when it fails it has to be asked for again.

Without --yes, this shows what was found on the volume, and changes nothing.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, names []string) error {
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
				_, err := fmt.Fprintln(c.Stdout, "nothing was changed: run it again with --yes to lose what is on the volume")
				return errors.Trace(err)
			}
			return client.Format(ctx, names)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

func (c *common) reportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "report",
		Short: "Show how the agent's workers fare",
		Args:  noArgs("leave it out"),
		RunE: c.withClient(func(ctx context.Context, client *control.Client, _ []string) error {
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
		Args:  noArgs("leave it out"),
		RunE: runE(func(*cobra.Command, []string) error {
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return errors.New("this binary holds no build information")
			}
			_, err := fmt.Fprintf(c.Stdout, "stowage %s %s\n", orElse(info.Main.Version, "(devel)"), info.GoVersion)
			return err
		}),
	}
}
