// Package options limits the options of filesystems that users may choose. A user's choice is
// input: an option is accepted only if its key and its value are allowed, and otherwise
// refused with a list of what is allowed.
//
// The package keeps no state.
package options

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
)

// Option is an allowed option.
type Option struct {
	Key    string
	Values Values
	// OneOf names the choice that the option makes. Options with the same OneOf exclude each
	// other.
	OneOf string
}

// String returns the option as users write it, with a description of its values.
func (o Option) String() string {
	if o.Values.IsFlag() {
		return o.Key
	}
	return o.Key + "=" + o.Values.String()
}

// Values are the values that an option accepts. The zero Values are those of a flag, which
// accepts none.
type Values struct {
	text     string
	check    func(string) bool
	examples []string
}

// String describes the values. It returns "" for a flag.
func (v Values) String() string { return v.text }

// IsFlag reports whether the option takes no value.
func (v Values) IsFlag() bool { return v.check == nil }

// Examples returns some of the values: all values of a list, both ends of a range.
func (v Values) Examples() []string {
	if v.IsFlag() {
		return []string{""}
	}
	return slices.Clone(v.examples)
}

// OneOf returns the values in a list.
func OneOf(values ...string) Values {
	return Values{
		text:     strings.Join(values, "|"),
		check:    func(value string) bool { return slices.Contains(values, value) },
		examples: values,
	}
}

// Number returns the whole numbers from least to most, written without a sign or leading
// zeros.
func Number(least, most uint64) Values {
	return Values{
		text: fmt.Sprintf("%d…%d", least, most),
		check: func(value string) bool {
			n, err := strconv.ParseUint(value, 10, 64)
			return err == nil && strconv.FormatUint(n, 10) == value && n >= least && n <= most
		},
		examples: []string{strconv.FormatUint(least, 10), strconv.FormatUint(most, 10)},
	}
}

// Octal returns the numbers from 0 to most, written with one to four octal digits, as modes
// are.
func Octal(most uint64) Values {
	return Values{
		text: fmt.Sprintf("octal 0…%o", most),
		check: func(value string) bool {
			n, err := strconv.ParseUint(value, 8, 64)
			return err == nil && len(value) <= 4 && n <= most
		},
		examples: []string{"0", fmt.Sprintf("%04o", most)},
	}
}

// Choice is an option that a user has chosen. Value is empty for a flag.
type Choice struct {
	Key, Value string
}

// String returns the option as users write it.
func (c Choice) String() string {
	if c.Value == "" {
		return c.Key
	}
	return c.Key + "=" + c.Value
}

// Check checks whether an option is allowed. what names the purpose in error texts, such as
// "mounting xfs". The error satisfies errors.IsNotValid and lists what is allowed.
func Check(choice Choice, allowed []Option, what string) error {
	i := slices.IndexFunc(allowed, func(o Option) bool { return o.Key == choice.Key })
	if i < 0 {
		return errors.NewNotValid(nil, fmt.Sprintf("%q is not an option for %s: allowed are %s", choice.Key, what, list(allowed)))
	}
	values := allowed[i].Values
	switch {
	case values.IsFlag() && choice.Value != "":
		return errors.NewNotValid(nil, fmt.Sprintf("option %q for %s is %q: it takes no value", choice.Key, what, choice.Value))
	case !values.IsFlag() && !values.check(choice.Value):
		return errors.NewNotValid(nil, fmt.Sprintf("option %q for %s is %q: allowed is %s", choice.Key, what, choice.Value, values))
	}
	return nil
}

func list(allowed []Option) string {
	if len(allowed) == 0 {
		return "none"
	}
	texts := make([]string, len(allowed))
	for i, o := range allowed {
		texts[i] = o.String()
	}
	return strings.Join(texts, ", ")
}

// Parse parses options as users write them, "key" or "key=value", separated by commas, and
// checks each. The error satisfies errors.IsNotValid.
func Parse(text string, allowed []Option, what string) ([]Choice, error) {
	if text == "" {
		return nil, nil
	}
	var all []Choice
	for part := range strings.SplitSeq(text, ",") {
		key, value, hasValue := strings.Cut(part, "=")
		choice := Choice{Key: key, Value: value}
		if err := Check(choice, allowed, what); err != nil {
			return nil, errors.Trace(err)
		}
		if hasValue && value == "" {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("option %q for %s: write it without \"=\"", key, what))
		}
		if slices.ContainsFunc(all, func(c Choice) bool { return c.Key == key }) {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("option %q for %s is given twice", key, what))
		}
		if i := slices.IndexFunc(all, func(c Choice) bool { return excludes(allowed, c.Key, key) }); i >= 0 {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("options %q and %q for %s exclude each other", all[i].Key, key, what))
		}
		all = append(all, choice)
	}
	return all, nil
}

func excludes(allowed []Option, one, other string) bool {
	decides := func(key string) string {
		return allowed[slices.IndexFunc(allowed, func(o Option) bool { return o.Key == key })].OneOf
	}
	return decides(one) != "" && decides(one) == decides(other)
}
