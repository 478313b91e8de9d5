//go:build linux

package reflink

import (
	"os"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func TestIsPossible(t *testing.T) {
	for mkfs, want := range map[string]bool{
		"mkfs.ext4 -q": false, "mkfs.xfs -q": true, "mkfs.xfs -q -m reflink=0": false, "mkfs.btrfs -q": true,
	} {
		t.Run(mkfs, func(t *testing.T) {
			dir, err := os.Open(devicetest.NewDisk(t, 320<<20, strings.Fields(mkfs)...).Dir)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if got, err := IsPossible(dir); err != nil || got != want {
				t.Errorf("got %v, %v", got, err)
			}
			if names, err := dir.Readdirnames(-1); err != nil || len(names) > 1 { // lost+found
				t.Errorf("left %q, %v", names, err)
			}
		})
	}
}
