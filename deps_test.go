package stowage_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/stowage-io/stowage"

// A rule forbids imports. Patterns are import paths; "x/..." stands for x and all
// below it, and a leading "." for this module. Only production code counts: what
// tests import is theirs.
type rule struct {
	packages []string // the packages that the rule is for …
	but      []string // … except these
	never    []string // what they do not import …
	unless   []string // … except these

	// direct rules look at what a package itself imports. Others follow the
	// imports of its imports, but none of notThrough.
	direct     bool
	notThrough []string

	reason string
}

// agentOnly is what the agent may use and the library leaves to its embedders.
var agentOnly = []string{
	"github.com/spf13/...",
	"go.yaml.in/yaml/...", "gopkg.in/yaml.v2/...", "gopkg.in/yaml.v3/...",
	"go.etcd.io/bbolt/...", "github.com/fxamacker/cbor/...",
	"net/http/...",
}

var rules = []rule{{
	packages: []string{"./core/..."},
	never:    []string{"./..."},
	reason:   "small values that everything uses can depend on nothing",
}, {
	packages: []string{"./apiserver/params"},
	never:    []string{"./..."},
	unless:   []string{"./core/...", "./storage"},
	direct:   true,
	reason:   "the wire is plain data; storage lends it BlockDevice and DeviceType, and nothing else is needed",
}, {
	packages: []string{"./watcher"},
	never:    []string{"./storage", "./storage/..."},
	direct:   true,
	reason:   "watchers tell ids, not storage; the id type comes from the wire",
}, {
	packages: []string{"./watcher"},
	never:    []string{"./worker/..."},
	unless:   []string{"./worker"},
	reason:   "workers use watchers, not the reverse",
}, {
	packages: []string{"./watcher/mounts"},
	never:    []string{"./storage", "./storage/...", "./worker/..."},
	unless:   []string{"./worker"},
	direct:   true,
	reason:   "that mounts change is told, not whose they are",
}, {
	packages: []string{"./environs/config"},
	never:    []string{"./storage/provider/...", "./worker/..."},
	reason:   "settings are read by providers and workers, which they know nothing of",
}, {
	packages: []string{"./environs/envcontext", "./worker"},
	never:    []string{"./..."},
	reason:   "one interface that everything uses can depend on nothing",
}, {
	packages: []string{"./storage"},
	never:    []string{"./storage/provider/...", "./worker/...", "./watcher"},
	reason:   "the vocabulary is shared by providers and workers, which know it and not each other",
}, {
	packages: []string{"./storage/poolmanager/...", "./storage/plans/..."},
	never:    []string{"./worker/..."},
	unless:   []string{"./worker"},
	reason:   "workers use them, not the reverse",
}, {
	packages: []string{"./storage/provider/..."},
	never:    []string{"./worker/...", "./watcher", "./state/..."},
	reason:   "a provider does what it is told: it serves other callers than the worker and remembers by itself",
}, {
	packages: []string{"./storage/provider/internal/...", "./storage/internal/..."},
	but: []string{
		"./storage/provider/internal/bench",                                            // a command
		"./storage/provider/internal/object", "./storage/provider/internal/sourcetest", // what sources have in common
	},
	never:  []string{"./storage"},
	reason: "the Linux bricks know devices, mounts and files, not what they are used for",
}, {
	packages: []string{"./worker/storageprovisioner/..."},
	never:    []string{"./storage/provider/..."},
	unless:   []string{"./storage/provider"},
	direct:   true,
	reason:   "the worker treats all providers alike; its defaults come from the provider package's front door",
}, {
	packages: []string{"./worker/storageprovisioner/..."},
	never:    []string{"./state/...", "./cmd/..."},
	reason:   "embedders bring their own state and their own command",
}, {
	packages: []string{"./worker/storageprovisioner/internal/schedule"},
	never:    []string{"./...", "github.com/...", "golang.org/...", "gopkg.in/...", "go.etcd.io/...", "go.yaml.in/..."},
	unless:   []string{"github.com/juju/clock"},
	direct:   true,
	reason:   "what is due when is a matter of time alone",
}, {
	packages: []string{"./worker/storageprovisioner/internal/plan"},
	never: []string{
		"os/...", "io/...", "net/...", "syscall/...", "golang.org/x/sys/...", "path/filepath",
		"sync/...", "gopkg.in/tomb.v2", "github.com/juju/worker/...",
		"github.com/juju/clock/...", "github.com/juju/loggo/...", "log/...",
	},
	direct: true,
	reason: "the core is pure, so that random histories can be run through it by the million",
}, {
	packages: []string{"./worker/storageprovisioner/internal/plan"},
	never:    []string{"./worker/...", "./watcher", "./storage/provider/...", "./state/..."},
	unless:   []string{"./worker/storageprovisioner/internal/byid"},
	reason:   "the core is pure: its callers do the I/O",
}, {
	packages: []string{"./worker/storageprovisioner/internal/byid"},
	never:    []string{"./...", "github.com/...", "golang.org/...", "gopkg.in/...", "go.etcd.io/...", "go.yaml.in/..."},
	direct:   true,
	reason:   "how things are found by their ids is nobody else's matter",
}, {
	packages: []string{"./worker/diskmanager/..."},
	never:    []string{"./worker/storageprovisioner/...", "./state/..."},
	reason:   "it publishes block devices through an accessor and does not know their readers",
}, {
	packages: []string{"./state/..."},
	never:    []string{"./worker/...", "./cmd/..."},
	unless:   []string{"./worker"},
	reason:   "workers and commands use the state, not the reverse",
}, {
	packages: []string{"./state/kv/..."},
	never:    []string{"./state"},
	reason:   "the store knows keys and values; a second implementation needs no model",
}, {
	packages: []string{"./state/statefile"},
	never:    []string{"./state"},
	reason:   "a state that cannot be opened can still be copied and restored; its caller reads what it is",
}, {
	packages: []string{"./..."},
	but:      []string{"./testing/...", "./worker/storageprovisioner/internal/scale"}, // a benchmark is no less of a test
	never:    []string{"./testing/..."},
	reason:   "fakes are for tests",
}, {
	packages: []string{"./..."},
	but:      []string{"./cmd/..."},
	never:    []string{"./cmd/..."},
	reason:   "a command is where things are put together, not a thing to build on",
}, {
	packages: []string{"./internal/owner"},
	never:    []string{"./..."},
	reason:   "whose a path is, both the library and the command ask",
}, {
	packages: []string{"./internal/superblock"},
	never:    []string{"./..."},
	reason:   "what is on a device, both providers and workers ask",
}, {
	packages: []string{"./internal/fsync"},
	never:    []string{"./..."},
	reason:   "providers, the state and the command sync in the same way",
}, {
	packages: []string{"./internal/nocow"},
	never:    []string{"./..."},
	reason:   "the state's file and those of volumes are written in place in the same way",
}, {
	packages: []string{"./..."},
	never:    []string{"./internal/syscalltest"},
	reason:   "system calls fail at will in tests alone",
}, {
	packages: []string{"./core/...", "./environs/...", "./apiserver/params", "./watcher", "./storage/...", "./worker/..."},
	but:      []string{"./worker/storageprovisioner/metrics"},
	never:    append([]string{"./worker/storageprovisioner/metrics", "github.com/prometheus/..."}, agentOnly...),
	// names brings yaml.v2 in by itself, and the contract's tags are its.
	notThrough: []string{"github.com/juju/names/v5"},
	reason:     "a program that embeds the library links no command line, store or server",
}}

