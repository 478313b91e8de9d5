package backend_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv/kvtest"
)

// Storage whose machine cannot be asked is described, with the reason.
func TestLookWithoutMachine(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	_, err := s.apply("b loop,1M", "a loop,1M", "c cloud,1M")
	s.must(err)
	looks, err := s.Look(t.Context(), []string{"b", "a", "c"})
	s.must(err)
	if len(looks) != 3 || looks[0].Name != "a" || looks[1].Name != "b" || looks[2].Name != "c" {
		t.Fatalf("%+v", looks)
	}
	for _, look := range looks {
		if look.Machine != "0" || !strings.Contains(look.NotAsked, "machine 0 is not connected") {
			t.Errorf("%+v", look)
		}
	}
	if _, err := s.Look(t.Context(), []string{"none"}); !errors.Is(err, errors.NotFound) {
		t.Errorf("storage that does not exist: %v", err)
	}
	if _, err := s.Look(t.Context(), nil); !errors.Is(err, errors.NotValid) {
		t.Errorf("no storage: %v", err)
	}
}

// Machines that cannot be asked how much is used are named, and storage that is not mounted needs none.
func TestUsageWithoutMachine(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	_, err := s.apply("a loop,1M /srv/a", "b loop,1M /srv/b", "c loop,1M")
	s.must(err)
	list, err := s.Usage(t.Context(), []string{"a", "b", "c"})
	s.must(err)
	if len(list.Storage) > 0 || len(list.NotAsked) > 0 {
		t.Errorf("before anything is made: %+v", list)
	}
	at := s.state.ForMachine(machine)
	for _, name := range []string{"a", "b"} {
		row := s.one(name)
		tag := "filesystem-" + strings.ReplaceAll(row.Filesystem, "/", "-")
		volume := "volume-" + strings.ReplaceAll(row.Volume, "/", "-")
		_, err := at.SetVolumeInfo([]params.Volume{{VolumeTag: volume, Info: params.VolumeInfo{VolumeId: "v" + name, Size: 1}}})
		s.must(err)
		_, err = at.SetVolumeAttachmentInfo([]params.VolumeAttachment{{VolumeTag: volume, MachineTag: machine.String()}})
		s.must(err)
		_, err = at.SetFilesystemInfo([]params.Filesystem{{FilesystemTag: tag, Info: params.FilesystemInfo{FilesystemId: name, Size: 1}}})
		s.must(err)
		if list, err = s.Usage(t.Context(), []string{name}); err != nil || len(list.NotAsked) > 0 {
			t.Errorf("before %s is mounted: %+v, %v", name, list, err)
		}
		_, err = at.SetFilesystemAttachmentInfo([]params.FilesystemAttachment{{FilesystemTag: tag, MachineTag: machine.String(), Info: params.FilesystemAttachmentInfo{MountPoint: "/srv/" + name}}})
		s.must(err)
		if row := s.one(name); row.Location == "" {
			t.Fatalf("%+v", row)
		}
	}
	list, err = s.Usage(t.Context(), []string{"a", "b", "c"})
	s.must(err)
	if len(list.Storage) > 0 || len(list.NotAsked) != 1 || list.NotAsked[0].Machine != "0" || !strings.Contains(list.NotAsked[0].Reason, "machine 0 is not connected") {
		t.Errorf("%+v", list)
	}
}

// A volume that is larger than the filesystem on it is shown, and remarked unless the filesystem is about to
// grow.
func TestHalfGrown(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	_, err := s.apply("data loop,16M /srv/data")
	s.must(err)
	row := s.one("data")
	at := s.state.ForMachine(machine)
	record := func(volume, filesystem uint64) {
		t.Helper()
		v, err := at.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-" + strings.ReplaceAll(row.Volume, "/", "-"), Info: params.VolumeInfo{VolumeId: "v", Size: volume}}})
		s.must(err)
		f, err := at.SetFilesystemInfo([]params.Filesystem{{FilesystemTag: "filesystem-" + strings.ReplaceAll(row.Filesystem, "/", "-"), Info: params.FilesystemInfo{FilesystemId: "f", Size: filesystem}}})
		s.must(err)
		for _, r := range []params.ErrorResult{v[0], f[0]} {
			if r.Error != nil {
				t.Fatal(r.Error)
			}
		}
	}
	const remark = "half grown: its volume has 32 MiB, and its filesystem 16 MiB of them"
	record(16, 16)
	if row := s.one("data"); row.VolumeMiB != 0 || strings.Contains(row.Message, "half grown") {
		t.Errorf("at first: %+v", row)
	}
	record(32, 16)
	if row := s.one("data"); row.VolumeMiB != 32 || row.SizeMiB != 16 || !strings.Contains(row.Message, remark) {
		t.Errorf("half grown: %+v", row)
	}
	_, err = s.Resize(t.Context(), user.ResizeArgs{Names: []string{"data"}, SizeMiB: 32})
	s.must(err)
	set := func(message string, data map[string]any) {
		t.Helper()
		for _, tag := range []string{"volume-", "filesystem-"} {
			id := map[string]string{"volume-": row.Volume, "filesystem-": row.Filesystem}[tag]
			s.must(at.SetStatus([]params.EntityStatusArgs{{Tag: tag + strings.ReplaceAll(id, "/", "-"), Status: string(status.Attached), Info: message, Data: data}}))
			message, data = "", nil
		}
	}
	set("growing to 32 MiB", nil)
	if row := s.one("data"); row.VolumeMiB != 32 || strings.Contains(row.Message, "half grown") {
		t.Errorf("growing: %+v", row)
	}
	set("cannot grow to 32 MiB: x", map[string]any{status.CannotGrowTo: uint64(32)})
	if row := s.one("data"); row.CannotGrowToMiB != 32 || row.Message != "cannot grow to 32 MiB: x; "+remark {
		t.Errorf("cannot grow: %+v", row)
	}
	record(32, 32)
	if row := s.one("data"); row.VolumeMiB != 0 || strings.Contains(row.Message, "half grown") {
		t.Errorf("afterwards: %+v", row)
	}
}

// A list has the operations of what is not finished.
func TestListHasOperations(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	_, err := s.apply("b loop,1M", "a loop,1M /srv/a") // so that the IDs of the volume and the filesystem of a differ
	s.must(err)
	a := s.one("a")
	s.progress = map[string]any{
		"volume " + a.Volume: map[string]any{"operation": "create", "state": "running"},
		"filesystem attachment " + a.Filesystem + " on machine-0": map[string]any{"operation": "attach", "state": "waiting", "waits-for": "x"},
		"attachment plan of volume " + a.Volume + " on machine-0": map[string]any{"operation": "attach", "state": "waiting"},
		"filesystem 0/77": map[string]any{"operation": "create", "state": "running"},
	}
	rows, err := s.Storage(t.Context(), nil)
	s.must(err)
	if len(rows) != 2 || len(rows[1].Operations) > 0 || len(rows[0].Operations) != 3 || rows[0].Operations[1].WaitsFor != "x" {
		t.Errorf("%+v", rows)
	}
	s.must(s.state.ForMachine(machine).SetStatus([]params.EntityStatusArgs{
		{Tag: "volume-" + strings.ReplaceAll(a.Volume, "/", "-"), Status: string(status.Attached)}, {Tag: "filesystem-" + strings.ReplaceAll(a.Filesystem, "/", "-"), Status: string(status.Attached)},
	}))
	if a := s.one("a"); a.Status != status.Attached || len(a.Operations) > 0 {
		t.Errorf("when it is attached: %+v", a)
	}
}
