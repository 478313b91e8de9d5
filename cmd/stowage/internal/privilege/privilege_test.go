package privilege

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMissingThingsAreNamedWithTheRemedy(t *testing.T) {
	path := t.TempDir()
	for name, mode := range map[string]os.FileMode{"blkid": 0o755, "mkfs.ext4": 0o755, "mkfs.xfs": 0o644} {
		if err := os.WriteFile(filepath.Join(path, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, lack := range missing(^uint64(0)&^(1<<24), path) { // CAP_SYS_RESOURCE
		if lack.Name != "/dev/loop-control" { // this machine may have it, or not
			got = append(got, lack.String())
		}
		if lack.Vital {
			t.Errorf("%s: the agent does not run without it", lack)
		}
	}
	want := []string{
		"cannot grow ext4 filesystems: CAP_SYS_RESOURCE is missing; start it with CAP_SYS_RESOURCE, see docs/privileges.md",
		"cannot make xfs filesystems: mkfs.xfs is not in " + path + "; install the Debian package xfsprogs",
		"cannot make btrfs filesystems: mkfs.btrfs is not in " + path + "; install the Debian package btrfs-progs",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDeviceThatIsNotThereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loop-control")
	if err := tryDevice(path); err == nil || !strings.Contains(err.Error(), path+": no such file") {
		t.Errorf("got %v", err)
	}
	if err := tryDevice("/dev/null"); err != nil {
		t.Error(err)
	}
}

func TestNothingVitalIsMissingForRoot(t *testing.T) {
	lacks := missing(^uint64(0), searchPath)
	if slices.ContainsFunc(lacks, func(l Lack) bool { return l.Vital }) {
		t.Errorf("%v", lacks)
	}
	if lacks := missing(0, searchPath); len(lacks) < len(capabilities()) || !lacks[0].Vital {
		t.Errorf("without any capability: %v", lacks)
	}
}

// all returns every need in order, as "name: what it is for".
func all() []string {
	var list []string
	for _, c := range capabilities() {
		list = append(list, c.Name+": "+c.For)
	}
	for _, n := range slices.Concat(devices(), programs()) {
		list = append(list, n.Name+": "+n.For)
	}
	return list
}

func TestDocumentSaysTheSame(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1]+": "+row[2])
	}
	if want := all(); !slices.Equal(rows, want) {
		t.Errorf("docs/privileges.md has\n%s\nthe code\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

func TestUnitGivesWhatIsNeeded(t *testing.T) {
	text, err := os.ReadFile("../../../../examples/stowage.service")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(found) != 1 {
		t.Fatalf("%d bounding sets, want one", len(found))
	}
	got := strings.Fields(found[0][1])
	var want []string
	for _, c := range capabilities() {
		want = append(want, c.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the unit gives %q, needed are %q", got, want)
	}
}
