package state_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

func volumeTags(ids ...string) (tags []names.VolumeTag) {
	for _, id := range ids {
		tags = append(tags, names.NewVolumeTag(id))
	}
	return tags
}

func filesystemTags(ids ...string) (tags []names.FilesystemTag) {
	for _, id := range ids {
		tags = append(tags, names.NewFilesystemTag(id))
	}
	return tags
}

func on(machine, tag string) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: machine, AttachmentTag: tag}
}

// codes returns the codes of the errors of a bulk call's results.
func codes(t *testing.T, results any, err error) (codes []string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for all, i := reflect.ValueOf(results), 0; i < all.Len(); i++ {
		wire := all.Index(i).FieldByName("Error").Interface().(*params.Error)
		if wire == nil {
			codes = append(codes, "ok")
		} else {
			codes = append(codes, wire.Code)
		}
	}
	return codes
}

// mixed has storage of both scopes on two machines: volumes 0/0 (with filesystem
// 0/0), 1/1, 2 (with filesystem 0/1, on machine 0), 3 (on machine 1), 4 (on none);
// filesystem 2 of the environment (on machine 0).
func mixed(t *testing.T) *world {
	w := newWorld(t)
	w.must(w.AddStorage(
		state.StorageParams{Name: "a", Kind: filesystem, Pool: "loop", Size: 1, Machine: machine0},
		state.StorageParams{Name: "b", Kind: block, Pool: "loop", Size: 1, Machine: machine1},
		state.StorageParams{Name: "c", Kind: filesystem, Pool: "disk", Size: 1, Machine: machine0},
		state.StorageParams{Name: "d", Kind: block, Pool: "disk", Size: 1, Machine: machine1},
		state.StorageParams{Name: "e", Kind: block, Pool: "disk", Size: 1},
		state.StorageParams{Name: "f", Kind: filesystem, Pool: "nfs", Size: 1, Machine: machine0},
	))
	return w
}

