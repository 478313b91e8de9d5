package loopdev

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"
)

// labelPrefix begins the name of the file that the kernel keeps with a device that
// Attach attached. Programs show the name that sysfs has instead.
const labelPrefix = "stowage:"

// maxLabel is how long that name can be.
const maxLabel = unix.LO_NAME_SIZE - 1

// Label says whose a device is. It is kept by the kernel, with the device, and nothing
// but an attachment or [Handle.Keep] writes it. The zero value is that of a device which
// somebody else attached.
type Label struct {
	// Mark tells the owner from all others. It is empty for a device that an older
	// version attached.
	Mark string

	// Name is what the owner calls the file: the path of the file where there is no
	// mark. What does not fit is cut off.
	Name string
}

// text is the label as the kernel keeps it.
func (l Label) text() string {
	text := labelPrefix + l.Name
	if l.Mark != "" {
		text = labelPrefix + l.Mark + ":" + l.Name
	}
	return text[:min(len(text), maxLabel)]
}

// IsFile reports whether the label is that of an older version, for the file at a path.
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
