package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// removal is a command that takes storage out of the state.
type removal struct {
	force, ignoreMissing, dryRun bool
	// keepData says that the storage is released, and not destroyed. yes skips the question before data
	// is destroyed.
	keepData, yes bool
	waiting       waitFlags
}

func (c *common) removeCommand() *cobra.Command {
	r := &removal{}
	cmd := c.removalCommand(r, "remove", "Detach and destroy storage, including its data")
	cmd.Aliases = []string{"rm"}
	cmd.Long += `

On a terminal, the command shows what is destroyed, and asks. It does not ask if its input or
its messages go to a file, a pipe or another program.`
	cmd.Example = `  stowage remove data --dry-run
  stowage remove data logs --wait
  stowage remove data --keep-data`
	cmd.Flags().BoolVar(&r.keepData, "keep-data", false, "keep the data where it is, as \"stowage release\" does")
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (c *common) releaseCommand() *cobra.Command {
	r := &removal{keepData: true}
	cmd := c.removalCommand(r, "release", "Stop managing storage and keep its data")
	cmd.Example = `  stowage release data --dry-run
  stowage release data --wait`
	return cmd
}

func (c *common) removalCommand(r *removal, verb, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   verb + " NAME...",
		Short: short,
		Long: short + `. NAME also selects NAME/0, NAME/1, and so on.

Storage that another program asked for, such as an orchestrator through CSI, is refused: remove it
there, or say --force if that program is gone.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.withClient(func(ctx context.Context, client *user.Client, names []string) error {
			return c.remove(ctx, client, names, r)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&r.force, "force", false, "include storage that another program asked for")
	flags.BoolVar(&r.ignoreMissing, "ignore-missing", false, "succeed for names of no storage, as scripts that may repeat the command want it")
	flags.BoolVar(&r.dryRun, "dry-run", false, "show what would be done, without changing anything")
	r.waiting.addTo(cmd, removed.name)
	return cmd
}

func (c *common) remove(ctx context.Context, client *user.Client, names []string, r *removal) error {
	ctx, cancel, err := r.waiting.withTimeout(ctx, c.Clock)
	if err != nil {
		return err
	}
	defer cancel()
	for {
		wanted := names
		if r.ignoreMissing {
			if wanted, err = existing(client, ctx, names); err != nil || len(wanted) == 0 {
				return err
			}
		}
		err = c.removeNamed(ctx, client, wanted, r)
		if !r.ignoreMissing || !errors.Is(err, errors.NotFound) {
			return err
		}
		// Some of it was removed since the names were looked up.
	}
}

func (c *common) removeNamed(ctx context.Context, client *user.Client, names []string, r *removal) error {
	asks := !r.keepData && !r.yes && c.canAsk()
	rows, err := client.Storage(ctx, names)
	if err != nil {
		return err
	}
	table.Sort(rows)
	if r.dryRun {
		return writeChanges(c.Stdout, r.changes(rows), true)
	}
	if asks {
		if err := writeChanges(c.Stderr, r.changes(rows), true); err != nil {
			return err
		}
		if err := c.confirm(ctx, "Destroy this storage and its data?"); err != nil {
			return errors.Annotate(err, "nothing was removed")
		}
		names = names[:0:0] // what was shown, and nothing that was added since
		for _, s := range rows {
			names = append(names, s.Name)
		}
	}
	args := user.RemoveArgs{Names: names, Force: r.force}
	if r.keepData {
		err = client.ReleaseStorage(ctx, args)
	} else {
		err = client.RemoveStorage(ctx, args)
	}
	if err != nil {
		return err
	}
	c.warnOfSpec(rows)
	return r.waiting.waitFor(ctx, client, names, removed, c.Stdout)
}

// changes describes what the command does with storage.
func (r *removal) changes(rows []user.Storage) []user.Change {
	action, data := user.ActionRemove, "its data is destroyed"
	if r.keepData {
		action, data = user.ActionRelease, "its data is kept"
	}
	var changes []user.Change
	for _, s := range rows {
		detail := fmt.Sprintf("%s, pool %s, %s", s.Kind, s.Pool, table.ExactSize(s.SizeMiB))
		for _, a := range s.Attachments {
			detail += ", attached to machine " + a.Machine
			if a.Location != "" {
				detail += " at " + a.Location
			}
		}
		detail += "; " + data
		switch {
		case s.Claim != "" && !s.Retained:
			detail += "; refused, since claim " + s.Claim + " has it"
		case s.Asker != nil && !r.force:
			detail += fmt.Sprintf("; refused without --force, since %s asked for it, as %s", s.Asker.Way, s.Asker.Name)
		}
		changes = append(changes, user.Change{Action: action, Item: "storage", Name: s.Name, Detail: detail})
	}
	return changes
}

// warnOfSpec says which of the removed storage comes back.
func (c *common) warnOfSpec(rows []user.Storage) {
	var listed []string
	file := ""
	for _, s := range rows {
		if s.Spec != "" {
			listed, file = append(listed, s.Name), s.Spec
		}
	}
	if len(listed) > 0 {
		c.warn("the agent applies %s whenever it starts: take the entry out of the file, or this is made again, empty: %s",
			file, joinFirst(listed))
	}
}

// existing returns those of the names that there is storage of.
func existing(client *user.Client, ctx context.Context, names []string) (found []string, err error) {
	for _, name := range names {
		switch _, err := client.Storage(ctx, []string{name}); {
		case errors.Is(err, errors.NotFound):
		case err != nil:
			return nil, err
		default:
			found = append(found, name)
		}
	}
	return found, nil
}

// canAsk reports whether a person reads the messages and can answer.
func (c *common) canAsk() bool {
	_, reads := terminal(c.Stderr)
	_, answers := terminal(c.Stdin)
	return reads && answers
}

// confirm asks a question, and returns an error unless the answer is yes.
func (c *common) confirm(ctx context.Context, question string) error {
	if _, err := fmt.Fprintf(c.Stderr, "%s [y/N] ", question); err != nil {
		return errors.Trace(err)
	}
	// As in readSpec, a goroutine that still reads when the command is interrupted ends with the process.
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(c.Stdin).ReadString('\n') // the end of the input is no answer
		answered <- line
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case answer := <-answered:
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
		return errors.New("the answer was not yes")
	}
}
