package table

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape makes s safe to display on one line of a terminal: characters that are not printable
// become Go escape sequences.
func Escape(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[0])
		} else if unprintable(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

// EscapeJSON is Escape for the text of a JSON document: characters that are not printable
// become JSON escapes with the same meaning. It keeps line breaks.
func EscapeJSON(s string) string {
	return escapeQuoted(s, func(r rune) string {
		high, low := utf16.EncodeRune(r)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	})
}

// EscapeYAML is EscapeJSON for JSON that is read as YAML, which has no surrogate pairs.
func EscapeYAML(s string) string {
	return escapeQuoted(s, func(r rune) string { return fmt.Sprintf(`\U%08x`, r) })
}

func escapeQuoted(s string, wide func(rune) string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || !unprintable(r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(wide(r))
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Size formats a size in MiB as in a directive, rounded to one decimal.
func Size(mib uint64) string { return scale(float64(mib)) }

// scale formats a value in MiB.
func scale(value float64) string {
	const suffixes = "MGTPE"
	unit := 0
	for value >= 1024 && unit < len(suffixes)-1 {
		value /= 1024
		unit++
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + suffixes[unit:unit+1]
}

// Bytes formats a size in bytes, rounded to one decimal of the largest unit in which it is at least 1.
func Bytes(bytes uint64) string {
	switch {
	case bytes < 1<<10:
		return strconv.FormatUint(bytes, 10) + "B"
	case bytes < 1<<20:
		return strings.TrimSuffix(strconv.FormatFloat(float64(bytes)/(1<<10), 'f', 1, 64), ".0") + "K"
	}
	return scale(float64(bytes) / (1 << 20))
}

// ExactSize formats a size in MiB as in a directive, without rounding.
func ExactSize(mib uint64) string {
	const suffixes = "MGTPE"
	unit := 0
	for mib > 0 && mib%1024 == 0 && unit < len(suffixes)-1 {
		mib /= 1024
		unit++
	}
	return strconv.FormatUint(mib, 10) + suffixes[unit:unit+1]
}

// Age formats a duration in the largest unit that it has at least two of.
func Age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// CompareNames orders names naturally: numbers by value, so that data/2 comes before data/10.
func CompareNames(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x > 0 && y > 0 {
			m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the number of leading digits of s.
func digits(s string) int {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return i
		}
	}
	return len(s)
}
