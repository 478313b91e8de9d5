package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
)

var testOrphans = []user.Orphan{{
	State: user.OrphanLost, Name: "data", UUID: "3f0c", Kind: "volume", Provider: "loop", Pool: "fast",
	ID: "volume-0-1-3f0c", SizeMiB: 256, Path: "/d/volume-0-1-3f0c",
}, {
	State: user.OrphanUnknown, Kind: "filesystem", Provider: "rootfs", ID: "filesystem-0-4", SizeMiB: 64,
}}

func TestOrphansAreShown(t *testing.T) {
	released := user.Orphan{State: user.OrphanReleased, Name: "old", Kind: "volume", Provider: "loop", ID: "volume-0-9", SizeMiB: 1024}
	b := &backend{orphans: append(slices.Clone(testOrphans), released)}
	r := newMachine(t, b).run(t.Context(), "orphans")
	want := `NAME  STATE    KIND        SIZE  POOL    UUID  PATH
data  orphan   volume      256M  fast    3f0c  /d/volume-0-1-3f0c
-     unknown  filesystem  64M   rootfs  -     filesystem-0-4
`
	if r.code != 0 || r.stdout != want {
		t.Errorf("exit status %d:\n%s%s\nwant\n%s", r.code, r.stdout, r.stderr, want)
	}
	if r := newMachine(t, b).run(t.Context(), "orphans", "--released"); !strings.Contains(r.stdout, "old   released  volume      1G    loop    -     volume-0-9") {
		t.Errorf("with --released:\n%s%s", r.stdout, r.stderr)
	}
	if r := newMachine(t, &backend{}).run(t.Context(), "orphans"); r.stdout != "no orphans\n" {
		t.Errorf("without orphans: %q", r.stdout)
	}
	if r := newMachine(t, &backend{}).run(t.Context(), "orphans", "-o", "json"); r.stdout != "[]\n" {
		t.Errorf("without orphans, as JSON: %q", r.stdout)
	}
}

// A list of several machines says which has what, and which were not asked.
func TestOrphansOfMachinesAreShown(t *testing.T) {
	of := slices.Clone(testOrphans)
	of[0].Machine = "web"
	b := &backend{orphans: of, notAsked: []user.NotAsked{{Machine: "db", Reason: "machine db is not connected"}}}
	r := newMachine(t, b).run(t.Context(), "orphans", "--machine", "web")
	want := `NAME  STATE    KIND        SIZE  POOL    MACHINE  UUID  PATH
data  orphan   volume      256M  fast    web      3f0c  /d/volume-0-1-3f0c
-     unknown  filesystem  64M   rootfs  -        -     filesystem-0-4
`
	if r.code != 0 || r.stdout != want || r.stderr != "not asked: machine db is not connected\n" {
		t.Errorf("exit status %d:\n%s%s\nwant\n%s", r.code, r.stdout, r.stderr, want)
	}
	if calls := b.recordedCalls(); !slices.Equal(calls, []string{`orphans "web"`}) {
		t.Errorf("asked %q", calls)
	}
}

func TestOrphanCommandsReachAgent(t *testing.T) {
	for _, test := range []struct {
		args    []string
		request string
		output  string
	}{
		{[]string{"adopt", "data", "--as", "old"}, "adopt {Orphan:data As:old Machine:}", "+ old  adopt  block, detached\n"},
		{[]string{"delete", "3f0c"}, "delete-orphan {UUID:3f0c Now:false Machine:}", "- volume volume-0-1-3f0c deleted: its data is in the trash until 2001-09-09T01:46:40Z\n"},
		{[]string{"adopt", "data", "--machine", "web"}, "adopt {Orphan:data As: Machine:web}", "+ old  adopt  block, detached\n"},
		{[]string{"delete", "3f0c", "--now", "--machine", "web"}, "delete-orphan {UUID:3f0c Now:true Machine:web}", "- volume volume-0-1-3f0c deleted: its data is in the trash until 2001-09-09T01:46:40Z\n"},
		{[]string{"backup", "/b/state"}, "backup {Path:/b/state}", "/b/state: state u, generation 2, 4096 bytes; the data of the storage is not in it\n"},
		{[]string{"release", "data"}, `release ["data"]`, ""},
		{[]string{"remove", "data", "log", "--force"}, `force remove ["data" "log"]`, ""},
	} {
		b := &backend{
			orphans: testOrphans[:1],
			changes: []user.Change{{Action: user.ActionAdopt, Item: "storage", Name: "old", Detail: "block, detached"}},
		}
		r := newMachine(t, b).run(t.Context(), test.args...)
		if r.code != 0 || r.stdout != test.output || !slices.Contains(b.recordedCalls(), test.request) {
			t.Errorf("%q: exit status %d, asked %q:\n%s%s", test.args, r.code, b.recordedCalls(), r.stdout, r.stderr)
		}
	}
}

// Commands for a stopped agent check their arguments before they change anything.
func TestRescueCommandArgumentErrors(t *testing.T) {
	for _, test := range []struct {
		args   []string
		code   int
		output string
	}{
		{[]string{"adopt-dir"}, 2, "either --moved or --copy"},
		{[]string{"adopt-dir", "--moved", "--copy"}, 2, "either --moved or --copy"},
		{[]string{"restore"}, 2, "arg"},
		{[]string{"recover", "now"}, 2, "--data-dir"},
		{[]string{"delete", ""}, 1, ""},
	} {
		r := newMachine(t, nil).run(t.Context(), test.args...)
		if r.code != test.code || !strings.Contains(r.stderr, test.output) {
			t.Errorf("%q: exit status %d:\n%s", test.args, r.code, r.stderr)
		}
	}
}

// Commands for a stopped agent are refused while the directory's agent runs.
func TestRescueCommandsNeedStoppedAgent(t *testing.T) {
	for _, args := range [][]string{{"adopt-dir", "--moved"}, {"restore", "/b"}, {"recover"}} {
		r := newMachine(t, &backend{}).run(t.Context(), args...)
		if r.code != 1 || !strings.Contains(r.stderr, "stop the agent first") {
			t.Errorf("%q: exit status %d:\n%s", args, r.code, r.stderr)
		}
	}
}
