//go:build linux

// Provider is a program that keeps volumes as files, and attaches them as loop devices. It
// shows the requests to a program of a storage provider and its responses;
// docs/reference/program-provider.md has the details. Put it where only root can write, and
// run
//
//	stowage run --manager --provider files=/opt/files/provider
//
// Its volumes are then in /opt/files/volumes, and their tags in /opt/files/tags.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// argument and result have the fields that the operations below need. There are more, such as
// the machine and the attributes of the pool.
type argument struct {
	Volume   string            `json:"volume"`
	VolumeID string            `json:"volume-id"`
	SizeMiB  uint64            `json:"size-mib"`
	Tags     map[string]string `json:"tags"`
	ReadOnly bool              `json:"read-only"`
}

type result struct {
	Error      *failure    `json:"error,omitempty"`
	VolumeID   string      `json:"volume-id,omitempty"`
	SizeMiB    uint64      `json:"size-mib,omitempty"`
	Attachment *attachment `json:"attachment,omitempty"`

	Tags     map[string]string `json:"tags,omitempty"`
	Attached bool              `json:"attached,omitempty"`
}

type attachment struct {
	DeviceName string `json:"device-name"`
	BusAddress string `json:"bus-address"`
	ReadOnly   bool   `json:"read-only"`
}

type failure struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
}

func main() {
	if err := run(); err != nil {
		// The result for every volume is unknown now: all operations will be retried.
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	files := store{
		volumes: filepath.Join(filepath.Dir(program), "volumes"),
		tags:    filepath.Join(filepath.Dir(program), "tags"),
	}
	unlock, err := files.lock()
	if err != nil {
		return err
	}
	defer unlock()

	if len(os.Args) != 2 {
		return errors.New("usage: provider OPERATION, with a request on the standard input")
	}
	do, ok := map[string]func(argument) (result, error){
		"create-volumes":   files.create,
		"attach-volumes":   files.attach,
		"detach-volumes":   files.detach,
		"destroy-volumes":  files.destroy,
		"release-volumes":  files.release,
		"describe-volumes": files.describe,
	}[os.Args[1]]
	var request struct{ Arguments []argument }
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		return err
	}
	results := []result{}
	switch {
	case ok:
	case os.Args[1] == "list-volumes":
		if results, err = files.list(); err != nil {
			return err
		}
	default:
		do = func(argument) (result, error) {
			return result{}, coded{fmt.Errorf("this provider has no operation %s", os.Args[1]), "not-supported"}
		}
	}
	for _, arg := range request.Arguments {
		r, err := do(arg)
		if err != nil {
			r = result{Error: &failure{Message: err.Error(), Code: codeOf(err)}}
		}
		results = append(results, r)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"results": results})
}

// coded is an error with a code, which says more than that a retry may help.
type coded struct {
	error
	code string
}

func codeOf(err error) string {
	var c coded
	if errors.As(err, &c) {
		return c.code
	}
	if errors.Is(err, os.ErrNotExist) {
		return "not-found"
	}
	return ""
}

// store has a directory with a file for each volume, named by the volume's ID, and one with
// the tags of each.
type store struct {
	volumes, tags string
}

