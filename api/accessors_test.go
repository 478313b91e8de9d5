package api_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/diskmanager"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// The client has all that workers can use.
var (
	_ storageprovisioner.Accessors                    = api.Accessors{}
	_ storageprovisioner.VolumeRemovalAccessor        = api.Accessors{}
	_ storageprovisioner.FilesystemRemovalAccessor    = api.Accessors{}
	_ storageprovisioner.VolumeSizeAccessor           = api.Accessors{}
	_ storageprovisioner.VolumeContextAccessor        = api.Accessors{}
	_ storageprovisioner.FilesystemSizeAccessor       = api.Accessors{}
	_ storageprovisioner.RetryAccessor                = api.Accessors{}
	_ storageprovisioner.FormatAccessor               = api.Accessors{}
	_ storageprovisioner.VolumeAttachmentPlanAccessor = api.Accessors{}
	_ storageprovisioner.AttemptAccessor              = api.Accessors{}
	_ storageprovisioner.OwnerAccessor                = api.Accessors{}
	_ diskmanager.BlockDeviceSetter                   = api.Accessors{}
	_ diskmanager.BlockDeviceUpdater                  = api.Accessors{}
	_ worker.Worker                                   = (*api.Client)(nil)
)

func methodsOf(t reflect.Type) (found []string) {
	for i := range t.NumMethod() {
		found = append(found, t.Method(i).Name)
	}
	return found
}

// The client has every method of the state's accessors, and asks the server for each.
func TestClientHasAllMethods(t *testing.T) {
	want := methodsOf(reflect.TypeFor[*state.Accessor]())
	if got := methodsOf(reflect.TypeFor[api.Accessors]()); !slices.Equal(got, want) {
		t.Errorf("the client has the methods %q, the state %q", got, want)
	}
	if !slices.Equal(api.AccessorMethods, want) {
		t.Errorf("the client asks for the methods %q, the state has %q", api.AccessorMethods, want)
	}
}

// argsOf returns lists of arguments for a method, with existing entities, others' and unknown
// ones.
func argsOf(t *testing.T, arg reflect.Type, round int) any {
	ids := []params.MachineStorageId{{AttachmentTag: "volume-0-0"}, {MachineTag: "machine-9", AttachmentTag: "volume-99"}, {MachineTag: "nowhere"}}
	volumes, filesystems := []string{"0/0", "1", "2", "99"}, []string{"0/0", "0/1", "2", "99"}
	for _, machine := range []string{"machine-0", "machine-1"} {
		for i := range volumes {
			ids = append(ids, params.MachineStorageId{MachineTag: machine, AttachmentTag: names.NewVolumeTag(volumes[i]).String()})
			ids = append(ids, params.MachineStorageId{MachineTag: machine, AttachmentTag: names.NewFilesystemTag(filesystems[i]).String()})
		}
	}
	plan := params.VolumeAttachmentPlanInfo{DeviceType: storage.DeviceTypeISCSI, DeviceAttributes: map[string]string{"a": "b"}}
	switch arg {
	case reflect.TypeFor[names.MachineTag]():
		return []names.MachineTag{machine0, machine1}[round%2]
	case reflect.TypeFor[[]names.MachineTag]():
		return []names.MachineTag{machine0, machine1, names.NewMachineTag("9")}
	case reflect.TypeFor[[]names.VolumeTag]():
		return mapped(volumes, names.NewVolumeTag)
	case reflect.TypeFor[[]names.FilesystemTag]():
		return mapped(filesystems, names.NewFilesystemTag)
	case reflect.TypeFor[[]names.Tag]():
		all := []names.Tag{machine0}
		for i := range volumes {
			all = append(all, names.NewVolumeTag(volumes[i]), names.NewFilesystemTag(filesystems[i]))
		}
		return all
	case reflect.TypeFor[[]params.MachineStorageId]():
		return ids
	case reflect.TypeFor[[]params.Volume]():
		return mapped(volumes, func(id string) params.Volume {
			return params.Volume{VolumeTag: names.NewVolumeTag(id).String(), Info: params.VolumeInfo{VolumeId: "vol-" + id, Size: 10, Persistent: true}}
		})
	case reflect.TypeFor[[]params.VolumeContext]():
		return mapped(volumes, func(id string) params.VolumeContext {
			return params.VolumeContext{VolumeTag: names.NewVolumeTag(id).String(), Context: map[string]string{"portal": "10.0.0." + id}}
		})
	case reflect.TypeFor[[]params.Filesystem]():
		return mapped(filesystems, func(id string) params.Filesystem {
			return params.Filesystem{FilesystemTag: names.NewFilesystemTag(id).String(), Info: params.FilesystemInfo{FilesystemId: "fs-" + id, Size: 10}}
		})
	case reflect.TypeFor[[]params.VolumeAttachment]():
		return mapped(ids, func(id params.MachineStorageId) params.VolumeAttachment {
			return params.VolumeAttachment{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: params.VolumeAttachmentInfo{DeviceName: "sda"}}
		})
	case reflect.TypeFor[[]params.FilesystemAttachment]():
		return mapped(ids, func(id params.MachineStorageId) params.FilesystemAttachment {
			return params.FilesystemAttachment{FilesystemTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: params.FilesystemAttachmentInfo{MountPoint: "/srv/a"}}
		})
	case reflect.TypeFor[[]params.VolumeAttachmentPlan]():
		return mapped(ids, func(id params.MachineStorageId) params.VolumeAttachmentPlan {
			return params.VolumeAttachmentPlan{VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, PlanInfo: plan, BlockDevice: storage.BlockDevice{DeviceName: "sdb"}}
		})
	case reflect.TypeFor[[]params.Attempt]():
		return mapped(ids, func(id params.MachineStorageId) params.Attempt {
			return params.Attempt{Id: id, Attempted: true}
		})
	case reflect.TypeFor[[]params.EntityStatusArgs]():
		tag := []string{"volume-0-0", "volume-1"}[round%2] // the second is the environment's
		return []params.EntityStatusArgs{{Tag: tag, Status: "attached", Info: "<&>", Data: map[string]any{"a": 1.5}}}
	case reflect.TypeFor[[]storage.BlockDevice]():
		return []storage.BlockDevice{{DeviceName: "sda", Size: 5}, {DeviceName: "sdb", DeviceLinks: []string{"/dev/b"}}}
	case reflect.TypeFor[[]string]():
		return []string{"sdc"}
	}
	t.Fatalf("no arguments of type %v", arg)
	return nil
}

