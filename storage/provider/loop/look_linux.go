package loop

import (
	"context"
	"sync"

	"github.com/juju/errors"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// Look returns what the machine has of a volume, without a lock. If the volume does not exist, the error
// satisfies errors.IsNotFound.
func Look(ctx context.Context, storageDir, id string) (*object.Footprint, error) {
	mounts, err := object.BeginMounts(ctx, storageDir, filesDir, object.EachObject)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer mounts.End()
	c := &call{Call: mounts.Call, scan: sync.OnceValues(loopdev.Scan)}
	var rec record
	if id, err = c.Load(id, &rec); err != nil {
		return nil, errors.Trace(err)
	}
	found := c.Footprint(id)
	if err := c.AddFile(found, id); err != nil {
		return nil, errors.Trace(err)
	}
	devices, err := c.devices(id, rec)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var numbers []uint64
	for _, d := range devices {
		var st unix.Stat_t
		if err := unix.Stat(d.Path(), &st); err != nil {
			return nil, errors.Annotatef(err, "reading %s", d.Path())
		}
		found.Devices, numbers = append(found.Devices, d.Path()), append(numbers, st.Rdev)
	}
	err = mounts.AddMounts(found, func(t *mount.Table) (of []*mountinfo.Info) {
		for _, number := range numbers {
			of = append(of, t.OfDevice(unix.Major(number), unix.Minor(number))...)
		}
		return of
	}, numbers...)
	return found, errors.Trace(err)
}