// lock excludes other runs. The previous run may still be active if its agent was killed.
func (d store) lock() (unlock func(), err error) {
	for _, dir := range []string{d.volumes, d.tags} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	dir, err := os.Open(d.volumes)
	if err != nil {
		return nil, err
	}
	return func() { dir.Close() }, syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
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
func newID(arg argument) (string, error) {
	uuid, ok := arg.Tags[uuidTag]
	switch {
	case !validName.MatchString(arg.Volume):
		return "", coded{fmt.Errorf("%q is not the name of a volume", arg.Volume), "not-valid"}
	case ok && !validUUID.MatchString(uuid):
		return "", coded{fmt.Errorf("%q is not a UUID", uuid), "not-valid"}
	case ok:
		return arg.Volume + "-" + uuid, nil
	}
	return arg.Volume, nil
}

func (d store) file(id string) (string, error) {
	if !validID.MatchString(id) {
		return "", coded{fmt.Errorf("%q is not the id of a volume", id), "not-valid"}
	}
	return filepath.Join(d.volumes, id), nil
}

// create is called again for a volume that exists if the agent was killed before it recorded
// the result.
func (d store) create(arg argument) (result, error) {
	id, err := newID(arg)
	if err != nil {
		return result{}, err
	}
	file, err := d.file(id)
	if err != nil {
		return result{}, err
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		if err := d.allocate(id, arg); err != nil {
			return result{}, err
		}
	}
	return d.describe(argument{VolumeID: id})
}

// allocate makes a volume with its tags, or nothing.
func (d store) allocate(id string, arg argument) error {
	if arg.SizeMiB > math.MaxInt64>>20 {
		return coded{fmt.Errorf("no file has %d MiB", arg.SizeMiB), "not-valid"}
	}
	tags, err := json.Marshal(arg.Tags)
	if err != nil {
		return err
	}
	file := filepath.Join(d.volumes, id)
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
	if err := write(filepath.Join(d.tags, id), tags); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// write writes a small file and makes it durable.
func write(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func (d store) describe(arg argument) (result, error) {
	file, err := d.file(arg.VolumeID)
	if err != nil {
		return result{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return result{}, err
	}
	return result{VolumeID: arg.VolumeID, SizeMiB: uint64(info.Size()) >> 20}, nil
}

func (d store) list() ([]result, error) {
	entries, err := os.ReadDir(d.volumes)
	if err != nil {
		return nil, err
	}
	results := []result{}
	for _, entry := range entries {
		id := entry.Name()
		if !validID.MatchString(id) {
			continue
		}
		r, err := d.describe(argument{VolumeID: id})
		if err != nil {
			return nil, err
		}
		tags, err := os.ReadFile(filepath.Join(d.tags, id))
		if err == nil {
			err = json.Unmarshal(tags, &r.Tags)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading the tags of %s: %w", id, err)
		}
		device, err := deviceOf(filepath.Join(d.volumes, id))
		if err != nil {
			return nil, err
		}
		r.Attached = device != ""
		results = append(results, r)
	}
	return results, nil
}

// attach leaves an attached volume as it is: it is called again after every start of the
// agent.
func (d store) attach(arg argument) (result, error) {
	file, err := d.file(arg.VolumeID)
	if err != nil {
		return result{}, err
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(file, &stat); err != nil {
		return result{}, err
	}
	options := []string{"--find", "--show", file}
	if arg.ReadOnly {
		options = append(options, "--read-only")
	}
	device, err := deviceOf(file)
	// Another program may take the device that losetup has found, or be detaching it.
	for try := 0; try < tries && err == nil && device == ""; try++ {
		if device, err = losetup(options...); err != nil && try < tries-1 {
			device, err = deviceOf(file)
		}
	}
	if err != nil {
		return result{}, err
	}
	return result{Attachment: &attachment{
		DeviceName: strings.TrimPrefix(device, "/dev/"),
		// Another device may have the name tomorrow. The machine recognizes the device by its
		// backing file, through the bus address.
		BusAddress: fmt.Sprintf("loop@%d:%d/%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino),
		ReadOnly:   arg.ReadOnly,
	}}, nil
}

func (d store) detach(arg argument) (result, error) {
	file, err := d.file(arg.VolumeID)
	if err != nil {
		return result{}, err
	}
	device, err := deviceOf(file)
	if err != nil || device == "" {
		return result{}, err
	}
	if _, err := losetup("--detach", device); err != nil {
		return result{}, err
	}
	// The kernel also reports success for a device that is in use, and detaches it when its
	// last user closes it. Programs that scan all devices close it soon.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		device, err := deviceOf(file)
		switch {
		case err != nil || device == "":
			return result{}, err
		case time.Now().After(deadline):
			return result{}, fmt.Errorf("%s is in use", device)
		}
	}
}

// tries is how often losetup may fail to attach a file.
const tries = 10

// patience is how long detaching a device may take.
const patience = 5 * time.Second

func (d store) destroy(arg argument) (result, error) {
	file, err := d.detached(arg.VolumeID)
	if err != nil {
		return result{}, err
	}
	return result{}, errors.Join(os.Remove(file), d.untag(arg.VolumeID))
}

// untag removes the tags of a volume that no longer belongs to this provider.
func (d store) untag(id string) error {
	if err := os.Remove(filepath.Join(d.tags, id)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// release moves a volume's file to a name that this provider does not recognize.
func (d store) release(arg argument) (result, error) {
	file, err := d.detached(arg.VolumeID)
	if err != nil {
		return result{}, err
	}
	return result{}, errors.Join(os.Rename(file, file+".released"), d.untag(arg.VolumeID))
}

// detached returns the file of a volume, or an error if the volume is attached.
func (d store) detached(id string) (string, error) {
	file, err := d.file(id)
	if err != nil {
		return "", err
	}
	if device, err := deviceOf(file); err != nil || device != "" {
		return "", errors.Join(err, fmt.Errorf("it is still attached as %s", device))
	}
	return file, nil
}

// deviceOf returns the loop device of a file, or "".
func deviceOf(file string) (string, error) {
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return losetup("--associated", file, "--noheadings", "--output", "NAME")
}

func losetup(args ...string) (string, error) {
	out, err := exec.Command("losetup", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("losetup: %w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
