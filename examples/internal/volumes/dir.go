//go:build linux

package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir has a directory with a file for each volume, named by the volume's ID, and one with the tags
// of each.
type Dir struct {
	root string
	// IsAttached reports whether a volume is attached anywhere.
	IsAttached func(id string) (bool, error)
	// Machine returns the name of the machine that a volume is attached to, or "". Nil: the program
	// does not know the machines.
	Machine func(id string) (string, error)
}

// open returns the volumes beside the program, and excludes other runs until unlock is called. The
// previous run may still be active if its agent was killed.
func open() (d *Dir, unlock func(), err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	d = &Dir{root: filepath.Dir(program)}
	for _, dir := range []string{d.Path("volumes"), d.Path("tags")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, err
		}
	}
	lock, err := os.OpenFile(d.Path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return d, func() { lock.Close() }, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
}

// checkTerm refuses the requests of a server that another one has replaced: it may not know that yet.
// Requests of a single server, and those of agents, have no term.
func (d *Dir) checkTerm(term uint64) error {
	if term == 0 {
		return nil
	}
	text, err := os.ReadFile(d.Path("term"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	newest, _ := strconv.ParseUint(string(text), 10, 64)
	switch {
	case term < newest:
		return fmt.Errorf("the server with term %d has been replaced by that with term %d", term, newest)
	case term > newest:
		return Write(d.Path("term"), strconv.AppendUint(nil, term, 10))
	}
	return nil
}

// Path returns a path below the directory of the program.
func (d *Dir) Path(elements ...string) string {
	return filepath.Join(append([]string{d.root}, elements...)...)
}

// uuidTag is the tag with the volume's UUID, which is never reused: after an older state is
// restored, another volume may have the same name.
const uuidTag = "stowage-storage-uuid"

var (
	validName = regexp.MustCompile(`^volume-[0-9]+$`)
	validUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	validID   = regexp.MustCompile(`^volume-[0-9]+(-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?$`)
)

// newID returns the ID of a volume: its name, with its UUID if it has one.
func newID(arg Argument) (string, error) {
	uuid, ok := arg.Tags[uuidTag]
	switch {
	case !validName.MatchString(arg.Volume):
		return "", NotValid("%q is not the name of a volume", arg.Volume)
	case ok && !validUUID.MatchString(uuid):
		return "", NotValid("%q is not a UUID", uuid)
	case ok:
		return arg.Volume + "-" + uuid, nil
	}
	return arg.Volume, nil
}

// File returns the path of a volume's file, and an error for what is not the ID of a volume.
func (d *Dir) File(id string) (string, error) {
	if !validID.MatchString(id) {
		return "", NotValid("%q is not the ID of a volume", id)
	}
	return d.Path("volumes", id), nil
}

// Create is called again for a volume that exists if the agent was killed before it recorded
// the result.
func (d *Dir) Create(arg Argument) (Result, error) {
	id, err := newID(arg)
	if err != nil {
		return Result{}, err
	}
	file, err := d.File(id)
	if err != nil {
		return Result{}, err
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if err := d.allocate(file, arg); err != nil {
			return Result{}, err
		}
	}
	return d.Describe(Argument{VolumeID: id})
}

// allocate makes a volume with its tags, or nothing.
func (d *Dir) allocate(file string, arg Argument) error {
	if arg.SizeMiB > math.MaxInt64>>20 {
		return NotValid("no file has %d MiB", arg.SizeMiB)
	}
	tags, err := json.Marshal(arg.Tags)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(arg.SizeMiB)<<20); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// An existing volume must have its tags, so write them first.
	if err := Write(d.Path("tags", filepath.Base(file)), tags); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return err
	}
	return syncDir(filepath.Dir(file))
}

// Write replaces a small file. When it returns nil, the new content is durable; otherwise the
// former one may be there.
func Write(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// Remove removes a file durably.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Describe returns the ID and size of a volume.
func (d *Dir) Describe(arg Argument) (Result, error) {
	file, err := d.File(arg.VolumeID)
	if err != nil {
		return Result{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return Result{}, err
	}
	return Result{VolumeID: arg.VolumeID, SizeMiB: uint64(info.Size()) >> 20}, nil
}

// List lists all volumes.
func (d *Dir) List() ([]Result, error) {
	entries, err := os.ReadDir(d.Path("volumes"))
	if err != nil {
		return nil, err
	}
	results := []Result{}
	for _, entry := range entries {
		id := entry.Name()
		if !validID.MatchString(id) {
			continue
		}
		r, err := d.Describe(Argument{VolumeID: id})
		if err != nil {
			return nil, err
		}
		tags, err := os.ReadFile(d.Path("tags", id))
		if err == nil {
			err = json.Unmarshal(tags, &r.Tags)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading the tags of %s: %w", id, err)
		}
		if r.Attached, err = d.IsAttached(id); err != nil {
			return nil, err
		}
		if d.Machine != nil {
			if r.Machine, err = d.Machine(id); err != nil {
				return nil, err
			}
		}
		results = append(results, r)
	}
	return results, nil
}

// Destroy removes a volume with its data.
func (d *Dir) Destroy(arg Argument) (Result, error) {
	file, err := d.detached(arg.VolumeID)
	if err != nil {
		return Result{}, err
	}
	return Result{}, errors.Join(os.Remove(file), d.untag(arg.VolumeID))
}

// Release moves a volume's file to a name that the provider does not recognize.
func (d *Dir) Release(arg Argument) (Result, error) {
	file, err := d.detached(arg.VolumeID)
	if err != nil {
		return Result{}, err
	}
	return Result{}, errors.Join(os.Rename(file, file+".released"), d.untag(arg.VolumeID))
}

// untag removes the tags of a volume that no longer belongs to the provider.
func (d *Dir) untag(id string) error {
	if err := os.Remove(d.Path("tags", id)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// detached returns the file of a volume, or an error if the volume is attached.
func (d *Dir) detached(id string) (string, error) {
	file, err := d.File(id)
	if err != nil {
		return "", err
	}
	attached, err := d.IsAttached(id)
	if err == nil && attached {
		err = errors.New("the volume is still attached")
	}
	return file, err
}
