// Package freeze keeps a mounted filesystem from being written to for a short time, so that its
// block device can be copied. The filesystem is consistent on its device for that time: its data
// is written out, and programs that write to it wait.
//
// The kernel keeps a filesystem frozen after the process that froze it has died. So a child
// process unfreezes it when this process has died, or after a time limit, even if this process
// hangs because it writes to the filesystem itself.
package freeze

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/run"
)

// guard is the child process: a constant script of the shell with three system programs. It finds
// the filesystem at the descriptor 3, and reads nothing that a user has written. Its standard
// input ends when this process has died.
//
// The child cannot be this program: in a program that embeds the library, /proc/self/exe started
// a second time does whatever that program does. No single system program waits for one of two
// events and then unfreezes, and a helper of our own would have to be installed. The script
// ignores the signals with which systemd and terminals end all processes of a service after the
// first one has died, because it is the only one left to unfreeze. Only SIGKILL to all processes
// of the service at once leaves the filesystem frozen.
//
// If the limit passes while the kernel is still freezing, unfreezing fails. The script then waits
// for the end of this process, which the kernel delays until it has frozen the filesystem.
const guard = `trap '' HUP INT QUIT TERM
echo ready
"$2" --foreground "$4" "$3"
"$1" --unfreeze /proc/self/fd/3 2>/dev/null && exit
"$3"
exec "$1" --unfreeze /proc/self/fd/3`

// ErrNotHeld means that a filesystem did not stay frozen: the time limit has passed, or somebody
// else has unfrozen it.
const ErrNotHeld = errors.ConstError("it did not stay frozen")

// Frozen is a frozen filesystem.
type Frozen struct {
	dir   *os.File
	child *exec.Cmd
	// alive ends the child's standard input when it is closed.
	alive io.Closer
}

// Hold freezes the filesystem of a directory until Thaw is called, the limit, in whole seconds
// rounded up, has passed, or this process has died. The caller must call Thaw, and not write to
// the filesystem before. Data that is not written out yet prolongs the freezing: sync the
// filesystem first.
//
// The error is unix.EBUSY if another program has frozen the filesystem. It satisfies
// errors.IsNotSupported if the filesystem cannot be frozen, or if a program is missing. If ctx
// ends while the kernel is still freezing, Hold returns, and the filesystem is unfrozen as soon as
// the kernel has finished.
func Hold(ctx context.Context, dir *os.File, limit time.Duration) (*Frozen, error) {
	f, err := startGuard(dir, limit)
	if err != nil {
		return nil, errors.Trace(err)
	}
	frozen := make(chan error, 1)
	go func() { frozen <- ioctl(dir, freeze) }()
	select {
	case err = <-frozen:
	case <-ctx.Done():
		go func() {
			if <-frozen == nil {
				_ = f.Thaw()
			} else {
				f.dismiss()
			}
		}()
		return nil, errors.Annotatef(ctx.Err(), "freezing %s", dir.Name())
	}
	if err == nil {
		return f, nil
	}
	f.dismiss()
	if err == unix.EOPNOTSUPP || err == unix.ENOTTY {
		return nil, errors.NewNotSupported(err, "freezing the filesystem at "+dir.Name())
	}
	return nil, errors.Annotatef(err, "freezing %s", dir.Name())
}

// Thaw unfreezes the filesystem. The error satisfies errors.Is(err, ErrNotHeld) if the filesystem
// was not frozen for the whole time.
func (f *Frozen) Thaw() error {
	err := ioctl(f.dir, unfreeze)
	f.dismiss()
	if err == unix.EINVAL {
		return errors.Annotate(ErrNotHeld, f.dir.Name())
	}
	return errors.Annotatef(err, "unfreezing %s", f.dir.Name())
}

// startGuard starts the child process, with a descriptor of its own for the directory.
func startGuard(dir *os.File, limit time.Duration) (*Frozen, error) {
	args := []string{"-c", guard, "guard"}
	for _, p := range []run.Program{
		{Name: "fsfreeze", Package: "util-linux"}, {Name: "timeout", Package: "coreutils"}, {Name: "cat", Package: "coreutils"},
	} {
		path, err := p.Find()
		if err != nil {
			return nil, errors.Trace(err)
		}
		args = append(args, path)
	}
	shell, err := run.Program{Name: "sh", Package: "dash"}.Find()
	if err != nil {
		return nil, errors.Trace(err)
	}
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Trace(err)
	}
	f := &Frozen{dir: os.NewFile(uintptr(fd), dir.Name()), child: exec.Command(shell, append(args, fmt.Sprint(math.Ceil(limit.Seconds())))...)}
	f.child.Dir = "/"
	f.child.Env = []string{"LC_ALL=C"}
	f.child.ExtraFiles = []*os.File{f.dir}
	f.child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = f.start()
	if err != nil {
		f.dir.Close()
	}
	return f, errors.Annotate(err, "starting the process that unfreezes")
}

// start starts the child process and waits until it ignores signals.
func (f *Frozen) start() error {
	alive, err := f.child.StdinPipe()
	if err != nil {
		return errors.Trace(err)
	}
	out, err := f.child.StdoutPipe()
	if err != nil {
		alive.Close()
		return errors.Trace(err)
	}
	if err := f.child.Start(); err != nil {
		return errors.Trace(err)
	}
	f.alive = alive
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		f.dismiss()
		return errors.Trace(err)
	}
	return nil
}

// dismiss ends the child process, which must not unfreeze what somebody else freezes next.
func (f *Frozen) dismiss() {
	_ = unix.Kill(-f.child.Process.Pid, unix.SIGKILL)
	f.alive.Close()
	_ = f.child.Wait()
	f.dir.Close()
}

// FIFREEZE and FITHAW of linux/fs.h, _IOWR('X', 119, int) and _IOWR('X', 120, int). The direction
// bits of _IOWR are the same on all architectures.
const (
	freeze   = 0xc0045877
	unfreeze = 0xc0045878
)

func ioctl(f *os.File, request uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, 0); errno != 0 {
		return errno
	}
	return nil
}
