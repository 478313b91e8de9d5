package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// instrumentSource returns the mutants of a source, and the source with them.
func instrumentSource(t *testing.T, source string) (mutants []string, instrumented string) {
	t.Helper()
	l := newTestLab(t)
	all, _, err := l.list(t.Context(), "errors", "time")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "p.go", source)
	next := 0
	sources, found, err := instrumentPackage(all, listed{ImportPath: "p", Dir: dir, GoFiles: []string{"p.go"}}, &next)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		mutants = append(mutants, m.key().text)
	}
	return mutants, sources[filepath.Join(dir, "p.go")]
}

func newTestLab(t *testing.T) *lab {
	t.Helper()
	l, err := newLab(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMutants(t *testing.T) {
	for _, test := range []struct {
		name, source string
		want         []string
	}{{
		"conditions", `func f(a, b bool, n int) { if a && !(b || n == 2) { return } }`,
		[]string{
			"f: if a && !(b || n == 2) | a → true", "f: if a && !(b || n == 2) | a → false",
			"f: if a && !(b || n == 2) | b → true", "f: if a && !(b || n == 2) | b → false",
			"f: if a && !(b || n == 2) | n == 2 → true", "f: if a && !(b || n == 2) | n == 2 → false",
			"f: if a && !(b || n == 2) | 2 → one more",
			"f: return | removed",
		},
	}, {
		"a loop does not go on for ever", `func f(a bool) { for a { f(a) } }`,
		[]string{"f: for a | a → false", "f: f(a) | removed"},
	}, {
		"a case without a tag", `func f(a bool) { switch { case a: f(a) } }`,
		[]string{"f: case a | a → true", "f: case a | a → false", "f: f(a) | removed"},
	}, {
		"cases with a tag", `func f(s string) { switch s { case "a", "b": f(s) } }`,
		[]string{`f: switch s | case "a" dropped`, `f: switch s | case "b" dropped`, "f: f(s) | removed"},
	}, {
		"cases of a select", `func f(c chan int) { select { case <-c: case c <- 1: default: } }`,
		[]string{"f: case <-c | never", "f: case c <- 1 | never", "f: c <- 1 | 1 → one more"},
	}, {
		"boundaries", `func f(a, b int) bool { return a < b }`,
		[]string{"f: return a < b | a < b → true", "f: return a < b | a < b → false", "f: return a < b | a < b: < → <="},
	}, {
		"a length is not negative", `func f(a string) bool { return len(a) > 0 }`,
		[]string{"f: return len(a) > 0 | len(a) > 0 → true", "f: return len(a) > 0 | len(a) > 0 → false", "f: return len(a) > 0 | 0 → one more"},
	}, {
		"boundaries in time", `import "time"; func f(a, b time.Time) { _ = a.After(b) }`,
		[]string{"f: _ = a.After(b) | a.After(b): or equal"},
	}, {
		"arithmetic", `func f(a int, s string) { a = a*2 - 1; s = s + s }`,
		[]string{
			"f: a = a*2 - 1 | removed", "f: a = a*2 - 1 | a*2 - 1: - → +", "f: a = a*2 - 1 | a*2: * → /",
			"f: a = a*2 - 1 | 2 → one more", "f: a = a*2 - 1 | 1 → one more", "f: s = s + s | removed",
		},
	}, {
		"statements", `func f(c chan int) { defer f(c); go f(c); c <- len(c); for range c { f(c); break }; x := 5 - len(c); x++; _ = x; f(c) }`,
		[]string{
			"f: defer f(c) | removed", "f: go f(c) | removed", "f: c <- len(c) | removed", "f: for range c | removed",
			"f: f(c) | removed", "f: break | removed", "f: x := 5 - len(c) | 5 - len(c): - → +", "f: x := 5 - len(c) | 5 → one more",
			"f: x++ | removed", "f: f(c) | removed (2)",
		},
	}, {
		"results", `import "errors"; type T struct{ a int; b string }; func (t *T) f() (*T, T, error, bool, string, int) { return t, T{}, errors.New(""), true, "s", 0 }`,
		[]string{
			`T.f: return t, T{}, errors.New(""), true, "s", 0 | t → zero`,
			`T.f: return t, T{}, errors.New(""), true, "s", 0 | errors.New("") → zero`,
			`T.f: return t, T{}, errors.New(""), true, "s", 0 | "s" → zero`,
			`T.f: return t, T{}, errors.New(""), true, "s", 0 | true → false`,
			`T.f: return t, T{}, errors.New(""), true, "s", 0 | 0 → one more`,
		},
	}, {
		"fields", `type T struct{ a []int; b any }; func f(a []int) { _ = T{a: a, b: a}; _ = &T{a, nil} }`,
		[]string{"f: _ = T{a: a, b: a} | a: a → zero", "f: _ = T{a: a, b: a} | b: a → zero", "f: _ = &T{a, nil} | a → zero"},
	}, {
		"no mutants of constants, hints and traces", `
			const c = 1 + 2
			type l struct{}
			func (l) Debugf(string, ...any) {}
			func f(a [3]int) { _ = make(map[int]int, 5); _ = make([]int, 0, 5); l{}.Debugf("%d", 1+len(a)); panic("") }`,
		[]string{"f: _ = make([]int, 0, 5) | 0 → one more"},
	}} {
		t.Run(test.name, func(t *testing.T) {
			got, _ := instrumentSource(t, "package p\n"+test.source)
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(test.want, "\n\t"))
			}
		})
	}
}

