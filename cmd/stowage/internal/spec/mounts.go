package spec

import (
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/juju/errors"
)

// systemPaths are paths that must not be mounted on, nor paths inside them.
var systemPaths = []string{"/proc", "/sys", "/dev"}

// maxPath is PATH_MAX without its terminating NUL.
const maxPath = 4095

// maxName is NAME_MAX.
const maxName = 255

// CheckMountPoint returns an error for a path that is not a safe mount point on any machine.
func CheckMountPoint(p string) error {
	switch {
	case len(p) > maxPath:
		return errors.Errorf("longer than %d bytes", maxPath)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl):
		return errors.Errorf("%s holds control characters", quote(p))
	case slices.ContainsFunc(strings.Split(p, "/"), func(name string) bool { return len(name) > maxName }):
		return errors.Errorf("%s holds a name longer than %d bytes", quote(p), maxName)
	case !path.IsAbs(p):
		return errors.Errorf("%s is not absolute: begin it with /", quote(p))
	case path.Clean(p) != p:
		return errors.Errorf("%s is not in its shortest form: write %s", quote(p), quote(path.Clean(p)))
	case p == "/":
		return errors.New("/ belongs to the system: choose another directory")
	}
	for _, reserved := range systemPaths {
		if Within(p, reserved) {
			return errors.Errorf("%s belongs to the system: mount outside %s", quote(p), reserved)
		}
	}
	return nil
}

// CheckReserved returns an error for a path that is in one of the directories that the agent uses, or above
// it.
func CheckReserved(p string, reserved []string) error {
	for _, dir := range reserved {
		if Within(p, dir) || Within(dir, p) {
			return errors.Errorf("%s would hide, or lie in, %s, which the agent uses: choose another mount point", quote(p), dir)
		}
	}
	return nil
}

// Within reports whether p is dir or inside it. Both paths must be clean.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// Mounts is a set of mount points; no mount point is inside another. The zero
// value is empty.
type Mounts struct {
	// owners maps mount points to owners.
	owners map[string]string
	// firstInside holds, for each directory above a mount point, the first mount
	// point that was added inside it.
	firstInside map[string]string
}

// Check returns an error if the path is a mount point, is inside one or contains one. The error
// names the owner of that.
func (m *Mounts) Check(p string) error {
	if owner, ok := m.owners[p]; ok {
		return MountConflict(p, p, owner)
	}
	if inside, ok := m.firstInside[p]; ok {
		return MountConflict(p, inside, m.owners[inside])
	}
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		if owner, ok := m.owners[dir]; ok {
			return MountConflict(p, dir, owner)
		}
	}
	return nil
}

// MountConflict returns the error for a path that is the mount point of an owner, is inside it or
// contains it.
func MountConflict(p, taken, owner string) error {
	switch {
	case p == taken:
		return errors.Errorf("%s is already the mount point of %s", quote(p), owner)
	case Within(taken, p):
		return errors.Errorf("%s would hide %s, the mount point of %s", quote(p), quote(taken), owner)
	}
	return errors.Errorf("%s is inside %s, the mount point of %s", quote(p), quote(taken), owner)
}

// Add adds the mount point of an owner, unless [Mounts.Check] returns an error.
func (m *Mounts) Add(p, owner string) error {
	if err := m.Check(p); err != nil {
		return err
	}
	if m.owners == nil {
		m.owners = map[string]string{}
		m.firstInside = map[string]string{}
	}
	m.owners[p] = owner
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		if _, ok := m.firstInside[dir]; ok {
			break
		}
		m.firstInside[dir] = p
	}
	return nil
}

// checkMounts returns an error if mount points conflict on a machine. Only equal texts are known
// to mean the same machine: the state knows which number belongs to a name, and which machine is
// meant without a text.
func checkMounts(declared []Storage) error {
	mounts := map[string]*Mounts{}
	for _, s := range declared {
		on, ok := mounts[s.Machine]
		if !ok {
			on = &Mounts{}
			mounts[s.Machine] = on
		}
		for _, instance := range s.Instances() {
			if instance.Mount == "" {
				continue
			}
			if err := on.Add(instance.Mount, instance.Name); err != nil {
				return s.Errorf("mount", "%s", err)
			}
		}
	}
	return nil
}
