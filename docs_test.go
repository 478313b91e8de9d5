package stowage_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages tells how many lines there are of each kind in the pages that name tests. Of
// behaviours: those of the worker, which have a bare number, its statuses, growing
// and remarks, attempts, identity, bad neighbours, other provisioners' ways, the report, and pains.
var pages = map[string]map[string]int{
	"docs/behaviours.md":  {"": 37, "S": 12, "G": 12, "A": 10, "I": 8, "B": 10, "O": 11, "R": 4, "P": 14},
	"docs/pains.md":       {"D": 12},
	"docs/faults.md":      {"F": 32},
	"docs/security.md":    {"S": 20},
	"docs/reliability.md": {"N": 30},
}

// suitesIn is where tests are that are named by their suite.
const suitesIn = "worker/storageprovisioner"

// behaviour is a line of a table of behaviours.
type behaviour struct {
	number string
	tests  []string
}

var (
	behaviourLine = regexp.MustCompile(`(?m)^\| ([A-Z]?[0-9]+) \|[^|]+\|([^|]*)\|$`)
	quotedName    = regexp.MustCompile("`([^`]*)`")
)

func parseBehaviours(text string) []behaviour {
	var all []behaviour
	for _, line := range behaviourLine.FindAllStringSubmatch(text, -1) {
		b := behaviour{number: line[1]}
		for _, name := range quotedName.FindAllStringSubmatch(line[2], -1) {
			b.tests = append(b.tests, name[1])
		}
		all = append(all, b)
	}
	return all
}

// numberProblems returns what is wrong with the numbers of the lines.
func numberProblems(all []behaviour, numbers map[string]int) []string {
	var problems []string
	seen := make(map[string]int)
	for _, b := range all {
		seen[b.number]++
		if len(b.tests) == 0 {
			problems = append(problems, b.number+" has no test")
		}
	}
	known := make(map[string]bool)
	for kind, n := range numbers {
		for i := range n {
			number := fmt.Sprintf("%s%d", kind, i+1)
			known[number] = true
			if seen[number] != 1 {
				problems = append(problems, fmt.Sprintf("%s is there %d times", number, seen[number]))
			}
		}
	}
	for number := range seen {
		if !known[number] {
			problems = append(problems, number+" is not known")
		}
	}
	slices.Sort(problems)
	return problems
}

// testsIn returns the names of the tests in the files of a folder: "TestName", and for
// those of a suite "suite.TestName".
func testsIn(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*_test.go"))
	if err != nil {
		return nil, err
	}
	found := make(map[string]bool)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			if f.Recv == nil {
				found[f.Name.Name] = true
			} else if p, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok {
				if suite, ok := p.X.(*ast.Ident); ok {
					found[suite.Name+"."+f.Name.Name] = true
				}
			}
		}
	}
	return found, nil
}

// place returns the folder of a test, and its name there.
func place(test string) (dir, name string) {
	first, _, _ := strings.Cut(test, ".")
	if !strings.Contains(first, "/") && strings.HasSuffix(first, "Suite") {
		return suitesIn, test
	}
	return path.Clean(first), test[min(len(first)+1, len(test)):]
}

func TestBehavioursAreHeldByTests(t *testing.T) {
	folders := make(map[string]map[string]bool)
	for page, numbers := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all := parseBehaviours(string(text))
		for _, problem := range numberProblems(all, numbers) {
			t.Errorf("%s: %s", page, problem)
		}
		for _, b := range all {
			for _, test := range b.tests {
				dir, name := place(test)
				if folders[dir] == nil {
					if folders[dir], err = testsIn(dir); err != nil {
						t.Fatal(err)
					}
				}
				if !folders[dir][name] {
					t.Errorf("%s: %s: there is no test %s in %s", page, b.number, name, dir)
				}
			}
		}
	}
}

func TestBehavioursThatAreNotHeldAreFound(t *testing.T) {
	all := parseBehaviours("| No. | Behaviour | Tests |\n| --- | --- | --- |\n" +
		"| 1 | one | `aSuite.TestA`, `x/y.TestB` |\n| 3 | three | none |\n| S1 | status | `storage.TestC` |\n| S1 | again | `TestD` |\n")
	got := numberProblems(all, map[string]int{"": 2, "S": 1})
	want := []string{"2 is there 0 times", "3 has no test", "3 is not known", "S1 is there 2 times"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for test, want := range map[string][2]string{
		"aSuite.TestA":  {suitesIn, "aSuite.TestA"},
		"x/y.TestB":     {"x/y", "TestB"},
		"storage.TestC": {"storage", "TestC"},
	} {
		if dir, name := place(test); [2]string{dir, name} != want {
			t.Errorf("%s: got %s in %s, want %s in %s", test, name, dir, want[1], want[0])
		}
	}
	tests, err := testsIn(suitesIn)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"TestPackage": true, "volumesSuite.TestCreatedRecordedThenAttached": true,
		"TestCreatedRecordedThenAttached": false, "volumesSuite.TestNothing": false,
	} {
		if tests[name] != want {
			t.Errorf("%s: found %t, want %t", name, tests[name], want)
		}
	}
}
