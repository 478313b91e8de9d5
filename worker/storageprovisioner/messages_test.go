package storageprovisioner

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestMessagesAreCut(t *testing.T) {
	for _, test := range []struct {
		message string
		most    int
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
		if got := truncateTo(test.message, test.most); got != test.want {
			t.Errorf("%q of at most %d bytes: got %q, want %q", test.message, test.most, got, test.want)
		}
	}
}

func TestLinesAreOfWhatCanBePrinted(t *testing.T) {
	got := singleLine("a\tb\nc\r\x1b[2J\u202eé\xff d")
	if want := `a\tb\nc\u000d\u001b[2J\u202eé? d`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzMessages holds that whatever somebody says is told in bounds.
func FuzzMessages(f *testing.F) {
	for _, s := range []string{"", "a", "\xff", "é\n", strings.Repeat("é\x00", maxMessage)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		short := truncate(s)
		if len(short) > maxMessage || !utf8.ValidString(short) {
			t.Errorf("%q is cut to %d bytes", s, len(short))
		}
		if len(s) <= maxMessage && utf8.ValidString(s) && short != s {
			t.Errorf("%q is cut, and need not be", s)
		}
		if strings.ContainsFunc(singleLine(s), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is logged as %q", s, singleLine(s))
		}
	})
}
