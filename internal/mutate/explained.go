package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// explanations are the mutants that may survive, with the lines that explain them.
type explanations struct {
	name string
	line map[mutantKey]int
}

// parseExplanations reads Markdown: a level-two heading names a package, and indented lines
// are mutants of it. The prose before them is their reason, which is required.
func parseExplanations(name string, r io.Reader) (*explanations, error) {
	e := &explanations{name: name, line: make(map[mutantKey]int)}
	var dir string
	var reason bool
	scanner := bufio.NewScanner(r)
	for n := 1; scanner.Scan(); n++ {
		line := scanner.Text()
		heading, isHeading := strings.CutPrefix(line, "## ")
		text := strings.TrimSpace(line)
		switch {
		case text == "":
		case isHeading:
			dir, reason = strings.Trim(heading, "` "), false
		case strings.HasPrefix(line, "    "), strings.HasPrefix(line, "\t"):
			if dir == "" || !reason {
				return nil, fmt.Errorf("%s:%d: a mutant without a package or a reason above it: write both", name, n)
			}
			key := mutantKey{dir, text}
			if first, ok := e.line[key]; ok {
				return nil, fmt.Errorf("%s:%d: already explained in line %d: %s", name, n, first, text)
			}
			e.line[key] = n
		default:
			reason = true
		}
	}
	return e, scanner.Err()
}

func (e *explanations) has(m *mutant) bool {
	return e.line[m.key()] > 0
}

// stale returns a line for each explanation whose package is a target but whose mutant no
// longer exists.
func (e *explanations) stale(targets []target, mutants []*mutant) []string {
	there := make(map[mutantKey]bool)
	for _, m := range mutants {
		there[m.key()] = true
	}
	var found []mutantKey
	for key := range e.line {
		if !there[key] && slices.ContainsFunc(targets, func(t target) bool { return t.dir == key.dir }) {
			found = append(found, key)
		}
	}
	slices.SortFunc(found, func(a, b mutantKey) int { return e.line[a] - e.line[b] })
	var lines []string
	for _, key := range found {
		lines = append(lines, fmt.Sprintf("%s:%d: explained, but no mutant\n\t%s", e.name, e.line[key], key.text))
	}
	return lines
}
