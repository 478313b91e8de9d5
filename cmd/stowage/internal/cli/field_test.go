package cli_test

import (
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// One field of each storage instance is written on a line. A name of no field is an error before the agent is
// asked.
func TestField(t *testing.T) {
	first, second := row("a", status.Attached, "", "/srv/a"), row("b", status.Detached, "", "")
	first.Labels = map[string]string{"tier": "fast", "example.com/x": "a\x1b[2J"}
	first.From = &user.Origin{Snapshot: "monday"}
	b := &backend{storage: []user.Storage{first, second}, looks: []user.StorageLook{{Name: "a", Usage: &user.StorageUsage{UsedBytes: 5}}}}
	m := newMachine(t, b)
	for field, want := range map[string]string{
		"name":                  "a\nb\n",
		"size-mib":              "64\n64\n",
		"status":                "attached\ndetached\n",
		"labels.tier":           "fast\n\n",
		"labels.example.com/x":  "a\\x1b[2J\n\n",
		"attachments.0.machine": "0\n\n",
		"attachments.0":         `{"machine":"0","life":"alive","location":"/srv/a","read-only":false}` + "\n\n",
		"from.snapshot":         "monday\n\n",
		"retained":              "false\nfalse\n",
		"since":                 first.Since.Format("2006-01-02T15:04:05Z07:00") + "\n" + first.Since.Format("2006-01-02T15:04:05Z07:00") + "\n",
	} {
		if r := m.run(t.Context(), "status", "--field", field); r.code != 0 || r.stdout != want {
			t.Errorf("%s: %+v, want %q", field, r, want)
		}
	}
	if r := m.run(t.Context(), "describe", "a", "b", "--field", "look.usage.used-bytes"); r.code != 0 || r.stdout != "5\n\n" {
		t.Errorf("%+v", r)
	}
	calls := len(b.recordedCalls())
	for args, want := range map[string]string{
		"status --field sise":             `--field sise: there is no "sise": choose from name, kind, pool, `,
		"status --field name.x":           `there is no "x" in a value without fields`,
		"status --field since.x":          `there is no "x" in a value without fields`,
		"status --field attachments.last": `"last" is not a position in a list`,
		"status --field name -o json":     "[field output]",
		"status --field name --watch":     "--watch needs -o table or -o json",
		"describe a --field look.x":       `there is no "x": choose from name, machine, `,
	} {
		if r := m.run(t.Context(), strings.Fields(args)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
	if now := len(b.recordedCalls()); now != calls {
		t.Errorf("%d calls were made", now-calls)
	}
}
