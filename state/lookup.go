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
		lookup := mountPointLookup{snapshot, map[string]*MountPoint{}}
		for n, m := range wanted {
			if taken[n], err = lookup.taken(m); err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	})
	return taken, errors.Trace(err)
}

// mountPointLookup looks mount points up. It keeps what it has found for directories, which many
// mount points share.
type mountPointLookup struct {
	kv.Snapshot
	found map[string]*MountPoint // by the prefix of keys
}

// taken returns a mount point with which one conflicts, or nil.
func (l mountPointLookup) taken(wanted MountPoint) (*MountPoint, error) {
	home := ""
	if wanted.Machine != (names.MachineTag{}) {
		home = string(newMachineTag(wanted.Machine))
	}
	if first, err := l.firstOf(home, "/", wanted.Machine); err != nil || first == nil {
		return nil, err
	}
	// Keys of the mount point itself come first, and then those inside it.
	if taken, err := l.first(home, wanted.Path+"/", wanted.Machine); err != nil || taken != nil {
		return taken, err
	}
	for dir := path.Dir(wanted.Path); dir != "/"; dir = path.Dir(dir) {
		if taken, err := l.firstOf(home, dir+"//", wanted.Machine); err != nil || taken != nil {
			return taken, err
		}
	}
	return nil, nil
}

// firstOf is first for what many mount points have in common.
func (l mountPointLookup) firstOf(home, begin string, machine names.MachineTag) (*MountPoint, error) {
	if known, ok := l.found[home+begin]; ok {
		return known, nil
	}
	found, err := l.first(home, begin, machine)
	if err == nil {
		l.found[home+begin] = found
	}
	return found, err
}

// first returns the first mount point on a machine whose key begins with a text, or nil.
func (l mountPointLookup) first(home, begin string, machine names.MachineTag) (found *MountPoint, err error) {
	prefix := mountPointPrefix(home)
	err = l.Scan(prefix+begin, func(key string, _ []byte) error {
		at, name, _ := strings.Cut(key[len(prefix):], "//")
		found = &MountPoint{Path: at, Machine: machine, Name: name}
		return errFound
	})
	if err == errFound {
		err = nil
	}
	return found, err
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