func TestScopes(t *testing.T) {
	const ok, gone, none, other, bad = "ok", params.CodeNotFound, params.CodeNotProvisioned, params.CodeUnauthorized, params.CodeNotValid
	w := mixed(t)
	volumes := volumeTags("0/0", "1/1", "2", "3", "4", "0/9", "9")
	var volumeEntities []names.Tag
	for _, tag := range append(volumes, names.VolumeTag{}) {
		volumeEntities = append(volumeEntities, tag)
	}
	volumeEntities[len(volumeEntities)-1] = machine0
	filesystems := filesystemTags("0/0", "0/1", "2", "9")
	attachments := []params.MachineStorageId{
		on("machine-0", "volume-0-0"), on("machine-1", "volume-1-1"), on("machine-0", "volume-2"),
		on("machine-1", "volume-3"), on("machine-0", "volume-3"), on("machine-0", "volume-1-1"),
		on("machine-0", "volume-0-9"), on("unit-x-0", "volume-0-0"), on("machine-0", "machine-0"), on("machine-0", "filesystem-0-0"),
	}
	check := func(what string, got, want []string) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	machine, environ := w.ForMachine(machine0), w.ForEnviron()

	lives, err := machine.Life(volumeEntities)
	check("machine, life", codes(t, lives, err), []string{ok, other, ok, other, other, gone, gone, bad})
	lives, err = environ.Life(volumeEntities)
	check("environ, life", codes(t, lives, err), []string{other, other, ok, ok, ok, other, gone, bad})

	infos, err := machine.Volumes(volumes)
	check("machine, volumes", codes(t, infos, err), []string{none, other, none, other, other, gone, gone})
	infos, err = environ.Volumes(volumes)
	check("environ, volumes", codes(t, infos, err), []string{other, other, none, none, none, other, gone})
	volumeParams, err := machine.VolumeParams(volumes)
	check("machine, volume params", codes(t, volumeParams, err), []string{ok, other, ok, other, other, gone, gone})
	volumeParams, err = environ.VolumeParams(volumes)
	check("environ, volume params", codes(t, volumeParams, err), []string{other, other, ok, ok, ok, other, gone})
	removals, err := environ.RemoveVolumeParams(volumes)
	check("environ, remove volume params", codes(t, removals, err), []string{other, other, bad, bad, bad, other, gone})

	filesystemInfos, err := machine.Filesystems(filesystems)
	check("machine, filesystems", codes(t, filesystemInfos, err), []string{none, none, none, gone})
	filesystemParams, err := environ.FilesystemParams(filesystems)
	check("environ, filesystem params", codes(t, filesystemParams, err), []string{other, other, ok, gone})

	lives, err = machine.AttachmentLife(attachments)
	check("machine, attachment life", codes(t, lives, err), []string{ok, other, ok, other, gone, other, gone, bad, bad, ok})
	lives, err = environ.AttachmentLife(attachments)
	check("environ, attachment life", codes(t, lives, err), []string{other, other, ok, ok, gone, other, other, bad, bad, other})
	attachmentParams, err := machine.VolumeAttachmentParams(attachments)
	check("machine, volume attachment params", codes(t, attachmentParams, err), []string{ok, other, ok, other, gone, other, gone, bad, bad, bad})
	attachmentInfos, err := machine.VolumeAttachments(attachments)
	check("machine, volume attachments", codes(t, attachmentInfos, err), []string{none, other, none, other, gone, other, gone, bad, bad, bad})
	devices, err := machine.VolumeBlockDevices(attachments)
	check("machine, block devices", codes(t, devices, err), []string{none, other, none, other, gone, other, gone, bad, bad, bad})

	// A worker of another scope can at most read.
	set := func(a *state.Accessor) ([]params.ErrorResult, error) {
		var all []params.Volume
		for _, tag := range volumes {
			all = append(all, params.Volume{VolumeTag: tag.String(), Info: params.VolumeInfo{VolumeId: "id-" + tag.Id()}})
		}
		return a.SetVolumeInfo(append(all, params.Volume{VolumeTag: "machine-0"}))
	}
	results, err := set(machine)
	check("machine, set volume info", codes(t, results, err), []string{ok, other, other, other, other, gone, other, bad})
	results, err = set(environ)
	check("environ, set volume info", codes(t, results, err), []string{other, other, ok, ok, ok, other, gone, bad})
	setAttachments := func(a *state.Accessor) ([]params.ErrorResult, error) {
		var all []params.VolumeAttachment
		for _, id := range attachments {
			all = append(all, params.VolumeAttachment{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag})
		}
		return a.SetVolumeAttachmentInfo(all)
	}
	results, err = setAttachments(machine)
	check("machine, set attachment info", codes(t, results, err), []string{ok, other, other, other, other, other, gone, bad, bad, bad})
	results, err = setAttachments(environ)
	check("environ, set attachment info", codes(t, results, err), []string{other, other, ok, ok, gone, other, other, bad, bad, bad})
	results, err = machine.RemoveAttachments(attachments)
	check("machine, remove attachments", codes(t, results, err), []string{bad, other, other, other, other, other, ok, bad, bad, bad})
	results, err = machine.Remove(volumeEntities)
	check("machine, remove", codes(t, results, err), []string{params.CodeStorageAttached, other, other, other, other, ok, other, bad})

	ids, err := machine.InstanceIds([]names.MachineTag{machine0, machine1})
	check("machine, instance ids", codes(t, ids, err), []string{none, other})
	w.must(w.SetInstanceId(machine1, "i-1"))
	ids, err = environ.InstanceIds([]names.MachineTag{machine0, machine1, names.NewMachineTag("7")})
	check("environ, instance ids", codes(t, ids, err), []string{none, ok, gone})
	if _, err := machine.WatchMachine(machine1); err == nil {
		t.Error("a machine watches another")
	}
	if _, err := machine.WatchBlockDevices(machine1); err == nil {
		t.Error("a machine watches another's block devices")
	}
	w.check()
}

