package machine

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/juju/errors"
)

// MaxLabels is how many labels a machine can have.
const MaxLabels = 64

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9./_-]{0,61}[a-z0-9])?$`)

// ParseLabels parses labels as users write them, each KEY=VALUE: both are up to 63 lower-case letters,
// digits, dots, slashes, underscores and hyphens, with a letter or digit at both ends. The error
// satisfies errors.IsNotValid.
func ParseLabels(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || !label.MatchString(key) || !label.MatchString(value) {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("label %q: write KEY=VALUE, such as zone=a, of lower-case letters, digits, dots, slashes, underscores and hyphens", text))
		}
		if _, twice := labels[key]; twice {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("label %q is given twice", key))
		}
		labels[key] = value
	}
	return labels, nil
}

// FormatLabels returns labels as users write them, sorted.
func FormatLabels(labels map[string]string) []string {
	texts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, key+"="+labels[key])
	}
	return texts
}
