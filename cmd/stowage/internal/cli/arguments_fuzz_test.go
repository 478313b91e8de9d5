package cli

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// FuzzParseSize parses sizes as users type them. An accepted size is not zero, and survives
// formatting and parsing. An error says that the text is not a size.
func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"512M", "+2G", "1.5T", "", "+", "++1G", "0", "-1G", "2,1G", "loop,1G", "1G,", "18446744073709551615M", "1e3G"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, more, err := parseSize(text)
		if err != nil {
			if !strings.Contains(err.Error(), "is not a size") {
				t.Errorf("error %q", err)
			}
			return
		}
		written := table.ExactSize(size)
		if more {
			written = "+" + written
		}
		again, moreAgain, err := parseSize(written)
		if size == 0 || err != nil || again != size || moreAgain != more || more != strings.HasPrefix(text, "+") {
			t.Errorf("%q is %d MiB, written %q, which is %d MiB, %v", text, size, written, again, err)
		}
	})
}

// FuzzParseAttributes parses KEY=VALUE as users type it. Numbers and booleans have the same
// values as in a file, and every accepted value can be sent to the agent as JSON.
func FuzzParseAttributes(f *testing.F) {
	for _, arg := range []string{"fs=xfs", "a=1", "a=0x1f", "a=true", `a="1"`, "a='x", "=", "a", "a=b=c", "a=99999999999999999999999", "a=0o7", "a=~", "a=.inf", "a=\"\\x\""} {
		f.Add(arg)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		attributes, err := parseAttributes([]string{arg})
		key, text, ok := strings.Cut(arg, "=")
		quoted := strings.HasPrefix(text, `"`) || strings.HasPrefix(text, "'")
		if err != nil {
			if ok && key != "" && !quoted {
				t.Errorf("%q is refused: %v", arg, err)
			}
			return
		}
		value, there := attributes[key]
		if !there || len(attributes) != 1 {
			t.Fatalf("%q is read as %v", arg, attributes)
		}
		if _, err := json.Marshal(attributes); err != nil {
			t.Errorf("%q cannot be sent to the agent: %v", arg, err)
		}
		if _, isText := value.(string); isText {
			if !quoted && value != text {
				t.Errorf("%q is read as %q", text, value)
			}
			return
		}
		var inFile map[string]any
		if err := yaml.Unmarshal([]byte("a: "+text), &inFile); err != nil || !reflect.DeepEqual(inFile["a"], value) {
			t.Errorf("%q is read as %v, and in a file as %v, %v", text, value, inFile["a"], err)
		}
	})
}
