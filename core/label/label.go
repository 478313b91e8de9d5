// Package label says what labels of machines and of storage look like, and which of them a selector
// selects. A selector is a list of labels, too: it selects what has all of them.
package label

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/juju/errors"
)

// Max is how many labels a machine, or storage, can have.
const Max = 64

var valid = regexp.MustCompile(`^[a-z0-9]([a-z0-9./_-]{0,61}[a-z0-9])?$`)

// Parse parses labels as users write them, each KEY=VALUE: both are up to 63 lower-case letters,
// digits, dots, slashes, underscores and hyphens, with a letter or digit at both ends. The error
// satisfies errors.IsNotValid.
func Parse(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || !valid.MatchString(key) || !valid.MatchString(value) {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("label %q: write KEY=VALUE, such as zone=a, of lower-case letters, digits, dots, slashes, underscores and hyphens", text))
		}
		if _, twice := labels[key]; twice {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("label %q is given twice", key))
		}
		labels[key] = value
	}
	return labels, nil
}

// ParseSelector parses a selector as users write it, such as zone=a,disk=ssd. An empty one selects
// everything. The error satisfies errors.IsNotValid.
func ParseSelector(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	return Parse(strings.Split(text, ","))
}

// Check returns an error that satisfies errors.IsNotValid unless something can have the labels.
func Check(labels map[string]string) error {
	if len(labels) > Max {
		return errors.NewNotValid(nil, fmt.Sprintf("%d labels, where at most %d labels are allowed", len(labels), Max))
	}
	_, err := Parse(Format(labels))
	return err
}

// Selects reports whether a selector selects what has the labels.
func Selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// Format returns labels as users write them, sorted.
func Format(labels map[string]string) []string {
	texts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, key+"="+labels[key])
	}
	return texts
}

// FormatSelector returns a selector as users write it.
func FormatSelector(selector map[string]string) string { return strings.Join(Format(selector), ",") }
