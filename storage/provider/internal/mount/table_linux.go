package mount

import (
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
)

// Table holds the mounts of a mount namespace at the time of reading. A bulk call reads it
// once.
type Table struct {
	mounts []*mountinfo.Info
	index  func() *index
	btrfs  btrfsDevices
}

func newTable(mounts []*mountinfo.Info) *Table {
	return &Table{mounts: mounts, index: sync.OnceValue(func() *index { return newIndex(mounts) })}
}

// ReadTable reads the mounts of this process's mount namespace.
func ReadTable() (*Table, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, errors.Annotate(err, "reading mountinfo")
	}
	return newTable(mounts), nil
}

// ParseTable reads a table in the format of /proc/PID/mountinfo.
func ParseTable(r io.Reader) (*Table, error) {
	mounts, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, errors.Annotate(err, "reading mountinfo")
	}
	return newTable(mounts), nil
}

// ByID returns the mount with an ID, or nil if there is no such mount.
func (t *Table) ByID(id uint64) *mountinfo.Info {
	if at, ok := t.index().ids[id]; ok {
		return t.mounts[at]
	}
	return nil
}

// At returns the mount at exactly this path, the topmost one if mounts are stacked, or nil if
// nothing is mounted there.
func (t *Table) At(path string) *mountinfo.Info {
	// A mount is listed after the one that it covers.
	if all := t.pick(t.index().paths.equal(path)); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// Under returns the mounts at a path or below it.
func (t *Table) Under(path string) []*mountinfo.Info {
	return t.pick(t.index().paths.within(path)...)
}

// OfSource returns the mounts of a filesystem type with a source.
func (t *Table) OfSource(fsType, source string) []*mountinfo.Info {
	return t.pick(t.index().sources.equal(sourceKey(fsType, source)))
}

// Directory identifies a directory by its filesystem and its path in that filesystem,
// independently of mounts.
type Directory struct {
	major, minor int
	root         string
}

// Locate returns the directory at a path. The path must be below the given mount and contain
// no symbolic link.
func Locate(through *mountinfo.Info, path string) (Directory, error) {
	rel, err := filepath.Rel(through.Mountpoint, path)
	if err != nil {
		return Directory{}, errors.Trace(err)
	}
	return Directory{major: through.Major, minor: through.Minor, root: filepath.Join(through.Root, rel)}, nil
}

// OfDirectory returns the mounts whose root is the directory, even if the directory has been
// removed since.
func (t *Table) OfDirectory(d Directory) []*mountinfo.Info {
	roots, key := t.index().roots, rootKey(d.major, d.minor, d.root)
	return t.pick(roots.equal(key), roots.equal(key+"//deleted"))
}

// Shows reports whether the root of a mount is the directory.
func Shows(m *mountinfo.Info, d Directory) bool {
	return m.Major == d.major && m.Minor == d.minor && m.Root == d.root
}

// WithinDirectory returns the mounts whose root is the directory or something below it.
func (t *Table) WithinDirectory(d Directory) []*mountinfo.Info {
	return t.pick(t.index().roots.within(rootKey(d.major, d.minor, d.root))...)
}

// Describe returns a short description of a mount for messages.
func Describe(m *mountinfo.Info) string {
	if m == nil {
		return "an unknown filesystem (not in mountinfo)"
	}
	return m.FSType + " from " + m.Source
}

// IsReadOnly reports whether the mount or its filesystem is read-only.
func IsReadOnly(m *mountinfo.Info) bool {
	return hasOption(m.Options, "ro") || hasOption(m.VFSOptions, "ro")
}

// Lacks returns the first of the options that the mount should have and does not have, or "".
// It considers only options that belong to the mount, and not to the filesystem.
func Lacks(m *mountinfo.Info, all []Option) string {
	i := slices.IndexFunc(all, func(o Option) bool {
		_, ok := attributes[o.Key]
		switch {
		case !ok:
			return false
		case o.Key == "strictatime":
			// mountinfo shows only the alternatives.
			return hasOption(m.Options, "noatime") || hasOption(m.Options, "relatime")
		}
		return !hasOption(m.Options, o.Key)
	})
	if i < 0 {
		return ""
	}
	return all[i].Key
}

func hasOption(options, want string) bool {
	for option := range strings.SplitSeq(options, ",") {
		if option == want {
			return true
		}
	}
	return false
}
