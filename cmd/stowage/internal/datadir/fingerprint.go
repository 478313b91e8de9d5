package datadir

import (
	"io/fs"
	"os"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/state"
)

// Difference names the attributes in which a directory differs from the one in which the state
// was made. It is empty if there is no difference. An attribute that is not known on both
// sides counts as equal. The device number is compared only within one boot.
func Difference(made, now state.Fingerprint) string {
	var differ []string
	note := func(what string, differs bool) {
		if differs {
			differ = append(differ, what)
		}
	}
	note("inode", made.Inode != now.Inode)
	note("birth time", made.Born != 0 && now.Born != 0 && made.Born != now.Born)
	note("btrfs subvolume", made.Subvolume != now.Subvolume)
	note("machine ID", made.MachineID != "" && now.MachineID != "" && made.MachineID != now.MachineID)
	note("device", made.BootID == now.BootID && made.Device != now.Device)
	return strings.Join(differ, ", ")
}

// Fingerprint returns the attributes that distinguish the directory from a copy of it, and
// from one with the same path on another machine.
func (d Dir) Fingerprint() (state.Fingerprint, error) {
	f, err := d.fingerprint()
	return f, errors.Annotatef(err, "identifying the data directory %s", d)
}

func (d Dir) fingerprint() (state.Fingerprint, error) {
	var f state.Fingerprint
	dir, err := os.OpenFile(string(d), unix.O_DIRECTORY, 0)
	if err != nil {
		return f, errors.Trace(err)
	}
	defer dir.Close()
	var st unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME|unix.STATX_SUBVOL, &st); err != nil {
		return f, &fs.PathError{Op: "statx", Path: string(d), Err: err}
	}
	f.Inode = st.Ino
	f.Device = unix.Mkdev(st.Dev_major, st.Dev_minor)
	if st.Mask&unix.STATX_BTIME != 0 {
		f.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	if st.Mask&unix.STATX_SUBVOL != 0 {
		f.Subvolume = st.Subvol
	}
	if f.BootID, err = readLine("/proc/sys/kernel/random/boot_id"); err != nil {
		return f, errors.Trace(err)
	}
	// Some containers have no machine ID, or an empty one.
	if f.MachineID, err = readLine("/etc/machine-id"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, errors.Trace(err)
	}
	return f, nil
}

func readLine(path string) (string, error) {
	content, err := os.ReadFile(path)
	return strings.TrimSpace(string(content)), err
}
