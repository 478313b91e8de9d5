package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// A description has all that there is to say about storage, and leaves out what there is not.
func TestDescribe(t *testing.T) {
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.Local)
	b := &backend{
		storage: []user.Storage{{
			Name: "plain", Kind: "block", Pool: "fast", Provider: "loop", SizeMiB: 64, WantedMiB: 64, Life: life.Alive, Status: status.Detached, Since: at, Volume: "0/7",
		}, {
			Name: "data", Kind: "filesystem", Pool: "loop", Provider: "loop", SizeMiB: 1024, WantedMiB: 2048, CannotGrowToMiB: 2048, Life: life.Dying,
			Status: status.Error, Message: "no space\x1b[2J", Since: at, Location: "/srv/data", Volume: "0/1", Filesystem: "0/2",
			Labels: map[string]string{"tier": "fast", "zone": "a"}, Claim: "orders", Retained: true, Asker: &user.Asker{Way: "csi", Name: "pvc-1"},
			From: &user.Origin{Snapshot: "sunday"}, Attachments: []user.Attachment{{Machine: "web", Life: life.Dying, Location: "/srv/data", ReadOnly: true}},
		}},
		snapshots: []user.Snapshot{
			{Name: "monday", StorageName: "data", Kind: "filesystem", SizeMiB: 1024, Status: user.SnapshotReady, TakenAt: &at},
			{Name: "other", StorageName: "plain2", Kind: "block", SizeMiB: 64, Status: user.SnapshotReady, TakenAt: &at},
		},
	}
	b.happened = []user.StorageEvent{{Time: at, Storage: "data", Number: 1, Type: "remove-wanted", By: "alice"}}
	m := newMachine(t, b)
	r := m.run(t.Context(), "describe", "data", "plain")
	got := strings.Split(r.stdout, "\n")
	for i, line := range got {
		if before, age, ok := strings.Cut(line, "03:04:05 ("); ok && strings.HasSuffix(age, "d)") {
			got[i] = before + "03:04:05 (AGE)"
		}
	}
	want := `Name:          data
Status:        error, to be removed, since 2025-01-02 03:04:05 (AGE)
Message:       no space\x1b[2J
Kind:          filesystem
Pool:          loop (provider loop)
Size:          1G, to grow to 2G, cannot grow to 2G
Attached:      to machine web, at /srv/data, read-only, to be detached
Volume:        0/1
Filesystem:    0/2
Labels:        tier=fast,zone=a
Asked for by:  csi, as pvc-1
Claim:         orders, which was deleted: see stowage offer --help
Made from:     snapshot sunday

Snapshots:
  NAME    STORAGE  KIND        SIZE  TAKEN                MACHINE  STATUS  MESSAGE
  monday  data     filesystem  1G    2025-01-02 03:04:05  -        ready   -

Events:
  TIME                 STORAGE  BY     EVENT
  2025-01-02 03:04:05  data     alice  to be removed

Name:      plain
Status:    detached, since 2025-01-02 03:04:05 (AGE)
Kind:      block
Pool:      fast (provider loop)
Size:      64M
Attached:  no
Volume:    0/7

Events:
  TIME                 STORAGE  BY     EVENT
  2025-01-02 03:04:05  data     alice  to be removed
`
	if text := strings.Join(got, "\n"); r.code != 0 || text != want {
		t.Errorf("exit status %d, %s\ngot:\n%swant:\n%s", r.code, r.stderr, text, want)
	}
	if r := m.run(t.Context(), "describe"); r.code != 2 {
		t.Errorf("without a name: exit status %d, %s", r.code, r.stderr)
	}
}
