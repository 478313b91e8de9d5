package loopdev

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"
)

// labelPrefix begins the label, which the kernel stores with the device as a file name.
// Programs show the file name in sysfs instead.
const labelPrefix = "stowage:"

// maxLabel is the length of that file name, in bytes.
const maxLabel = unix.LO_NAME_SIZE - 1

// Label identifies the owner of a device. The kernel stores it with the device, and only an
// attachment or [Handle.Keep] writes it. A device that another program attached has the zero
// value.
type Label struct {
	// Mark distinguishes the owner from all others. It is empty for a device that an older
	// version attached.
	Mark string

	// Name is the owner's name for the file, or the file's path if Mark is empty. A name that
	// is too long is truncated.
	Name string
}

// text returns the label as the kernel stores it.
func (l Label) text() string {
	text := labelPrefix + l.Name
	if l.Mark != "" {
		text = labelPrefix + l.Mark + ":" + l.Name
	}
	return text[:min(len(text), maxLabel)]
}

// IsFile reports whether the label is one that an older version set for the file at path.
func (l Label) IsFile(path string) bool {
	return l.Mark == "" && l.Name != "" && l.text() == Label{Name: path}.text()
}

func parseLabel(name []byte) Label {
	name, _, _ = bytes.Cut(name, []byte{0})
	rest, ok := strings.CutPrefix(string(name), labelPrefix)
	if !ok {
		return Label{}
	}
	if mark, name, ok := strings.Cut(rest, ":"); ok && !strings.HasPrefix(rest, "/") {
		return Label{Mark: mark, Name: name}
	}
	return Label{Name: rest}
}
