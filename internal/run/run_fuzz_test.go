package run_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stowage-io/stowage/internal/run"
)

// FuzzPrintable makes a program's output fit on one line, whatever it is, and leaves text
// alone that fits already.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"", "a  b\n", "\x1b[2J", "\xff\xfe", "\u202egnp.exe", " ü ", "\u00a0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := run.Printable(s)
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.TrimSpace(text) != text {
			t.Errorf("%q becomes %q", s, text)
		}
		if again := run.Printable(text); again != text {
			t.Errorf("%q becomes %q, which becomes %q", s, text, again)
		}
		if utf8.RuneCountInString(text) > utf8.RuneCountInString(s) {
			t.Errorf("%q has grown to %q", s, text)
		}
	})
}
