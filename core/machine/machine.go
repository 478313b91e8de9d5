// Package machine says what names and numbers of machines look like. Users may write either of
// them for a machine, so no name is a number.
package machine

import (
	"regexp"
	"strings"
)

// Any is a name that no machine can have: it is reserved for storage whose machine is to be
// chosen for the user.
const Any = "any"

var (
	// name is the form of host names.
	name   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	number = regexp.MustCompile(`^(0|[1-9][0-9]{0,19})$`)
)

// IsName reports whether the text can be the name of a machine: up to 63 lower-case letters,
// digits, hyphens and dots, with a letter or digit at both ends. Digits alone are no name, and
// neither is [Any].
func IsName(text string) bool {
	return name.MatchString(text) && strings.Trim(text, "0123456789") != "" && text != Any
}

// IsNumber reports whether the text can be the number of a machine: decimal digits without a
// leading zero, at most 20.
func IsNumber(text string) bool { return number.MatchString(text) }