func mapped[A, B any](all []A, f func(A) B) (found []B) {
	for _, a := range all {
		found = append(found, f(a))
	}
	return found
}

// outcome is what a method returns: the results, the first event of a watcher, an error's text
// and code.
func outcome(t *testing.T, results []reflect.Value) []any {
	t.Helper()
	err, _ := results[len(results)-1].Interface().(error)
	if err != nil {
		return []any{err.Error(), params.ErrCode(params.ServerError(err))}
	}
	if len(results) == 1 {
		return nil
	}
	switch result := results[0].Interface().(type) {
	case worker.Worker:
		event, ok := results[0].MethodByName("Changes").Call(nil)[0].Recv()
		if !ok {
			t.Fatal(result.Wait())
		}
		result.Kill()
		if err := result.Wait(); err != nil {
			t.Error(err)
		}
		return []any{event.Interface()}
	case *config.Config:
		return []any{result.AllAttrs()}
	default:
		return []any{result}
	}
}

// Every method returns the same through the API as directly, with the same error codes. Since
// all writes can be repeated, each call is made through the API and then directly. Later rounds
// find what earlier ones have recorded.
func TestMethodsThroughAPI(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	w.add("b", "environ", storage.StorageKindBlock)
	w.add("c", "environ", storage.StorageKindFilesystem)
	w.add("d", "disk", storage.StorageKindFilesystem)
	through := reflect.ValueOf(w.dial().Accessors())
	direct := reflect.ValueOf(w.ForMachine(machine0))
	codes := make(map[string]bool)
	for round := range 4 {
		if round == 3 {
			w.must(w.RemoveStorage([]string{"a", "b", "c", "d"}))
		}
		for i := range direct.NumMethod() {
			method := direct.Type().Method(i)
			var args []reflect.Value
			for n := 1; n < method.Type.NumIn(); n++ {
				args = append(args, reflect.ValueOf(argsOf(t, method.Type.In(n), round)))
			}
			got := outcome(t, through.MethodByName(method.Name).Call(args))
			want := outcome(t, direct.Method(i).Call(args))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("round %d, %s: through the API\n%+v\nbut directly\n%+v", round, method.Name, got, want)
			}
			collectCodes(codes, want)
		}
	}
	for _, code := range []string{"", params.CodeNotFound, params.CodeNotProvisioned, params.CodeUnauthorized, params.CodeNotValid, params.CodeStorageAttached} {
		if !codes[code] {
			t.Errorf("no call has returned the error code %q", code)
		}
	}
}

