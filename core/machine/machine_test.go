package machine_test

import (
	"strings"
	"testing"

	"github.com/stowage-io/stowage/core/machine"
)

func TestNamesAndNumbers(t *testing.T) {
	for _, test := range []struct {
		texts        []string
		name, number bool
	}{
		{texts: []string{"a", "web-1", "db.example.com", "0a", "0x1f", "anyone", strings.Repeat("a", 63)}, name: true},
		{texts: []string{"0", "17", strings.Repeat("9", 20)}, number: true},
		{texts: []string{
			"", "Web", "-a", "a-", ".a", "a.", "a_b", "a/b", "../a", "ä", "a\n", strings.Repeat("a", 64), machine.Any,
			"00", "07", "-1", "+1", "1\n", strings.Repeat("9", 21), "0/lxc/0",
		}},
	} {
		for _, text := range test.texts {
			if name, number := machine.IsName(text), machine.IsNumber(text); name != test.name || number != test.number {
				t.Errorf("%q: name %t, number %t, want %t, %t", text, name, number, test.name, test.number)
			}
		}
	}
}
