package cli_test

import (
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// What a JSONPath selects in the list that -o json writes is written line by line. One that is not valid is an
// error before the agent is asked.
func TestJSONPath(t *testing.T) {
	first, second := row("a", status.Attached, "", "/srv/a"), row("b", status.Error, "disk\x1b[2J full", "")
	first.SizeMiB = 1 << 60
	first.Labels = map[string]string{"example.com/x": "y"}
	b := &backend{storage: []user.Storage{first, second}}
	m := newMachine(t, b)
	for path, want := range map[string]string{
		"$[*].name":                        "a\nb\n",
		"$[0]['size-mib']":                 "1152921504606846976\n",
		"$[?@.status=='error'].message":    "disk\\x1b[2J full\n",
		"$[*].labels['example.com/x']":     "y\n",
		"$[0].attachments[0]['read-only']": "false\n",
		"$[0].labels":                      `{"example.com/x":"y"}` + "\n",
		"$[7]":                             "",
	} {
		if r := m.run(t.Context(), "status", "-o", "jsonpath="+path); r.code != 0 || r.stdout != want {
			t.Errorf("%s: %+v, want %q", path, r, want)
		}
	}
	if r := m.run(t.Context(), "pools", "-o", "jsonpath=$[*].name"); r.code != 0 || r.stdout != "fast\ntmpfs\n" {
		t.Errorf("%+v", r)
	}
	calls := len(b.recordedCalls())
	for _, args := range []string{"status -o jsonpath={.items}", "pools -o jsonpath=", "events -o jsonpath=name"} {
		if r := m.run(t.Context(), strings.Fields(args)...); r.code != 2 || !strings.Contains(r.stderr, "write a path as in RFC 9535") {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := m.run(t.Context(), "status", "-o", "xml"); r.code != 2 || !strings.Contains(r.stderr, "name, json, yaml or jsonpath=PATH") {
		t.Errorf("%+v", r)
	}
	if now := len(b.recordedCalls()); now != calls {
		t.Errorf("%d calls were made", now-calls)
	}
}
