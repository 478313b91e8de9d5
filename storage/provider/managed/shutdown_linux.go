package managed

import (
	"context"
	stderrors "errors"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// iocShutdown is the ioctl by which ext4, xfs and others stop: _IOR('X', 125, __u32).
const iocShutdown = 0x8004587d

// ShutDown makes the kernel stop using filesystems on volumes of the environment that are mounted
// here: nothing is written to them any more, not even what is in memory, and every access fails.
// It is for a machine whose volumes may be in use on another one. They stay mounted. ShutDown
// returns the mount points of what it has shut down; the error is about the others. It leaves out
// filesystems that were imported, since their records name no volume: a server's agent has none.
func ShutDown(ctx context.Context, storageDir string) ([]string, error) {
	s := &source{dir: storageDir}
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer c.End()
	ids, err := c.Records.List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	var down []string
	var failed []error
	for _, id := range ids {
		path, err := c.shutDown(id)
		if path != "" {
			down = append(down, path)
		}
		if err != nil {
			failed = append(failed, errors.Annotate(err, id))
		}
	}
	return down, errors.Trace(stderrors.Join(failed...))
}

// shutDown shuts down a filesystem, if it is on a volume of the environment and mounted, and
// returns its mount point then.
func (c *call) shutDown(id string) (string, error) {
	f := &filesystem{id: id, call: c}
	defer f.close()
	// The lock of the object is not taken: an operation that hangs must not be waited for.
	if err := c.Records.Load(id, &f.rec); err != nil {
		return "", errors.Trace(err)
	}
	volume, err := names.ParseVolumeTag(f.rec.Volume)
	if _, bound := names.VolumeMachine(volume); err != nil || bound || f.rec.MountPoint == "" {
		return "", nil
	}
	var mounted object.Mountable = f
	if f.isMounted() {
		mounted = f.bind("")
	} else if err := f.locate(); err != nil || f.dev == nil && f.orphan == nil {
		return "", errors.Trace(err)
	}
	at, err := c.Find(mounted, f.rec.MountPoint)
	if err != nil || at == nil {
		return "", errors.Trace(err)
	}
	defer at.Target.Close()
	if at.Relation != object.Ours {
		return "", nil // another agent of this host has it now
	}
	dir, err := at.Target.OpenDir()
	if err != nil {
		return "", errors.Trace(err)
	}
	defer dir.Close()
	err = unix.IoctlSetPointerInt(int(dir.Fd()), iocShutdown, unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP):
		return "", errors.Errorf("%s on %s cannot be shut down, and is left as it is", f.rec.Type, at.Target.Path)
	case err != nil:
		return "", errors.Annotatef(err, "shutting down %s on %s", f.rec.Type, at.Target.Path)
	}
	return at.Target.Path, nil
}
