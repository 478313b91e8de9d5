package main

import (
	"fmt"
	"strings"
)

const (
	// unmutated is the ID with which the code is unchanged.
	unmutated = 0
	// none is the ID of a mutant that is not made.
	none = -1
)

// mutant is one breakage.
type mutant struct {
	// id is the mutant's number in its package's code, from 1.
	id      int
	dir     string // the package's directory, from the module's root
	file    string
	line    int
	fn      string // the function around it, with its receiver's type
	context string // the statement around it
	change  string // the change, and the part that it is made to
	// again counts earlier mutants with the same text in the function.
	again int

	outcome outcome
}

// mutantKey identifies a mutant across edits.
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

// short returns the beginning of a source text on one line.
func short(source string) string {
	const most = 100
	text := []rune(strings.Join(strings.Fields(source), " "))
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}
