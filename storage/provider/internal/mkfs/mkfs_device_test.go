//go:build linux

package mkfs_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// Each type is made on its smallest device, carries the UUID that was asked for
// and passes the check of its own authors.
func TestMakeOnTheSmallestDevice(t *testing.T) {
	const id = "11111111-2222-3333-4444-555555555555"
	for name, check := range map[string][]string{
		"ext4":  {"fsck.ext4", "-f", "-n"},
		"xfs":   {"xfs_repair", "-n"},
		"btrfs": {"btrfs", "check", "--readonly"},
	} {
		t.Run(name, func(t *testing.T) {
			kind, err := mkfs.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			devicetest.RequireProgram(t, "mkfs."+name)
			loop := devicetest.NewLoop(t, int64(kind.MinSize)<<20)
			f, err := os.Open(loop.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := kind.Make(t.Context(), f, id, nil); err != nil {
				t.Fatal(err)
			}
			found, err := signature.ReadSuperblock(f)
			if err != nil || found != (signature.Signature{Type: name, UUID: id}) {
				t.Errorf("got %+v, %v", found, err)
			}
			if out, err := exec.Command(check[0], append(check[1:], loop.Path)...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", check[0], err, out)
			}
		})
	}
}
