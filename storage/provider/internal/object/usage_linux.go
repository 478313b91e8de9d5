package object

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

// UsageOf returns how much of a filesystem is used, without a lock and without the table of mounts, so
// that it is cheap for many. It is false for a filesystem that is not mounted as its record says. With
// directories, those of files are filesystems of their own, which need not be mounted.
func UsageOf(ctx context.Context, dir, files, id string, directories bool) (_ Usage, ok bool, err error) {
	c, err := BeginMounts(ctx, dir, files, EachObject)
	if err != nil {
		return Usage{}, false, errors.Trace(err)
	}
	defer c.End()
	var rec struct {
		Placement
		Limit uint64 `json:"limit"` // of a directory, in bytes
	}
	if id, err = c.Load(id, &rec); err != nil {
		return Usage{}, false, errors.Trace(err)
	}
	path := rec.MountPoint
	inPlace := path == "" && directories
	if inPlace {
		if path, err = c.DefaultMountPoint(id); err != nil {
			return Usage{}, false, errors.Trace(err)
		}
	} else if path == "" {
		return Usage{}, false, nil
	}
	target, err := mount.OpenTarget(path)
	if errors.Is(err, errors.NotFound) {
		return Usage{}, false, nil
	} else if err != nil {
		return Usage{}, false, errors.Trace(err)
	}
	defer target.Close()
	if !inPlace {
		if !target.IsMount() {
			return Usage{}, false, nil
		}
		if ours, err := c.isRecorded(&rec.Placement, target); !ours || err != nil {
			return Usage{}, false, errors.Trace(err)
		}
	}
	usage, err := statfs(target)
	usage.Shared = directories && isShared(usage, rec.Limit)
	return usage, err == nil, errors.Trace(err)
}

// isShared reports whether the usage of a directory with a limit, 0 for none, is that of the whole filesystem
// that it is on: with a quota, the kernel shows the limit as the size.
func isShared(usage Usage, limit uint64) bool { return limit == 0 || usage.Size != limit }
