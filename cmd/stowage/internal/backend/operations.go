package backend

import (
	"strings"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// maxFollowed is for how many unfinished storage instances a list says how far they are: the storage
// provisioner answers between two events.
const maxFollowed = 1000

// addOperations adds the unfinished operations that are carried out in this process.
func (b *Backend) addOperations(rows []user.Storage) {
	if b.config.Progress == nil {
		return
	}
	var tags []string
	of := make(map[string]int) // the row of each entity
	for i, r := range rows {
		atRest := r.Status == status.Attached || r.Status == status.Detached
		if atRest && r.SizeMiB >= r.WantedMiB || len(tags) >= maxFollowed {
			continue
		}
		if r.Volume != "" {
			tags = append(tags, names.NewVolumeTag(r.Volume).String())
			of["volume "+r.Volume] = i
		}
		if r.Filesystem != "" {
			tags = append(tags, names.NewFilesystemTag(r.Filesystem).String())
			of["filesystem "+r.Filesystem] = i
		}
	}
	if len(tags) == 0 {
		return
	}
	for _, o := range b.executor.Operations(tags) {
		if i, ok := of[storageEntity(o.Entity)]; ok {
			rows[i].Operations = append(rows[i].Operations, user.StorageOperation(o))
		}
	}
}

// storageEntity returns the volume or filesystem, as "volume 0/1", of an entity of a report, which may be an
// attachment.
func storageEntity(entity string) string {
	entity, _, _ = strings.Cut(entity, " on ")
	kind, id := "volume ", entity[strings.LastIndexByte(entity, ' ')+1:]
	if strings.HasPrefix(entity, "filesystem") {
		kind = "filesystem "
	}
	return kind + id
}
