package datadir_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/state"
)

func fingerprint(t *testing.T, dir string) state.Fingerprint {
	t.Helper()
	f, err := datadir.Dir(dir).Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Renaming a directory or changing its contents keeps its fingerprint; a copy has another.
func TestFingerprintDetectsCopy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	made := fingerprint(t, dir)

	if err := os.WriteFile(filepath.Join(dir, "state.db"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	renamed := dir + "-renamed"
	if err := os.Rename(dir, renamed); err != nil {
		t.Fatal(err)
	}
	if difference := datadir.Difference(made, fingerprint(t, renamed)); difference != "" {
		t.Errorf("a renamed directory differs in %s", difference)
	}

	if out, err := exec.Command("cp", "-a", renamed, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if difference := datadir.Difference(made, fingerprint(t, dir)); difference == "" {
		t.Error("a copy has the same fingerprint as the original")
	}
}

// The device number counts only within one boot, because it may change with each boot. A
// field that is unknown on one side counts as equal.
func TestDifference(t *testing.T) {
	made := state.Fingerprint{Inode: 2, Born: 3, MachineID: "m", BootID: "b", Device: 4}
	for _, test := range []struct {
		about string
		now   state.Fingerprint
		want  string
	}{
		{"same", made, ""},
		{"another boot", state.Fingerprint{Inode: 2, Born: 3, MachineID: "m", BootID: "c", Device: 5}, ""},
		{"another device", state.Fingerprint{Inode: 2, Born: 3, MachineID: "m", BootID: "b", Device: 5}, "device"},
		{"another machine", state.Fingerprint{Inode: 2, Born: 3, MachineID: "n", BootID: "c", Device: 4}, "machine ID"},
		{"no machine ID, no birth time", state.Fingerprint{Inode: 2, BootID: "c", Device: 4}, ""},
		{"a copy", state.Fingerprint{Inode: 7, Born: 8, MachineID: "m", BootID: "b", Device: 4}, "inode, birth time"},
		{"another subvolume", state.Fingerprint{Inode: 2, Born: 3, Subvolume: 9, MachineID: "m", BootID: "c", Device: 4}, "btrfs subvolume"},
	} {
		if got := datadir.Difference(made, test.now); got != test.want {
			t.Errorf("%s: differs in %q, want %q", test.about, got, test.want)
		}
	}
}
