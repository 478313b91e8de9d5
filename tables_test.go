package stowage_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated files and tables")

// updateCommand is shown when a generated file or table is out of date.
const updateCommand = "make generate"

// tablePages maps the first word of a line in a test's comment to the page with the table. A
// test whose comment has the line
//
//	// Behaviour 17, G3: growing continues after a restart.
//
// is listed in rows 17 and G3 of the tables on that page. The texts of the rows are written by
// hand.
var tablePages = map[string]string{
	"Behaviour": "docs/reference/behaviours.md",
	"Promise":   "docs/explanation/security.md",
	"Fault":     "docs/explanation/faults.md",
	"Finding":   "docs/history/findings.md",
	"Story":     "docs/history/pains.md",
}

// suitesIn is the directory whose suites appear in tables without the directory.
const suitesIn = "worker/storageprovisioner"

// testsByRow maps each row to its tests. The word and the number identify a row, such as
// {"Behaviour", "G3"}.
type testsByRow map[rowID][]string

type rowID struct{ word, number string }

var (
	rowsOfTest = regexp.MustCompile(`(?m)^(Behaviour|Promise|Fault|Finding|Story) ([A-Z]?[0-9]+(?:, [A-Z]?[0-9]+)*)[:.]`)
	tableMark  = regexp.MustCompile(`(?m)^<!-- (\w+) ?([A-Z]?): generated.*-->\n\n\|.*\n\|.*\n((?:\|.*\n)*)`)
	tableRow   = regexp.MustCompile(`^\| ([A-Z]?)([0-9]+) (\| .+ \|) .*\|$`)
)

// add adds a test to the rows that its comment names.
func (rows testsByRow) add(test, comment string) {
	for _, match := range rowsOfTest.FindAllStringSubmatch(comment, -1) {
		for number := range strings.SplitSeq(match[2], ", ") {
			id := rowID{match[1], number}
			if !slices.Contains(rows[id], test) {
				rows[id] = append(rows[id], test)
			}
		}
	}
}

// testName returns the name of a test in tables: "directory.TestName" for a function,
// "directory.suite.TestName" for a method, and "suite.TestName" for a method in suitesIn. For
// other functions it returns "".
func testName(dir string, f *ast.FuncDecl) string {
	if !strings.HasPrefix(f.Name.Name, "Test") {
		return ""
	}
	name := f.Name.Name
	if f.Recv != nil {
		star, ok := f.Recv.List[0].Type.(*ast.StarExpr)
		if !ok {
			return ""
		}
		suite, ok := star.X.(*ast.Ident)
		if !ok {
			return ""
		}
		name = suite.Name + "." + name
		if dir == suitesIn {
			return name
		}
	}
	return path.Clean(filepath.ToSlash(dir)) + "." + name
}

// readRows collects the tests of each row from the comments of all tests.
func readRows(t *testing.T) testsByRow {
	t.Helper()
	rows := make(testsByRow)
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Doc != nil {
				if test := testName(filepath.Dir(name), f); test != "" {
					rows.add(test, f.Doc.Text())
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// render returns a page with the tests in its tables updated, and the problems in its tables:
// rows must be numbered from 1 without a gap, and each row must have a test. The rows of the page
// are deleted from unseen.
func (rows testsByRow) render(page, word string, unseen map[rowID]bool) (renewed string, problems []string) {
	renewed = tableMark.ReplaceAllStringFunc(page, func(table string) string {
		match := tableMark.FindStringSubmatch(table)
		var b strings.Builder
		b.WriteString(strings.TrimSuffix(table, match[3]))
		want := 1
		for line := range strings.Lines(match[3]) {
			cells := tableRow.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
			if cells == nil || match[1] != word || cells[1] != match[2] || cells[2] != strconv.Itoa(want) {
				problems = append(problems, fmt.Sprintf("in the table %q, want row %d, got the line: %s", match[2], want, line))
				b.WriteString(line)
				continue
			}
			want++
			id := rowID{word, cells[1] + cells[2]}
			delete(unseen, id)
			if len(rows[id]) == 0 {
				problems = append(problems, fmt.Sprintf("no test has %q in its comment", "// "+word+" "+id.number+": …"))
			}
			fmt.Fprintf(&b, "| %s %s `%s` |\n", id.number, cells[3], strings.Join(rows[id], "`, `"))
		}
		return b.String()
	})
	return renewed, problems
}

// The tables in documents list the promises and the tests that check them.
func TestTablesAreCurrent(t *testing.T) {
	rows := readRows(t)
	unseen := make(map[rowID]bool)
	for id := range rows {
		unseen[id] = true
	}
	for word, name := range tablePages {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		renewed, problems := rows.render(string(page), word, unseen)
		for _, problem := range problems {
			t.Errorf("%s: %s", name, problem)
		}
		if *update {
			if err := os.WriteFile(name, []byte(renewed), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if renewed != string(page) {
			t.Errorf("%s is out of date; run %s\n%s", name, updateCommand, lineDiff(string(page), renewed))
		}
	}
	for id := range unseen {
		t.Errorf("%s has no row %s, but the comment of %s names it", tablePages[id.word], id.number, rows[id][0])
	}
}

func TestTablesOfComments(t *testing.T) {
	rows := make(testsByRow)
	rows.add("aSuite.TestA", "TestA is about a.\n\nBehaviour 1, G1: one.\nBehaviour 3: more of it.\n")
	rows.add("x/y.TestB", "Behaviour 1.\nStory D1: not of this page. Behaviour 2: not at the beginning.\n")
	const head = "<!-- Behaviour : generated -->\n\n| No. | Behaviour | Tests |\n| --- | --- | --- |\n"
	unseen := map[rowID]bool{{"Behaviour", "1"}: true, {"Behaviour", "3"}: true}
	got, problems := rows.render(head+"| 1 | One \\| two. | old |\n| 2 | Two. | `TestOld` |\n\nEnd.\n", "Behaviour", unseen)
	if want := head + "| 1 | One \\| two. | `aSuite.TestA`, `x/y.TestB` |\n| 2 | Two. | `` |\n\nEnd.\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if len(problems) != 1 || !strings.Contains(problems[0], "Behaviour 2") {
		t.Errorf("got the problems %q, want one about the row without a test", problems)
	}
	if unseen[rowID{"Behaviour", "1"}] || !unseen[rowID{"Behaviour", "3"}] {
		t.Errorf("the unseen rows are %v, want only row 3", unseen)
	}
	if _, problems := rows.render(head+"| 1 | One. | old |\n| 3 | Three. | old |\n", "Behaviour", unseen); len(problems) != 1 {
		t.Errorf("got the problems %q, want one about the gap", problems)
	}
}
