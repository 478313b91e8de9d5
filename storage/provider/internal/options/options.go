// Package options holds users to the options of filesystems that are allowed. What
// a user chooses is input: an option is known by its key and its values, or it is
// refused with a list of those that are.
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

// Option is an option that may be chosen.
type Option struct {
	Key    string
	Values Values
	// OneOf names what the option decides, of options that exclude each other.
	OneOf string
}

// String shows the option as it is written, with the values that it takes.
func (o Option) String() string {
	if o.Values.IsFlag() {
		return o.Key
	}
	return o.Key + "=" + o.Values.String()
}

// Values are those that an option takes. The zero Values are those of a flag,
// which takes none.
type Values struct {
	text     string
	check    func(string) bool
	examples []string
}

// String describes the values; nothing for those of a flag.
func (v Values) String() string { return v.text }

// IsFlag reports whether the option takes no value.
func (v Values) IsFlag() bool { return v.check == nil }

// Examples are some of the values: all of a list, the ends of a range.
func (v Values) Examples() []string {
	if v.IsFlag() {
		return []string{""}
	}
	return slices.Clone(v.examples)
}

// OneOf are the values of a list.
func OneOf(values ...string) Values {
	return Values{
		text:     strings.Join(values, "|"),
		check:    func(value string) bool { return slices.Contains(values, value) },
		examples: values,
	}
}

// Number are the whole numbers from least to most, without a sign or zeros in
// front.
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

// Given is an option that was chosen, with its value; nothing for a flag.
type Given struct {
	Key, Value string
}

// String shows the option as users write it.
func (g Given) String() string {
	if g.Value == "" {
		return g.Key
	}
	return g.Key + "=" + g.Value
}

// Check says whether an option is allowed for what, such as "mounting xfs". The
// error satisfies errors.IsNotValid and lists what is allowed.
func Check(given Given, allowed []Option, what string) error {
	i := slices.IndexFunc(allowed, func(o Option) bool { return o.Key == given.Key })
	if i < 0 {
		return errors.NewNotValid(nil, fmt.Sprintf("%q is not an option for %s: allowed are %s", given.Key, what, list(allowed)))
	}
	values := allowed[i].Values
	switch {
	case values.IsFlag() && given.Value != "":
		return errors.NewNotValid(nil, fmt.Sprintf("option %q for %s is %q: it takes no value", given.Key, what, given.Value))
	case !values.IsFlag() && !values.check(given.Value):
		return errors.NewNotValid(nil, fmt.Sprintf("option %q for %s is %q: allowed is %s", given.Key, what, given.Value, values))
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

// Parse reads options as users write them, "key" or "key=value" with commas in
// between, and checks each. The error satisfies errors.IsNotValid.
func Parse(text string, allowed []Option, what string) ([]Given, error) {
	if text == "" {
		return nil, nil
	}
	var all []Given
	for part := range strings.SplitSeq(text, ",") {
		key, value, hasValue := strings.Cut(part, "=")
		given := Given{Key: key, Value: value}
		if err := Check(given, allowed, what); err != nil {
			return nil, errors.Trace(err)
		}
		if hasValue && value == "" {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("option %q for %s: write it without \"=\"", key, what))
		}
		if slices.ContainsFunc(all, func(g Given) bool { return g.Key == key }) {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("option %q for %s is given twice", key, what))
		}
		if i := slices.IndexFunc(all, func(g Given) bool { return excludes(allowed, g.Key, key) }); i >= 0 {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("options %q and %q for %s exclude each other", all[i].Key, key, what))
		}
		all = append(all, given)
	}
	return all, nil
}

func excludes(allowed []Option, one, other string) bool {
	decides := func(key string) string {
		return allowed[slices.IndexFunc(allowed, func(o Option) bool { return o.Key == key })].OneOf
	}
	return decides(one) != "" && decides(one) == decides(other)
}
