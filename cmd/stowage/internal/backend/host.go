package backend

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/space"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage/provider"
)

// host is the filesystem that loop volumes and rootfs directories are on. Sizes are in
// bytes.
type host struct {
	dir        string
	size, free uint64
	// promised is how much more space thin volumes may take than they have.
	promised uint64
}

// measureHost returns the usage of the host, for displaying storage. The promised size covers
// all thin volumes, and is read only if some of storages is thin. A server has no host.
func (b *Backend) measureHost(storages []state.Storage) (host, error) {
	if !b.isLocal() {
		return host{}, nil
	}
	h := host{dir: b.dir.Storage()}
	var err error
	if h.size, h.free, err = space.Host(h.dir); err != nil {
		return h, errors.Trace(err)
	}
	if !slices.ContainsFunc(storages, isThin) {
		return h, nil
	}
	all, err := b.state.AllStorage()
	if err != nil {
		return h, errors.Trace(err)
	}
	dir := filepath.Join(h.dir, string(provider.LoopProviderType))
	for _, s := range all {
		if !isThin(s) || s.Volume.ProviderID == "" {
			continue
		}
		// The storage provisioner reports a missing file.
		h.promised += space.Unallocated(provider.LoopVolumePath(dir, s.Volume.ProviderID))
	}
	return h, nil
}

// isThin reports whether storage takes space as it is written, so that a write can fail for
// lack of space.
func isThin(s state.Storage) bool {
	return s.Provider == provider.LoopProviderType && s.Volume != nil && provider.LoopIsThin(s.Attributes)
}

// remark returns a remark about the host for users of the storage. It is empty if writes to
// the storage cannot fail for lack of space, or are far from it.
func (h host) remark(s state.Storage) string {
	switch {
	case isThin(s) && h.promised > h.free:
		return fmt.Sprintf("over-committed: thin volumes may take %s more, and %s is left in %s",
			table.Size(h.promised>>20), table.Size(h.free>>20), h.dir)
	case (isThin(s) || s.Provider == provider.RootfsProviderType) && h.isNearlyFull():
		return fmt.Sprintf("nearly full: %s of %s is left in %s", table.Size(h.free>>20), table.Size(h.size>>20), h.dir)
	}
	return ""
}

func (h host) isNearlyFull() bool { return asked.IsNearlyFull(h.size, h.free) }

// report returns the host's part of a report.
func (h host) report() map[string]any {
	return map[string]any{
		"directory":         h.dir,
		"size-mib":          h.size >> 20,
		"free-mib":          h.free >> 20,
		"nearly-full":       h.isNearlyFull(),
		"thin-promised-mib": h.promised >> 20,
	}
}

// measureHostForAll calls measureHost with all storage.
func (b *Backend) measureHostForAll() (host, error) {
	all, err := b.state.AllStorage()
	if err != nil {
		return host{}, errors.Trace(err)
	}
	return b.measureHost(all)
}
