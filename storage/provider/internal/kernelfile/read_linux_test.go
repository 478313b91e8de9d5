package kernelfile

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRead(t *testing.T) {
	for _, path := range []string{"/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/osrelease", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Logf("not on this machine: %v", err)
			continue
		}
		if got, err := Read(path); err != nil || got != strings.TrimSpace(string(want)) || got == "" {
			t.Errorf("%s: read %q, %v, want %q", path, got, err, want)
		}
	}
	var failure *os.PathError
	for path, want := range map[string]error{"/proc/none": unix.ENOENT, "/proc/self/mem": unix.EIO, "/proc": unix.EISDIR} {
		if _, err := Read(path); !errors.Is(err, want) || !errors.As(err, &failure) || failure.Path != path {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}
