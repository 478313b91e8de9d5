package bind

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage/provider/internal/blockdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

// ErrOther is the error of a target at which something else is mounted.
const ErrOther = errors.ConstError("something else is mounted there")

// ErrDiffers is the error of a bind that exists with other options.
const ErrDiffers = errors.ConstError("it is bound there with other options")

// Source is what binds show. It is that of the time when it was found.
type Source struct {
	path string
	// device is the number of a block device, zero for a filesystem.
	device uint64
	// The node of the device, or the directory, is root on what has the number major:minor in the table
	// of mounts.
	major, minor int
	root         string
	info         *mountinfo.Info
}

// Filesystem returns the source for what is mounted at a path. The error satisfies errors.IsNotFound if
// nothing is.
func Filesystem(path string) (*Source, error) {
	target, table, err := open(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer target.Close()
	info := table.ByID(target.MountID())
	if !target.IsMount() || !target.IsDir() || info == nil {
		return nil, errors.NotFoundf("filesystem mounted at %s", path)
	}
	return &Source{path: path, major: info.Major, minor: info.Minor, root: info.Root, info: info}, nil
}

// Device returns the source for a block device. The error satisfies errors.IsNotFound if the path is not
// that of one.
func Device(path string) (*Source, error) {
	target, table, err := open(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer target.Close()
	number, ok := target.Device()
	info := table.ByID(target.MountID())
	if !ok || info == nil {
		return nil, errors.NotFoundf("block device at %s", path)
	}
	below, err := filepath.Rel(info.Mountpoint, path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &Source{path: path, device: number, major: info.Major, minor: info.Minor, root: filepath.Join(info.Root, below)}, nil
}

func open(path string) (*mount.Target, *mount.Table, error) {
	target, err := mount.OpenNode(path)
	if err != nil {
		return nil, nil, errors.Trace(err)
	}
	table, err := mount.ReadTable()
	if err != nil {
		target.Close()
		return nil, nil, errors.Trace(err)
	}
	return target, table, nil
}

// IsOption reports whether a bind can have the mount option, such as noexec. Others, such as discard,
// belong to the filesystem.
func IsOption(option string) bool {
	return slices.ContainsFunc(mount.Options("rootfs"), func(o options.Option) bool { return o.Key == option })
}

// Is reports whether the target shows the source. If something else is mounted there, the error
// satisfies errors.Is(err, ErrOther), and if the path is not valid, errors.IsNotValid.
func (s *Source) Is(target string) (bool, error) {
	info, err := s.at(target)
	return info != nil, errors.Trace(err)
}

// at returns the mount at a target that shows the source, or nil if nothing is mounted there.
func (s *Source) at(path string) (*mountinfo.Info, error) {
	target, table, err := open(path)
	if errors.Is(err, errors.NotFound) {
		return nil, nil
	} else if err != nil {
		return nil, errors.Trace(err)
	}
	defer target.Close()
	if !target.IsMount() {
		return nil, nil
	}
	info := table.ByID(target.MountID())
	if info == nil {
		return nil, errors.Errorf("the mount at %s changed while it was examined", path)
	}
	shows := info.Major == s.major && info.Minor == s.minor && info.Root == s.root
	if s.device != 0 {
		number, ok := target.Device()
		shows = ok && number == s.device
	}
	if !shows {
		return nil, errors.WithType(errors.Errorf("%s is mounted at %s: unmount it or choose another path", mount.Describe(info), path), ErrOther)
	}
	return info, nil
}

// Make binds the source at a target, with mount options that [IsOption] allows. It makes the
// target, a directory with its missing parents, or a file. A bind that exists stays; if it has other
// options, the error satisfies errors.Is(err, ErrDiffers), and if something else is mounted there,
// errors.Is(err, ErrOther). The error satisfies errors.IsNotValid if the path is not valid, or has
// contents.
func (s *Source) Make(target string, chosen []string) error {
	wanted, err := mount.ParseOptions("rootfs", strings.Join(chosen, ","))
	if err != nil {
		return errors.Trace(err)
	}
	if s.device != 0 && wanted.ReadOnly {
		return errors.NewNotSupported(nil, "a device node at another path can be written to as before: only the device itself can be read-only")
	}
	info, err := s.at(target)
	if err != nil {
		return errors.Trace(err)
	}
	if info != nil {
		return s.compare(info, wanted)
	}
	from, err := mount.OpenNode(s.path)
	if err != nil {
		return errors.Trace(err)
	}
	defer from.Close()
	if s.device != 0 {
		return s.makeNode(from, target)
	}
	bound, err := from.BindDirectory(wanted)
	if err != nil {
		return errors.Trace(err)
	}
	defer bound.Close()
	at, err := mount.MakeTarget(target)
	if err != nil {
		return errors.Trace(err)
	}
	defer at.Close()
	return errors.Trace(bound.Attach(at))
}

func (s *Source) makeNode(from *mount.Target, target string) error {
	if number, ok := from.Device(); !ok || number != s.device {
		return errors.Errorf("%s is another device now: try again", s.path)
	}
	bound, err := from.BindNode()
	if err != nil {
		return errors.Trace(err)
	}
	defer bound.Close()
	at, err := mount.MakeNode(target)
	if err != nil {
		return errors.Trace(err)
	}
	defer at.Close()
	return errors.Trace(bound.AttachNode(at))
}

// compare returns an error unless a bind has the wanted options. It has those of its source, too.
func (s *Source) compare(info *mountinfo.Info, wanted mount.Settings) error {
	if s.device != 0 {
		return nil
	}
	differs := func(format string, args ...any) error {
		return errors.WithType(errors.Errorf("it is bound at %s "+format+": unbind it first", append([]any{info.Mountpoint}, args...)...), ErrDiffers)
	}
	if ro := mount.IsReadOnly(info); ro != (wanted.ReadOnly || mount.IsReadOnly(s.info)) {
		if ro {
			return differs("read-only, and wanted for reading and writing")
		}
		return differs("for reading and writing, and wanted read-only")
	}
	if lacks := mount.Lacks(info, wanted.Options); lacks != "" {
		return differs("without %s", lacks)
	}
	for _, option := range []string{"noexec", "noatime", "nodiratime"} {
		one := []mount.Option{{Key: option}}
		if mount.Lacks(info, one) == "" && mount.Lacks(s.info, one) != "" && !slices.Contains(wanted.Options, one[0]) {
			return differs("with %s, and wanted without it", option)
		}
	}
	return nil
}

// Targets returns the paths at which the source is mounted in this mount namespace, sorted, without its
// own. A directory of a filesystem that is mounted alone is not among them.
func (s *Source) Targets() ([]string, error) {
	table, err := mount.ReadTable()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var found []string
	// Targets are not opened: for that moment, those of others could not be unmounted.
	for _, info := range table.Under("/") {
		if info.Mountpoint != s.path && info.Major == s.major && info.Minor == s.minor && info.Root == s.root {
			found = append(found, info.Mountpoint)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// Remove unmounts what is bound at a target, and removes the target. It succeeds if nothing exists
// there. It never unmounts lazily: the error of a busy mount names who uses it, and satisfies
// errors.Is(err, unix.EBUSY). A target that has contents, or is another file, was not made by
// [Source.Make]: the error satisfies errors.IsNotValid.
func Remove(target string) error {
	if err := mount.Unmount(target); err != nil {
		return errors.Trace(err)
	}
	at, err := mount.OpenNode(target)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	dir := at.IsDir()
	at.Close()
	if !dir {
		return errors.Trace(mount.RemoveNode(target))
	}
	if err := mount.RemoveDirs([]string{target}); err != nil {
		return errors.Trace(err)
	}
	if at, err = mount.OpenNode(target); err == nil {
		at.Close()
		return errors.NewNotValid(nil, fmt.Sprintf("%s is not empty, or in use: empty it", target))
	}
	return nil
}

// Usage is how much of a filesystem is used. The sizes are in bytes.
type Usage struct {
	Size, Free, Available uint64
	Inodes, FreeInodes    uint64
}

// FilesystemUsage returns the usage of the filesystem at a path.
func FilesystemUsage(path string) (Usage, error) {
	target, err := mount.OpenNode(path)
	if err != nil {
		return Usage{}, errors.Trace(err)
	}
	defer target.Close()
	st, err := target.Statfs()
	if err != nil {
		return Usage{}, errors.Trace(err)
	}
	unit := uint64(st.Frsize)
	return Usage{
		Size: st.Blocks * unit, Free: st.Bfree * unit, Available: st.Bavail * unit,
		Inodes: st.Files, FreeInodes: st.Ffree,
	}, nil
}

// DeviceSize returns the size in bytes of the block device at a path.
func DeviceSize(path string) (uint64, error) {
	dev, err := blockdev.Open(path)
	if err != nil {
		return 0, errors.Trace(err)
	}
	defer dev.Close()
	return uint64(dev.Size), nil
}