// An importGraph maps packages to what they import.
type importGraph map[string][]string

// readImports returns the production imports of all packages of the module and of
// all that they depend on.
func readImports(t *testing.T) importGraph {
	t.Helper()
	// A package that does not compile is reported by its own tests.
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Imports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	graph := make(importGraph)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string
			Imports    []string
		}
		err := decoder.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return graph
		}
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		graph[pkg.ImportPath] = pkg.Imports
	}
}

func matches(importPath string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if rest, ok := strings.CutPrefix(pattern, "."); ok {
			pattern = module + rest
		}
		root, tree := strings.CutSuffix(pattern, "/...")
		return importPath == root || tree && strings.HasPrefix(importPath, root+"/")
	})
}

// violations returns a shortest chain of imports from each package that the rule
// is for to each that it forbids, in order.
func (g importGraph) violations(r rule) []string {
	var found []string
	for pkg := range g {
		if !matches(pkg, r.packages) || matches(pkg, r.but) {
			continue
		}
		from := map[string]string{pkg: ""}
		for queue := []string{pkg}; len(queue) > 0; queue = queue[1:] {
			for _, imported := range g[queue[0]] {
				if _, seen := from[imported]; seen {
					continue
				}
				from[imported] = queue[0]
				switch {
				case matches(imported, r.never) && !matches(imported, r.unless):
					chain := imported
					for p := queue[0]; p != ""; p = from[p] {
						chain = p + " → " + chain
					}
					found = append(found, chain)
				case !r.direct && !matches(imported, r.notThrough):
					queue = append(queue, imported)
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestImportRules(t *testing.T) {
	graph := readImports(t)
	for _, r := range rules {
		for _, chain := range graph.violations(r) {
			t.Errorf("%s\n\t%s do not import %s: %s", chain, strings.Join(r.packages, ", "), strings.Join(r.never, ", "), r.reason)
		}
	}
}

func TestImportRulesAreEnforced(t *testing.T) {
	graph := importGraph{
		module + "/a":       {module + "/b", "fmt"},
		module + "/b":       {module + "/c/d", "example.com/names"},
		module + "/c/d":     {"net/http"},
		module + "/cc":      nil,
		"example.com/names": {"example.com/yaml/v2"},
	}
	for _, test := range []struct {
		name string
		rule rule
		want []string
	}{
		{"direct", rule{packages: []string{"./a"}, never: []string{"./b"}, direct: true}, []string{module + "/a → " + module + "/b"}},
		{"direct only", rule{packages: []string{"./a"}, never: []string{"./c/..."}, direct: true}, nil},
		{"through others", rule{packages: []string{"./a"}, never: []string{"./c/..."}}, []string{module + "/a → " + module + "/b → " + module + "/c/d"}},
		{"outside", rule{packages: []string{"./a"}, never: []string{"net/http/..."}}, []string{module + "/a → " + module + "/b → " + module + "/c/d → net/http"}},
		{"not through", rule{packages: []string{"./a"}, never: []string{"example.com/yaml/..."}, notThrough: []string{"example.com/names"}}, nil},
		{"tree", rule{packages: []string{"./..."}, never: []string{"./cc", "./c/..."}, direct: true}, []string{module + "/b → " + module + "/c/d"}},
		{"but", rule{packages: []string{"./..."}, but: []string{"./a"}, never: []string{"fmt"}}, nil},
		{"name is no prefix", rule{packages: []string{"./c"}, never: []string{"net/http"}}, nil},
		{"exception", rule{packages: []string{"./b"}, never: []string{"./..."}, unless: []string{"./c/..."}, direct: true}, nil},
	} {
		if got := graph.violations(test.rule); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// The worker uses the provider package for its defaults only.
func TestWorkerUsesOnlyTheProvidersFrontDoor(t *testing.T) {
	allowed := []string{"NewManagedFilesystemSource", "CommonStorageProviders"}
	forEachFile(t, "worker/storageprovisioner", func(fset *token.FileSet, file *ast.File) {
		for used, pos := range selectorsOf(file, module+"/storage/provider") {
			if !slices.Contains(allowed, used) {
				t.Errorf("%s: the worker uses provider.%s; embedders choose their own providers, so it knows only %s",
					fset.Position(pos), used, strings.Join(allowed, " and "))
			}
		}
	})
}

// The core neither starts goroutines nor asks for the time: it is given facts.
func TestCoreIsPure(t *testing.T) {
	clocks := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	forEachFile(t, "worker/storageprovisioner/internal/plan", func(fset *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: the core starts a goroutine", fset.Position(g.Pos()))
			}
			return true
		})
		for used, pos := range selectorsOf(file, "time") {
			if slices.Contains(clocks, used) {
				t.Errorf("%s: the core uses time.%s", fset.Position(pos), used)
			}
		}
		// An operation that was cancelled is told by these errors.
		for used, pos := range selectorsOf(file, "context") {
			if used != "Canceled" && used != "DeadlineExceeded" {
				t.Errorf("%s: the core uses context.%s", fset.Position(pos), used)
			}
		}
	})
}

// forEachFile parses the production files of dir and of all below it.
func forEachFile(t *testing.T, dir string, f func(*token.FileSet, *ast.File)) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		f(fset, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// selectorsOf returns the names that the file takes from a package that it
// imports.
func selectorsOf(file *ast.File, importPath string) map[string]token.Pos {
	used := make(map[string]token.Pos)
	for _, spec := range file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err != nil || p != importPath {
			continue
		}
		local := path.Base(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == local {
					used[s.Sel.Name] = s.Pos()
				}
			}
			return true
		})
	}
	return used
}
