package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// lab holds the instrumented sources and test binaries of one module, in a temporary
// directory.
type lab struct {
	root string // of the module
	dir  string
	env  []string // of the tests
}

// activeVariable names the active mutant to a test binary.
const activeVariable = "STOWAGE_MUTANT"

// newLab makes a lab for the module that contains dir.
func newLab(ctx context.Context, dir string) (*lab, error) {
	root, err := goCommand(ctx, dir, "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, err
	}
	dir, err = os.MkdirTemp("", "mutate-")
	if err != nil {
		return nil, err
	}
	// Leftovers of an interrupted test are removed with the lab.
	tests := filepath.Join(dir, "tests")
	if err := os.Mkdir(tests, 0o700); err != nil {
		return nil, err
	}
	return &lab{root: strings.TrimSpace(string(root)), dir: dir, env: append(os.Environ(), "TMPDIR="+tests)}, nil
}

func (l *lab) close() {
	os.RemoveAll(l.dir)
}

func (l *lab) overlay() string { return filepath.Join(l.dir, "overlay.json") }

func (l *lab) binary(s suite) string {
	return filepath.Join(l.dir, strings.ReplaceAll(s.dir, "/", "-")+".test")
}

// goCommand runs the go command in a directory and returns its output.
func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, &stderr)
	}
	return out, nil
}

// listed is the part of the output of "go list" about a package that is needed.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// list returns packages and all their dependencies, by import path, and the paths of the
// packages that match the patterns.
func (l *lab) list(ctx context.Context, patterns ...string) (all map[string]listed, matched []string, err error) {
	out, err := goCommand(ctx, l.root, append([]string{"list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", "--"}, patterns...)...)
	if err != nil {
		return nil, nil, err
	}
	all = make(map[string]listed)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			listed
			DepOnly bool
		}
		err := decoder.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return all, matched, nil
		}
		if err != nil {
			return nil, nil, err
		}
		all[pkg.ImportPath] = pkg.listed
		if !pkg.DepOnly {
			matched = append(matched, pkg.ImportPath)
		}
	}
}

// instrument writes the instrumented sources of the targets, and the overlay that puts them in
// place.
func (l *lab) instrument(ctx context.Context, targets []target) ([]*mutant, error) {
	var mutants []*mutant
	overlay := make(map[string]string)
	for _, t := range targets {
		all, matched, err := l.list(ctx, "./"+t.dir)
		if err != nil {
			return nil, err
		}
		next := len(mutants)
		sources, found, err := instrumentPackage(all, all[matched[0]], &next)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			m.dir = t.dir
		}
		mutants = append(mutants, found...)
		for name, source := range sources {
			made := filepath.Join(l.dir, strconv.Itoa(len(overlay))+".go")
			if err := os.WriteFile(made, []byte(source), 0o600); err != nil {
				return nil, err
			}
			overlay[name] = made
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	return mutants, os.WriteFile(l.overlay(), text, 0o600)
}

// instrumentPackage returns the instrumented sources of a package, by file, and its mutants,
// which it numbers after next.
func instrumentPackage(all map[string]listed, pkg listed, next *int) (map[string]string, []*mutant, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	sources := make(map[string]string)
	for _, name := range pkg.GoFiles {
		path := filepath.Join(pkg.Dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		file, err := parser.ParseFile(fset, path, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, file)
		sources[path] = string(source)
	}
	checked, info, err := check(fset, all, pkg.ImportPath, files)
	if err != nil {
		return nil, nil, err
	}
	var mutants []*mutant
	for _, file := range files {
		path := fset.Position(file.FileStart).Filename
		in := &instrumenter{
			fset:   fset,
			file:   file,
			source: sources[path],
			pkg:    checked,
			info:   info,
			base:   mutant{file: filepath.Base(path)},
			next:   next,
		}
		in.instrument()
		mutants = append(mutants, in.mutants...)
		sources[path] = in.edits.apply(in.source)
	}
	sources[filepath.Join(pkg.Dir, "mutate_helpers.go")] = fmt.Sprintf(helpers, checked.Name(), activeVariable)
	return sources, mutants, nil
}

// check type-checks a package whose imports have been listed.
func check(fset *token.FileSet, all map[string]listed, importPath string, files []*ast.File) (*types.Package, *types.Info, error) {
	info := &types.Info{
		Types:     make(map[ast.Expr]types.TypeAndValue),
		Defs:      make(map[*ast.Ident]types.Object),
		Uses:      make(map[*ast.Ident]types.Object),
		Implicits: make(map[ast.Node]types.Object),
		Scopes:    make(map[ast.Node]*types.Scope),
	}
	config := types.Config{
		Sizes: types.SizesFor("gc", runtime.GOARCH),
		Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
			return os.Open(all[path].Export)
		}),
	}
	pkg, err := config.Check(importPath, fset, files, info)
	return pkg, info, err
}

