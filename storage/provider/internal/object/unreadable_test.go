//go:build linux

package object

import (
	"path/filepath"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage"
)

// An object of an older version has an ID without a UUID. If its record cannot be read,
// the object is not reported as missing.
// Fault F28.
func TestLoadUnreadableRecordOfOlderVersion(t *testing.T) {
	const entityUUID = "0d2c1a3b-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
	c, err := Begin(t.Context(), filepath.Join(t.TempDir(), "storage"), "files", WholeDirectory)
	if err != nil {
		t.Fatal(err)
	}
	defer c.End()
	rec := ownedRecord{Ownership{map[string]string{storage.EntityUUIDTag: entityUUID}}, PhaseReady}
	if err := c.Records.Save("volume-0-1", rec); err != nil {
		t.Fatal(err)
	}
	load := func() error {
		_, err := c.Load("volume-0-1-"+entityUUID, new(ownedRecord))
		return err
	}
	if err := load(); err != nil {
		t.Fatal(err)
	}
	err = syscalltest.Intercept(t, []int{unix.SYS_READ}, func(call syscalltest.Call) syscalltest.Result {
		if call.Path() == filepath.Join(c.Records.Dir(), "volume-0-1.json") {
			return syscalltest.Fail(unix.EIO)
		}
		return syscalltest.Pass
	}, load)
	if !errors.Is(err, unix.EIO) || errors.Is(err, errors.NotFound) {
		t.Errorf("loading the record: %v", err)
	}
}