func TestParamsThroughLife(t *testing.T) {
	w := newWorld(t)
	w.must(w.SetEnvironConfig(map[string]any{
		"name": "here", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b",
		"resource-tags": "owner=me stowage-storage-uuid=mine stowage-entity=mine",
	}))
	w.must(w.SetPool("fast", "disk", map[string]any{"tier": "one", "fs": "ext4"}))
	w.must(w.AddStorage(state.StorageParams{
		Name: "it", Kind: filesystem, Pool: "fast", Size: 100, MountPoint: "/srv/it", ReadOnly: true,
		Machine: machine0, Attributes: map[string]any{"fs": "xfs"},
	}))
	machine, environ := w.ForMachine(machine0), w.ForEnviron()
	volumeID, filesystemID := on("machine-0", "volume-0"), on("machine-0", "filesystem-0-0")

	volumeUUID, filesystemUUID := w.one("it").Volume.UUID, w.one("it").Filesystem.UUID
	wantVolume := params.VolumeParams{
		VolumeTag: "volume-0", Size: 100, Provider: "disk",
		Attributes: map[string]any{"tier": "one", "fs": "xfs"}, Tags: map[string]string{
			"owner":                "me",
			"stowage-model-uuid":   w.UUID(),
			"stowage-storage-uuid": volumeUUID,
			"stowage-storage-name": "it",
			"stowage-entity":       "mine", // the user's: the state sets it only for storage of machines
		},
		Attachment: &params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "disk", ReadOnly: true},
	}
	wantFilesystem := params.FilesystemParams{
		FilesystemTag: "filesystem-0-0", VolumeTag: "volume-0", Size: 100, Provider: "disk",
		Attributes: wantVolume.Attributes, Tags: map[string]string{
			"owner":                "me",
			"stowage-model-uuid":   w.UUID(),
			"stowage-storage-uuid": filesystemUUID,
			"stowage-storage-name": "it",
			"stowage-storage-kind": "filesystem",
			"stowage-pool":         "fast",
			"stowage-machine":      "machine-0",
			"stowage-mount-point":  "/srv/it",
			"stowage-read-only":    "true",
			"stowage-volume-uuid":  volumeUUID,
			"stowage-entity":       "filesystem-0-0",
			"stowage-attributes":   `{"fs":"xfs","tier":"one"}`,
		},
		Attachment: &params.FilesystemAttachmentParams{
			FilesystemTag: "filesystem-0-0", MachineTag: "machine-0", Provider: "disk", MountPoint: "/srv/it", ReadOnly: true,
		},
	}
	check := func(when string) {
		t.Helper()
		volumes, err := environ.VolumeParams(volumeTags("0"))
		w.must(err)
		filesystems, err := machine.FilesystemParams(filesystemTags("0/0"))
		w.must(err)
		if got := volumes[0].Result; !reflect.DeepEqual(got, wantVolume) {
			t.Errorf("%s: volume params are %+v, %+v", when, got, got.Attachment)
		}
		if got := filesystems[0].Result; !reflect.DeepEqual(got, wantFilesystem) {
			t.Errorf("%s: filesystem params are %+v, %+v", when, got, got.Attachment)
		}
		tags, err := w.ResourceTags(names.NewFilesystemTag("0/0"), names.NewVolumeTag("0"))
		w.must(err)
		if !reflect.DeepEqual(tags, []map[string]string{wantFilesystem.Tags, wantVolume.Tags}) {
			t.Errorf("%s: resource tags are %v", when, tags)
		}
		if wantVolume.Attachment == nil {
			return
		}
		volumeAttachments, err := environ.VolumeAttachmentParams([]params.MachineStorageId{volumeID})
		w.must(err)
		filesystemAttachments, err := machine.FilesystemAttachmentParams([]params.MachineStorageId{filesystemID})
		w.must(err)
		if got := volumeAttachments[0].Result; got != *wantVolume.Attachment {
			t.Errorf("%s: volume attachment params are %+v", when, got)
		}
		if got := filesystemAttachments[0].Result; got != *wantFilesystem.Attachment {
			t.Errorf("%s: filesystem attachment params are %+v", when, got)
		}
	}
	check("at first")
	w.must(w.SetInstanceId(machine0, "i-0"))
	wantVolume.Attachment.InstanceId, wantFilesystem.Attachment.InstanceId = "i-0", "i-0"
	check("on a machine that is provisioned")
	w.must(w.SetPool("fast", "disk", nil))
	check("when the pool has changed")
	w.must(w.provision(entry{kind: "volume", tag: "volume-0"}))
	w.must(w.provision(entry{kind: "filesystem", tag: "filesystem-0-0"}))
	wantVolume.Attachment.VolumeId, wantFilesystem.Attachment.FilesystemId = "id-volume-0", "id-filesystem-0-0"
	check("provisioned")
	w.must(w.DetachStorage([]string{"it"}))
	wantFilesystem.Attachment = nil
	filesystems, err := machine.FilesystemParams(filesystemTags("0/0"))
	w.must(err)
	if got := filesystems[0].Result; !reflect.DeepEqual(got, wantFilesystem) {
		t.Errorf("being detached, filesystem params are %+v", got)
	}
	w.must(w.RemoveStorage([]string{"it"}))
	w.must(w.remove(entry{kind: "filesystem-attachment", machine: "machine-0", tag: "filesystem-0-0"}))
	w.must(w.remove(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0"}))
	wantVolume.Attachment = nil
	check("dead")
}

func TestVolumeParamsWithoutDyingAttachment(t *testing.T) {
	w := newWorld(t)
	w.add("it", "disk", block)
	w.must(w.DetachStorage([]string{"it"}))
	volumes, err := w.ForEnviron().VolumeParams(volumeTags("0"))
	w.must(err)
	if volumes[0].Error != nil || volumes[0].Result.Attachment != nil {
		t.Errorf("volume params are %+v", volumes[0])
	}
}

func TestSetInfo(t *testing.T) {
	w := mixed(t)
	machine := w.ForMachine(machine0)
	volume := params.Volume{VolumeTag: "volume-0-0", Info: params.VolumeInfo{
		VolumeId: "v", HardwareId: "h", WWN: "w", Pool: "loop", Size: 7, Persistent: true,
	}}
	fs := params.Filesystem{FilesystemTag: "filesystem-0-0", VolumeTag: "volume-0-0", Info: params.FilesystemInfo{
		FilesystemId: "f", Pool: "loop", Size: 6,
	}}
	va := params.VolumeAttachment{VolumeTag: "volume-0-0", MachineTag: "machine-0", Info: params.VolumeAttachmentInfo{
		DeviceName: "n", DeviceLink: "l", BusAddress: "b", ReadOnly: true,
		PlanInfo: &params.VolumeAttachmentPlanInfo{DeviceType: "iscsi", DeviceAttributes: map[string]string{"a": "b"}},
	}}
	fa := params.FilesystemAttachment{FilesystemTag: "filesystem-0-0", MachineTag: "machine-0", Info: params.FilesystemAttachmentInfo{
		MountPoint: "/m", ReadOnly: true,
	}}
	wantCode(t, single(machine.SetVolumeAttachmentInfo([]params.VolumeAttachment{va})), params.CodeNotProvisioned)
	wantCode(t, single(machine.SetFilesystemAttachmentInfo([]params.FilesystemAttachment{fa})), params.CodeNotProvisioned)
	for range 2 {
		w.must(single(machine.SetVolumeInfo([]params.Volume{volume})))
		w.must(single(machine.SetFilesystemInfo([]params.Filesystem{fs})))
		w.must(single(machine.SetVolumeAttachmentInfo([]params.VolumeAttachment{va})))
		w.must(single(machine.SetFilesystemAttachmentInfo([]params.FilesystemAttachment{fa})))
	}
	volumes, err := machine.Volumes(volumeTags("0/0"))
	w.must(err)
	filesystems, err := machine.Filesystems(filesystemTags("0/0"))
	w.must(err)
	vas, err := machine.VolumeAttachments([]params.MachineStorageId{on("machine-0", "volume-0-0")})
	w.must(err)
	fas, err := machine.FilesystemAttachments([]params.MachineStorageId{on("machine-0", "filesystem-0-0")})
	w.must(err)
	for _, pair := range [][2]any{{volumes[0].Result, volume}, {filesystems[0].Result, fs}, {vas[0].Result, va}, {fas[0].Result, fa}} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("recorded\n\t%+v\nread\n\t%+v", pair[1], pair[0])
		}
	}

	// Nobody asked for a read-only attachment, but it was made so.
	if s := w.one("a"); !s.Attachments[0].ReadOnly {
		t.Errorf("shown as writable: %+v", s)
	}

	// An id does not change, and is never empty.
	volume.Info.VolumeId = "other"
	err = single(machine.SetVolumeInfo([]params.Volume{volume}))
	wantCode(t, err, params.CodeNotValid)
	wantError(t, params.TranslateWellKnownError(err), errors.NotValid, "volume 0/0", `"v"`, `"other"`)
	volume.Info.VolumeId = ""
	wantCode(t, single(machine.SetVolumeInfo([]params.Volume{volume})), params.CodeNotValid)
	fs.Info.FilesystemId = "other"
	wantCode(t, single(machine.SetFilesystemInfo([]params.Filesystem{fs})), params.CodeNotValid)

	// What was made is recorded even if it is no longer wanted, until it is removed.
	w.must(w.RemoveStorage([]string{"b"}))
	b := entry{kind: "volume", tag: "volume-1-1"}
	w.must(w.remove(entry{kind: "volume-attachment", machine: "machine-1", tag: "volume-1-1"}))
	w.must(w.provision(b))
	w.must(w.remove(b))
	wantCode(t, w.provision(b), params.CodeNotFound)
}