// run runs the suites of each mutant's target until one kills it, and calls done for each
// mutant, one at a time.
func (l *lab) run(ctx context.Context, targets []target, mutants []*mutant, parallel int, done func(*mutant)) error {
	suites := make(map[string][]limitedSuite)
	built := make(map[string]bool)
	for _, t := range targets {
		if !slices.ContainsFunc(mutants, func(m *mutant) bool { return m.dir == t.dir }) {
			continue
		}
		for _, s := range t.suites {
			if binary := l.binary(s); !built[binary] {
				if _, err := goCommand(ctx, l.root, "test", "-c", "-overlay", l.overlay(), "-o", binary, "./"+s.dir); err != nil {
					return err
				}
				built[binary] = true
			}
			limited, err := l.limit(ctx, s)
			if err != nil {
				return err
			}
			suites[t.dir] = append(suites[t.dir], limited)
		}
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, m := range mutants {
		group.Go(func() error {
			for _, s := range suites[m.dir] {
				run, err := l.try(ctx, s, m.id)
				if err != nil {
					return err
				}
				if m.outcome = run.outcome; m.outcome != survived {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			done(m)
			return nil
		})
	}
	return group.Wait()
}

// limitedSuite is a suite with a limit of processor time, in seconds. Wall-clock time means
// little on a busy machine.
type limitedSuite struct {
	suite
	limit int
}

// limit runs a suite without an active mutant, and sets the limit for mutants to ten times the
// time that took.
func (l *lab) limit(ctx context.Context, s suite) (limitedSuite, error) {
	run, err := l.try(ctx, limitedSuite{s, 3600}, unmutated)
	if err != nil {
		return limitedSuite{}, err
	}
	if run.outcome != survived {
		return limitedSuite{}, fmt.Errorf("the tests of %s fail with no mutant in effect:\n%s", s.dir, run.output)
	}
	return limitedSuite{s, int(10*run.took.Seconds()) + 2}, nil
}

const (
	// memory is the address space that a test may use, in KiB: a loop that no longer ends
	// could fill the memory of any machine before its time is over.
	memory = 4 << 20
	// wait is for tests that hang without using the processor. Most end by themselves.
	wait = time.Minute
)

var (
	errLate   = errors.New("late")
	errFailed = errors.New("failed")
)

// testRun is the result of a run of a suite.
type testRun struct {
	outcome outcome
	took    time.Duration // of a processor
	output  []byte
}

// try runs a suite with an active mutant, up to the first failure.
func (l *lab) try(ctx context.Context, s limitedSuite, id int) (testRun, error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var output output
	if id != unmutated {
		defer time.AfterFunc(wait, func() { cancel(errLate) }).Stop()
		output.failed = func() { cancel(errFailed) }
	}
	const script = `ulimit -v "$1" && ulimit -t "$2" && shift 2 && exec "$@"`
	args := append([]string{"-c", script, "sh", strconv.Itoa(memory), strconv.Itoa(s.limit), l.binary(s.suite), "-test.failfast"}, s.args...)
	cmd := exec.CommandContext(running, "sh", args...)
	cmd.Dir = filepath.Join(l.root, s.dir)
	cmd.Env = slices.Concat(l.env, []string{fmt.Sprintf("%s=%d", activeVariable, id)})
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second
	err := cmd.Run()

	if ctx.Err() != nil {
		return testRun{}, ctx.Err()
	}
	run := testRun{output: output.text}
	var exit *exec.ExitError
	switch cause := context.Cause(running); {
	case err == nil:
		run.took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	case cause == errFailed:
		run.outcome = killed
	case cause == errLate:
		run.outcome = timedOut
	case !errors.As(err, &exit):
		return testRun{}, err
	case exit.Exited():
		run.outcome = killed
	default: // killed by a signal: it has used up its processor time
		run.outcome = timedOut
	}
	return run, nil
}

// output keeps the end of a test's output.
type output struct {
	text []byte
	// failed, if not nil, is called on a failure, after which the other tests need not run.
	failed func()
}

// sign matches a line that shows a failure, of package testing, of check.v1 or of the runtime.
var sign = regexp.MustCompile(`(?m)^(\s*--- FAIL: |FAIL: |panic: |fatal error: )`)

func (o *output) Write(p []byte) (int, error) {
	const most = 1 << 16
	o.text = append(o.text, p...)
	o.text = o.text[max(0, len(o.text)-most):]
	if o.failed != nil && sign.Match(o.text) {
		o.failed()
	}
	return len(p), nil
}
