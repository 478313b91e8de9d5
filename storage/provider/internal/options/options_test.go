package options

import (
	"reflect"
	"strings"
	"testing"

	"github.com/juju/errors"
)

var allowed = []Option{
	{Key: "flag", OneOf: "kind"},
	{Key: "other-flag", OneOf: "kind"},
	{Key: "size", Values: Number(2, 64)},
	{Key: "mode", Values: OneOf("fast", "safe")},
	{Key: "permissions", Values: Octal(0o1777)},
}

// Promise S15.
func TestParse(t *testing.T) {
	for _, test := range []struct {
		text string
		want []Choice
		err  string
	}{
		{"", nil, ""},
		{"flag", []Choice{{"flag", ""}}, ""},
		{"mode=safe,size=2,flag", []Choice{{"mode", "safe"}, {"size", "2"}, {"flag", ""}}, ""},
		{"size=64", []Choice{{"size", "64"}}, ""},
		{"none", nil, `"none" is not an option for tests: allowed are flag, other-flag, size=2…64, mode=fast|safe, permissions=octal 0…1777`},
		{"flag,", nil, `"" is not an option`},
		{" flag", nil, `" flag" is not an option`},
		{"flag,flag", nil, `option "flag" for tests is given twice`},
		{"flag,other-flag", nil, `options "flag" and "other-flag" for tests exclude each other`},
		{"flag=", nil, `write it without "="`},
		{"flag=1", nil, `option "flag" for tests is "1": it takes no value`},
		{"size", nil, `option "size" for tests is "": allowed is 2…64`},
		{"size=1", nil, `is "1": allowed is 2…64`},
		{"size=65", nil, "allowed is 2…64"},
		{"size=+3", nil, "allowed is 2…64"},
		{"size=03", nil, "allowed is 2…64"},
		{"size=3 ", nil, "allowed is 2…64"},
		{"mode=fast safe", nil, "allowed is fast|safe"},
		{"permissions=0", []Choice{{"permissions", "0"}}, ""},
		{"permissions=0750", []Choice{{"permissions", "0750"}}, ""},
		{"permissions=1777", []Choice{{"permissions", "1777"}}, ""},
		{"permissions=2000", nil, `is "2000": allowed is octal 0…1777`},
		{"permissions=788", nil, `is "788": allowed is octal 0…1777`},
		{"permissions=00750", nil, "allowed is octal"},
		{"permissions=0o75", nil, "allowed is octal"},
		{"permissions=+75", nil, "allowed is octal"},
		{"permissions=", nil, "allowed is octal"},
	} {
		got, err := Parse(test.text, allowed, "tests")
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q: got %v, want %v", test.text, got, test.want)
		}
		if (err == nil) != (test.err == "") || err != nil && (!errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%q: got %v, want %q", test.text, err, test.err)
		}
	}
}

func TestExamplesAreAllowed(t *testing.T) {
	for _, o := range allowed {
		for _, value := range o.Values.Examples() {
			if err := Check(Choice{o.Key, value}, allowed, "tests"); err != nil {
				t.Error(err)
			}
		}
	}
}

// Accepted text consists of allowed keys and values only, and is equal after it is parsed
// and written.
func FuzzParse(f *testing.F) {
	f.Add("mode=safe,size=2,flag")
	f.Add("size=2,,")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := Parse(text, allowed, "tests")
		if err != nil {
			return
		}
		var parts []string
		for _, choice := range all {
			if err := Check(choice, allowed, "tests"); err != nil {
				t.Error(err)
			}
			parts = append(parts, choice.String())
		}
		if got := strings.Join(parts, ","); got != text {
			t.Errorf("%q reads back as %q", text, got)
		}
	})
}