func TestBulkResultsAreIndependent(t *testing.T) {
	w := mixed(t)
	results, err := w.ForEnviron().SetVolumeInfo([]params.Volume{
		{VolumeTag: "volume-2", Info: params.VolumeInfo{VolumeId: "two"}},
		{VolumeTag: "volume-9", Info: params.VolumeInfo{VolumeId: "nine"}},
		{VolumeTag: "volume-3", Info: params.VolumeInfo{VolumeId: "three"}},
	})
	if got := codes(t, results, err); fmt.Sprint(got) != fmt.Sprint([]string{"ok", params.CodeNotFound, "ok"}) {
		t.Errorf("results are %q", got)
	}
	volumes, err := w.ForEnviron().Volumes(volumeTags("2", "3"))
	w.must(err)
	if volumes[0].Result.Info.VolumeId != "two" || volumes[1].Result.Info.VolumeId != "three" {
		t.Errorf("recorded are %+v", volumes)
	}
	if results, err := w.ForEnviron().SetVolumeInfo(nil); len(results) != 0 || err != nil {
		t.Errorf("nothing to do gave %v, %v", results, err)
	}
}

func TestVolumeBlockDevices(t *testing.T) {
	w := mixed(t)
	id := []params.MachineStorageId{on("machine-0", "volume-2")}
	machine, environ := w.ForMachine(machine0), w.ForEnviron()
	want := func(code, device string) {
		t.Helper()
		results, err := machine.VolumeBlockDevices(id)
		if got := codes(t, results, err)[0]; got != code || results[0].Result.DeviceName != device {
			t.Errorf("got %s, device %q; want %s, %q", got, results[0].Result.DeviceName, code, device)
		}
	}
	want(params.CodeNotProvisioned, "")
	w.must(single(environ.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-2", Info: params.VolumeInfo{VolumeId: "v", WWN: "wwn-2"}}})))
	want(params.CodeNotProvisioned, "")
	w.must(single(environ.SetVolumeAttachmentInfo([]params.VolumeAttachment{{VolumeTag: "volume-2", MachineTag: "machine-0"}})))
	want(params.CodeNotFound, "")
	w.must(w.SetMachineBlockDevices(machine1, []storage.BlockDevice{{DeviceName: "sdz", WWN: "wwn-2"}}))
	want(params.CodeNotFound, "")
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "sdb", WWN: "wwn-2"}, {DeviceName: "sda", WWN: "wwn-1"}}))
	want("ok", "sdb")
	devices, err := w.MachineBlockDevices(machine0)
	w.must(err)
	if len(devices) != 2 || devices[0].DeviceName != "sda" {
		t.Errorf("the machine's block devices are %v", devices)
	}

	// The device of a plan that has been carried out takes precedence.
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-2"}))
	w.must(single(machine.SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan{{
		VolumeTag: "volume-2", MachineTag: "machine-0", BlockDevice: storage.BlockDevice{WWN: "wwn-1"},
	}})))
	want("ok", "sda")
	plans, err := machine.VolumeAttachmentPlans(append(id, on("machine-0", "volume-0-0")))
	if got := codes(t, plans, err); got[0] != "ok" || got[1] != params.CodeNotFound {
		t.Errorf("plans are %v", got)
	}
	if p := plans[0].Result; p.BlockDevice.WWN != "wwn-1" || p.PlanInfo.DeviceType != "iscsi" || p.Life != "alive" {
		t.Errorf("the plan is %+v", p)
	}
	wantCode(t, single(machine.SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan{{
		VolumeTag: "volume-0-0", MachineTag: "machine-0",
	}})), params.CodeNotFound)
}

