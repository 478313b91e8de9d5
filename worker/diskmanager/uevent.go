package diskmanager

import (
	"bytes"
	"strings"
)

// parseUevent reads a message of the kernel's kobject uevent group:
// "ACTION@DEVPATH" and then KEY=VALUE pairs, each ended by a zero byte. It returns
// what to look at because of it, and false for a message that concerns no block
// device.
func parseUevent(message []byte) (Hint, bool) {
	header, rest, _ := bytes.Cut(message, []byte{0})
	if !bytes.ContainsRune(header, '@') {
		return Hint{}, false
	}
	values := make(map[string]string)
	for pair := range bytes.SplitSeq(rest, []byte{0}) {
		key, value, _ := strings.Cut(string(pair), "=")
		values[key] = value
	}
	if values["SUBSYSTEM"] != "block" {
		return Hint{}, false
	}
	// .../block/DISK or .../block/DISK/PARTITION
	_, below, ok := strings.Cut(values["DEVPATH"], "/block/")
	disk, _, _ := strings.Cut(below, "/")
	// A device mapper or RAID device changes what holds the disks beneath it,
	// and they have no event of their own. A rename changes two names.
	stacked := strings.HasPrefix(disk, "dm-") || strings.HasPrefix(disk, "md")
	if !ok || disk == "" || stacked || values["ACTION"] == "move" {
		return Hint{All: true}, true
	}
	return Hint{Disks: []string{disk}}, true
}
