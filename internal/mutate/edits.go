package main

import (
	"cmp"
	"slices"
	"strings"
)

// edits turn a source into one that holds all its mutants. They nest: a part of the
// syntax is wrapped in text, and so may be the parts that it has, and the whole that
// it is part of. No edit adds a line, so that positions stay true.
type edits []edit

// edit puts text in the place of the source from start to end.
type edit struct {
	start, end int
	text       string
	// Edits at one offset are ordered by these.
	place place
	other int // the far end of what is wrapped
	nth   int // among those that wrap the same
}

type place int

const (
	suffix  place = iota // ends what is before the offset
	replace              // stands for what is behind it
	prefix               // begins what is behind it
)

// wrap puts text around the source from start to end. What is wrapped twice is
// wrapped from the outside in.
func (e *edits) wrap(start, end int, before, after string) {
	n := len(*e)
	*e = append(*e,
		edit{start: start, end: start, text: before, place: prefix, other: end, nth: n},
		edit{start: end, end: end, text: after, place: suffix, other: start, nth: -n})
}

func (e *edits) replace(start, end int, text string) {
	*e = append(*e, edit{start: start, end: end, text: text, place: replace})
}

// apply returns the edited source.
func (e edits) apply(source string) string {
	var out strings.Builder
	at := 0
	for _, edit := range slices.SortedFunc(slices.Values(e), func(a, b edit) int {
		return cmp.Or(
			cmp.Compare(a.start, b.start),
			cmp.Compare(a.place, b.place),
			cmp.Compare(b.other, a.other), // the outer begins first, the inner ends first
			cmp.Compare(a.nth, b.nth),
		)
	}) {
		out.WriteString(source[at:edit.start])
		out.WriteString(edit.text)
		at = edit.end
	}
	out.WriteString(source[at:])
	return out.String()
}
