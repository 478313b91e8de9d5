package blockdev

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

// FindUUIDs reads the superblocks of the machine's block devices once and
// returns, by UUID, the paths of those that carry one of the UUIDs, sorted.
//
// Devices smaller than minSize bytes are passed over, and so are those of which
// another device is made (the paths of a multipath device, the members of a
// mirror): they show the same superblock. One that cannot be read, or is
// suspended, has no UUID.
func FindUUIDs(ctx context.Context, uuids []string, minSize int64) (map[string][]string, error) {
	entries, err := os.ReadDir(sysfsBlock)
	if err != nil {
		return nil, errors.Annotate(err, "listing block devices")
	}
	attached, err := haveSize()
	if err != nil {
		return nil, errors.Trace(err)
	}
	found := make(map[string][]string)
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return nil, errors.Annotate(err, "listing block devices")
		}
		// Loop nodes that are not attached may be a thousand.
		if strings.HasPrefix(entry.Name(), "loop") && !attached[entry.Name()] {
			continue
		}
		sys := filepath.Join(sysfsBlock, entry.Name())
		if size, ok := attribute(sys, "size"); !ok || tooSmall(size, minSize) || hasHolders(sys) {
			continue
		}
		// Reading a suspended device would wait until somebody resumes it.
		if suspended, _ := attribute(sys, "dm/suspended"); suspended == "1" {
			continue
		}
		path := devPath(entry.Name())
		number, _ := attribute(sys, "dev")
		if id := readUUID(path, number); id != "" && slices.Contains(uuids, id) {
			found[id] = append(found[id], path)
		}
	}
	return found, nil
}

// haveSize returns the names of the block devices that are not empty. Removable
// ones may be left out.
func haveSize() (map[string]bool, error) {
	data, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return nil, errors.Annotate(err, "listing block devices")
	}
	names := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 4 {
			names[fields[3]] = true
		}
	}
	return names, nil
}

func tooSmall(sectors string, minSize int64) bool {
	n, err := strconv.ParseInt(sectors, 10, 64)
	return err != nil || n == 0 || n < minSize/sectorSize
}

func hasHolders(sys string) bool {
	holders, err := os.ReadDir(filepath.Join(sys, "holders"))
	return err == nil && len(holders) > 0
}

// readUUID returns the UUID of the filesystem on the device at path, if it is
// the device of that number.
func readUUID(path, number string) string {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || numbers(st.Rdev) != number {
		return ""
	}
	found, err := signature.ReadSuperblock(f)
	if err != nil {
		return ""
	}
	return found.UUID
}
