package stowage_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// awkward matches words that make a sentence hard to read. Each has a plain replacement.
var awkward = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"ane" + "w", "be" + "neath", "who" + "ever", "mean" + "while", "by" + " now", "of" + " which",
	"for the" + " want of", "is" + " none", "told" + " of", "lets?" + " go of",
}, "|") + `)\b`)

// Comments, messages and documents use the words that an engineer expects.
func TestPlainLanguage(t *testing.T) {
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata" || entry.Name() == "bin") {
			return fs.SkipDir
		}
		if ext := filepath.Ext(name); ext != ".go" && ext != ".md" && entry.Name() != "Makefile" {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for n, line := range strings.Split(string(data), "\n") {
			if found := awkward.FindString(line); found != "" {
				t.Errorf("%s:%d: %q: use plainer words", name, n+1, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
