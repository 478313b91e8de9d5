//go:build linux

package csi_test

import (
	"os"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

// A volume of the environment has snapshots, and volumes are made from them. Each call is that of a new
// process, without records, and finds what an earlier one has made.
func TestSnapshotsOfTheEnvironment(t *testing.T) {
	e := newEnviron(t)
	e.known[names.NewMachineTag("0")] = machine.Driver{NodeID: "node-a", Topology: map[string]string{"zone": "a"}}
	source := e.volumes()
	made, err := source.CreateVolumes(e.ctx, []storage.VolumeParams{e.params("0")})
	if err != nil || made[0].Error != nil {
		t.Fatal(err, made[0].Error)
	}
	v := made[0].Volume
	inContext := source.(storage.ContextSource).VolumeContext(v.VolumeId)
	use := func(v *storage.Volume, context map[string]string, do func(*os.File) error) {
		t.Helper()
		info, err := e.attachIn(v, context)
		if err != nil {
			t.Fatal(err)
		}
		found, err := e.plan("a").AttachVolume(t.Context(), info.DeviceAttributes)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile("/dev/"+found.DeviceName, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{do(f), f.Sync(), f.Close()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		e.detachFrom("a", v, info)
	}
	write := func(text string) {
		t.Helper()
		use(v, inContext, func(f *os.File) error {
			_, err := f.WriteAt([]byte(text), 0)
			return err
		})
	}
	write("precious")
	tags := ownerTags()
	e.driver.unready = 1
	if _, err := e.snapshot(v.VolumeId, tags); !errors.Is(err, storage.ErrInProgress) {
		t.Errorf("the driver needs longer: %v", err)
	}
	write("changed!")
	first, err := e.snapshot(v.VolumeId, tags)
	if err != nil || first.Size != 8 || first.TakenAt.IsZero() {
		t.Fatal(first, err)
	}
	if again, err := e.snapshot(v.VolumeId, tags); err != nil || *again != *first {
		t.Errorf("made again: %+v, %v, want %+v", again, err, first)
	}

	p := e.params("1")
	p.Size = 16
	var copied *storage.Volume
	for range 2 {
		source = e.volumes()
		results, err := source.(storage.VolumeCloner).CloneVolumes(e.ctx, []storage.VolumeCloneParams{{VolumeParams: p, Origin: storage.Origin{SnapshotId: first.SnapshotId}}})
		if err != nil || results[0].Error != nil {
			t.Fatal(err, results[0].Error)
		}
		copied = results[0].Volume
	}
	use(copied, source.(storage.ContextSource).VolumeContext(copied.VolumeId), func(f *os.File) error {
		got := make([]byte, 8)
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != "precious" {
			t.Errorf("the copy has %q", got)
		}
		return nil
	})

	if _, err := e.volumes().(storage.VolumeSnapshotter).ListVolumeSnapshots(e.ctx); !errors.Is(err, errors.NotSupported) {
		t.Errorf("listed: %v", err)
	}
	for range 2 {
		if err := e.destroySnapshot(first.SnapshotId); err != nil {
			t.Error(err)
		}
	}
	for name, test := range map[string]struct {
		of   storage.Origin
		kind error
		want string
	}{
		"the snapshot is gone": {storage.Origin{SnapshotId: first.SnapshotId}, errors.NotFound, "does not exist"},
		"of a volume":          {storage.Origin{Id: v.VolumeId}, errors.NotSupported, "make a snapshot, and new storage from that"},
		"of nothing":           {storage.Origin{}, errors.NotValid, "exactly one"},
	} {
		made, err := e.clone(e.params("2"), test.of)
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: made %+v, %v", name, made, err)
		}
		// Only the driver knows that no earlier call has made it.
		if storage.IsNothingMade(err) != (test.kind == errors.NotFound) || !storage.IsNothingMade(err) && !storage.IsRefused(err) {
			t.Errorf("%s: what exists after %v", name, err)
		}
	}
	for of, tags := range map[string]map[string]string{v.VolumeId: nil, "volume-9": ownerTags()} {
		if made, err := e.snapshot(of, tags); !errors.Is(err, errors.NotValid) && !errors.Is(err, errors.NotFound) {
			t.Errorf("snapshot of %s for %v: %+v, %v", of, tags, made, err)
		}
	}
	e.driver.noSnapshots = true
	if _, err := e.snapshot(v.VolumeId, ownerTags()); !errors.Is(err, errors.NotSupported) {
		t.Errorf("a driver without snapshots: %v", err)
	}
	e.mustDestroy(copied.VolumeId)
	e.mustDestroy(v.VolumeId)
	e.requireClean()
}
