package diskmanager

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// parseUevent parses a message of the kernel's kobject uevent group: "ACTION@DEVPATH" and then
// KEY=VALUE pairs, each terminated by a zero byte. It returns a hint on what to read again,
// and false for a message that does not concern a block device.
func parseUevent(message []byte) (Hint, bool) {
	header, pairs, _ := bytes.Cut(message, []byte{0})
	if !bytes.ContainsRune(header, '@') {
		return Hint{}, false
	}
	return hintOf(pairs)
}

// parseUdevEvent parses a message that udev sends after it has processed a kernel message: a
// header, and then the pairs. The header is struct monitor_netlink_header in
// src/libsystemd/sd-device/device-monitor.c of systemd, unchanged since udev 147.
func parseUdevEvent(message []byte) (Hint, bool) {
	const (
		prefix  = "libudev\x00"
		magicAt = 8  // 0xfeedcafe, big-endian
		fromAt  = 16 // where the pairs begin
		size    = 40 // total size of the header
	)
	if len(message) < size || string(message[:len(prefix)]) != prefix ||
		binary.BigEndian.Uint32(message[magicAt:]) != 0xfeedcafe {
		return Hint{}, false
	}
	from := uint64(binary.NativeEndian.Uint32(message[fromAt:]))
	if from < size || from > uint64(len(message)) {
		return Hint{}, false
	}
	return hintOf(message[from:])
}

func hintOf(pairs []byte) (Hint, bool) {
	values := make(map[string]string)
	for pair := range bytes.SplitSeq(pairs, []byte{0}) {
		key, value, _ := strings.Cut(string(pair), "=")
		values[key] = value
	}
	if values["SUBSYSTEM"] != "block" {
		return Hint{}, false
	}
	// .../block/DISK or .../block/DISK/PARTITION
	_, below, ok := strings.Cut(values["DEVPATH"], "/block/")
	disk, _, _ := strings.Cut(below, "/")
	// A change of a device mapper or RAID device can change which disks it holds,
	// and those disks have no event of their own. A rename changes two names.
	stacked := strings.HasPrefix(disk, "dm-") || strings.HasPrefix(disk, "md")
	if !ok || disk == "" || stacked || values["ACTION"] == "move" {
		return Hint{All: true}, true
	}
	return Hint{Disks: []string{disk}}, true
}
