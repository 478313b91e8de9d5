package state_test

import (
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Storage can be made before it is attached: that of a machine there, that of the environment nowhere.
func TestAddDetached(t *testing.T) {
	for _, test := range []struct {
		name   string
		params state.StorageParams
		made   string // the volume and the filesystem when it is made, and not attached
	}{
		{"volume of a machine", state.StorageParams{Kind: block, Pool: "loop", Machine: machine1}, "volume-1-0 made"},
		{"filesystem of a machine", state.StorageParams{Kind: filesystem, Pool: "tmpfs", Machine: machine1}, "filesystem-1-0 made"},
		{"filesystem on a volume of a machine", state.StorageParams{Kind: filesystem, Pool: "loop", Machine: machine1}, "volume-1-0 made, filesystem-1-0 made"},
		{"volume of the environment", state.StorageParams{Kind: block, Pool: "disk"}, "volume-0 made"},
		{"filesystem on a volume of the environment", state.StorageParams{Kind: filesystem, Pool: "disk"}, "volume-0 made"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			p := test.params
			p.Name, p.Size, p.Detached = "data", 100, true
			w.must(w.AddStorage(p))
			w.work()
			w.check()
			for _, e := range []*state.Entity{w.one("data").Volume, w.one("data").Filesystem} {
				if e != nil && e.ProviderID != "" {
					w.setStatus(e.Tag.String(), status.Attaching, "") // as workers report what they have made
				}
			}
			if s := w.one("data"); describeParts(s) != test.made || len(s.Attachments) != 0 || s.Status != status.Detached {
				t.Errorf("made: %s, attached to %v, %s; want %s", describeParts(s), s.Attachments, s.Status, test.made)
			}
			w.must(w.AttachStorage([]string{"data"}, machine1))
			w.work()
			w.check()
			w.wantAttached("data", machine1)
			if p.Kind == filesystem && w.one("data").Filesystem == nil {
				t.Error("the storage is attached without its filesystem")
			}
			w.must(w.RemoveStorage([]string{"data"}))
			w.work()
			w.check()
			if _, missing, err := w.FindStorage("data"); err != nil || len(missing) != 1 {
				t.Errorf("it is not removed: %v, %v", missing, err)
			}
		})
	}
}

func describeParts(s state.Storage) (text string) {
	for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
		if e == nil {
			continue
		}
		if text != "" {
			text += ", "
		}
		if text += e.Tag.String(); e.ProviderID != "" {
			text += " made"
		}
	}
	return text
}

// Where storage is made is said exactly when it matters.
func TestAddDetachedNamesMachine(t *testing.T) {
	w := newWorld(t)
	add := func(pool string, kind storage.StorageKind, change func(*state.StorageParams)) error {
		p := state.StorageParams{Name: "data", Size: 1, Kind: kind, Pool: pool, Detached: true}
		change(&p)
		return w.AddStorage(p)
	}
	nowhere := func(*state.StorageParams) {}
	there := func(p *state.StorageParams) { p.Machine = machine1 }
	wantError(t, add("loop", block, nowhere), errors.NotValid, "is made on a machine: name one")
	wantError(t, add("disk", block, there), errors.NotValid, "is not made on a machine: leave the machine out until it is attached")
	w.must(w.DrainMachine(machine1, state.Changes{}))
	wantError(t, add("loop", block, there), errors.NotValid, "is drained")
}

// A volume may be a filesystem of its provider. The machine makes none on it, wherever it is attached, and
// it cannot be had as a block device.
func TestVolumeThatIsFilesystem(t *testing.T) {
	w := newWorld(t)
	w.connect()
	wantError(t, w.AddStorage(state.StorageParams{Name: "raw", Size: 1, Kind: block, Pool: "share", Machine: machine1}),
		errors.NotSupported, `the volumes of pool "share" are filesystems: choose the kind filesystem, or a pool of block devices`)
	w.must(w.AddStorage(state.StorageParams{
		Name: "raw", Size: 1, Kind: block, Pool: "share", Machine: machine1, Attributes: map[string]any{"volume-mode": "block"},
	}))
	w.must(w.RemoveStorage([]string{"raw"}))
	w.work()
	w.must(w.AddStorage(state.StorageParams{
		Name: "data", Size: 1, Kind: filesystem, Pool: "share", Machine: machine1, Attributes: map[string]any{"fs": "nfs", "mounted": "hard"},
	}))
	attributes := func(machine names.MachineTag) map[string]any {
		t.Helper()
		tag := w.one("data").Filesystem.Tag.(names.FilesystemTag)
		results, err := w.ForMachine(machine).FilesystemParams([]names.FilesystemTag{tag})
		if err != nil || results[0].Error != nil {
			t.Fatal(err, results[0].Error)
		}
		return results[0].Result.Attributes
	}
	for _, machine := range []names.MachineTag{machine1, machine0} {
		if got := attributes(machine); got["mounted"] != true || got["uuid"] != nil || got["fs"] != "nfs" {
			t.Errorf("the filesystem is made with %v", got)
		}
		w.work()
		w.check()
		w.wantAttached("data", machine)
		w.must(w.MoveStorage(state.Attach{Name: "data", Machine: machine0}))
		w.work()
	}
}
