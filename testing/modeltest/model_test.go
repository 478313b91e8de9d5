package modeltest_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"go.uber.org/goleak"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	machine0    = names.NewMachineTag("0")
	volume0     = names.NewVolumeTag("0")
	filesystem0 = names.NewFilesystemTag("0")
)

func onMachine(machine, tag string) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: machine, AttachmentTag: tag}
}

// model returns a model with machine 0, volume 0 on it, and filesystem 0 on that.
func model(t *testing.T) *modeltest.Model {
	m := modeltest.New(modeltest.Options{})
	t.Cleanup(func() { m.Close() })
	m.ProvisionMachine("machine-0", "instance-0")
	m.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "pretend"})
	m.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend"})
	m.AddFilesystem(params.FilesystemParams{FilesystemTag: "filesystem-0", VolumeTag: "volume-0", Size: 1000, Provider: "pretend"})
	m.AttachFilesystem(params.FilesystemAttachmentParams{FilesystemTag: "filesystem-0", MachineTag: "machine-0", Provider: "pretend", MountPoint: "/srv"})
	return m
}

func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// result returns the only result of a call.
func result[R any](t *testing.T) func([]R, error) R {
	return func(results []R, err error) R {
		t.Helper()
		if err != nil || len(results) != 1 {
			t.Fatalf("got %v, %v", results, err)
		}
		return results[0]
	}
}

// quiet checks that a watcher has no event. It is for use in a bubble.
func quiet[T any](t *testing.T, what string, changes <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case event := <-changes:
		t.Errorf("%s: got %v", what, event)
	default:
	}
}

func TestWatchersSendAllThenMergedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model(t)
		a := m.For(environment)
		m.AddVolume(params.VolumeParams{VolumeTag: "volume-1"})

		volumes, _ := a.WatchVolumes()
		filesystems, _ := a.WatchFilesystems()
		volumeAttachments, _ := a.WatchVolumeAttachments()
		filesystemAttachments, _ := a.WatchFilesystemAttachments()
		machines, _ := a.WatchMachine(machine0)
		devices, _ := a.WatchBlockDevices(machine0)
		environ, _ := a.WatchForEnvironConfigChanges()
		check(t, "volumes", <-volumes.Changes(), []string{"0", "1"})
		check(t, "filesystems", <-filesystems.Changes(), []string{"0"})
		check(t, "volume attachments", <-volumeAttachments.Changes(), []params.MachineStorageId{onMachine("machine-0", "volume-0")})
		check(t, "filesystem attachments", <-filesystemAttachments.Changes(), []params.MachineStorageId{onMachine("machine-0", "filesystem-0")})
		<-machines.Changes()
		<-devices.Changes()
		<-environ.Changes()
		for _, w := range []<-chan struct{}{machines.Changes(), devices.Changes(), environ.Changes()} {
			quiet(t, "first event", w)
		}

		m.ProvisionVolume("volume-1", params.VolumeInfo{VolumeId: "vol-1"})
		m.SetLife("volume-0", life.Dying)
		m.SetLife("volume-1", life.Dying)
		m.AddMachine("machine-1")
		m.SetBlockDevice("machine-1", "volume-0", storage.BlockDevice{DeviceName: "sda"})
		check(t, "changed volumes", <-volumes.Changes(), []string{"1", "0"})
		quiet(t, "volumes", volumes.Changes())
		quiet(t, "filesystems", filesystems.Changes())
		quiet(t, "another machine", machines.Changes())
		quiet(t, "another machine's devices", devices.Changes())

		m.RemoveMachine("machine-0")
		m.SetBlockDevice("machine-0", "volume-0", storage.BlockDevice{DeviceName: "sda"})
		m.SetEnvironConfig(map[string]any{"name": "renamed", "color": "blue"})
		<-machines.Changes()
		<-devices.Changes()
		<-environ.Changes()
		cfg, err := a.EnvironConfig()
		if err != nil || cfg.Name() != "renamed" || cfg.AllAttrs()["color"] != "blue" {
			t.Errorf("config: %v, %v", cfg, err)
		}
		m.SetEnvironConfig(map[string]any{"name": nil})
		if _, err := a.EnvironConfig(); !errors.Is(err, errors.NotValid) {
			t.Errorf("config without a name: %v", err)
		}
		check(t, "watching", m.Watching(), []string{
			"WatchVolumes", "WatchFilesystems", "WatchVolumeAttachments", "WatchFilesystemAttachments",
			"WatchMachine machine-0", "WatchBlockDevices", "WatchForEnvironConfigChanges",
		})
	})
}

func TestRecordingNotifiesWatchersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model(t)
		a := m.For(machine0)
		volumes, _ := a.WatchVolumes()
		attachments, _ := a.WatchVolumeAttachments()
		<-volumes.Changes()
		<-attachments.Changes()
		for range 2 {
			info := params.Volume{VolumeTag: "volume-0", Info: params.VolumeInfo{VolumeId: "vol-0"}}
			check(t, "recording", result[params.ErrorResult](t)(a.SetVolumeInfo([]params.Volume{info})), params.ErrorResult{})
			attached := params.VolumeAttachment{VolumeTag: "volume-0", MachineTag: "machine-0", Info: params.VolumeAttachmentInfo{DeviceName: "sda"}}
			check(t, "recording", result[params.ErrorResult](t)(a.SetVolumeAttachmentInfo([]params.VolumeAttachment{attached})), params.ErrorResult{})
		}
		check(t, "volumes", <-volumes.Changes(), []string{"0"})
		check(t, "attachments", <-attachments.Changes(), []params.MachineStorageId{onMachine("machine-0", "volume-0")})
		// Recording the same again causes no event.
		quiet(t, "volumes", volumes.Changes())
		quiet(t, "attachments", attachments.Changes())
	})
}

func TestParamsAreCompletedFromModel(t *testing.T) {
	m := model(t)
	a := m.For(environment)
	volumeParams := func() params.VolumeParams {
		return result[params.VolumeParamsResult](t)(a.VolumeParams([]names.VolumeTag{volume0})).Result
	}
	filesystemParams := func() params.FilesystemParams {
		return result[params.FilesystemParamsResult](t)(a.FilesystemParams([]names.FilesystemTag{filesystem0})).Result
	}
	check(t, "volume's machine", volumeParams().Attachment.InstanceId, "instance-0")
	check(t, "volume's id", volumeParams().Attachment.VolumeId, "")
	check(t, "filesystem's machine", filesystemParams().Attachment.InstanceId, "instance-0")
	check(t, "filesystem's volume", filesystemParams().VolumeTag, "volume-0")

	m.ProvisionVolume("volume-0", params.VolumeInfo{VolumeId: "vol-0"})
	m.ProvisionFilesystem("filesystem-0", params.FilesystemInfo{FilesystemId: "fs-0"})
	m.AddMachine("machine-0")
	va := result[params.VolumeAttachmentParamsResult](t)(a.VolumeAttachmentParams([]params.MachineStorageId{onMachine("machine-0", "volume-0")}))
	check(t, "volume attachment", va.Result, params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "pretend", VolumeId: "vol-0"})
	fa := result[params.FilesystemAttachmentParamsResult](t)(a.FilesystemAttachmentParams([]params.MachineStorageId{onMachine("machine-0", "filesystem-0")}))
	check(t, "filesystem attachment", fa.Result, params.FilesystemAttachmentParams{
		FilesystemTag: "filesystem-0", MachineTag: "machine-0", Provider: "pretend", FilesystemId: "fs-0", MountPoint: "/srv",
	})

	// A creation is for an attachment that is still wanted.
	m.SetAttachmentLife("machine-0", "volume-0", life.Dying)
	m.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-1"})
	check(t, "attachment of creation", volumeParams().Attachment.MachineTag, "machine-1")
	m.Forget("volume-0")
	check(t, "parameters of a removed volume", params.IsCodeNotFound(result[params.VolumeParamsResult](t)(a.VolumeParams([]names.VolumeTag{volume0})).Error), true)
}

