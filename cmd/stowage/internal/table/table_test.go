package table_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

var update = flag.Bool("update", false, "replace the golden files")

var now = time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

var rows = []user.Storage{
	{Name: "data", Kind: "filesystem", Pool: "loop", SizeMiB: 2048, Life: life.Alive,
		Status: status.Attached, Since: ago(3 * time.Minute), Location: "/srv/data"},
	{Name: "raw/2", Kind: "block", Pool: "fast", SizeMiB: 64, Life: life.Alive,
		Status: status.Attaching, Since: ago(5 * time.Second)},
	{Name: "raw/10", Kind: "block", Pool: "fast", SizeMiB: 1536, Life: life.Dying,
		Status: status.Error, Since: ago(50 * time.Hour), Message: "destroying volume: \x1b[2Jbusy\nraw/11 attached"},
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := table.Write(&out, rows, now, table.Layout{}); err != nil {
		t.Fatal(err)
	}
	want := `
NAME    KIND        POOL  SIZE  STATUS            SINCE  LOCATION   MESSAGE
data    filesystem  loop  2G    attached          3m     /srv/data
raw/2   block       fast  64M   attaching         5s     -
raw/10  block       fast  1.5G  error (removing)  2d     -          destroying volume: \x1b[2Jbusy\nraw/11 attached
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got:%swant:%s", got, want)
	}
}

// Machines are shown if they have names.
func TestMachinesAreShown(t *testing.T) {
	named := slices.Clone(rows[:2])
	named[0].Attachments = []user.Attachment{{Machine: "web-1"}}
	var out bytes.Buffer
	if err := table.Write(&out, named, now, table.Layout{}); err != nil {
		t.Fatal(err)
	}
	want := `
NAME   KIND        POOL  SIZE  STATUS     SINCE  MACHINE  LOCATION   MESSAGE
data   filesystem  loop  2G    attached   3m     web-1    /srv/data
raw/2  block       fast  64M   attaching  5s     -        -
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got:%swant:%s", got, want)
	}
	if got, want := table.Line(named[0]), "data attached on web-1 at /srv/data"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	named[0].Attachments[0].Machine = "0"
	out.Reset()
	if err := table.Write(&out, named, now, table.Layout{}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "MACHINE") {
		t.Errorf("a machine without a name is shown:\n%s", out.String())
	}
}