// Line numbers stay true, so that positions in the output of a mutant's tests can be found.
func TestInstrumentedSourceKeepsLines(t *testing.T) {
	const source = "package p\n\nfunc f(a, b int) bool {\n\tif a <\n\t\tb {\n\t\treturn a+\n\t\t\tb > 3\n\t}\n\treturn true\n}\n"
	_, got := instrumentSource(t, source)
	const want = "package p\n\nfunc f(a, b int) bool {\n\tif mutateCond(1, 2, mutateLess(3, a ,\n\t\tb)) {\n\t\treturn mutateCond(4, 5, mutateGreater(6, mutateAdd(7, a,\n\t\t\tb) , mutateMore[int](8, 3)))\n\t}\n\treturn mutateCond(-1, 9, true)\n}\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Packages that use the whole language still compile with their mutants.
func TestInstrumentedSourceCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles eight packages")
	}
	l := newTestLab(t)
	all, matched, err := l.list(t.Context(), "database/sql", "encoding/xml", "go/types", "slices", "encoding/json", "text/template", "os", "testing")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range matched {
		next := 0
		sources, mutants, err := instrumentPackage(all, all[p], &next)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range slices.Sorted(maps.Keys(sources)) {
			file, err := parser.ParseFile(fset, name, sources[name], parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		if _, _, err := check(fset, all, p, files); err != nil {
			t.Errorf("%s, %d mutants: %v", p, len(mutants), err)
		}
	}
}

// module writes a module of one package. test is the body of its only test.
func module(t *testing.T, test string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "go.mod", "module example.com/m\n\ngo 1.26\n")
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "p/p.go", `package p

func Bigger(a, b int) int {
	if a > b {
		return a
	}
	return b
}
`)
	write(t, dir, "p/p_test.go", "package p\n\nimport \"testing\"\n\nfunc Test(t *testing.T) {\n"+test+"\n}\n")
	return dir
}

const (
	wanting = `if Bigger(1, 2) != 2 { t.Error("Bigger") }`
	whole   = `if Bigger(2, 1) != 2 { t.Error("Bigger") }; ` + wanting
	equal   = "\tBigger: if a > b | a > b: > → >=\n"
)

func TestMutate(t *testing.T) {
	for _, test := range []struct {
		name, tests, explained string
		options                options
		want                   []string // each in the output
		never                  string   // not in the output
		err                    string
	}{{
		name: "survivors", tests: wanting,
		want: []string{
			"p/p.go:4: survived\n" + equal,
			"p/p.go:4: survived\n\tBigger: if a > b | a > b → false\n",
			"p/p.go:5: survived\n\tBigger: return a | a → zero\n",
			"5       2          0         3          0  p\n",
		},
		err: "3 unexplained survivors",
	}, {
		name: "explained survivors", tests: whole, explained: "## `p`\nThey are the same.\n\n" + equal,
		want:  []string{"5       4          0         0          1  p\n"},
		never: "survived\n",
	}, {
		name: "an explanation of an unknown mutant", tests: whole, explained: "## p\nSame.\n" + equal + "\tNothing: x | y\n",
		want: []string{"explained.md:4: explained, but no mutant\n\tNothing: x | y\n"},
		err:  "1 explanations too many",
	}, {
		name: "an explanation of a killed mutant", tests: whole, explained: "## p\nSame.\n" + equal + "\tBigger: return b | b → zero\n",
		options: options{known: true},
		want:    []string{"explained.md:4: explained, but killed\n\tBigger: return b | b → zero\n"},
		never:   "survived\n",
		err:     "1 explanations too many",
	}, {
		name: "an explanation in another package", tests: whole, explained: "## other\nSame.\n\tNothing: x | y\n\n## p\nSame.\n" + equal,
		never: "Nothing",
	}, {
		name: "some", tests: wanting, options: options{run: regexp.MustCompile(`p\.go:5: `)},
		want: []string{"1       0          0         1          0  p\n"},
		err:  "1 unexplained survivors",
	}, {
		name: "a list", tests: "t.Fatal()", options: options{list: true},
		want:  []string{"p/p.go:7: Bigger: return b | b → zero\n"},
		never: "survived",
	}, {
		name: "tests that fail by themselves", tests: `t.Fatal("the reason")`,
		err: "the reason",
	}} {
		t.Run(test.name, func(t *testing.T) {
			explained, err := parseExplanations("explained.md", strings.NewReader(test.explained))
			if err != nil {
				t.Fatal(err)
			}
			if test.options.run == nil {
				test.options.run = regexp.MustCompile("")
			}
			test.options.parallel = 4
			dir := module(t, test.tests)
			before := files(t, dir)
			var out strings.Builder
			err = mutate(t.Context(), dir, []target{{dir: "p", suites: []suite{{dir: "p"}}}}, explained, test.options, &out)
			if got := fmt.Sprint(err); err == nil && test.err != "" || err != nil && (test.err == "" || !strings.Contains(got, test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not printed:\n%s", want, out.String())
				}
			}
			if test.never != "" && strings.Contains(out.String(), test.never) {
				t.Errorf("%q is printed:\n%s", test.never, out.String())
			}
			if after := files(t, dir); !maps.Equal(before, after) {
				t.Errorf("the tree was %q, and is %q", before, after)
			}
		})
	}
}