func TestNotProvisionedAndNotFoundCodes(t *testing.T) {
	m := model(t)
	m.AddMachine("machine-1")
	a := m.For(environment, modeltest.Removal, modeltest.Plans)
	removal := a.(interface {
		storageprovisioner.VolumeRemovalAccessor
		storageprovisioner.FilesystemRemovalAccessor
	})
	volumes := []names.VolumeTag{volume0, names.NewVolumeTag("9")}
	filesystems := []names.FilesystemTag{filesystem0, names.NewFilesystemTag("9")}
	ids := func(tag string) []params.MachineStorageId {
		return []params.MachineStorageId{onMachine("machine-0", tag+"-0"), onMachine("machine-0", tag+"-9")}
	}
	codes := map[string][]string{}
	add := func(what string, results any, err error) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		v := reflect.ValueOf(results)
		for i := range v.Len() {
			e := v.Index(i).FieldByName("Error").Interface().(*params.Error)
			codes[what] = append(codes[what], params.ErrCode(e))
		}
	}
	r1, err := a.Volumes(volumes)
	add("Volumes", r1, err)
	r2, err := a.Filesystems(filesystems)
	add("Filesystems", r2, err)
	r3, err := a.VolumeAttachments(ids("volume"))
	add("VolumeAttachments", r3, err)
	r4, err := a.FilesystemAttachments(ids("filesystem"))
	add("FilesystemAttachments", r4, err)
	r5, err := removal.RemoveVolumeParams(volumes)
	add("RemoveVolumeParams", r5, err)
	r6, err := removal.RemoveFilesystemParams(filesystems)
	add("RemoveFilesystemParams", r6, err)
	r7, err := a.InstanceIds([]names.MachineTag{names.NewMachineTag("1"), names.NewMachineTag("9")})
	add("InstanceIds", r7, err)
	for what, got := range codes {
		check(t, what, got, []string{params.CodeNotProvisioned, params.CodeNotFound})
	}

	clear(codes)
	r8, err := a.VolumeBlockDevices(ids("volume")[1:])
	add("VolumeBlockDevices", r8, err)
	r9, err := a.Life([]names.Tag{volumes[1]})
	add("Life", r9, err)
	r10, err := a.AttachmentLife(ids("volume")[1:])
	add("AttachmentLife", r10, err)
	r11, err := a.Remove([]names.Tag{filesystems[1]})
	add("Remove", r11, err)
	r12, err := a.RemoveAttachments(ids("filesystem")[1:])
	add("RemoveAttachments", r12, err)
	r13, err := a.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-9"}})
	add("SetVolumeInfo", r13, err)
	r14, err := a.SetFilesystemAttachmentInfo([]params.FilesystemAttachment{{FilesystemTag: "filesystem-9", MachineTag: "machine-0"}})
	add("SetFilesystemAttachmentInfo", r14, err)
	r15, err := a.FilesystemAttachmentParams(ids("filesystem")[1:])
	add("FilesystemAttachmentParams", r15, err)
	r16, err := a.FilesystemParams(filesystems[1:])
	add("FilesystemParams", r16, err)
	for what, got := range codes {
		check(t, what, got, []string{params.CodeNotFound})
	}
}

// removeAttachment removes an attachment as a worker does.
func removeAttachment(t *testing.T, a storageprovisioner.Accessors, id params.MachineStorageId) {
	t.Helper()
	if r := result[params.ErrorResult](t)(a.RemoveAttachments([]params.MachineStorageId{id})); r.Error != nil {
		t.Errorf("removing %v: %v", id, r.Error)
	}
}