// A filesystem that a killed worker may have made on a volume is destroyed before the volume
// is.
// Behaviour A7.
// Finding N8.
func TestAttemptedFilesystemOnVolumeIsDestroyed(t *testing.T) {
	w := mixed(t)
	machine := w.ForMachine(machine0)
	attempts, err := machine.SetAttempts([]params.Attempt{{Id: on("", "filesystem-0-0"), Attempted: true}})
	if got := codes(t, attempts, err); got[0] != "ok" {
		t.Fatal(got)
	}
	uuid := w.one("a").Filesystem.UUID
	filesystems, err := machine.Filesystems(filesystemTags("0/0"))
	if got := codes(t, filesystems, err); got[0] != params.CodeNotProvisioned {
		t.Errorf("while it is wanted: %s", got)
	}
	w.must(w.RemoveStorage([]string{"a", "c"}))
	for _, tag := range []string{"filesystem-0-0", "filesystem-0-1"} {
		w.must(w.remove(entry{kind: "filesystem-attachment", machine: "machine-0", tag: tag}))
	}
	filesystems, err = machine.Filesystems(filesystemTags("0/0", "0/1"))
	if got := codes(t, filesystems, err); got[0] != "ok" || got[1] != params.CodeNotProvisioned {
		t.Errorf("dead, one attempted and one not: %s", got)
	}
	removals, err := machine.RemoveFilesystemParams(filesystemTags("0/0"))
	w.must(err)
	if p := removals[0].Result; p.FilesystemId != "filesystem-0-0-"+uuid || !p.Destroy {
		t.Errorf("the parameters of its removal are %+v", removals[0])
	}
}

