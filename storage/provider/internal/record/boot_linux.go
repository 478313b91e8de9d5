package record

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/kernelfile"
)

// BootID returns an ID that distinguishes this boot of the machine from all others. Device
// numbers and sequence numbers are valid within one boot only.
func BootID() (string, error) {
	id, err := kernelfile.Read("/proc/sys/kernel/random/boot_id")
	return id, errors.Annotate(err, "reading the boot id")
}
