package record

import (
	"os"
	"strings"

	"github.com/juju/errors"
)

// BootID returns an ID that distinguishes this boot of the machine from all others. Device
// numbers and sequence numbers are valid within one boot only.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", errors.Annotate(err, "reading the boot id")
	}
	return strings.TrimSpace(string(data)), nil
}
