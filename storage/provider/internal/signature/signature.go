// Package signature tells what is on a block device.
//
// There are two questions, with a tool each. "May this be formatted?" is
// answered by [ProveBlank], which says yes only when all of the device was read and
// nothing was found, by two independent ways, or for a loop device by
// [Prober.ProveFileBlank], which reads all of its file that was ever written. "Which of our filesystems is
// this?" is answered by [ReadSuperblock], a small parser of the filesystems
// that stowage makes; that it finds nothing proves nothing.
//
// The package keeps no state; calls for different files may overlap.
package signature

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/internal/run"
)

var (
	blkid     = run.Program{Name: "blkid", Package: "util-linux"}
	probeArgs = []string{"-p", "-i", "-o", "export"}
)

// Signature is what was recognised on a device.
type Signature struct {
	// Type is as blkid has it: "ext4", "swap", "gpt". Empty means that
	// nothing was recognised.
	Type string
	// UUID and Label are empty where the type has none.
	UUID  string
	Label string
}

// String describes the signature in the words of an error message.
func (s Signature) String() string {
	if s.Type == "" {
		return "data of an unknown kind"
	}
	text := s.Type
	if s.Label != "" {
		text += fmt.Sprintf(" labelled %q", s.Label)
	}
	if s.UUID != "" {
		text += fmt.Sprintf(" with UUID %s", s.UUID)
	}
	return text
}

// Probe asks blkid what is on the block device dev. The zero Signature means
// that blkid has read the device and recognised nothing.
func Probe(ctx context.Context, dev *os.File) (Signature, error) {
	// blkid exits with 2 both when it finds nothing and when it cannot open
	// or read the device. Asked for the device's I/O limits too (-i), it
	// has something to say about every device that it could read, and 2 is
	// left for those that it could not.
	out, err := run.Run(ctx, blkid, append(slices.Clone(probeArgs), run.FilePath(0)), dev)
	var failed *run.Error
	if errors.As(err, &failed) && failed.ExitCode == 8 {
		return Signature{Type: "several contradictory signatures"}, nil
	}
	if errors.As(err, &failed) && failed.ExitCode == 2 {
		return Signature{}, errors.Annotate(err, "blkid cannot read the device")
	}
	if err != nil {
		return Signature{}, errors.Trace(err)
	}
	return parseExport(string(out))
}

// parseExport reads the KEY=value lines of "blkid -p -i -o export".
func parseExport(out string) (Signature, error) {
	values := make(map[string]string)
	for line := range strings.Lines(out) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if ok {
			values[key] = value
		}
	}
	if values["LOGICAL_SECTOR_SIZE"] == "" {
		return Signature{}, errors.Errorf("blkid does not say that it has read the device: %q", out)
	}
	if t := values["TYPE"]; t != "" {
		return Signature{Type: t, UUID: values["UUID"], Label: values["LABEL"]}, nil
	}
	if t := values["PTTYPE"]; t != "" {
		return Signature{Type: t, UUID: values["PTUUID"]}, nil
	}
	if u := values["USAGE"]; u != "" {
		return Signature{Type: u, UUID: values["UUID"], Label: values["LABEL"]}, nil
	}
	return Signature{}, nil
}