func TestDestroyFollowsLifeRules(t *testing.T) {
	m := model(t)
	a := m.For(environment, modeltest.Removal)
	m.ProvisionVolume("volume-0", params.VolumeInfo{VolumeId: "vol-0"})
	m.Destroy("filesystem-0")
	m.Release("volume-0")
	check(t, "filesystem", m.Life("filesystem-0"), life.Dying)
	check(t, "its attachment", m.AttachmentLife("machine-0", "filesystem-0"), life.Dying)
	removeAttachment(t, a, onMachine("machine-0", "filesystem-0"))
	removeAttachment(t, a, onMachine("machine-0", "volume-0"))
	check(t, "filesystem", m.Life("filesystem-0"), life.Dead)
	check(t, "volume that backs it", m.Life("volume-0"), life.Dying)
	check(t, "removal", result[params.ErrorResult](t)(a.Remove([]names.Tag{filesystem0})), params.ErrorResult{})
	check(t, "volume that is free", m.Life("volume-0"), life.Dead)
	r := result[params.RemoveVolumeParamsResult](t)(a.(storageprovisioner.VolumeRemovalAccessor).RemoveVolumeParams([]names.VolumeTag{volume0}))
	check(t, "how to remove it", r.Result, params.RemoveVolumeParams{Provider: "pretend", VolumeId: "vol-0", Destroy: false})
	check(t, "removal", result[params.ErrorResult](t)(a.Remove([]names.Tag{volume0})), params.ErrorResult{})
	check(t, "life of a removed volume", m.Life("volume-0"), life.Value(""))
	check(t, "removed", m.Removed(), []string{"filesystem-0 machine-0", "volume-0 machine-0", "filesystem-0", "volume-0"})
}

func TestMachineSeesItsOwnStorage(t *testing.T) {
	m := model(t)
	m.AddVolume(params.VolumeParams{VolumeTag: "volume-1"})
	m.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-1", MachineTag: "machine-1"})
	m.AddVolume(params.VolumeParams{VolumeTag: "volume-2"})
	for _, test := range []struct {
		scope       names.Tag
		volumes     []string
		attachments int
	}{
		{machine0, []string{"0", "2"}, 1},
		{names.NewMachineTag("1"), []string{"1", "2"}, 1},
		{environment, []string{"0", "1", "2"}, 2},
	} {
		a := m.For(test.scope)
		volumes, _ := a.WatchVolumes()
		attachments, _ := a.WatchVolumeAttachments()
		check(t, test.scope.String(), <-volumes.Changes(), test.volumes)
		check(t, test.scope.String(), len(<-attachments.Changes()), test.attachments)
	}
}

func TestPlans(t *testing.T) {
	m := model(t)
	manager := m.For(environment, modeltest.Plans).(storageprovisioner.VolumeAttachmentPlanAccessor)
	machine := m.For(machine0, modeltest.Plans).(storageprovisioner.VolumeAttachmentPlanAccessor)
	id := onMachine("machine-0", "volume-0")
	plan := params.VolumeAttachmentPlan{
		VolumeTag: "volume-0", MachineTag: "machine-0",
		PlanInfo: params.VolumeAttachmentPlanInfo{DeviceType: storage.DeviceTypeISCSI},
	}
	w, err := machine.WatchVolumeAttachmentPlans()
	if err != nil {
		t.Fatal(err)
	}
	check(t, "plans at first", len(<-w.Changes()), 0)
	check(t, "creation", result[params.ErrorResult](t)(manager.CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan{plan})), params.ErrorResult{})
	check(t, "new plans", <-w.Changes(), []params.MachineStorageId{id})
	plan.Life = life.Alive
	check(t, "plan", result[params.VolumeAttachmentPlanResult](t)(machine.VolumeAttachmentPlans([]params.MachineStorageId{id})).Result, plan)

	plan.BlockDevice = storage.BlockDevice{DeviceName: "sda"}
	check(t, "recording", result[params.ErrorResult](t)(machine.SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan{plan})), params.ErrorResult{})
	device := result[params.BlockDeviceResult](t)(m.For(machine0).VolumeBlockDevices([]params.MachineStorageId{id})).Result
	check(t, "device", device.DeviceName, "sda")
	got, ok := m.Plan("machine-0", "volume-0")
	check(t, "plan is there", ok, true)
	check(t, "plan's device", got.BlockDevice.DeviceName, "sda")

	// The attachment waits for its plan.
	m.Detach("machine-0", "volume-0")
	check(t, "attachment", m.AttachmentLife("machine-0", "volume-0"), life.Alive)
	check(t, "dying plans", <-w.Changes(), []params.MachineStorageId{id})
	check(t, "removal", result[params.ErrorResult](t)(machine.RemoveVolumeAttachmentPlan([]params.MachineStorageId{id})), params.ErrorResult{})
	check(t, "attachment", m.AttachmentLife("machine-0", "volume-0"), life.Dying)
	if _, ok := m.Plan("machine-0", "volume-0"); ok {
		t.Error("the plan is still there")
	}
	for what, r := range map[string]params.ErrorResult{
		"removal":   result[params.ErrorResult](t)(machine.RemoveVolumeAttachmentPlan([]params.MachineStorageId{id})),
		"recording": result[params.ErrorResult](t)(machine.SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan{plan})),
	} {
		check(t, what+" of none", params.IsCodeNotFound(r.Error), true)
	}
	late := result[params.ErrorResult](t)(manager.CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan{plan}))
	check(t, "plan for what is going", params.IsCodeNotValid(late.Error), true)
}

