package object

import (
	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// Shown identifies a mounted filesystem, in one boot.
type Shown struct {
	Major  int    `json:"major"`
	Minor  int    `json:"minor"`
	Root   string `json:"root"`
	BootID string `json:"boot-id"`
}

// ShownAt returns what a mount shows.
func (c *MountCall) ShownAt(at *mount.Target) (Shown, error) {
	table, err := c.newTable()
	if err != nil {
		return Shown{}, errors.Trace(err)
	}
	info := table.ByID(at.MountID())
	if info == nil {
		return Shown{}, errors.Errorf("the mount at %s changed while it was examined", at.Path)
	}
	return Shown{Major: info.Major, Minor: info.Minor, Root: info.Root, BootID: c.BootID}, nil
}

// Bindable has the record of a [Bind].
type Bindable interface {
	Placement() *Placement
	Save() error
	Note() error
}

// Bind is a filesystem that a driver has mounted at a path of its own, and that is bound from there at
// its mount point.
type Bind struct {
	Bindable
	Call *MountCall
	// Source is where the driver has mounted it; Shown is what was recorded about that mount.
	Source string
	Shown  Shown
	// Path is the mount point that is wanted; empty: only the recorded one matters.
	Path string
}

var _ Mountable = (*Bind)(nil)

// MountSettings implements [Mountable]. The mount options are the driver's.
func (b *Bind) MountSettings() (mount.Settings, error) { return mount.ParseOptions("rootfs", "") }

// Mount implements [Mountable].
func (b *Bind) Mount(s mount.Settings) (*mount.Detached, error) {
	from, err := mount.OpenTarget(b.Source)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer from.Close()
	if !from.IsMount() {
		return nil, errors.Errorf("nothing is mounted at %s", b.Source)
	}
	return from.BindDirectory(s)
}

// Mounts implements [Mountable]. The driver itself may mount the filesystem anywhere, so only
// the recorded and the wanted mount point matter.
func (b *Bind) Mounts() ([]*mountinfo.Info, error) {
	if b.Shown.BootID != b.Call.BootID {
		return nil, nil
	}
	table, err := b.Call.Table()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var own []*mountinfo.Info
	for _, path := range []string{b.Placement().MountPoint, b.Path} {
		if path != "" {
			own = append(own, b.Shown.at(table, path)...)
		}
	}
	return own, nil
}

// IsAt reports whether a mount shows it, in the boot in which it was recorded.
func (s Shown) IsAt(m *mountinfo.Info) bool {
	return m.Major == s.Major && m.Minor == s.Minor && m.Root == s.Root
}

// at returns the mounts at a path that show it.
func (s Shown) at(table *mount.Table, path string) (all []*mountinfo.Info) {
	for _, m := range table.Under(path) {
		if m.Mountpoint == path && s.IsAt(m) {
			all = append(all, m)
		}
	}
	return all
}

// Finder implements [Mountable]. The driver may have the filesystem in a mount namespace of its
// own, so other namespaces are not searched: unstaging fails while they use it.
func (b *Bind) Finder() (Finder, error) { return nil, nil }

// Check implements [Mountable].
func (b *Bind) Check(*mount.Target) error { return nil }

// Proves implements [Mountable].
func (b *Bind) Proves(*mount.Target) (bool, error) { return false, nil }

// Unbind unmounts the filesystem from its mount point. It touches nothing else that is mounted there.
func (b *Bind) Unbind() error {
	path := b.Placement().MountPoint
	if path == "" {
		if b.Placement().InPlace {
			return errors.Trace(b.Call.ClearPlacement(b))
		}
		return nil
	}
	at, err := b.Call.Find(b, path)
	if err != nil {
		return errors.Trace(err)
	}
	if at != nil {
		at.Target.Close() // an open descriptor would keep the mount busy
		switch at.Relation {
		case Ours:
			err = mount.Unmount(path)
		case MountedByOthers:
			err = ErrMountedByOthers(path)
		default:
			err = b.Call.CheckNotCovered(b, at)
		}
		if err != nil {
			return errors.Trace(err)
		}
	}
	return errors.Trace(b.Call.ClearPlacement(b))
}
