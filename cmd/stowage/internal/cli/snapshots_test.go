package cli_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

func snapshotOf(s user.SnapshotStatus, message string) user.Snapshot {
	taken := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	return user.Snapshot{Name: "monday", StorageName: "data", Kind: "filesystem", SizeMiB: 64, Status: s, Message: message, TakenAt: &taken}
}

func TestListSnapshots(t *testing.T) {
	m := newMachine(t, &backend{snapshots: []user.Snapshot{snapshotOf(user.SnapshotReady, "")}})
	want := `NAME    STORAGE  KIND        SIZE  TAKEN                MACHINE  STATUS  MESSAGE
monday  data     filesystem  64M   2026-01-02 03:04:05  -        ready   -
`
	if got := m.run(t.Context(), "snapshot", "list"); got.code != 0 || got.stdout != want {
		t.Errorf("exit status %d, %s, stdout\n%s\nwant\n%s", got.code, got.stderr, got.stdout, want)
	}
}

// A command that waits says why it still does. What cannot be made is not left behind.
func TestCreateSnapshot(t *testing.T) {
	creating, retried := snapshotOf(user.SnapshotCreating, ""), snapshotOf(user.SnapshotCreating, "no space")
	for _, test := range []struct {
		answers []user.Snapshot
		args    []string
		code    int
		stderr  string
		last    string
	}{
		{[]user.Snapshot{creating, creating}, nil, 0, "", `snapshots ["monday"]`},
		{[]user.Snapshot{creating, retried, snapshotOf(user.SnapshotReady, "")}, []string{"--wait"}, 0, "no space: will be retried", `snapshots ["monday"]`},
		{[]user.Snapshot{creating, snapshotOf(user.SnapshotFailed, "detach it"), creating}, []string{"--wait"}, 1, `snapshot "monday" of storage "data": detach it`, `snapshots ["monday"]`},
		{[]user.Snapshot{snapshotOf(user.SnapshotDeleting, ""), creating}, []string{"--wait"}, 1, "somebody else has deleted it", `snapshots ["monday"]`},
	} {
		b := &backend{snapshots: test.answers}
		m := newMachine(t, b)
		got := m.run(t.Context(), append([]string{"snapshot", "create", "monday", "data"}, test.args...)...)
		calls := b.recordedCalls()
		if got.code != test.code || !strings.Contains(got.stderr, test.stderr) || calls[0] != "create snapshot monday {Storage:data}" || calls[len(calls)-1] != test.last {
			t.Errorf("%+v, calls %q", got, calls)
		}
		if deleted := slices.Contains(calls, "delete snapshot monday false"); deleted != strings.Contains(test.stderr, "detach") {
			t.Errorf("calls %q", calls)
		}
	}
}

func TestDeleteSnapshots(t *testing.T) {
	b := &backend{}
	m := newMachine(t, b)
	if got := m.run(t.Context(), "snapshot", "delete", "monday", "tuesday", "--force", "--wait"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if calls := b.recordedCalls(); !slices.Contains(calls, "delete snapshot monday true") || !slices.Contains(calls, "delete snapshot tuesday true") {
		t.Errorf("calls %q", calls)
	}
}

// With --ignore-missing, a script can repeat commands that remove something.
func TestIgnoreMissing(t *testing.T) {
	for _, args := range [][]string{{"remove", "data", "--wait"}, {"release", "data"}, {"snapshot", "delete", "monday", "--wait"}} {
		b := &backend{err: errors.NotFoundf("that")}
		m := newMachine(t, b)
		if got := m.run(t.Context(), args...); got.code != 1 || !strings.Contains(got.stderr, "that not found") {
			t.Errorf("%q: %+v", args, got)
		}
		if got := m.run(t.Context(), append(args, "--ignore-missing")...); got.code != 0 || got.stderr != "" {
			t.Errorf("%q --ignore-missing: %+v", args, got)
		}
		b.err = errors.New("broken")
		if got := m.run(t.Context(), append(args, "--ignore-missing")...); got.code != 1 || !strings.Contains(got.stderr, "broken") {
			t.Errorf("%q with another error: %+v", args, got)
		}
	}
	b := &backend{storage: []user.Storage{row("data", status.Attached, "", "")}}
	if got := newMachine(t, b).run(t.Context(), "remove", "data", "--ignore-missing"); got.code != 0 || !slices.Contains(b.recordedCalls(), `remove ["data"]`) {
		t.Errorf("%+v, calls %q", got, b.recordedCalls())
	}
}