func TestAccessorsHaveRequestedCapabilities(t *testing.T) {
	m := model(t)
	all := []modeltest.Capability{modeltest.Removal, modeltest.Plans, modeltest.Sizes, modeltest.Owners, modeltest.Attempts}
	for which := range 1 << len(all) {
		var with []modeltest.Capability
		want := make([]bool, len(all))
		for n, capability := range all {
			if want[n] = which&(1<<n) != 0; want[n] {
				with = append(with, capability)
			}
		}
		cfg := m.Config(environment, with...)
		_, volumes := cfg.Volumes.(storageprovisioner.VolumeRemovalAccessor)
		_, filesystems := cfg.Filesystems.(storageprovisioner.FilesystemRemovalAccessor)
		_, plans := cfg.Volumes.(storageprovisioner.VolumeAttachmentPlanAccessor)
		_, volumeSizes := cfg.Volumes.(storageprovisioner.VolumeSizeAccessor)
		_, filesystemSizes := cfg.Filesystems.(storageprovisioner.FilesystemSizeAccessor)
		_, owners := cfg.Life.(ownerAccessor)
		_, attempts := cfg.Life.(storageprovisioner.AttemptAccessor)
		if !slices.Equal([]bool{volumes, plans, volumeSizes, owners, attempts}, want) || filesystems != volumes || filesystemSizes != volumeSizes {
			t.Errorf("%v: removal of volumes %v, of filesystems %v, plans %v, sizes of volumes %v, of filesystems %v, owners %v, attempts %v",
				with, volumes, filesystems, plans, volumeSizes, filesystemSizes, owners, attempts)
		}
	}
}

// An attempt is remembered until its result is recorded, or is known not to exist.
func TestAttemptsAreRemembered(t *testing.T) {
	m := model(t)
	attempts := m.For(machine0, modeltest.Attempts).(storageprovisioner.AttemptAccessor)
	volume := params.MachineStorageId{AttachmentTag: "volume-0"}
	attachment := params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: "volume-0"}
	are := func(what string, want bool) {
		t.Helper()
		for _, id := range []params.MachineStorageId{volume, attachment} {
			check(t, what+": "+id.MachineTag, result[params.AttemptResult](t)(attempts.Attempts([]params.MachineStorageId{id})).Attempted, want)
		}
	}
	set := func(attempted bool) {
		t.Helper()
		r := result[params.ErrorResult](t)(attempts.SetAttempts([]params.Attempt{{Id: volume, Attempted: attempted}}))
		check(t, "noting", r.Error == nil, true)
	}
	are("before", false)
	set(true)
	are("attempted", true) // the creation may have attached it
	set(false)
	are("nothing made", false)
	set(true)
	m.ProvisionVolume("volume-0", params.VolumeInfo{VolumeId: "vol-0"})
	m.ProvisionVolumeAttachment("machine-0", "volume-0", params.VolumeAttachmentInfo{})
	are("recorded", false)
	none := result[params.AttemptResult](t)(attempts.Attempts([]params.MachineStorageId{{AttachmentTag: "volume-7"}}))
	check(t, "of none", params.IsCodeNotFound(none.Error), true)
}

type ownerAccessor interface {
	Owners([]names.Tag) ([]params.OwnerResult, error)
}