// collectCodes notes the error codes of the results of a bulk call, or of the whole call.
func collectCodes(codes map[string]bool, outcome []any) {
	if len(outcome) == 2 {
		codes[fmt.Sprint(outcome[1])] = true
		return
	}
	for _, results := range outcome {
		list := reflect.ValueOf(results)
		if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Struct {
			continue
		}
		for i := range list.Len() {
			if err := list.Index(i).FieldByName("Error"); err.IsValid() {
				codes[params.ErrCode(asError(err.Interface().(*params.Error)))] = true
			}
		}
	}
}

func asError(err *params.Error) error {
	if err == nil {
		return nil
	}
	return err
}

func TestBlockDevicesThroughAPI(t *testing.T) {
	w := newWorld(t)
	published := w.dial().Accessors()
	check := func(want ...string) {
		t.Helper()
		found, err := w.MachineBlockDevices(machine0)
		w.must(err)
		if got := mapped(found, func(d storage.BlockDevice) string { return d.DeviceName }); !slices.Equal(got, want) {
			t.Errorf("devices %q, want %q", got, want)
		}
	}
	w.must(published.SetMachineBlockDevices([]storage.BlockDevice{{DeviceName: "sda", Size: 5}, {DeviceName: "sdb"}}))
	check("sda", "sdb")
	w.must(published.UpdateMachineBlockDevices([]storage.BlockDevice{{DeviceName: "sdc"}}, []string{"sda"}))
	check("sdb", "sdc")
	w.must(published.SetMachineBlockDevices(nil))
	check()
}

// A bulk call with many arguments, or large ones, is made in parts.
func TestLargeBulkCalls(t *testing.T) {
	w := newWorld(t)
	w.add("a", "disk", storage.StorageKindBlock)
	accessors := w.dial().Accessors()
	const many = 1500
	tags := make([]names.VolumeTag, many)
	volumes := make([]params.Volume, many)
	statuses := make([]params.EntityStatusArgs, many)
	for i := range many {
		tags[i] = names.NewVolumeTag(fmt.Sprintf("0/%d", many-1-i))
		volumes[i] = params.Volume{VolumeTag: tags[i].String(), Info: params.VolumeInfo{VolumeId: "v", HardwareId: strings.Repeat("h", 2000)}}
		statuses[i] = params.EntityStatusArgs{Tag: tags[i].String(), Status: "attached", Info: "x"}
	}
	lives, err := accessors.Life(mapped(tags, func(tag names.VolumeTag) names.Tag { return tag }))
	w.must(err)
	results, err := accessors.SetVolumeInfo(volumes)
	w.must(err)
	if len(lives) != many || len(results) != many || lives[many-1].Error != nil || results[many-1].Error != nil ||
		!params.IsCodeNotFound(lives[0].Error) || !params.IsCodeNotFound(results[many-2].Error) {
		t.Errorf("%d lives and %d results, or the wrong ones", len(lives), len(results))
	}
	// A status that cannot be set keeps no other from being set.
	if err := accessors.SetStatus(statuses); !params.IsCodeNotFound(err) {
		t.Errorf("setting statuses: %v", err)
	}
	all, err := w.Storage("a")
	w.must(err)
	if all[0].Volume.Message != "x" {
		t.Errorf("the status is %+v", all[0].Volume.StatusInfo)
	}

	huge := []params.EntityStatusArgs{{Tag: "volume-0-0", Status: "attached", Info: strings.Repeat("x", 17<<20)}}
	if err := accessors.SetStatus(huge); !params.IsCodeNotValid(params.ServerError(err)) {
		t.Errorf("setting a status of 17 MiB: %v", err)
	}
	if none, err := accessors.Life(nil); none == nil || len(none) != 0 || err != nil {
		t.Errorf("no lives: %v, %v", none, err)
	}
}
