package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
)

// pruning removes storage that a file lacks.
type pruning struct {
	// selector is the labels of what may be removed, if the flag is given.
	selector string
	given    func() bool
	yes      bool
	rows     []user.Storage
}

func (p *pruning) addTo(cmd *cobra.Command) {
	p.given = func() bool { return cmd.Flags().Changed("prune") }
	cmd.Flags().StringVar(&p.selector, "prune", "", "remove storage with these labels that the file lacks, such as app=web, with its data")
	cmd.Flags().BoolVarP(&p.yes, "yes", "y", false, "with --prune, do not ask")
}

// choose chooses what is to be removed, and asks whether it may be, unless the command only shows it.
func (p *pruning) choose(ctx context.Context, c *common, client *user.Client, args user.ApplyArgs, file *spec.File) error {
	if !p.given() {
		if p.yes {
			return errors.WithType(errors.New("--yes is about what is removed: use it with --prune"), errUsage)
		}
		return nil
	}
	labels, err := label.ParseSelector(p.selector)
	if err == nil && len(labels) == 0 {
		err = errors.New("name a label, such as app=web")
	}
	if err != nil {
		return errors.WithType(errors.Annotate(err, "--prune"), errUsage)
	}
	for _, s := range file.Storage {
		if !label.Selects(labels, s.Labels) {
			// A later file without it would leave it.
			return s.Errorf("labels", "a label of --prune %s is missing: add it", p.selector)
		}
	}
	onlyShow := args.DryRun
	args.DryRun = true
	result, err := client.Apply(ctx, args)
	if err != nil {
		return err
	}
	var left []string
	for _, change := range result.Changes {
		if change.Action == user.ActionLeave {
			left = append(left, change.Name)
		}
	}
	if len(left) == 0 {
		return nil
	}
	rows, err := client.Storage(ctx, left)
	if err != nil {
		return err
	}
	p.rows = slices.DeleteFunc(rows, func(s user.Storage) bool {
		// What a claim or an orchestrator has is theirs to remove.
		return s.Life != life.Alive || s.Claim != "" || s.Asker != nil || !label.Selects(labels, s.Labels)
	})
	table.Sort(p.rows)
	if len(p.rows) == 0 || onlyShow || p.yes || !c.canAsk() {
		return nil
	}
	if err := writeChanges(c.Stderr, p.changes(), true); err != nil {
		return err
	}
	return errors.Annotate(c.confirm(ctx, fmt.Sprintf("%s does not have this storage. Destroy it and its data?", table.Escape(args.File))), "nothing was changed")
}

// changes describes the removals.
func (p *pruning) changes() []user.Change { return (&removal{}).changes(p.rows) }

// in returns the changes of applying the file, with the removals instead of what would be left.
func (p *pruning) in(changes []user.Change) []user.Change {
	removed := make(map[string]bool)
	for _, name := range p.names() {
		base, _, _ := strings.Cut(name, "/") // the list has one line for several instances of an entry
		removed[name], removed[base] = true, true
	}
	changes = slices.DeleteFunc(slices.Clone(changes), func(change user.Change) bool {
		return change.Action == user.ActionLeave && removed[change.Name]
	})
	return append(changes, p.changes()...)
}

func (p *pruning) names() (names []string) {
	for _, s := range p.rows {
		names = append(names, s.Name)
	}
	return names
}

// remove removes what was chosen.
func (p *pruning) remove(ctx context.Context, c *common, client *user.Client) error {
	if len(p.rows) == 0 {
		return nil
	}
	if err := client.RemoveStorage(ctx, user.RemoveArgs{Names: p.names()}); err != nil {
		return errors.Annotate(err, "the file was applied, and nothing was removed")
	}
	c.warnOfSpec(p.rows)
	return nil
}
