//go:build linux

package signature

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func TestSplitExport(t *testing.T) {
	const out = "DEVNAME=/a\nTYPE=ext4\nLOGICAL_SECTOR_SIZE=512\n\nDEVNAME=/b\nLOGICAL_SECTOR_SIZE=512\n\n" +
		"DEVNAME=/c\nTYPE=xfs\n\nDEVNAME=/c\nLOGICAL_SECTOR_SIZE=512\n\nDEVNAME=/c\n\nnonsense\n\n"
	got := splitExport(out)
	want := map[string]string{"/a": "TYPE=ext4\nLOGICAL_SECTOR_SIZE=512", "/b": "LOGICAL_SECTOR_SIZE=512"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// probed returns devices of several kinds, and the result of probing each one alone.
func probed(t *testing.T) (devices []*os.File, want []string) {
	const size = 16 << 20
	for i, put := range []string{"", "mkfs.ext4 -q", "", "unreadable", "", "mkswap", "text", "both", ""} {
		loop := devicetest.NewLoop(t, size)
		switch put {
		case "":
		case "unreadable":
			// The device cannot be read beyond the end of its file.
			if err := os.Truncate(loop.File, 4096); err != nil {
				t.Fatal(err)
			}
		case "text":
			if err := os.WriteFile(loop.Path, []byte("dear diary"), 0); err != nil {
				t.Fatal(err)
			}
		case "both":
			for _, program := range []string{"mkswap", "mkfs.ext4 -q -F"} {
				makeOn(t, program, loop.Path)
			}
		default:
			makeOn(t, put, loop.Path)
		}
		f, err := os.Open(loop.Path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		devices = append(devices, f)
		want = append(want, outcome(ProveBlank(t.Context(), f, size)))
		if (want[i] == "blank") != (put == "") {
			t.Fatalf("device %d, %q: %s", i, put, want[i])
		}
	}
	return devices, want
}

func makeOn(t *testing.T, program, path string) {
	t.Helper()
	args := append(strings.Fields(program), path)
	devicetest.RequireProgram(t, args[0])
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

func outcome(err error) string {
	var notBlank *NotBlankError
	switch {
	case err == nil:
		return "blank"
	case errors.As(err, &notBlank):
		return notBlank.Error()
	}
	return "unknown"
}

// Each device has the same result as when it is probed alone, whatever the other devices
// are.
func TestProbeTogether(t *testing.T) {
	devices, want := probed(t)
	var all []*probe
	for _, dev := range devices {
		all = append(all, &probe{dev: dev})
	}
	probeTogether(t.Context(), all)
	if !all[0].done || !all[1].done {
		t.Error("probing together gave no result")
	}
	if all[3].done {
		t.Errorf("an unreadable device has a result: %+v", all[3].found)
	}

	var prober Prober
	got := make([]string, len(devices))
	var proving sync.WaitGroup
	for i, dev := range devices {
		proving.Go(func() { got[i] = outcome(prober.ProveBlank(t.Context(), dev, 16<<20)) })
	}
	proving.Wait()
	for i := range devices {
		if got[i] != want[i] {
			t.Errorf("device %d: %s, and alone: %s", i, got[i], want[i])
		}
	}
}
