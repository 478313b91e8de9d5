package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// corpus has the histories that have found a fault, one per file:
//
//	# What was wrong.
//	seed 1005956
//	user 41201 3120939
//	open 7 0
//
// The seed decides what the world is like. Each other line is a step: an action's name, and
// the two numbers by which it chooses. Instead of steps there may be "random" and the length
// of the seed's own history. Lines that begin with "#" are comments.
const corpus = "testdata/corpus"

// parseHistory reads a history in the corpus's form.
func parseHistory(text string) (seed uint64, history []step, err error) {
	seeded := false
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		numbers := make([]uint64, len(fields)-1)
		for j, field := range fields[1:] {
			if numbers[j], err = strconv.ParseUint(field, 10, 64); err != nil {
				return 0, nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
		n, known := firstOf(fields[0])
		switch {
		case fields[0] == "seed" && len(numbers) == 1 && !seeded:
			seed, seeded = numbers[0], true
		case fields[0] == "random" && len(numbers) == 1 && seeded && history == nil:
			history = newHistory(seed, int(numbers[0]))
		case known && len(numbers) == 2 && seeded && numbers[0] < 1<<16 && numbers[1] < 1<<32:
			history = append(history, step{do: n, which: uint16(numbers[0]), dice: uint32(numbers[1])})
		default:
			return 0, nil, fmt.Errorf("line %d: %q is neither the seed, which comes first, nor a step", i+1, line)
		}
	}
	if !seeded {
		return 0, nil, fmt.Errorf("there is no seed")
	}
	return seed, history, nil
}

// formatHistory writes a history in the corpus's form.
func formatHistory(seed uint64, history []step) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", seed)
	for _, s := range history {
		fmt.Fprintf(&b, "%s %d %d\n", actionOf(s).name, s.which, s.dice)
	}
	return b.String()
}

// firstOf returns the first number that stands for an action.
func firstOf(name string) (uint16, bool) {
	n := 0
	for _, a := range actions {
		if a.name == name {
			return uint16(n), true
		}
		n += a.weight
	}
	return 0, false
}

// keep returns the instructions for adding a history to the corpus.
func keep(seed uint64, history []step) string {
	return fmt.Sprintf("To keep it, put this into a new file in %s of package simulation, and say there what was wrong:\n%s",
		corpus, formatHistory(seed, history))
}

// A history that has found a fault no longer fails.
func TestCorpus(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(corpus, "*"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no histories in %s: %v", corpus, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(text), "# ") {
				t.Error("the first line does not say what the history has found")
			}
			seed, history, err := parseHistory(string(text))
			if err != nil {
				t.Fatal(err)
			}
			once := simulate(t, seed, history, 1, false)
			repeat(t, seed, history, once)
			if once.wrong != nil {
				t.Errorf("%v\n%s", once.wrong, strings.Join(simulate(t, seed, history, 1, true).log, "\n"))
			}
		})
	}
}

// A formatted history is the same when it is parsed.
func TestHistoryFormatRoundTrip(t *testing.T) {
	const seed = 7
	history := newHistory(seed, 200)
	gotSeed, got, err := parseHistory("# what was wrong\n" + formatHistory(seed, history))
	if err != nil || gotSeed != seed {
		t.Fatalf("seed %d: %v", gotSeed, err)
	}
	if a, b := simulate(t, seed, history, 1, false), simulate(t, seed, got, 1, false); a.sum != b.sum {
		t.Error("the parsed history differs")
	}
	if _, random, err := parseHistory("seed 7\nrandom 200\n"); err != nil || !slices.Equal(random, history) {
		t.Errorf("the seed's own history: %v", err)
	}
	for _, text := range []string{
		"", "open 1 2", "seed 1\nseed 2", "seed x", "seed 1\nopen 1", "seed 1\nclose 1 2", "seed 1\nopen 65536 2",
		"seed 1\nopen 1 4294967296", "seed 1\nopen 1 2\nrandom 5",
	} {
		if _, _, err := parseHistory(text); err == nil {
			t.Errorf("%q is accepted as a history", text)
		}
	}
}
