package state_test

import (
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/accessortest"
)

func TestConformance(t *testing.T) {
	for _, scope := range []struct {
		name, pool string
		volume     names.VolumeTag
		accessors  func(*world) storageprovisioner.Accessors
	}{
		{"environment", "disk", names.NewVolumeTag("0"), func(w *world) storageprovisioner.Accessors { return w.ForEnviron() }},
		{"machine", "loop", names.NewVolumeTag("0/0"), func(w *world) storageprovisioner.Accessors { return w.ForMachine(machine0) }},
	} {
		t.Run(scope.name, func(t *testing.T) {
			accessortest.Run(t, accessortest.Config{Open: func(t testing.TB) accessortest.Subject {
				w := newWorld(t)
				w.must(w.SetEnvironConfig(map[string]any{"name": "here", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b"}))
				w.must(w.SetInstanceId(machine0, "i-0"))
				w.add("data", scope.pool, storage.StorageKindBlock)
				return accessortest.Subject{
					Accessors: scope.accessors(w), Volume: scope.volume, Machine: machine0,
					Remove: func() { w.must(w.RemoveStorage([]string{"data"})) },
				}
			}})
		})
	}
}
