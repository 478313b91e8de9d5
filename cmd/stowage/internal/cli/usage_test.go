package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

func TestUnknownCommandsSuggestOthers(t *testing.T) {
	m := newMachine(t, nil)
	for name, want := range map[string]string{
		"stauts": `unknown command "stauts" for "stowage": did you mean status?`,
		"machin": `unknown command "machin" for "stowage": did you mean machine or machines?`,
		// What a user writes cannot forge a suggestion.
		"x\n\nDid you mean this?\n\tformat": `unknown command "x\n\nDid you mean this?\n\tformat" for "stowage"`,
	} {
		r := m.run(t.Context(), name)
		if got, _, _ := strings.Cut(r.stderr, "\n"); r.code != 2 || got != "stowage: "+want {
			t.Errorf("%q: exit status %d, got %s\nwant stowage: %s", name, r.code, r.stderr, want)
		}
	}
}

func TestVersion(t *testing.T) {
	m := newMachine(t, nil)
	flag, command := m.run(t.Context(), "--version"), m.run(t.Context(), "version")
	if flag.code != 0 || flag.stdout != command.stdout || !strings.HasPrefix(flag.stdout, "stowage ") {
		t.Errorf("--version: %+v, version: %+v", flag, command)
	}
}

// The names that people know from other commands work, too.
func TestAliases(t *testing.T) {
	b := &backend{storage: []user.Storage{row("data", status.Attached, "", "/srv/data")}}
	m := newMachine(t, b)
	want := m.run(t.Context(), "status", "data")
	for _, alias := range []string{"ls", "get"} {
		if r := m.run(t.Context(), alias, "data"); r != want {
			t.Errorf("%s: %+v, want %+v", alias, r, want)
		}
	}
	if r := m.run(t.Context(), "rm", "data"); r.code != 0 || !slices.Contains(b.recordedCalls(), `remove ["data"]`) {
		t.Errorf("rm: %+v", r)
	}
}

func TestAttachElsewhere(t *testing.T) {
	b := &backend{}
	r := newMachine(t, b).run(t.Context(), "attach", "data", "--machine", "web", "--mount", "/srv/other")
	if got, want := b.recordedCalls(), []string{`attach ["data"] web /srv/other`}; r.code != 0 || !slices.Equal(got, want) {
		t.Errorf("%+v, the agent was asked %q, want %q", r, got, want)
	}
}

// What a file lacks is removed only after a yes, if a person can answer, and then before anything is changed.
func TestPruneAsksOnTerminal(t *testing.T) {
	for _, test := range []struct {
		answer string
		args   []string
		asks   bool
		code   int
	}{
		{"y\n", nil, true, 0},
		{"n\n", nil, true, 1},
		{"", []string{"--yes"}, false, 0},
		{"", []string{"--dry-run"}, false, 0},
	} {
		b := twoStored()
		b.changes = []user.Change{{Action: user.ActionLeave, Item: "storage", Name: "data", Detail: "not in the file"}}
		b.storage[0].Labels = map[string]string{"app": "web"}
		m := newMachine(t, b)
		file := m.file(t, "storage: [{name: new, directive: 'loop,1M', kind: block, labels: {app: web}}]")
		r := m.runOnTerminal(t, test.answer, append([]string{"apply", "-f", file, "--prune", "app=web"}, test.args...)...)
		if asks := strings.Contains(r.stderr, "does not have this storage. Destroy it and its data? [y/N]"); asks != test.asks || r.code != test.code {
			t.Errorf("answer %q, %q: %+v", test.answer, test.args, r)
		}
		applied := slices.ContainsFunc(b.recordedCalls(), func(call string) bool { return strings.HasSuffix(call, "dry=false") })
		removed := slices.Contains(b.recordedCalls(), `remove ["data"]`)
		if done := test.code == 0 && !slices.Contains(test.args, "--dry-run"); removed != done || applied != done {
			t.Errorf("answer %q, %q: the agent was asked %q", test.answer, test.args, b.recordedCalls())
		}
	}
}

func TestApplyDryRunExitCode(t *testing.T) {
	left := user.Change{Action: user.ActionLeave, Item: "storage", Name: "old", Detail: "not in the file"}
	added := user.Change{Action: user.ActionAdd, Item: "pool", Name: "fast", Detail: "provider loop"}
	for _, test := range []struct {
		changes []user.Change
		code    int
		stdout  string
	}{
		{nil, 0, "nothing to change\n"},
		{[]user.Change{left}, 0, "! old  leave  not in the file\nnothing to change\n"},
		{[]user.Change{left, added}, 2, "! old        leave  not in the file\n+ pool fast  add    provider loop\n"},
	} {
		m := newMachine(t, &backend{changes: test.changes})
		r := m.run(t.Context(), "apply", "-f", m.file(t, spec), "--dry-run", "--exit-code")
		if want := (result{code: test.code, stdout: test.stdout}); r != want {
			t.Errorf("%v: got %+v, want %+v", test.changes, r, want)
		}
	}
	m := newMachine(t, &backend{})
	if r := m.run(t.Context(), "apply", "-f", m.file(t, spec), "--exit-code"); r.code != 2 || !strings.Contains(r.stderr, "use it with --dry-run") {
		t.Errorf("without --dry-run: %+v", r)
	}
}
