package api_test

import (
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/accessortest"
)

// The contract of accessors holds over HTTPS.
func TestConformance(t *testing.T) {
	accessortest.Run(t, accessortest.Config{Patience: patience, Open: func(t testing.TB) accessortest.Subject {
		w := newWorld(t)
		w.add("data", "disk", storage.StorageKindBlock)
		return accessortest.Subject{
			Accessors: w.dial().Accessors(), Volume: names.NewVolumeTag("0/0"), Machine: machine0,
			Remove: func() { w.must(w.RemoveStorage([]string{"data"})) },
		}
	}})
}