// A mutant that never ends is stopped, and one that fails is not waited for.
func TestEndlessMutantEnds(t *testing.T) {
	dir := module(t, `if Bigger(3, 2) != 3 { t.Error("Bigger") }; if Bigger(2, 3) != 3 { t.Error("Bigger") }; count(3)`)
	write(t, dir, "p/count.go", "package p\n\nfunc count(n int) {\n\tfor c := 0; c < n; {\n\t\tc++\n\t}\n}\n")
	var out strings.Builder
	targets := []target{{dir: "p", suites: []suite{{dir: "p"}}}}
	o := options{run: regexp.MustCompile(`c\+\+`), parallel: 1}
	if err := mutate(t.Context(), dir, targets, &explanations{}, o, &out); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if want := "1       0          1         0          0  p\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not printed:\n%s", want, &out)
	}
}

// A later suite may kill a mutant that an earlier one does not notice.
func TestLaterSuiteKillsMutant(t *testing.T) {
	dir := module(t, wanting)
	if err := os.Mkdir(filepath.Join(dir, "q"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "q/q_test.go", `package q

import (
	"testing"

	"example.com/m/p"
)

func Test(t *testing.T) {
	if p.Bigger(2, 1) != 2 {
		t.Error("Bigger")
	}
}
`)
	explained, err := parseExplanations("", strings.NewReader("## p\nSame.\n"+equal))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	targets := []target{{dir: "p", suites: []suite{{dir: "p"}, {dir: "q", args: []string{"-test.count=2"}}}}}
	if err := mutate(t.Context(), dir, targets, explained, options{run: regexp.MustCompile(""), parallel: 4}, &out); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
}

// files returns the contents of the files of a tree.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, pattern := range []string{"*", "*/*"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, _ := os.ReadFile(name) // empty for a directory
			found[name] = string(text)
		}
	}
	return found
}

func TestParseExplanationsErrors(t *testing.T) {
	for text, want := range map[string]string{
		"reason\n\tf: a | b\n":                         "x.md:2: a mutant without a package or a reason",
		"## p\n\n\tf: a | b\n":                         "x.md:3: a mutant without a package or a reason",
		"## p\nreason\n\tf: a | b\n## q\n\tf: a | b\n": "x.md:5: a mutant without a package or a reason",
		"## p\nreason\n\tf: a | b\nmore\n\tf: a | b\n": "x.md:5: already explained in line 3",
	} {
		if _, err := parseExplanations("x.md", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func TestParseOwnExplanations(t *testing.T) {
	if _, err := parseExplanations(survivorsName, strings.NewReader(string(survivors))); err != nil {
		t.Error(err)
	}
}

func TestChoose(t *testing.T) {
	all, err := choose(nil)
	if err != nil || len(all) != len(targets) {
		t.Errorf("%d targets, error %v", len(all), err)
	}
	one, err := choose([]string{"./worker/storageprovisioner/internal/plan/"})
	if err != nil || len(one) != 1 || one[0].dir != "worker/storageprovisioner/internal/plan" {
		t.Errorf("%v, error %v", one, err)
	}
	if _, err := choose([]string{"./state"}); err == nil || !strings.Contains(err.Error(), `"./state" is not a target`) {
		t.Errorf("error %v", err)
	}
}
