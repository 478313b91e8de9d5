package privilege

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMissingNamesRemedy(t *testing.T) {
	path := t.TempDir()
	for name, mode := range map[string]os.FileMode{"blkid": 0o755, "cp": 0o755, "mkfs.ext4": 0o755, "mkfs.xfs": 0o644} {
		if err := os.WriteFile(filepath.Join(path, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, lack := range missing(^uint64(0)&^(1<<24), path) { // CAP_SYS_RESOURCE
		if lack.Name != "/dev/loop-control" { // the machine of the test may lack it
			got = append(got, lack.String())
		}
		if lack.Vital {
			t.Errorf("%s: is vital, want optional", lack)
		}
	}
	want := []string{
		"cannot grow ext4 filesystems: CAP_SYS_RESOURCE is missing; start it with CAP_SYS_RESOURCE, see docs/reference/privileges.md",
		"cannot make xfs filesystems: mkfs.xfs is not in " + path + "; install the Debian package xfsprogs",
		"cannot make btrfs filesystems: mkfs.btrfs is not in " + path + "; install the Debian package btrfs-progs",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTryDeviceNamesMissingDevice(t *testing.T) {
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

// all returns every need in order, as "name: purpose".
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

func TestDocumentMatchesCode(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1]+": "+row[2])
	}
	if want := all(); !slices.Equal(rows, want) {
		t.Errorf("docs/reference/privileges.md lists\n%s\nthe code lists\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

func TestUnitsGrantNeededCapabilities(t *testing.T) {
	var want []string
	for _, c := range capabilities() {
		want = append(want, c.Name)
	}
	slices.Sort(want)
	for _, unit := range []string{"stowage", "stowage-agent"} {
		text, err := os.ReadFile("../../../../packaging/systemd/" + unit + ".service")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindAllStringSubmatch(string(text), -1)
		if len(found) != 1 {
			t.Fatalf("%s: %d bounding sets, want one", unit, len(found))
		}
		got := strings.Fields(found[0][1])
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s grants %q, want %q", unit, got, want)
		}
	}
}

// A setting with a mount namespace hides the agent's mounts from the machine.
func TestUnitsOfAgentsHaveNoMountNamespace(t *testing.T) {
	setting := regexp.MustCompile(`(?m)^(Private[A-Za-z]+|Protect[A-Za-z]+|(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec|Bind|BindReadOnly)Paths|TemporaryFileSystem|RootDirectory|RootImage|MountFlags|MountAPIVFS|DynamicUser|ProcSubset|LogNamespace)=`)
	for _, unit := range []string{"stowage", "stowage-agent"} {
		text, err := os.ReadFile("../../../../packaging/systemd/" + unit + ".service")
		if err != nil {
			t.Fatal(err)
		}
		if found := setting.FindAllString(string(text), -1); len(found) > 0 {
			t.Errorf("%s has %q", unit, found)
		}
	}
}