func TestLineAndSummary(t *testing.T) {
	var got []string
	for _, r := range rows {
		got = append(got, table.Line(r))
	}
	got = append(got, table.Line(user.Storage{Name: "new", Status: status.Attached}))
	got = append(got, table.Summary(rows), table.Summary(nil))
	want := []string{
		"data attached at /srv/data",
		"raw/2 attaching",
		`raw/10 error (removing): destroying volume: \x1b[2Jbusy\nraw/11 attached`,
		"new attached, its location is not known yet",
		"1/3 attached, 1 attaching, 1 error",
		"no storage",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGrowthAndRemarksAreShown(t *testing.T) {
	growing := user.Storage{
		Name: "data", Kind: "filesystem", Pool: "loop", SizeMiB: 256, WantedMiB: 512, Life: life.Alive,
		Status: status.Attached, Since: ago(3 * time.Minute), Location: "/srv/data", Message: "growing to 512 MiB",
	}
	nearly := growing
	nearly.SizeMiB, nearly.WantedMiB, nearly.Message = 2048, 2049, ""
	larger := growing
	larger.SizeMiB, larger.Message = 600, "size is not enforced"
	var out bytes.Buffer
	if err := table.Write(&out, []user.Storage{growing, nearly, larger}, now, table.Layout{}); err != nil {
		t.Fatal(err)
	}
	want := `
NAME  KIND        POOL  SIZE         STATUS    SINCE  LOCATION   MESSAGE
data  filesystem  loop  256M → 512M  attached  3m     /srv/data  growing to 512 MiB
data  filesystem  loop  2G → 2049M   attached  3m     /srv/data
data  filesystem  loop  600M         attached  3m     /srv/data  size is not enforced
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got:%swant:%s", got, want)
	}
	if got := table.Line(growing); got != "data attached at /srv/data, 256M → 512M: growing to 512 MiB" {
		t.Errorf("got %q", got)
	}
}

// What is not done says how far the operation is that has come farthest.
func TestProgressIsShown(t *testing.T) {
	waiting := user.StorageOperation{Entity: "filesystem 0/1", Operation: "create", State: "waiting", WaitsFor: "volume attachment 0/0 on machine-0", Since: ago(3 * time.Second)}
	failed := user.StorageOperation{Entity: "volume 0/0", Operation: "create", State: "scheduled", Failures: 2, NextAttempt: now.Add(28 * time.Second), Since: ago(time.Minute)}
	running := user.StorageOperation{Entity: "volume 0/0", Operation: "create", State: "running", Failures: 2, Since: ago(5 * time.Second)}
	earlier := user.StorageOperation{Entity: "volume 0/0", Operation: "create", State: "waiting", WaitsFor: "machine-0 to be provisioned", Since: ago(time.Hour)}
	for want, r := range map[string]user.Storage{
		"create has waited 60m for machine-0 to be provisioned":       {Operations: []user.StorageOperation{waiting, earlier}},
		"no space; next attempt in 28s, after 2 failures":             {Message: "no space", Operations: []user.StorageOperation{waiting, failed}},
		"create has run for 5s":                                       {Operations: []user.StorageOperation{waiting, running}},
		"create has waited 3s for volume attachment 0/0 on machine-0": {Operations: []user.StorageOperation{waiting}},
		"create is queued":                                            {Operations: []user.StorageOperation{{Entity: "volume 0/0", Operation: "create", State: "queued"}}},
	} {
		r.Name, r.Status, r.Since = "data", status.Pending, now
		var out bytes.Buffer
		if err := table.Write(&out, []user.Storage{r}, now, table.Layout{}); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), "  "+want+"\n") {
			t.Errorf("got:\n%swant %q", out.String(), want)
		}
	}
}

func TestExactSizes(t *testing.T) {
	for mib, want := range map[uint64]string{0: "0M", 1: "1M", 1023: "1023M", 1024: "1G", 1536: "1536M", 2049: "2049M", 3 << 20: "3T", 1 << 63: "8388608E"} {
		if got := table.ExactSize(mib); got != want {
			t.Errorf("%d: %s, want %s", mib, got, want)
		}
	}
}

func TestSortNaturalOrder(t *testing.T) {
	want := []string{"a", "a/0", "a/2", "a/10", "a1", "a2", "a10", "a10b", "ab", "b/0"}
	shuffled := []user.Storage{}
	for _, i := range []int{6, 1, 9, 3, 0, 8, 5, 2, 7, 4} {
		shuffled = append(shuffled, user.Storage{Name: want[i]})
	}
	table.Sort(shuffled)
	for i, r := range shuffled {
		if r.Name != want[i] {
			t.Errorf("at %d: %s, want %s", i, r.Name, want[i])
		}
	}
}

func TestSizesAndAges(t *testing.T) {
	for mib, want := range map[uint64]string{0: "0M", 1: "1M", 1023: "1023M", 1024: "1G", 1100: "1.1G", 3 << 20: "3T", 1 << 50: "1024E"} {
		if got := table.Size(mib); got != want {
			t.Errorf("Size(%d) = %s, want %s", mib, got, want)
		}
	}
	for age, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		2 * time.Hour: "2h", 47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := table.Age(age); got != want {
			t.Errorf("Age(%s) = %s, want %s", age, got, want)
		}
	}
}

// Promise S19.
func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain é 漢": "plain é 漢", "a\tb": `a\tb`, "\x1b]0;x\a": `\x1b]0;x\a`, "\xff\xfe": `\xff\xfe`, "\u202e": `\u202e`,
	} {
		if got := table.Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

// everyday is what an operator may have, with problems.
var everyday = []user.Storage{
	{Name: "database", Kind: "filesystem", Pool: "fast", SizeMiB: 200 << 10, Life: life.Alive, Status: status.Attached,
		Since: ago(40 * 24 * time.Hour), Location: "/srv/database", Volume: "0/0", Filesystem: "0/0", Labels: map[string]string{"tier": "fast"},
		Attachments: []user.Attachment{{Machine: "db-1"}}},
	{Name: "cache/0", Kind: "filesystem", Pool: "tmpfs", SizeMiB: 512, Life: life.Alive, Status: status.Attached,
		Since: ago(3 * time.Hour), Location: "/var/cache/application/0", Filesystem: "0/1", Attachments: []user.Attachment{{Machine: "web-1"}}},
	{Name: "logs", Kind: "filesystem", Pool: "loop", SizeMiB: 20 << 10, WantedMiB: 40 << 10, Life: life.Alive, Status: status.Attached,
		Since: ago(4 * time.Minute), Location: "/var/log/application", Message: "growing to 40960 MiB", Volume: "1/2", Filesystem: "1/3",
		Attachments: []user.Attachment{{Machine: "web-1"}}},
	{Name: "old", Kind: "filesystem", Pool: "loop", SizeMiB: 10 << 10, Life: life.Dying, Status: status.Detaching, Since: ago(70 * time.Second),
		Location: "/srv/old", Message: "unmounting /srv/old: device or resource busy: it is used by bash (process 4711), in /srv/old/tmp",
		Volume: "0/3", Filesystem: "0/4", Attachments: []user.Attachment{{Machine: "db-1"}}},
	{Name: "uploads", Kind: "filesystem", Pool: "loop", SizeMiB: 100 << 10, Life: life.Alive, Status: status.Error, Since: ago(26 * time.Hour),
		Location: "/srv/uploads", Message: "/srv/uploads: somebody has unmounted it", Volume: "1/4", Filesystem: "1/5",
		Attachments: []user.Attachment{{Machine: "web-1"}}},
	{Name: "scratch", Kind: "block", Pool: "fast", SizeMiB: 64, Life: life.Alive, Status: status.Pending, Since: ago(5 * time.Second)},
}

// What an operator sees on terminals of different widths, and elsewhere. Look at the files, with
// cat, before you replace them with -update.
func TestTablesOfAllWidths(t *testing.T) {
	for _, test := range []struct {
		file   string
		layout table.Layout
	}{
		{"width-60", table.Layout{Width: 60, Color: true}},
		{"width-80", table.Layout{Width: 80, Color: true}},
		{"width-120", table.Layout{Width: 120, Color: true}},
		{"file", table.Layout{}},
		{"wide", table.Layout{Width: 80, Wide: true, Used: map[string]user.StorageUsage{
			"database": {SizeBytes: 200 << 30, UsedBytes: 150<<30 + 300<<20}, "logs": {SizeBytes: 1 << 40, UsedBytes: 1 << 39, Shared: true},
		}}},
	} {
		sorted := slices.Clone(everyday)
		table.SortProblemsFirst(sorted)
		var out bytes.Buffer
		if err := table.Write(&out, sorted, now, test.layout); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", test.file+".golden")
		if *update {
			if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || out.String() != string(want) {
			t.Errorf("%v, %s: got\n%swant\n%s", err, test.file, out.String(), want)
		}
		for line := range strings.Lines(out.String()) {
			line = strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "", "\n", "").Replace(line)
			if n := utf8.RuneCountInString(line); !test.layout.Wide && test.layout.Width > 0 && n > test.layout.Width {
				t.Errorf("%s: a line has %d characters: %s", test.file, n, line)
			}
		}
	}
}

// screen is a terminal that understands the escape sequences of Live.
type screen struct {
	lines []string
}

func (s *screen) Write(p []byte) (int, error) {
	text := string(p)
	if strings.HasPrefix(text, "\x1b[") {
		var up int
		if _, err := fmt.Sscanf(text, "\x1b[%dA\r\x1b[J", &up); err != nil {
			return 0, err
		}
		s.lines = s.lines[:len(s.lines)-up]
		_, text, _ = strings.Cut(text, "\x1b[J")
	}
	if text != "" {
		s.lines = append(s.lines, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	}
	return len(p), nil
}

func TestLiveKeepsLogsAboveTable(t *testing.T) {
	var s screen
	live := table.NewLive(&s, false, func() (int, int) { return 60, 24 })
	show := func(rows []user.Storage) {
		t.Helper()
		if err := live.Show(rows, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(live, "before\n"); err != nil {
		t.Fatal(err)
	}
	show(rows)
	if _, err := io.WriteString(live, "WARNING one\n"); err != nil {
		t.Fatal(err)
	}
	show(rows[:1])
	want := []string{
		"before",
		"WARNING one",
		"NAME  KIND        POOL  SIZE  STATUS    SINCE  LOCATION",
		"data  filesystem  loop  2G    attached  3m     /srv/data",
		"1/1 attached",
	}
	if !slices.Equal(s.lines, want) {
		t.Errorf("the screen shows\n%s\nwant\n%s", strings.Join(s.lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestLiveFinish(t *testing.T) {
	var s screen
	live := table.NewLive(&s, false, func() (int, int) { return 80, 24 })
	for _, shown := range [][]user.Storage{rows[:1], nil} {
		if err := live.Show(shown, now); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"no storage"}; !slices.Equal(s.lines, want) {
		t.Errorf("the screen shows %q, want %q", s.lines, want)
	}
	if err := live.Finish("all 1 removed"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(live, "WARNING late\n"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"all 1 removed", "WARNING late"}; !slices.Equal(s.lines, want) {
		t.Errorf("the screen shows %q, want %q", s.lines, want)
	}
}

func TestLiveOmitsAttachedRowsOnSmallScreen(t *testing.T) {
	var many []user.Storage
	for i := range 10 {
		r := user.Storage{Name: fmt.Sprintf("s/%d", i), Status: status.Attached, Since: now}
		if i == 7 || i == 9 {
			r.Status = status.Attaching
		}
		many = append(many, r)
	}
	var s screen
	live := table.NewLive(&s, false, func() (int, int) { return 80, 7 })
	if err := live.Show(many, now); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range s.lines[1:] {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	if want := []string{"s/0", "s/7", "s/9", "…", "8/10"}; !slices.Equal(names, want) {
		t.Errorf("shown: %q, want %q", names, want)
	}
	if len(s.lines) > 6 {
		t.Errorf("%d lines on a terminal of 7, want 6 at most", len(s.lines))
	}
}