func TestOwnersMatchParams(t *testing.T) {
	m := model(t)
	a := m.For(machine0, modeltest.Owners)
	owners := a.(ownerAccessor)
	for _, tag := range []names.Tag{volume0, filesystem0} {
		got := result[params.OwnerResult](t)(owners.Owners([]names.Tag{tag}))
		check(t, "owner", got, params.OwnerResult{ModelUUID: m.Owner(tag.String()).ModelUUID, EntityUUID: m.Owner(tag.String()).EntityUUID})
	}
	volume := result[params.VolumeParamsResult](t)(a.VolumeParams([]names.VolumeTag{volume0}))
	check(t, "volume", storage.OwnerOf(volume.Result.Tags), m.Owner("volume-0"))
	filesystem := result[params.FilesystemParamsResult](t)(a.FilesystemParams([]names.FilesystemTag{filesystem0}))
	check(t, "filesystem", storage.OwnerOf(filesystem.Result.Tags), m.Owner("filesystem-0"))
	check(t, "the same owner", m.Owner("volume-0") == m.Owner("filesystem-0"), false)
	older := result[params.VolumeParamsResult](t)(m.For(machine0).VolumeParams([]names.VolumeTag{volume0}))
	check(t, "without the capability", storage.OwnerOf(older.Result.Tags), storage.Owner{})

	m.CheckOwner("volume-0")
	check(t, "restored", result[params.OwnerResult](t)(owners.Owners([]names.Tag{volume0})).Check, true)
	result[params.ErrorResult](t)(a.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0", Info: params.VolumeInfo{VolumeId: "vol-0"}}}))
	check(t, "recorded again", result[params.OwnerResult](t)(owners.Owners([]names.Tag{volume0})).Check, false)
	none := result[params.OwnerResult](t)(owners.Owners([]names.Tag{names.NewVolumeTag("7")}))
	check(t, "none", params.IsCodeNotFound(none.Error), true)
}

func TestSetSize(t *testing.T) {
	m := model(t)
	a := m.For(machine0, modeltest.Sizes)
	m.ProvisionVolume("volume-0", params.VolumeInfo{VolumeId: "vol-0", Size: 1024})
	watcher, err := a.WatchFilesystems()
	if err != nil {
		t.Fatal(err)
	}
	<-watcher.Changes()
	m.SetSize("volume-0", 2048)
	m.SetSize("filesystem-0", 2000)
	if ids := <-watcher.Changes(); !slices.Equal(ids, []string{"0"}) {
		t.Errorf("notified of %v", ids)
	}
	volumes, filesystems := a.(storageprovisioner.VolumeSizeAccessor), a.(storageprovisioner.FilesystemSizeAccessor)
	check(t, "volume", result[params.SizeResult](t)(volumes.VolumeSizes([]names.VolumeTag{volume0})), params.SizeResult{Result: 2048})
	check(t, "filesystem", result[params.SizeResult](t)(filesystems.FilesystemSizes([]names.FilesystemTag{filesystem0})), params.SizeResult{Result: 2000})
	info, _ := m.Volume("volume-0")
	check(t, "recorded", info.Size, uint64(1024))
	none := result[params.SizeResult](t)(volumes.VolumeSizes([]names.VolumeTag{names.NewVolumeTag("7")}))
	check(t, "none", params.IsCodeNotFound(none.Error), true)
}

func TestScriptedFailures(t *testing.T) {
	m := model(t)
	a := m.For(environment)
	m.FailCall("Life", errors.New("connection lost"))
	if _, err := a.Life([]names.Tag{volume0}); err == nil || err.Error() != "connection lost" {
		t.Errorf("whole call: %v", err)
	}
	m.FailItem("Life", "filesystem-0", errors.Unauthorizedf("you"))
	lives, err := a.Life([]names.Tag{volume0, filesystem0})
	if err != nil || lives[0].Error != nil || !params.IsCodeUnauthorized(lives[1].Error) {
		t.Errorf("one item: %v, %v", lives, err)
	}
	m.Shorten("Life", 1)
	if lives, err := a.Life([]names.Tag{volume0, filesystem0}); err != nil || len(lives) != 1 {
		t.Errorf("too few: %v, %v", lives, err)
	}
	m.FailCall("WatchVolumes", errors.New("connection lost"))
	if w, err := a.WatchVolumes(); err == nil || w != nil {
		t.Errorf("watcher: %v, %v", w, err)
	}
	m.FailCall("EnvironConfig", errors.New("connection lost"))
	if _, err := a.EnvironConfig(); err == nil {
		t.Error("config is read")
	}
	status := []params.EntityStatusArgs{{Tag: "volume-0", Status: "attached"}}
	m.FailItem("SetStatus", "volume-0", errors.New("busy"))
	if err := a.SetStatus(status); err == nil || m.Status("volume-0").Status != "" {
		t.Errorf("status: %v, %v", m.Status("volume-0"), err)
	}
	m.FailCall("SetStatus", errors.New("busy"))
	if err := a.SetStatus(status); err == nil || m.Status("volume-0").Status != "" {
		t.Errorf("status: %v, %v", m.Status("volume-0"), err)
	}
	check(t, "calls", m.Names(), []string{"Life", "Life", "Life", "WatchVolumes", "EnvironConfig", "SetStatus", "SetStatus"})
}

func TestHeldCallAndOverlapped(t *testing.T) {
	m := model(t)
	a := m.For(environment)
	gate := calls.NewGate()
	m.OnCall("Life", gate.Wait)
	done := make(chan error, 1)
	go func() {
		_, err := a.Life([]names.Tag{volume0})
		done <- err
	}()
	gate.Entered(t)
	check(t, "overlapped", m.Overlapped(), false)
	// The test and other workers go on while the call waits.
	m.SetLife("volume-0", life.Dying)
	if _, err := m.For(machine0).InstanceIds(nil); err != nil {
		t.Error(err)
	}
	check(t, "overlapped", m.Overlapped(), false)
	if _, err := a.InstanceIds(nil); err != nil {
		t.Error(err)
	}
	check(t, "overlapped", m.Overlapped(), true)
	gate.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestInvalidUsePanics(t *testing.T) {
	for what, f := range map[string]func(*modeltest.Model){
		`modeltest: "volume" is not a valid tag`:               func(m *modeltest.Model) { m.AddVolume(params.VolumeParams{VolumeTag: "volume"}) },
		`modeltest: "volume-0" is not a valid filesystem tag`:  func(m *modeltest.Model) { m.AddFilesystem(params.FilesystemParams{FilesystemTag: "volume-0"}) },
		`modeltest: "" is not a valid tag`:                     func(m *modeltest.Model) { m.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0"}) },
		`modeltest: the model has no volume-9`:                 func(m *modeltest.Model) { m.Destroy("volume-9") },
		`modeltest: the model has no {machine-9 filesystem-0}`: func(m *modeltest.Model) { m.Detach("machine-9", "filesystem-0") },
		`modeltest: "unit-mysql-0" is not a valid machine tag`: func(m *modeltest.Model) { m.AddMachine("unit-mysql-0") },
		`modeltest: the model has no filesystem-9`:             func(m *modeltest.Model) { m.SetLife("filesystem-9", life.Dead) },
		`modeltest: the model has no {machine-0 volume-9}`:     func(m *modeltest.Model) { m.SetAttachmentLife("machine-0", "volume-9", life.Dead) },
		`modeltest: "machine-0" is not a valid volume tag`:     func(m *modeltest.Model) { m.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "machine-0"}) },
		`modeltest: "somewhere" is not a valid tag`: func(m *modeltest.Model) {
			m.AttachFilesystem(params.FilesystemAttachmentParams{FilesystemTag: "filesystem-0", MachineTag: "somewhere"})
		},
		`modeltest: the model has no {machine-0 filesystem-9}`: func(m *modeltest.Model) {
			m.ProvisionFilesystemAttachment("machine-0", "filesystem-9", params.FilesystemAttachmentInfo{})
		},
	} {
		func() {
			m := model(t)
			defer func() { check(t, "panic", fmt.Sprint(recover()), what) }()
			f(m)
		}()
	}
}

// The environment's worker makes a volume and attaches it, and the machine's worker makes
// the filesystem on it. Both are destroyed again, over one model.
func TestWorkersOfBothScopes(t *testing.T) {
	m := model(t)
	rules := providerfake.NewRules(m)
	cloud := providerfake.New(providerfake.Options{Rules: rules})
	managed := providerfake.New(providerfake.Options{Rules: rules})
	registry := providerfake.Registry(map[storage.ProviderType]storage.Provider{"pretend": cloud})

	manager := m.Config(environment, modeltest.Removal)
	manager.Clock, manager.Registry = clocktest.New(), registry
	machine := m.Config(machine0, modeltest.Removal)
	machine.Clock, machine.Registry, machine.StorageDir = clocktest.New(), registry, t.TempDir()
	machine.ManagedFilesystems = func(storage.BackingDevices) storage.FilesystemSource { return managed }
	for _, cfg := range []storageprovisioner.Config{manager, machine} {
		w, err := storageprovisioner.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		m.Explain(cfg.Scope.String(), func() any { return w.(interface{ Report() map[string]any }).Report() })
		defer func() {
			w.Kill()
			if err := w.Wait(); err != nil {
				t.Errorf("%s: %v", cfg.Scope, err)
			}
			check(t, "breaches", rules.Breaches(), []string(nil))
		}()
	}

	m.Await(t, "the volume's attachment", func() bool {
		_, ok := m.VolumeAttachment("machine-0", "volume-0")
		return ok
	})
	m.SetBlockDevice("machine-0", "volume-0", storage.BlockDevice{DeviceName: "dev-0"})
	m.Await(t, "the mount", func() bool {
		_, ok := m.FilesystemAttachment("machine-0", "filesystem-0")
		return ok
	})
	check(t, "mounted", managed.Attached(), []string{"filesystem-0 machine-0"})

	m.Destroy("filesystem-0")
	m.Await(t, "the filesystem's end", func() bool { return m.Life("filesystem-0") == "" })
	m.Destroy("volume-0")
	m.Await(t, "the volume's end", func() bool { return m.Life("volume-0") == "" })
	check(t, "volumes left", len(cloud.Volumes()), 0)
	check(t, "filesystems left", len(managed.Filesystems()), 0)
	check(t, "status", m.Status("volume-0").Status, "detached")
}

func TestFailedAwaitShowsCallsAndReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := model(t)
		m.AddMachine("machine-0")
		cfg := m.Config(environment)
		cfg.Clock = clocktest.New()
		cfg.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{"pretend": providerfake.New(providerfake.Options{})})
		w, err := storageprovisioner.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			w.Kill()
			if err := w.Wait(); err != nil {
				t.Error(err)
			}
		}()
		m.Explain("worker", func() any { return w.(interface{ Report() map[string]any }).Report() })
		start := time.Now()
		var message failure
		m.Await(&message, "the volume", func() bool { return m.Recorded("volume-0") })
		check(t, "patience", time.Since(start), calls.Patience)
		for _, want := range []string{"waited in vain for the volume\n", "\n\tVolumeParams volume-0", "\nworker: map[", "machine-0"} {
			if !strings.Contains(string(message), want) {
				t.Errorf("no %q in the message:\n%s", want, message)
			}
		}
	})
}

