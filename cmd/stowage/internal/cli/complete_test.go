package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

func TestCompletion(t *testing.T) {
	b := &backend{
		storage: []user.Storage{
			row("data/0", status.Attached, "", ""), row("logs", status.Attached, "", ""), row("forged\nname", status.Attached, "", ""),
		},
		machines:  []user.Machine{{Name: "web"}, {Name: "db"}},
		snapshots: []user.Snapshot{{Name: "monday"}},
		claims:    []user.Claim{{Name: "orders"}},
	}
	m := newMachine(t, b)
	storage := []string{"data/0", "logs"}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"remove", ""}, storage},
		{[]string{"rm", "l"}, []string{"logs"}},
		{[]string{"status", "logs", ""}, []string{"data/0"}}, // what is given is not offered again
		{[]string{"resize", ""}, storage},
		{[]string{"resize", "logs", ""}, nil},
		{[]string{"snapshot", "create", ""}, nil},
		{[]string{"snapshot", "create", "monday", ""}, storage},
		{[]string{"snapshot", "delete", ""}, []string{"monday"}},
		{[]string{"unclaim", ""}, []string{"orders"}},
		{[]string{"pools", "remove", ""}, []string{"fast", "tmpfs"}},
		{[]string{"machine", "drain", ""}, []string{"web", "db"}},
		{[]string{"create", "x", "--pool", "f"}, []string{"fast"}},
		{[]string{"create", "x", "--from", ""}, []string{"monday"}},
		{[]string{"attach", "x", "--machine", "w"}, []string{"web"}},
		{[]string{"move", "x", "--to", ""}, []string{"web", "db"}},
		{[]string{"status", "-o", ""}, []string{"table", "json", "yaml", "jsonpath=", "wide", "name"}},
		{[]string{"machines", "-o", ""}, []string{"table", "json", "yaml", "jsonpath="}},
	} {
		r := m.run(t.Context(), append([]string{"__complete"}, test.args...)...)
		got := strings.Split(strings.TrimSpace(r.stdout), "\n")
		got = got[:len(got)-1] // the last line is for the shell
		if r.code != 0 || !slices.Equal(got, test.want) {
			t.Errorf("%q: got %q, want %q: %+v", test.args, got, test.want, r)
		}
	}
	b.err = errors.New("broken")
	for _, m := range []*machine{m, newMachine(t, nil)} {
		if r := m.run(t.Context(), "__complete", "remove", ""); r.code != 0 || r.stdout != ":4\n" || strings.Contains(r.stderr, "stowage:") {
			t.Errorf("without an answer: %+v", r)
		}
	}
}

// A user who reads --help sees how the command is used.
func TestEveryCommandHasAnExample(t *testing.T) {
	var check func(command []string)
	check = func(command []string) {
		text := help(t, command)
		if !strings.Contains(text, "\nExamples:\n  stowage "+strings.Join(command, " ")) {
			t.Errorf("stowage %s --help has no example of it:\n%s", strings.Join(command, " "), text)
		}
		_, examples, _ := strings.Cut(text, "\nExamples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		for line := range strings.SplitSeq(examples, "\n") {
			for example := range strings.SplitSeq(line, " && ") {
				help(t, strings.Fields(example)[1:]) // fails if a flag is not known
			}
		}
		for _, sub := range subcommandsIn(text) {
			check(append(command[:len(command):len(command)], sub))
		}
	}
	check(nil)
}
