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

// rule forbids imports. Patterns are import paths: "x/..." matches x and every package under it,
// and a leading "." stands for this module. Rules apply to production code only; tests may
// import any package.
type rule struct {
	packages []string // the packages to which the rule applies …
	but      []string // … except these
	never    []string // the packages that they must not import …
	unless   []string // … except these

	// direct limits the rule to a package's own imports. Other rules also follow indirect
	// imports, except through the packages in notThrough.
	direct     bool
	notThrough []string

	reason string
}

// agentOnly lists packages that only the agent may use: the library leaves that choice to its
// embedders.
var agentOnly = []string{
	"github.com/spf13/...",
	"go.yaml.in/yaml/...", "gopkg.in/yaml.v2/...", "gopkg.in/yaml.v3/...",
	"go.etcd.io/bbolt/...", "github.com/fxamacker/cbor/...",
	"github.com/coreos/go-systemd/...",
	"net/http/...",
}

var rules = []rule{{
	packages: []string{"./core/..."},
	never:    []string{"./..."},
	reason:   "every package may use these small value types, so they depend on none",
}, {
	packages: []string{"./apiserver/params"},
	never:    []string{"./..."},
	unless:   []string{"./core/...", "./storage"},
	direct:   true,
	reason:   "the wire format is plain data; besides core, it needs only BlockDevice and DeviceType of storage",
}, {
	packages: []string{"./watcher"},
	never:    []string{"./storage", "./storage/..."},
	direct:   true,
	reason:   "watchers report IDs, not storage; the ID type comes from the wire format",
}, {
	packages: []string{"./watcher"},
	never:    []string{"./worker/..."},
	unless:   []string{"./worker"},
	reason:   "workers use watchers, not the reverse",
}, {
	packages: []string{"./watcher/feed"},
	never:    []string{"./..."},
	unless:   []string{"./internal/delay"},
	direct:   true,
	reason:   "it carries IDs of any type, for states that know neither storage nor workers",
}, {
	packages: []string{"./watcher/mounts"},
	never:    []string{"./storage", "./storage/...", "./worker/..."},
	unless:   []string{"./worker"},
	direct:   true,
	reason:   "it reports that mounts change, not which storage they belong to",
}, {
	packages: []string{"./environs/config"},
	never:    []string{"./storage/provider/...", "./worker/..."},
	reason:   "providers and workers read settings; settings do not depend on their readers",
}, {
	packages: []string{"./environs/envcontext", "./worker"},
	never:    []string{"./..."},
	reason:   "every package may use this one interface, so it depends on none",
}, {
	packages: []string{"./storage"},
	never:    []string{"./storage/provider/...", "./worker/...", "./watcher"},
	reason:   "providers and workers share this vocabulary, and do not depend on each other",
}, {
	packages: []string{"./storage/poolmanager/...", "./storage/plans/..."},
	never:    []string{"./worker/..."},
	unless:   []string{"./worker"},
	reason:   "workers use these packages, not the reverse",
}, {
	packages: []string{"./storage/provider/..."},
	never:    []string{"./worker/...", "./watcher", "./state/..."},
	reason:   "a provider serves callers other than the worker, and keeps its own records",
}, {
	packages: []string{"./storage/provider/internal/..."},
	but: []string{
		"./storage/provider/internal/object", "./storage/provider/internal/sourcetest", // shared by the sources
	},
	never:  []string{"./storage"},
	reason: "these Linux packages handle devices, mounts and files, and do not know their purpose",
}, {
	packages: []string{"./worker/storageprovisioner/..."},
	never:    []string{"./storage/provider/..."},
	unless:   []string{"./storage/provider"},
	direct:   true,
	reason:   "the worker treats all providers alike; it gets its defaults from the top-level provider package",
}, {
	packages: []string{"./worker/storageprovisioner/..."},
	never:    []string{"./state/...", "./cmd/..."},
	reason:   "embedders supply their own state and their own command",
}, {
	packages: []string{"./worker/storageprovisioner/internal/schedule"},
	never:    []string{"./...", "github.com/...", "golang.org/...", "gopkg.in/...", "go.etcd.io/...", "go.yaml.in/..."},
	unless:   []string{"github.com/juju/clock"},
	direct:   true,
	reason:   "a schedule depends only on time",
}, {
	packages: []string{"./worker/storageprovisioner/internal/plan"},
	never: []string{
		"os/...", "io/...", "net/...", "syscall/...", "golang.org/x/sys/...", "path/filepath",
		"sync/...", "gopkg.in/tomb.v2", "github.com/juju/worker/...",
		"github.com/juju/clock/...", "github.com/juju/loggo/...", "log/...",
	},
	direct: true,
	reason: "the core is pure, so that tests can run millions of random histories through it",
}, {
	packages: []string{"./worker/storageprovisioner/internal/plan"},
	never:    []string{"./worker/...", "./watcher", "./storage/provider/...", "./state/..."},
	unless:   []string{"./worker/storageprovisioner/internal/byid"},
	reason:   "the core is pure: its callers do the I/O",
}, {
	packages: []string{"./worker/storageprovisioner/internal/byid"},
	never:    []string{"./...", "github.com/...", "golang.org/...", "gopkg.in/...", "go.etcd.io/...", "go.yaml.in/..."},
	direct:   true,
	reason:   "a map by ID needs no other package",
}, {
	packages: []string{"./worker/diskmanager/..."},
	never:    []string{"./worker/storageprovisioner/...", "./state/..."},
	reason:   "it publishes block devices through an accessor, and does not depend on their readers",
}, {
	packages: []string{"./state/..."},
	never:    []string{"./worker/...", "./cmd/...", "./api", "./apiserver/agentapi"},
	unless:   []string{"./worker"},
	reason:   "workers, commands and the API use the state, not the reverse",
}, {
	packages: []string{"./apiserver/agentapi"},
	never:    []string{"./state/...", "./cmd/...", "./api"},
	reason:   "it serves the accessors of package storageprovisioner, whatever state is behind them",
}, {
	packages: []string{"./api"},
	never:    []string{"./apiserver/agentapi", "./state/...", "./worker/...", "./storage/provider/...", "./cmd/..."},
	unless:   []string{"./worker"},
	reason:   "an agent of others links the client, and no worker, provider or state with it",
}, {
	packages: []string{"./api/user"},
	never:    []string{"./...", "github.com/danielgtaylor/huma/..."},
	unless:   []string{"./apiserver/params", "./core/..."},
	direct:   true,
	reason:   "a program that uses the API links its types and a client, and nothing else",
}, {
	packages: []string{"./..."},
	but:      []string{"./apiserver/userapi", "./cmd/..."},
	never:    []string{"github.com/danielgtaylor/huma/..."},
	reason:   "only the server's side of the API of users needs the framework",
}, {
	packages: []string{"./apiserver/userapi"},
	never:    []string{"./state/...", "./worker/...", "./storage/...", "./cmd/..."},
	unless:   []string{"./storage"},
	reason:   "it serves any backend",
}, {
	packages: []string{"./internal/agentwire"},
	never:    []string{"./..."},
	unless:   []string{"./apiserver/params", "./core/...", "./storage"},
	direct:   true,
	reason:   "both sides of the agent API use it, so it depends on neither",
}, {
	packages: []string{"./state/kv/..."},
	never:    []string{"./state"},
	reason:   "the store holds keys and values; another implementation must not need the model",
}, {
	packages: []string{"./state/statefile"},
	never:    []string{"./state"},
	reason:   "a state file can be copied and restored even if the state in it cannot be opened; callers interpret the contents",
}, {
	packages: []string{"./..."},
	but:      []string{"./testing/..."},
	never:    []string{"./testing/..."},
	reason:   "fakes are for tests",
}, {
	packages: []string{"./..."},
	but:      []string{"./cmd/..."},
	never:    []string{"./cmd/..."},
	reason:   "a command assembles packages; no package builds on a command",
}, {
	packages: []string{"./cmd/stowage/internal/ui"},
	never:    []string{"./..."},
	unless:   []string{"./api/user", "./cmd/stowage/internal/table"},
	direct:   true,
	reason:   "the page shows what a client reads, and has no other way to what it shows",
}, {
	packages: []string{"./internal/owner"},
	never:    []string{"./..."},
	reason:   "the library and the command both use it, so it depends on neither",
}, {
	packages: []string{"./internal/superblock"},
	never:    []string{"./..."},
	reason:   "providers and workers both use it, so it depends on neither",
}, {
	packages: []string{"./internal/run"},
	never:    []string{"./..."},
	unless:   []string{"./internal/owner", "./internal/osthread"},
	reason:   "providers, plans and servers run programs, so it depends on none of them",
}, {
	packages: []string{"./internal/fsync"},
	never:    []string{"./..."},
	reason:   "providers, the state and the command all use it, so it depends on none of them",
}, {
	packages: []string{"./internal/nocow"},
	never:    []string{"./..."},
	reason:   "the state's store and the loop provider both use it, so it depends on neither",
}, {
	packages: []string{"./..."},
	but:      []string{"./state/kv/etcdkv", "./testing/etcdtest", "./cmd/stowage", "./cmd/stowage/internal/cli", "./cmd/stowage/internal/manpages", "./cmd/stowage/internal/server", "./cmd/stowage/internal/member"},
	never:    []string{"go.etcd.io/etcd/...", "go.etcd.io/raft/..."},
	reason:   "etcd is large: only the store in a cluster, and a server that uses it, need it",
}, {
	packages: []string{"./..."},
	but: []string{
		"./state/kv/etcdkv", "./testing/etcdtest", "./cmd/stowage", "./cmd/stowage/internal/cli", "./cmd/stowage/internal/manpages", "./cmd/stowage/internal/server",
		"./cmd/stowage/internal/member", "./cmd/stowage/internal/csi", "./cmd/stowage/internal/agent", "./cmd/stowage/internal/remote",
		"./storage/provider/csi", "./cmd/stowage/internal/plugins", "./examples/csi",
	},
	never:  []string{"google.golang.org/grpc/..."},
	reason: "gRPC is large: only what uses etcd, or serves or uses CSI, needs it",
}, {
	packages: []string{"./..."},
	but: []string{
		"./cmd/stowage", "./cmd/stowage/internal/cli", "./cmd/stowage/internal/manpages", "./cmd/stowage/internal/csi", "./cmd/stowage/internal/agent",
		"./cmd/stowage/internal/server", "./cmd/stowage/internal/remote",
		"./storage/provider/csi", "./cmd/stowage/internal/plugins", "./examples/csi",
	},
	never:  []string{"github.com/container-storage-interface/..."},
	reason: "CSI is one way in, and one provider: others know the storage as that of package asked, or of package storage",
}, {
	packages: []string{"./..."},
	but:      []string{"./cmd/stowage/internal/manpages"},
	never:    []string{"github.com/spf13/cobra/doc"},
	reason:   "the pages are generated when a package is made; the command does not link what that needs",
}, {
	packages: []string{"./..."},
	never:    []string{"./internal/syscalltest"},
	reason:   "only tests make system calls fail",
}, {
	packages: []string{"./core/...", "./environs/...", "./apiserver/params", "./watcher", "./storage/...", "./worker/..."},
	but:      []string{"./worker/storageprovisioner/metrics", "./worker/metricsserver", "./storage/provider/csi"},
	never:    append([]string{"./worker/storageprovisioner/metrics", "./worker/metricsserver", "./api", "./apiserver/agentapi", "github.com/prometheus/..."}, agentOnly...),
	// names imports yaml.v2 itself, and the library's interfaces use its tags.
	notThrough: []string{"github.com/juju/names/v5"},
	reason:     "a program that embeds the library must not link a command line, a store or a server",
}}

