package table_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
)

// wantPrintable fails unless the text is one line of printable characters.
func wantPrintable(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%s %q has unprintable characters", what, text)
	}
}

// FuzzTable shows storage with arbitrary texts. Each row is one line, and contains nothing
// that controls a terminal.
func FuzzTable(f *testing.F) {
	f.Add("data", "loop", "attached", "alive", "/srv", "", uint64(1024), uint64(2048), int64(1))
	f.Add("\x1b[2J", "\xff", "e\rrror", "dying\n", "/\x1b[2J\t", "\u202egnp.exe", uint64(0), uint64(1<<63), int64(-1))
	f.Fuzz(func(t *testing.T, name, pool, value, lifeValue, location, message string, size, wanted uint64, age int64) {
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		row := user.Storage{
			Name: name, Kind: pool, Pool: pool, SizeMiB: size, WantedMiB: wanted, Life: life.Value(lifeValue),
			Status: status.Status(value), Message: message, Location: location, Since: now.Add(-time.Duration(age)),
		}
		wantPrintable(t, "line", table.Line(row))
		var b bytes.Buffer
		if err := table.Write(&b, []user.Storage{row, row}, now, table.Layout{}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(b.String(), "\n")
		if len(lines) != 4 || lines[3] != "" {
			t.Errorf("a header and two rows take %d lines, want 3:\n%s", len(lines)-1, b.String())
		}
		for n, line := range lines {
			wantPrintable(t, "row", line)
			for _, word := range []string{name, pool, location, message} {
				if word = strings.TrimRight(table.Escape(word), " "); (n == 1 || n == 2) && !strings.Contains(line, word) {
					t.Errorf("row %q does not show %q", line, word)
				}
			}
		}
		// On a terminal of any width, everything that is not the same for most storage is shown.
		b.Reset()
		if err := table.Write(&b, []user.Storage{row, row}, now, table.Layout{Width: int(size % 200)}); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(b.String(), "\n") {
			wantPrintable(t, "row", line)
		}
		shown := strings.Join(strings.Fields(b.String()), " ")
		for _, word := range []string{name, location, message} {
			if word = strings.Join(strings.Fields(table.Escape(word)), " "); !strings.Contains(shown, word) {
				t.Errorf("%q does not show %q", shown, word)
			}
		}
		if text := table.Escape(table.Escape(name)); text != table.Escape(name) {
			t.Errorf("escaping %q a second time changes it to %q", name, text)
		}
		if text := table.ExactSize(size); size > 0 {
			if d, err := storage.ParseDirective(text); err != nil || d.Size != size {
				t.Errorf("%d MiB are shown as %q, which is %d MiB, %v", size, text, d.Size, err)
			}
		}
	})
}

// FuzzCompareNames checks that CompareNames defines one consistent order of names.
func FuzzCompareNames(f *testing.F) {
	f.Add("data/2", "data/10", "data", uint64(2), uint64(10))
	f.Add("a01", "a1", "a001b", uint64(0), uint64(math.MaxUint64))
	f.Add("", "0", "00", uint64(9), uint64(9))
	f.Fuzz(func(t *testing.T, a, b, c string, m, n uint64) {
		if got := table.CompareNames(fmt.Sprintf("data/%d", m), fmt.Sprintf("data/%d", n)); got != cmp.Compare(m, n) {
			t.Errorf("data/%d and data/%d: %d", m, n, got)
		}
		ab, bc, ac := table.CompareNames(a, b), table.CompareNames(b, c), table.CompareNames(a, c)
		if table.CompareNames(a, a) != 0 || table.CompareNames(b, a) != -ab {
			t.Errorf("%q and %q: %d and %d", a, b, ab, table.CompareNames(b, a))
		}
		if ab <= 0 && bc <= 0 && ac > 0 || ab == 0 && ac != bc {
			t.Errorf("%q, %q, %q: the order is not transitive: %d, %d, but %d for the first and the last", a, b, c, ab, bc, ac)
		}
	})
}
