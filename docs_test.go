package stowage_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/core/status"
)

var (
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fencedBlock     = regexp.MustCompile("(?ms)^```.*?^```$")
	notInAnchors    = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// markdownFiles returns the documents of the repository.
func markdownFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".md") {
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// anchors returns the anchors of the headings of a document.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, match := range markdownHeading.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
		anchor := notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(match[1])), "")
		found[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return found
}

// brokenLinks returns the links of the document at a path whose target, a file of the repository
// or a heading, does not exist.
func brokenLinks(t *testing.T, name, text string) []string {
	t.Helper()
	var broken []string
	for _, match := range markdownLink.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
		link := match[1]
		if strings.Contains(link, "://") {
			continue
		}
		file, anchor, hasAnchor := strings.Cut(link, "#")
		target := text
		if file != "" {
			file = filepath.Join(filepath.Dir(name), filepath.FromSlash(file))
			info, err := os.Stat(file)
			if err != nil {
				broken = append(broken, link)
				continue
			}
			if info.IsDir() {
				continue
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			target = string(data)
		}
		if hasAnchor && !anchors(target)[anchor] {
			broken = append(broken, link)
		}
	}
	return broken
}

func TestLinksInDocuments(t *testing.T) {
	for _, name := range markdownFiles(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range brokenLinks(t, name, string(text)) {
			t.Errorf("%s: the target of link %s does not exist", name, link)
		}
	}
}

