//go:build linux

package loopdev

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// TestDecodeDev compares the kernel's encoding of device numbers with that of stat. Both
// are equal for small numbers.
func TestDecodeDev(t *testing.T) {
	for _, dev := range []uint64{0, unix.Mkdev(254, 0), unix.Mkdev(7, 255), unix.Mkdev(8, 256), unix.Mkdev(4095, 1<<20-1)} {
		kernel := uint64(unix.Minor(dev)&0xff | unix.Major(dev)<<8 | (unix.Minor(dev)&^0xff)<<12)
		if got := decodeDev(kernel); got != dev {
			t.Errorf("%d:%d became %d:%d", unix.Major(dev), unix.Minor(dev), unix.Major(got), unix.Minor(got))
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(os.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	if got := decodeDev(st.Dev); got != st.Dev {
		t.Errorf("%#x became %#x", st.Dev, got)
	}
}

func TestTable(t *testing.T) {
	a, b := FileID{1, 2}, FileID{1, 3}
	table := &Table{byFile: make(map[FileID][]Device)}
	table.Add(Device{Number: 4, File: a})
	table.Add(Device{Number: 5, File: a})
	table.Add(Device{Number: 6, File: b})
	table.Remove(Device{Number: 4, File: a})
	if got, err := table.OfFile(a, "/a"); err != nil || len(got) != 1 || got[0].Number != 5 {
		t.Errorf("devices of file a: %+v", got)
	}
	if got, err := table.OfFile(b, "/b"); err != nil || len(got) != 1 || got[0].Number != 6 {
		t.Errorf("devices of file b: %+v", got)
	}
}

func TestUnreadableDeviceMayShow(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "volume"), filepath.Join(dir, "elsewhere", "volume")
	for _, path := range []string{file, other} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	const gone = "/gone/storage/volume" // does not exist
	for _, test := range []struct {
		of, path string
		want     bool
	}{
		{file, file, true},
		{file, other, false},
		{file, filepath.Join(dir, "link/volume"), false}, // this is the other file
		{gone, gone, true},
		{gone, gone + " (deleted)", true},
		{gone, "/storage/volume", true}, // unmounted lazily
		{gone, "/storage/volume (deleted)", true},
		{gone, "/elsewhere/storage/volume", false}, // in another mount namespace
		{gone, "/storage/other", false},
		{gone, "/rage/volume", false},
	} {
		if got := (unreadable{path: test.path}).mayShow(IDOf(&st), test.of); got != test.want {
			t.Errorf("mayShow of %s for %s: %t", test.path, test.of, got)
		}
	}
}

// A container shares the kernel's devices, but not all of their nodes. Retrying does not
// help.
func TestExplainOpenError(t *testing.T) {
	for err, want := range map[error]string{
		unix.ENOENT: "loop devices: /dev/loop7 has no device node here (in a container, the host must pass it on)",
		unix.EPERM:  "loop devices: /dev/loop7 may not be opened (in a container, the host must pass it on)",
	} {
		got := explainOpenError(&os.PathError{Op: "open", Path: devicePath(7), Err: err}, 7)
		if !errors.Is(got, errors.NotSupported) || !strings.HasPrefix(got.Error(), want) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := explainOpenError(unix.EIO, 7); errors.Is(got, errors.NotSupported) || !errors.Is(got, unix.EIO) {
		t.Errorf("I/O error became %v", got)
	}
}

var testLabel = Label{Mark: "0123456789abcdef", Name: "f4c3b2a1-0011-2233-4455-66778899aabb"}

func TestLabels(t *testing.T) {
	long := "/srv/" + strings.Repeat("deep/", 20) + "volume-0-1"
	for _, label := range []Label{{}, testLabel, {Mark: "m", Name: "imported-" + testLabel.Name}, {Name: "/srv/volumes/volume-0-1"}, {Name: long}} {
		var info unix.LoopInfo64
		if label != (Label{}) {
			setLabel(&info, label)
		}
		if info.File_name[len(info.File_name)-1] != 0 {
			t.Errorf("%q is not terminated", info.File_name)
		}
		got := parseLabel(info.File_name[:])
		if got.Mark != label.Mark || got.text() != label.text() {
			t.Errorf("label %+v is read back as %+v", label, got)
		}
	}
	if !(Label{Name: long[:55]}).IsFile(long) || (Label{Name: "/srv/a"}).IsFile("/srv/b") || (Label{}).IsFile("") || testLabel.IsFile(testLabel.Name) {
		t.Error("a label matches another file")
	}
	if got := parseLabel([]byte("/srv/somebody's")); got != (Label{}) {
		t.Errorf("a foreign label is read as %+v", got)
	}
}
