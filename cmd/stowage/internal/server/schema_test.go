package server

import (
	"slices"
	"testing"

	"github.com/stowage-io/stowage/state"
)

func TestRunningServer(t *testing.T) {
	for _, r := range []running{{"abc", 7, "host-x1"}, {id: "abc"}} {
		text := r.id
		if r.name != "" {
			text = r.String()
		}
		if got := parseRunning(text); got != r {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}

// The schema waits for servers that may need the older one: those that run, and members that may be
// started again.
func TestOlderServers(t *testing.T) {
	const now = state.SchemaVersion
	for _, test := range []struct {
		servers []running
		members []string
		want    []string
	}{
		{servers: []running{{"i", now, "a"}, {"j", now, "b"}}},
		{servers: []running{{"i", now, "a"}, {"j", now + 1, "b"}}, members: []string{"a", "b"}},
		{servers: []running{{"i", now, "a"}, {id: "j"}}, want: []string{"one of an older version"}},
		{servers: []running{{"i", now, "a"}, {id: "j"}}, members: []string{"a", "b"}, want: []string{"b"}},
		{servers: []running{{"i", now, "a"}, {"j", now - 1, "b"}}, members: []string{"a", "b", "c"}, want: []string{"b", "c"}},
	} {
		if got := olderServers(test.servers, test.members); !slices.Equal(got, test.want) {
			t.Errorf("%v of members %v: %q, want %q", test.servers, test.members, got, test.want)
		}
	}
}
