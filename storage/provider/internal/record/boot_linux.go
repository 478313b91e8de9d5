package record

import (
	"os"
	"strings"

	"github.com/juju/errors"
)

// BootID returns what tells this boot of the machine from all others. Device
// numbers and sequence numbers mean something within one boot only.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", errors.Annotate(err, "reading the boot id")
	}
	return strings.TrimSpace(string(data)), nil
}