// A volume is new from its provider's report until a filesystem is recorded on it, and never
// becomes new again.
func TestVolumeIsNewUntilItHasAFilesystem(t *testing.T) {
	w := newWorld(t)
	w.must(w.AddStorage(state.StorageParams{Name: "it", Kind: filesystem, Pool: "disk", Size: 100, MountPoint: "/srv/it", Machine: machine0}))
	machine, environ := w.ForMachine(machine0), w.ForEnviron()
	isNew := func() bool {
		t.Helper()
		filesystems, err := machine.FilesystemParams(filesystemTags("0/0"))
		w.must(err)
		return filesystems[0].Result.VolumeNew
	}
	set := func(size uint64, isNew bool) {
		t.Helper()
		results, err := environ.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0", Info: params.VolumeInfo{VolumeId: "v", Size: size, New: isNew}}})
		if err != nil || results[0].Error != nil {
			t.Fatalf("got %v, %v", results, err)
		}
	}
	if isNew() {
		t.Error("the volume is new before it is provisioned")
	}
	set(100, true)
	if !isNew() {
		t.Error("the provisioned volume is not new")
	}
	volumes, err := environ.Volumes(volumeTags("0"))
	if err != nil || !volumes[0].Result.Info.New {
		t.Errorf("got %+v, %v", volumes, err)
	}
	w.must(w.provision(entry{kind: "filesystem", tag: "filesystem-0-0"}))
	if isNew() {
		t.Error("the volume is new although it has a filesystem")
	}
	set(200, true)
	if isNew() {
		t.Error("the volume has become new again")
	}
	w.check()
}
