package state

import (
	"path"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state/kv"
)

// MountPoint is the mount point that an instance asks for.
type MountPoint struct {
	Path string
	// Machine is the machine that has the instance, or that alone can have it; the zero tag stands
	// for an instance that is detached and that any machine can have.
	Machine names.MachineTag
	// Name is that of the instance.
	Name string
}

// TakenMountPoints returns, for each of the mount points, the mount point on the same machine that
// is equal to it, that contains it, or that is inside it; nil if
// that mount point is free.
func (st *State) TakenMountPoints(wanted []MountPoint) ([]*MountPoint, error) {
	taken := make([]*MountPoint, len(wanted))
	err := st.view(func(_ *reader, snapshot kv.Snapshot) (err error) {
		for n, m := range wanted {
			if taken[n], err = takenMountPoint(snapshot, m); err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	})
	return taken, errors.Trace(err)
}

func takenMountPoint(snapshot kv.Snapshot, wanted MountPoint) (*MountPoint, error) {
	home := ""
	if wanted.Machine != (names.MachineTag{}) {
		home = string(newMachineTag(wanted.Machine))
	}
	prefix := mountPointPrefix(home)
	var taken *MountPoint
	find := func(begin string) error {
		err := snapshot.Scan(prefix+begin, func(key string, _ []byte) error {
			at, name, _ := strings.Cut(key[len(prefix):], "//")
			taken = &MountPoint{Path: at, Machine: wanted.Machine, Name: name}
			return errFound
		})
		if err == errFound {
			err = nil
		}
		return err
	}
	// Keys of the mount point itself come first, and then those inside it.
	if err := find(wanted.Path + "/"); err != nil || taken != nil {
		return taken, err
	}
	for dir := path.Dir(wanted.Path); dir != "/"; dir = path.Dir(dir) {
		if err := find(dir + "//"); err != nil || taken != nil {
			return taken, err
		}
	}
	return nil, nil
}

// errFound ends a scan.
const errFound = errors.ConstError("found")

// Unmade is an instance whose volume is not made as large as wanted.
type Unmade struct {
	Storage
	// MissingMiB is how much larger the volume is to be. A volume that is not made has no size.
	MissingMiB uint64
}

// UnmadeStorage returns the instances whose volumes are not made as large as wanted, sorted by name.
func (st *State) UnmadeStorage() ([]Unmade, error) {
	var unmade []Unmade
	err := st.view(func(r *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(unmadeKey(""), func(key string, _ []byte) error {
			name := key[len(unmadeKey("")):]
			i, ok := read[instance](r, storageKey(name))
			if !ok {
				return errors.Errorf("the index has the storage %q, which does not exist", name)
			}
			unmade = append(unmade, Unmade{i.view(r, name), i.missing()})
			return nil
		})
	})
	return unmade, errors.Trace(err)
}
