package main

import (
	"fmt"
	"strings"
)

const (
	// unmutated is the id for which the code does what it says.
	unmutated = 0
	// none is the id of a mutant that is not made.
	none = -1
)

// mutant is one breakage.
type mutant struct {
	// id is the number by which its package's code knows it; 1 and up.
	id      int
	dir     string // the package's, from the module's root
	file    string
	line    int
	fn      string // the function that it is in, with its receiver's type
	context string // the statement that it is in
	change  string // what is done to which part of that
	// again counts those of the same text in the function before this one.
	again int

	outcome outcome
}

// mutantKey is what a mutant is known by across edits.
type mutantKey struct{ dir, text string }

func (m *mutant) key() mutantKey {
	text := fmt.Sprintf("%s: %s | %s", m.fn, m.context, m.change)
	if m.again > 0 {
		text += fmt.Sprintf(" (%d)", m.again+1)
	}
	return mutantKey{m.dir, text}
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s/%s:%d: %s", m.dir, m.file, m.line, m.key().text)
}

// short is source text on one line, and not much of it.
func short(source string) string {
	const most = 100
	text := []rune(strings.Join(strings.Fields(source), " "))
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}