type failure string

func (f *failure) Fatalf(format string, args ...any) { *f = failure(fmt.Sprintf(format, args...)) }

func TestCloseStopsAndNamesWatchersLeft(t *testing.T) {
	m := model(t)
	a := m.For(environment)
	volumes, _ := a.WatchVolumes()
	machine, _ := a.WatchMachine(machine0)
	volumes.Kill()
	if err := volumes.Wait(); err != nil {
		t.Error(err)
	}
	check(t, "left", m.Close(), []string{"WatchMachine machine-0"})
	if err := machine.Wait(); err != nil {
		t.Error(err)
	}
	check(t, "left after that", slices.Concat(m.Close(), m.Watching()), []string(nil))
}

// A call that the script ends with a panic no longer counts as running.
func TestPanickingCallEnds(t *testing.T) {
	m := modeltest.New(modeltest.Options{})
	accessors := m.For(names.NewMachineTag("0"))
	m.OnCall("Volumes", func(context.Context) error { panic("out of order") })
	func() {
		defer func() { check(t, "panic", recover(), any("out of order")) }()
		accessors.Volumes(nil)
	}()
	m.OnCall("Volumes", nil)
	accessors.Volumes(nil)
	check(t, "overlapped", m.Overlapped(), false)
	check(t, "watchers", len(m.Close()), 0)
}
