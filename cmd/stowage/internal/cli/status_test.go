package cli_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// The wide table says how much is used, asks about what is mounted only, and names machines that have not
// said it. Other formats ask nothing.
func TestStatusShowsUsage(t *testing.T) {
	mounted := row("data", status.Attached, "", "/srv/data")
	mounted.Filesystem = "0/1"
	raw := row("raw", status.Attached, "", "/dev/loop1")
	raw.Kind, raw.Filesystem = "block", ""
	b := &backend{
		storage: []user.Storage{mounted, raw},
		usage: user.UsageList{
			Storage:  []user.MeasuredStorage{{Name: "data", Usage: user.StorageUsage{SizeBytes: 200 << 20, UsedBytes: 50 << 20}}},
			NotAsked: []user.NotAsked{{Machine: "web", Reason: "machine web is not connected"}},
		},
	}
	m := newMachine(t, b)
	r := m.run(t.Context(), "status", "-o", "wide")
	if r.code != 0 || !strings.Contains(r.stdout, " USED ") || !strings.Contains(r.stdout, " 50M (25%) ") || r.stderr != "not asked: machine web is not connected\n" {
		t.Errorf("%+v", r)
	}
	if calls := b.recordedCalls(); calls[len(calls)-1] != `usage ["data"]` {
		t.Errorf("calls %q", calls)
	}
	if r := m.run(t.Context(), "status"); strings.Contains(r.stdout, "USED") || strings.Count(strings.Join(b.recordedCalls(), " "), "usage") != 1 {
		t.Errorf("%+v, calls %q", r, b.recordedCalls())
	}
	b.err = errors.NotImplemented
	if r := m.run(t.Context(), "status", "-o", "wide"); r.code == 0 {
		t.Errorf("%+v", r)
	}
}
