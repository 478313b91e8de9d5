package state_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// wanted returns the wanted sizes of a volume and a filesystem of machine 0.
func (w *world) wanted(volume, filesystem string) (sizes [2]uint64) {
	w.t.Helper()
	volumes, err := w.ForMachine(machine0).VolumeSizes(volumeTags(volume))
	w.must(err)
	filesystems, err := w.ForMachine(machine0).FilesystemSizes(filesystemTags(filesystem))
	w.must(err)
	w.must(asError(volumes[0].Error))
	w.must(asError(filesystems[0].Error))
	return [2]uint64{volumes[0].Result, filesystems[0].Result}
}

func TestResizeNotifiesAndSetsWantedSize(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", filesystem)
	w.work()
	volumes := follows(t, w.ForMachine(machine0).WatchVolumes)
	filesystems := follows(t, w.ForMachine(machine0).WatchFilesystems)
	wantNext(t, volumes, []string{"0/0"})
	wantNext(t, filesystems, []string{"0/0"})

	w.must(w.ResizeStorage("it", 200))
	wantNext(t, volumes, []string{"0/0"})
	wantNext(t, filesystems, []string{"0/0"})
	if sizes := w.wanted("0/0", "0/0"); sizes != [2]uint64{200, 200} {
		t.Errorf("the wanted sizes are %v", sizes)
	}
	if s := w.one("it"); s.SizeMiB != 120 || s.RequestedMiB != 200 {
		t.Errorf("it has %d MiB of %d", s.SizeMiB, s.RequestedMiB)
	}

	// A size that storage has not reached can be lowered, but not below its present size.
	w.must(w.ResizeStorage("it", 120))
	if err := w.ResizeStorage("it", 119); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "it has 120 MiB and cannot shrink to 119 MiB") {
		t.Errorf("got %v", err)
	}
	w.must(w.ResizeStorage("it", 200))

	// The new size is recorded, and the smaller size of an outdated call does not replace it.
	machine := w.ForMachine(machine0)
	for _, size := range []uint64{256, 128} {
		w.must(single(machine.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0-0", Info: params.VolumeInfo{VolumeId: "id-volume-0-0", Size: size}}})))
		w.must(single(machine.SetFilesystemInfo([]params.Filesystem{{FilesystemTag: "filesystem-0-0", Info: params.FilesystemInfo{FilesystemId: "id-filesystem-0-0", Size: size - 16}}})))
		infos, err := machine.Volumes(volumeTags("0/0"))
		w.must(err)
		if got := infos[0].Result.Info.Size; got != 256 {
			t.Errorf("the volume has %d MiB", got)
		}
		if s := w.one("it"); s.SizeMiB != 240 {
			t.Errorf("it has %d MiB", s.SizeMiB)
		}
	}
	wantCode(t, single(machine.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0-0", Info: params.VolumeInfo{VolumeId: "other", Size: 512}}})), params.CodeNotValid)
	w.check()
}

func TestResizeBeforeCreation(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", filesystem)
	w.must(w.ResizeStorage("it", 200))
	machine := w.ForMachine(machine0)
	asked := func() [2]uint64 {
		volumes, err := machine.VolumeParams(volumeTags("0/0"))
		w.must(err)
		filesystems, err := machine.FilesystemParams(filesystemTags("0/0"))
		w.must(err)
		return [2]uint64{volumes[0].Result.Size, filesystems[0].Result.Size}
	}
	if sizes := asked(); sizes != [2]uint64{200, 200} {
		t.Errorf("asked for %v", sizes)
	}
	// A filesystem is made to fit its present volume, and grows with it.
	w.must(single(machine.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0-0", Info: params.VolumeInfo{VolumeId: "v", Size: 200}}})))
	w.must(w.ResizeStorage("it", 300))
	if sizes := asked(); sizes != [2]uint64{300, 200} {
		t.Errorf("asked for %v", sizes)
	}
	if sizes := w.wanted("0/0", "0/0"); sizes != [2]uint64{300, 300} {
		t.Errorf("the wanted sizes are %v", sizes)
	}
}

func TestResizeErrors(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", filesystem)
	w.add("going", "loop", block)
	w.work()
	w.must(w.RemoveStorage([]string{"going"}))
	before := w.dump()
	wantError(t, w.ResizeStorage("it", 99), errors.NotValid, `"it"`, "100 MiB", "99 MiB", "remove")
	wantError(t, w.ResizeStorage("it", 0), errors.NotValid, `"it"`)
	wantError(t, w.ResizeStorage("going", 200), errors.NotValid, `"going"`, "being removed")
	wantError(t, w.ResizeStorage("none", 200), errors.NotFound, `"none"`)
	wantError(t, w.Apply(state.Changes{Resize: []state.Resize{{Name: "it", Size: 200}, {Name: "none", Size: 1}}}), errors.NotFound, `"none"`)
	w.must(w.ResizeStorage("it", 100))
	if after := w.dump(); !maps.Equal(after, before) {
		t.Errorf("refused sizes changed\n%v\nto\n%v", before, after)
	}
}

func TestVolumeSizesAreScoped(t *testing.T) {
	w := mixed(t)
	results, err := w.ForMachine(machine0).VolumeSizes(volumeTags("0/0", "1/1", "2", "3", "0/9"))
	if got, want := codes(t, results, err), []string{"ok", params.CodeUnauthorized, "ok", params.CodeUnauthorized, params.CodeNotFound}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestImportedStorageIsProvisioned(t *testing.T) {
	w := newWorld(t)
	volume := storage.VolumeInfo{VolumeId: "imported-1", Size: 64}
	p := state.StorageParams{
		Name: "it", Kind: filesystem, Pool: "loop", Machine: machine0, MountPoint: "/srv/it",
		Attributes: map[string]any{"fs": "xfs", "uuid": "u"},
	}
	w.must(w.ImportVolume(p, volume))
	s := w.one("it")
	if s.SizeMiB != 64 || s.RequestedMiB != 64 || s.Volume.ProviderID != "imported-1" || s.Volume.Status != status.Attaching || s.Filesystem.Status != status.Pending {
		t.Errorf("it is %+v, its volume %+v", s, s.Volume)
	}
	infos, err := w.ForMachine(machine0).Volumes(volumeTags("0/0"))
	w.must(err)
	if infos[0].Error != nil || infos[0].Result.Info.Size != 64 {
		t.Errorf("its volume is %+v", infos[0])
	}
	filesystems, err := w.ForMachine(machine0).FilesystemParams(filesystemTags("0/0"))
	w.must(err)
	if p := filesystems[0].Result; p.Size != 64 || p.VolumeTag != "volume-0-0" || p.Attributes["uuid"] != "u" {
		t.Errorf("its filesystem is made with %+v", p)
	}

	w.must(w.ImportFilesystem(state.StorageParams{Name: "dir", Kind: filesystem, Pool: "tmpfs", Machine: machine0},
		storage.FilesystemInfo{FilesystemId: "imported-1", Size: 7}))
	if s := w.one("dir"); s.SizeMiB != 7 || s.Filesystem.ProviderID != "imported-1" {
		t.Errorf("dir is %+v", s)
	}
	w.check()

	// It can be imported again once it has been removed.
	w.must(w.RemoveStorage([]string{"it", "dir"}))
	w.work()
	w.must(w.ImportVolume(p, volume))
	w.check()
}

func TestImportErrors(t *testing.T) {
	w := newWorld(t)
	volume := storage.VolumeInfo{VolumeId: "imported-1", Size: 64}
	raw := func(name, pool string) state.StorageParams {
		return state.StorageParams{Name: name, Kind: block, Pool: pool, Machine: machine0}
	}
	w.must(w.ImportVolume(raw("it", "loop"), volume))
	before := w.dump()
	wantError(t, w.ImportVolume(raw("it", "loop"), volume), errors.AlreadyExists, `"it"`, "taken")
	wantError(t, w.ImportVolume(raw("other", "loop"), volume), errors.AlreadyExists, `"other"`, `"it"`)
	wantError(t, w.ImportVolume(raw("other", "loop"), storage.VolumeInfo{Size: 1}), errors.NotValid, `"other"`, "id")
	wantError(t, w.ImportVolume(raw("other", "none"), volume), errors.NotFound, `"none"`)
	wantError(t, w.ImportFilesystem(raw("other", "loop"), storage.FilesystemInfo{FilesystemId: "x", Size: 1}), errors.NotSupported, `"other"`, `"loop"`)
	fs := raw("other", "tmpfs")
	fs.Kind = filesystem
	wantError(t, w.ImportVolume(fs, storage.VolumeInfo{VolumeId: "x", Size: 1}), errors.NotSupported, `"tmpfs"`)
	if after := w.dump(); !maps.Equal(after, before) {
		t.Errorf("refused imports changed\n%v\nto\n%v", before, after)
	}
}
