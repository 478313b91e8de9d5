package guard

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Behaviour B6: truncation does not split a character, and replaces invalid UTF-8.
func TestTruncateTo(t *testing.T) {
	for _, test := range []struct {
		message string
		limit   int
		want    string
	}{
		{"", 30, ""},
		{"short", 5, "short"},
		{"é\xff\xfe.", 30, "é?."},
		{strings.Repeat("é", 30), 40, "ééééééééé… (60 bytes in all)"},
		{"." + strings.Repeat("é", 30), 40, ".ééééééééé… (61 bytes in all)"},
		{strings.Repeat("\x80", 60), 40, "?… (60 bytes in all)"},
		{"too little room", 3, "… (15 bytes in all)"},
	} {
		if got := TruncateTo(test.message, test.limit); got != test.want {
			t.Errorf("TruncateTo(%q, %d) = %q, want %q", test.message, test.limit, got, test.want)
		}
	}
}

// Behaviour B6: a line of the log has no control characters.
func TestSingleLineEscapesUnprintable(t *testing.T) {
	got := SingleLine("a\tb\nc\r\x1b[2J\u202eé\xff d")
	if want := `a\tb\nc\u000d\u001b[2J\u202eé? d`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzMessages checks that any message is truncated to valid UTF-8, and logged on one line.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{"", "a", "\xff", "é\n", strings.Repeat("é\x00", maxMessage)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		short := Truncate(s)
		if len(short) > maxMessage || !utf8.ValidString(short) {
			t.Errorf("Truncate(%q) has %d bytes, or is not valid UTF-8", s, len(short))
		}
		if len(s) <= maxMessage && utf8.ValidString(s) && short != s {
			t.Errorf("Truncate(%q) = %q, want no change", s, short)
		}
		if strings.ContainsFunc(SingleLine(s), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("SingleLine(%q) = %q, which is not printable", s, SingleLine(s))
		}
	})
}
