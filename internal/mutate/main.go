// Command mutate breaks the worker's code on purpose, one small breakage at a time, and
// reports which breakages no test notices.
//
//	go run ./internal/mutate [-run regexp] [-known] [-list] [-p n] [package ...]
//
// All breakages ("mutants") of a package are compiled into its test binaries at once, each
// with a number; an environment variable activates one of them for a run of the tests. So a
// mutant costs a run of the tests and no build. The changed sources are an overlay of the go
// command: the tree is never changed.
//
// A mutant is killed when a suite fails or does not end in time. The list of targets below
// says which suites may kill the mutants of a package, and in which order they run. A survivor
// is a line of code that may be broken unnoticed: it needs a test, simpler code, or, if the
// broken code does the same, an explanation in survivors.md, which this program also reads. An
// unexplained survivor makes it fail, and so does an explanation of a mutant that no longer
// exists or is killed (with -known, which runs the explained ones too).
//
// A mutant is identified by its function and its text, not by its line, so that an explanation
// survives edits around it.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// target is a package to mutate, and the suites that should notice.
type target struct {
	dir    string // from the module's root
	suites []suite
}

// suite is a run of the tests of a package.
type suite struct {
	dir  string // from the module's root
	args []string
}

const worker = "worker/storageprovisioner"

// simulation is the suite that covers remembered attempts, and crashes.
var simulation = suite{dir: worker + "/internal/simulation", args: []string{"-steps=30000", "-search", "-shrink=0s"}}

// targets are the packages to mutate. The fastest suite that kills the most comes first.
var targets = []target{{
	dir:    worker + "/internal/schedule",
	suites: []suite{{dir: worker + "/internal/schedule"}},
}, {
	// The core is covered by its random histories, and by the worker's behaviour.
	dir: worker + "/internal/plan",
	suites: []suite{
		{dir: worker + "/internal/plan", args: []string{"-seeds=50"}},
		simulation,
		{dir: worker},
		{dir: worker + "/internal/plan", args: []string{"-seeds=500"}},
	},
}, {
	dir:    worker + "/internal/guard",
	suites: []suite{{dir: worker + "/internal/guard"}, {dir: worker}},
}, {
	dir:    worker + "/internal/translate",
	suites: []suite{{dir: worker + "/internal/translate"}, {dir: worker}, simulation},
}, {
	dir:    worker,
	suites: []suite{{dir: worker}, simulation},
}}

//go:embed survivors.md
var survivors []byte

const survivorsName = "internal/mutate/survivors.md"

// options are the flags of the command line.
type options struct {
	run      *regexp.Regexp // which mutants
	known    bool           // the explained ones too
	list     bool           // only list them
	parallel int
	root     string // the directory of the module to mutate
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	run := flag.String("run", "", "only mutants whose line in the list matches the `regexp`")
	flag.BoolVar(&o.known, "known", false, "run the mutants that survivors.md explains, too")
	flag.BoolVar(&o.list, "list", false, "list the mutants and run nothing")
	// A broken worker mostly causes waiting.
	flag.IntVar(&o.parallel, "p", 8*runtime.NumCPU(), "how many `runs` at once")
	flag.StringVar(&o.root, "root", "../..", "the `directory` of the module that is mutated")
	flag.Parse()
	err := func() (err error) {
		if o.run, err = regexp.Compile(*run); err != nil {
			return fmt.Errorf("-run: %w", err)
		}
		if o.parallel < 1 {
			return fmt.Errorf("-p %d: at least 1 is needed", o.parallel)
		}
		chosen, err := choose(flag.Args())
		if err != nil {
			return err
		}
		explained, err := parseExplanations(survivorsName, bytes.NewReader(survivors))
		if err != nil {
			return err
		}
		return mutate(ctx, o.root, chosen, explained, o, os.Stdout)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// choose returns the targets whose packages the arguments name, or all without arguments.
func choose(args []string) ([]target, error) {
	if len(args) == 0 {
		return targets, nil
	}
	var chosen []target
	for _, arg := range args {
		dir := strings.Trim(strings.TrimPrefix(arg, "./"), "/")
		i := slices.IndexFunc(targets, func(t target) bool { return t.dir == dir })
		if i < 0 {
			var names []string
			for _, t := range targets {
				names = append(names, t.dir)
			}
			return nil, fmt.Errorf("package %q is not a target: the targets are %s", arg, strings.Join(names, ", "))
		}
		chosen = append(chosen, targets[i])
	}
	return chosen, nil
}

// outcome is the outcome of running a mutant.
type outcome int

const (
	survived outcome = iota
	killed
	timedOut
	skipped // explained, and not requested
	outcomes
)

// mutate runs the mutants of the targets, in the module that contains dir, and reports to out.
func mutate(ctx context.Context, dir string, targets []target, explained *explanations, o options, out io.Writer) error {
	l, err := newLab(ctx, dir)
	if err != nil {
		return err
	}
	defer l.close()
	mutants, err := l.instrument(ctx, targets)
	if err != nil {
		return err
	}
	stale := explained.stale(targets, mutants)
	for _, s := range stale {
		fmt.Fprintln(out, s)
	}
	mutants = slices.DeleteFunc(mutants, func(m *mutant) bool { return !o.run.MatchString(m.String()) })
	if o.list {
		for _, m := range mutants {
			fmt.Fprintln(out, m)
		}
		return nil
	}
	var asked []*mutant
	for _, m := range mutants {
		if explained.has(m) && !o.known {
			m.outcome = skipped
		} else {
			asked = append(asked, m)
		}
	}
	started := time.Now()
	if err := l.run(ctx, targets, asked, o.parallel, func(m *mutant) {
		switch {
		case m.outcome == survived && !explained.has(m):
			fmt.Fprintf(out, "%s/%s:%d: survived\n\t%s\n", m.dir, m.file, m.line, m.key().text)
		case m.outcome != survived && explained.has(m):
			fmt.Fprintf(out, "%s:%d: explained, but killed\n\t%s\n", explained.name, explained.line[m.key()], m.key().text)
		}
	}); err != nil {
		return err
	}
	summarize(out, targets, mutants)
	fmt.Fprintf(out, "%d mutants ran in %v\n", len(asked), time.Since(started).Round(time.Second))

	var unexplained, wrong int
	for _, m := range asked {
		if m.outcome == survived && !explained.has(m) {
			unexplained++
		}
		if m.outcome != survived && explained.has(m) {
			wrong++
		}
	}
	if unexplained+wrong+len(stale) > 0 {
		return errors.New(strings.Join(slices.DeleteFunc([]string{
			complain(unexplained, "unexplained survivors: add a test, or explain them in "+explained.name),
			complain(wrong+len(stale), "explanations too many: remove them from "+explained.name),
		}, func(s string) bool { return s == "" }), "; "))
	}
	return nil
}

func complain(n int, of string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n, " ", of)
}

// summarize prints the number of mutants of each package, by outcome.
func summarize(out io.Writer, targets []target, mutants []*mutant) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "mutants\tkilled\ttimed out\tsurvived\texplained\t  package\n")
	for _, t := range targets {
		var n [outcomes]int
		all := 0
		for _, m := range mutants {
			if m.dir == t.dir {
				n[m.outcome]++
				all++
			}
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t  %s\n", all, n[killed], n[timedOut], n[survived], n[skipped], t.dir)
	}
	w.Flush()
}