// The page of the examples says how long they are.
func TestLinesOfExamples(t *testing.T) {
	text, err := os.ReadFile("examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	counts := regexp.MustCompile(`\]\(([a-z/_-]+\.go)\): (\d+)`).FindAllStringSubmatch(string(text), -1)
	if len(counts) < 8 {
		t.Errorf("%d files are counted", len(counts))
	}
	for _, c := range counts {
		file, err := os.ReadFile(filepath.Join("examples", c[1]))
		if lines := strconv.Itoa(strings.Count(string(file), "\n")); err != nil || lines != c[2] {
			t.Errorf("%s has %s lines, and the page says %s, %v", c[1], lines, c[2], err)
		}
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	text := "# A heading, with `code`\n[1](#a-heading-with-code) [2](#none) [3](README.md#licence) [4](README.md#none)\n" +
		"[5](none.md) [6](docs) [7](https://example.com/none)\n```\n[8](none.md)\n```\n"
	got := strings.Join(brokenLinks(t, "x.md", text), " ")
	if want := "#none README.md#none none.md"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The reference lists all statuses.
func TestStatusesInReference(t *testing.T) {
	page, err := os.ReadFile("docs/reference/statuses.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Status values\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var got []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, match[1])
	}
	var want []string
	for _, s := range []status.Status{
		status.Pending, status.Attaching, status.Attached, status.Detaching, status.Detached, status.Destroying, status.Error,
	} {
		want = append(want, string(s))
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/reference/statuses.md lists %q, want %q", got, want)
	}
}

// The reference lists all types of events.
func TestEventsInReference(t *testing.T) {
	page, err := os.ReadFile("docs/reference/events.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("state/event.go")
	if err != nil {
		t.Fatal(err)
	}
	types := regexp.MustCompile(`EventType = "([a-z-]+)"`).FindAllSubmatch(source, -1)
	if len(types) < 20 {
		t.Errorf("found %d types", len(types))
	}
	for _, match := range types {
		if row := regexp.MustCompile("(?m)^\\|[^|]*`" + string(match[1]) + "`[^|]*\\|"); !row.Match(page) {
			t.Errorf("docs/reference/events.md has no row for %q", match[1])
		}
	}
}

// Every document is in the index, so that readers find it.
func TestIndexHasEveryDocument(t *testing.T) {
	index, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range markdownFiles(t) {
		rel, err := filepath.Rel("docs", name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(rel, "..") || rel == "README.md" {
			continue
		}
		if !strings.Contains(string(index), "]("+filepath.ToSlash(rel)+")") {
			t.Errorf("docs/README.md does not list %s", rel)
		}
	}
}

// sourceTexts returns the text of the string literals of each file of the program, joined: a message
// may be written as several literals.
func sourceTexts(t *testing.T) []string {
	t.Helper()
	var texts []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(entry.Name(), ".git") || entry.Name() == "testdata" || entry.Name() == "examples") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var text strings.Builder
		var s scanner.Scanner
		s.Init(token.NewFileSet().AddFile(name, -1, len(source)), source, nil, 0)
		for {
			_, kind, literal := s.Scan()
			if kind == token.EOF {
				break
			}
			if kind == token.STRING {
				if value, err := strconv.Unquote(literal); err == nil {
					text.WriteString(value)
				}
			}
		}
		texts = append(texts, text.String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

var (
	messageBlock = regexp.MustCompile("(?ms)^```message\n(.*?)^```$")
	// notInMessages separates the parts of a message that the code has as one text: values, and
	// the colon before a cause.
	notInMessages = regexp.MustCompile(`…|: |"ID"|\(NAME\)|\b[A-Z]+\b`)
)

// missingParts returns the fixed parts of a quoted message that no text has.
func missingParts(message string, texts []string) []string {
	var missing []string
	for _, part := range notInMessages.Split(message, -1) {
		part = strings.TrimSpace(part)
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, part) }) {
			missing = append(missing, part)
		}
	}
	return missing
}

// The messages in blocks of the language message are messages of the program.
func TestMessagesInDocuments(t *testing.T) {
	texts := sourceTexts(t)
	if missing := missingParts("no such message about PATH: …", texts); len(missing) != 1 {
		t.Errorf("in a message that does not exist, %q is missing", missing)
	}
	blocks := 0
	for _, name := range markdownFiles(t) {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range messageBlock.FindAllStringSubmatch(string(page), -1) {
			blocks++
			for message := range strings.Lines(block[1]) {
				for _, part := range missingParts(strings.TrimSpace(message), texts) {
					t.Errorf("%s quotes %q: nothing in the code says %q", name, strings.TrimSpace(message), part)
				}
			}
		}
	}
	if blocks < 20 {
		t.Errorf("found %d blocks of messages", blocks)
	}
}

// The commands that documents name exist.
func TestCommandsInDocuments(t *testing.T) {
	reference, err := os.ReadFile("docs/reference/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, match := range regexp.MustCompile(`(?m)^## stowage ([a-z -]+)$`).FindAllStringSubmatch(string(reference), -1) {
		known[match[1]] = true
	}
	named := regexp.MustCompile("`stowage ([a-z][a-z-]*)( [a-z-]+)?")
	for _, name := range markdownFiles(t) {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(page), -1) {
			isGroup := slices.Contains([]string{"context", "machine", "pools", "snapshot", "token"}, match[1])
			if !known[match[1]] || isGroup && match[2] != "" && !known[match[1]+match[2]] {
				t.Errorf("%s names %q, which is no command", name, match[0][1:])
			}
		}
	}
	if len(known) < 40 {
		t.Errorf("the reference has %d commands", len(known))
	}
}

// Go code in documents that names its file is a part of that file.
func TestCodeInDocuments(t *testing.T) {
	quoted := regexp.MustCompile("(?ms)^<!-- From (\\S+) -->\n\n```go\n(.*?)^```$")
	blocks := 0
	for _, name := range markdownFiles(t) {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range quoted.FindAllStringSubmatch(string(page), -1) {
			blocks++
			source, err := os.ReadFile(block[1])
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !strings.Contains(string(source), block[2]) {
				t.Errorf("%s quotes code that %s does not have:\n%s", name, block[1], block[2])
			}
		}
	}
	if blocks == 0 {
		t.Error("no document quotes code")
	}
}
