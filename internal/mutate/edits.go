package main

import (
	"cmp"
	"slices"
	"strings"
)

// edits turn a source into one that contains all its mutants. They nest: a part of the syntax
// is wrapped in text, and so may its own parts be, and the whole that it belongs to. No edit
// adds a line, so that positions stay valid.
type edits []edit

// edit replaces the source from start to end with text.
type edit struct {
	start, end int
	text       string
	// Edits at one offset are ordered by these.
	place place
	other int // the other end of the wrapped source
	nth   int // number among those that wrap the same source
}

type place int

const (
	suffix  place = iota // ends the source before the offset
	replace              // replaces the source after the offset
	prefix               // begins the source after the offset
)

// wrap puts text around the source from start to end. Source that is wrapped twice is wrapped
// from the outside in.
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
