package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
			Name: "data", Kind: "filesystem", Pool: "loop", Provider: "loop", SizeMiB: 1024, WantedMiB: 2048, CannotGrowToMiB: 2048, VolumeMiB: 2048, Life: life.Dying,
			Status: status.Error, Message: "cannot grow to 2048 MiB: growing the ext4 on /dev/loop5, which is mounted at /srv/data: no space\x1b[2J", Since: at, Location: "/srv/data", Volume: "0/1", Filesystem: "0/2",
			Labels: map[string]string{"tier": "fast", "zone": "a"}, Claim: "orders", Retained: true, Asker: &user.Asker{Way: "csi", Name: "pvc-1"},
			From: &user.Origin{Snapshot: "sunday"}, Attachments: []user.Attachment{{Machine: "web", Life: life.Dying, Location: "/srv/data", ReadOnly: true}},
		}},
		snapshots: []user.Snapshot{
			{Name: "monday", StorageName: "data", Kind: "filesystem", SizeMiB: 1024, Status: user.SnapshotReady, TakenAt: &at},
			{Name: "other", StorageName: "plain2", Kind: "block", SizeMiB: 64, Status: user.SnapshotReady, TakenAt: &at},
		},
	}
	b.looks = []user.StorageLook{{
		Name: "data", Machine: "web",
		Files: []user.StorageFile{
			{Kind: "record", Path: "/var/lib/stowage/storage/loop/records/volume-0-1-0f0e1d6c-6a3e-4c39-9d4a-1a1f3a7a8b11.json"},
			{Kind: "file", Path: "/var/lib/stowage/storage/loop/volumes/volume-0-1-0f0e1d6c-6a3e-4c39-9d4a-1a1f3a7a8b11", SizeBytes: 2 << 30, AllocatedBytes: 2<<30 + 4096},
			{Kind: "record", Path: "/r", Missing: true},
		},
		Devices: []string{"/dev/loop5"},
		Mounts:  []user.StorageMount{{Path: "/srv/data"}, {Path: "/srv/other", ReadOnly: true}},
		Usage:   &user.StorageUsage{SizeBytes: 1 << 30, UsedBytes: 100 << 20, AvailableBytes: 900 << 20},
		Holders: []user.StorageHolder{{PID: 4711, Name: "post\x1bgres", Use: "has open /srv/data/base/16384/2619"}, {Name: "dm-0", Use: "block device on top"}},
		Operations: []user.StorageOperation{{
			Entity: "filesystem 0/2", Operation: "resize", State: "scheduled", Since: at, Failures: 3,
			LastFailure: "growing the ext4 on /dev/loop5, which is mounted at /srv/data: no space", NextAttempt: at.Add(time.Hour),
		}, {Entity: "volume attachment 0/1 on machine-0", Operation: "detach", State: "waiting", Since: at, WaitsFor: "all uses of it to end"}},
		Notes: []string{"the users of volume x: no answer since 2025-01-02T03:04:05Z"},
	}, {Name: "plain", Machine: "web", NotAsked: "machine web is not connected", Usage: &user.StorageUsage{SizeBytes: 40 << 30, UsedBytes: 30 << 30, Shared: true}}}
	b.happened = []user.StorageEvent{{Time: at, Storage: "data", Number: 1, Type: "remove-wanted", By: "alice"}}
	m := newMachine(t, b)
	r := m.run(t.Context(), "describe", "data", "plain")
	text := regexp.MustCompile(`\(\d+d\)`).ReplaceAllString(r.stdout, "(AGE)")
	const golden = "testdata/describe.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if r.code != 0 || text != string(want) {
		t.Errorf("exit status %d, %s\ngot:\n%swant:\n%s", r.code, r.stderr, text, want)
	}
	for line := range strings.Lines(text) {
		// Paths are not broken, so that they can be copied.
		if utf8.RuneCountInString(line) > 81 && !strings.Contains(line, "/var/lib/stowage/storage/loop/") {
			t.Errorf("a line with more than 80 columns: %s", line)
		}
	}
	if r := m.run(t.Context(), "describe", "data", "plain", "-o", "json"); r.code != 0 || !strings.Contains(r.stdout, `"allocated-bytes": 2147487744`) {
		t.Errorf("in JSON: %+v", r)
	}
	if r := m.run(t.Context(), "describe"); r.code != 2 {
		t.Errorf("without a name: exit status %d, %s", r.code, r.stderr)
	}
}
