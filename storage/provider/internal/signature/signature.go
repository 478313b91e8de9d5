// Package signature determines what is on a block device.
//
// It answers two questions. "May this be formatted?" is answered by [ProveBlank], which says
// yes only if it has read all of the device and found nothing, in two independent ways. For a
// loop device, [Prober.ProveFileBlank] answers it by reading all parts of the file that were
// ever written. "Which of our filesystems is this?" is answered by [ReadSuperblock], a small
// parser for the filesystems that stowage makes. If it finds none, that proves nothing.
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

	"github.com/stowage-io/stowage/internal/run"
)

var (
	blkid     = run.Program{Name: "blkid", Package: "util-linux"}
	probeArgs = []string{"-p", "-i", "-o", "export"}
)

// Signature is what was recognised on a device.
type Signature struct {
	// Type is blkid's name of the type: "ext4", "swap", "gpt". It is empty if nothing was
	// recognised.
	Type string
	// UUID and Label are empty if the type has none.
	UUID  string
	Label string
}

// String describes the signature for an error message.
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

// Probe runs blkid on the block device dev. The zero Signature means that blkid has read the
// device and recognised nothing.
func Probe(ctx context.Context, dev *os.File) (Signature, error) {
	// blkid exits with status 2 both when it finds nothing and when it cannot open or read the
	// device. With -i it also reports the I/O limits of every device that it can read, so
	// status 2 means that it could not read the device.
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

// parseExport parses the KEY=value lines of "blkid -p -i -o export".
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