// importGraph maps each package to its imports.
type importGraph map[string][]string

// readImports returns the production imports of all packages of the module and of all their
// dependencies.
func readImports(t *testing.T) importGraph {
	t.Helper()
	// With -e, list does not fail if a package does not compile: its own tests report that.
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

// violations returns, in order, a shortest chain of imports from each package to which the rule
// applies to each package that it forbids.
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
			t.Errorf("%s\n\t%s must not import %s: %s", chain, strings.Join(r.packages, ", "), strings.Join(r.never, ", "), r.reason)
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
		{"not a path prefix", rule{packages: []string{"./c"}, never: []string{"net/http"}}, nil},
		{"exception", rule{packages: []string{"./b"}, never: []string{"./..."}, unless: []string{"./c/..."}, direct: true}, nil},
	} {
		if got := graph.violations(test.rule); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// The worker uses the provider package only for its defaults.
func TestWorkerUsesOnlyTheProvidersFrontDoor(t *testing.T) {
	allowed := []string{"NewManagedFilesystemSource", "CommonStorageProviders"}
	forEachFile(t, "worker/storageprovisioner", func(fset *token.FileSet, file *ast.File) {
		for used, pos := range selectorsOf(file, module+"/storage/provider") {
			if !slices.Contains(allowed, used) {
				t.Errorf("%s: the worker uses provider.%s; embedders choose their own providers, so it may use only %s",
					fset.Position(pos), used, strings.Join(allowed, " and "))
			}
		}
	})
}

// The core neither starts goroutines nor reads the clock: its callers supply facts and the time.
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
		// These errors identify a cancelled operation.
		for used, pos := range selectorsOf(file, "context") {
			if used != "Canceled" && used != "DeadlineExceeded" {
				t.Errorf("%s: the core uses context.%s", fset.Position(pos), used)
			}
		}
	})
}

// forEachFile calls f with each production file of dir and its subdirectories, parsed.
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

// selectorsOf returns the names that the file uses from an imported package, each with a position
// of its use.
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
