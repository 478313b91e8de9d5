package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
	"github.com/stowage-io/stowage/core/status"
)

func TestEvents(t *testing.T) {
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.Local)
	b := &backend{}
	for _, e := range []user.StorageEvent{
		{Type: "added", SizeMiB: 64, Machine: "web", Text: "/srv/a", By: "uid 0"},
		{Type: "made", Entity: "volume 1/0", SizeMiB: 64, Text: "volume-1-0"},
		{Type: "attached", Entity: "filesystem 1/0", Machine: "web", Text: "/srv/a"},
		{Type: "error", Entity: "filesystem 1/0", Text: "gone\x1b[2J"},
		{Type: "recovered", Entity: "filesystem 1/0"},
		{Type: "status", Entity: "volume 1/0", Text: "waiting"},
		{Type: "resize-wanted", FormerMiB: 64, SizeMiB: 2048, By: "alice"},
		{Type: "grown", Entity: "volume 1/0", FormerMiB: 64, SizeMiB: 2048},
		{Type: "attach-wanted", Machine: "db"},
		{Type: "move-wanted", Machine: "db"},
		{Type: "detach-wanted"},
		{Type: "detached", Entity: "volume 1/0", Machine: "web"},
		{Type: "release-wanted"},
		{Type: "remove-wanted"},
		{Type: "destroyed", Entity: "volume 1/0"},
		{Type: "removed"},
		{Type: "labelled", Text: "tier=fast,zone=a"},
		{Type: "labelled"},
		{Type: "claimed", Text: "orders"},
		{Type: "unclaimed", Text: "orders"},
		{Type: "offered"},
		{Type: "retry-wanted", By: "alice"},
		{Type: "format-wanted"},
		{Type: "from", Text: "snapshot monday"},
		{Type: "snapshot-wanted", Text: "monday", By: "uid 0"},
		{Type: "snapshot-error", Text: "monday: no space left"},
		{Type: "snapshot-made", Text: "monday", SizeMiB: 64},
		{Type: "snapshot-delete-wanted", Text: "monday"},
		{Type: "snapshot-deleted", Text: "monday"},
		{Type: "novel", Entity: "volume 1/0", Text: "of a later server"},
	} {
		e.Time, e.Storage, e.Number = at, "a", uint64(len(b.happened)+1)
		b.happened = append(b.happened, e)
	}
	m := newMachine(t, b)
	want := `TIME                 STORAGE  BY     EVENT
2025-01-02 03:04:05  a        uid 0  added, 64M, for machine web, on /srv/a
2025-01-02 03:04:05  a        -      volume 1/0 made, 64M, volume-1-0
2025-01-02 03:04:05  a        -      filesystem 1/0 attached to machine web, /srv/a
2025-01-02 03:04:05  a        -      filesystem 1/0: error: gone\x1b[2J
2025-01-02 03:04:05  a        -      filesystem 1/0 works again
2025-01-02 03:04:05  a        -      volume 1/0: waiting
2025-01-02 03:04:05  a        alice  to be resized from 64M to 2G
2025-01-02 03:04:05  a        -      volume 1/0 grown from 64M to 2G
2025-01-02 03:04:05  a        -      to be attached to machine db
2025-01-02 03:04:05  a        -      to be moved to machine db
2025-01-02 03:04:05  a        -      to be detached
2025-01-02 03:04:05  a        -      volume 1/0 detached from machine web
2025-01-02 03:04:05  a        -      to be released
2025-01-02 03:04:05  a        -      to be removed
2025-01-02 03:04:05  a        -      volume 1/0 destroyed
2025-01-02 03:04:05  a        -      removed
2025-01-02 03:04:05  a        -      labels tier=fast,zone=a
2025-01-02 03:04:05  a        -      labels removed
2025-01-02 03:04:05  a        -      claimed by orders
2025-01-02 03:04:05  a        -      claim orders deleted
2025-01-02 03:04:05  a        -      offered to claims
2025-01-02 03:04:05  a        alice  to be tried again
2025-01-02 03:04:05  a        -      to be formatted
2025-01-02 03:04:05  a        -      to get the contents of snapshot monday
2025-01-02 03:04:05  a        uid 0  snapshot monday to be made
2025-01-02 03:04:05  a        -      error: snapshot monday: no space left
2025-01-02 03:04:05  a        -      snapshot monday made, 64M
2025-01-02 03:04:05  a        -      snapshot monday to be deleted
2025-01-02 03:04:05  a        -      snapshot monday deleted
2025-01-02 03:04:05  a        -      novel volume 1/0: of a later server
`
	if r := m.run(t.Context(), "events", "a", "--limit", "20"); r.code != 0 || r.stdout != want {
		t.Errorf("exit status %d, %s\ngot:\n%swant:\n%s", r.code, r.stderr, r.stdout, want)
	}
	r := m.run(t.Context(), "events", "--since", "1h", "-o", "json")
	var listed []user.StorageEvent
	if err := json.Unmarshal([]byte(r.stdout), &listed); err != nil || len(listed) != len(b.happened) || listed[1].Entity != "volume 1/0" {
		t.Errorf("%v: %s", err, r.stdout)
	}
	if got := strings.Join(b.calls, "; "); got != `events ["a"] 20 true; events [] 0 false` {
		t.Errorf("the calls are %s", got)
	}
	if r := m.run(t.Context(), "events", "--watch", "-o", "yaml"); r.code != 2 || r.stderr != "stowage: --watch needs -o table or -o json\n" {
		t.Errorf("exit status %d, %s", r.code, r.stderr)
	}
}

// A watch shows what there is, and then what happens.
func TestEventsWatch(t *testing.T) {
	b := &backend{
		sent:   make(chan struct{}),
		events: []user.Event{event(row("a", status.Pending, "", "")), event(row("a", status.Attached, "", "/srv/a")), {Gone: []string{"a"}}},
		happened: []user.StorageEvent{
			{Time: time.Unix(1e9, 0).UTC(), Storage: "a", Number: 1, Type: "added", SizeMiB: 64, By: "uid 0"},
			{Time: time.Unix(1e9, 0).UTC(), Storage: "a", Number: 2, Type: "removed"},
		},
	}
	m := newMachine(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	want := `{"time":"2001-09-09T01:46:40Z","storage":"a","number":1,"type":"added","size-mib":64,"by":"uid 0"}
{"time":"2001-09-09T01:46:40Z","storage":"a","number":2,"type":"removed"}
`
	stdout := &notifyWriter{want: want, seen: make(chan struct{})}
	done := make(chan int)
	go func() {
		done <- cli.Main(ctx, []string{"events", "--watch", "--limit", "7", "-o", "json"}, cli.Env{
			Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &bytes.Buffer{}, Getenv: m.getenv,
		})
	}()
	<-stdout.seen
	<-b.sent
	for asked := "events [\"a\"] 10000 true"; !slices.Contains(b.recordedCalls(), asked); {
		runtime.Gosched() // the test times out if it is never asked
	}
	if calls := b.recordedCalls(); !slices.Contains(calls, "events [] 7 true") {
		t.Errorf("the calls are %q", calls)
	}
	cancel()
	if code := <-done; code != 0 || stdout.text.String() != want {
		t.Errorf("exit status %d, got\n%s", code, stdout.text.String())
	}
}
