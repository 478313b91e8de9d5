package diskmanager

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// udevRecord is a device's record in udev's database. It is empty on a machine without udev,
// and until udev has processed the device.
type udevRecord struct {
	links      []string // absolute paths
	properties map[string]string
}

// readUdevRecord reads the record of the block device with a number, "MAJOR:MINOR".
func readUdevRecord(root fs.FS, number string) (udevRecord, error) {
	record := udevRecord{properties: make(map[string]string)}
	data, err := fs.ReadFile(root, path.Join("run/udev/data", "b"+number))
	if err != nil {
		return record, err
	}
	for line := range strings.Lines(string(data)) {
		kind, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch kind {
		case "S":
			if link := path.Join("/dev", value); isBelowDev(link) {
				record.links = append(record.links, link)
			}
		case "E":
			key, value, _ := strings.Cut(value, "=")
			record.properties[key] = value
		}
	}
	slices.Sort(record.links)
	return record, nil
}

// first returns the value of the first property that is set, or an empty string.
func (r udevRecord) first(names ...string) string {
	for _, name := range names {
		if value := r.properties[name]; value != "" {
			return value
		}
	}
	return ""
}

// hardwareId returns the name in /dev/disk/by-id that identifies the hardware. Of several
// names, it prefers the one of the bus. It ignores names that repeat the WWN.
func (r udevRecord) hardwareId() string {
	bus, serial := r.properties["ID_BUS"], r.properties["ID_SERIAL"]
	var id string
	for _, link := range r.links {
		dir, name := path.Split(link)
		if dir != "/dev/disk/by-id/" || strings.HasPrefix(name, "wwn-") {
			continue
		}
		if bus != "" && name == bus+"-"+serial {
			return name
		}
		if id == "" {
			id = name
		}
	}
	return id
}

// isBelowDev reports whether a path is clean and is in /dev.
func isBelowDev(name string) bool {
	return path.Clean(name) == name && strings.HasPrefix(name, "/dev/")
}
