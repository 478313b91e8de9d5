package params_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// The two sides of a wire may be built at different times, so its format must not change.
// Each case has a value with all fields set, its JSON, and the JSON of the zero value, which
// lacks the optional fields.
func TestWireFormat(t *testing.T) {
	plan := params.VolumeAttachmentPlanInfo{
		DeviceType:       storage.DeviceTypeISCSI,
		DeviceAttributes: map[string]string{"iqn": "i"},
	}
	const planJSON = `{"device-type":"iscsi","device-attributes":{"iqn":"i"}}`
	device := storage.BlockDevice{
		DeviceName: "sdb", DeviceLinks: []string{"/l"}, Label: "lab", UUID: "u", HardwareId: "h", WWN: "w", BusAddress: "b",
		Size: 1, FilesystemType: "ext4", InUse: true, MountPoint: "/m", SerialId: "s",
	}
	const deviceJSON = `{"DeviceName":"sdb","DeviceLinks":["/l"],"Label":"lab","UUID":"u","HardwareId":"h","WWN":"w","BusAddress":"b",` +
		`"Size":1,"FilesystemType":"ext4","InUse":true,"MountPoint":"/m","SerialId":"s"}`
	const noDeviceJSON = `{"DeviceName":"","DeviceLinks":null,"Label":"","UUID":"","HardwareId":"","WWN":"","BusAddress":"",` +
		`"Size":0,"FilesystemType":"","InUse":false,"MountPoint":"","SerialId":""}`
	volumeAttachmentParams := params.VolumeAttachmentParams{
		VolumeTag: "volume-0", MachineTag: "machine-0", VolumeId: "v", InstanceId: "i", Provider: "p", ReadOnly: true,
	}
	const volumeAttachmentParamsJSON = `{"volume-tag":"volume-0","machine-tag":"machine-0","volume-id":"v","instance-id":"i","provider":"p","read-only":true}`
	filesystemAttachmentParams := params.FilesystemAttachmentParams{
		FilesystemTag: "filesystem-0", MachineTag: "machine-0", FilesystemId: "f", InstanceId: "i", Provider: "p", MountPoint: "/m", ReadOnly: true,
	}
	const filesystemAttachmentParamsJSON = `{"filesystem-tag":"filesystem-0","machine-tag":"machine-0","filesystem-id":"f","instance-id":"i","provider":"p","mount-point":"/m","read-only":true}`

	for _, test := range []struct {
		full     any
		want     string
		wantZero string
	}{{
		params.Error{Message: "m", Code: "c", Info: map[string]any{"k": "v"}},
		`{"message":"m","code":"c","info":{"k":"v"}}`,
		`{"message":"","code":""}`,
	}, {
		params.ErrorResult{Error: &params.Error{Message: "m", Code: "c"}},
		`{"error":{"message":"m","code":"c"}}`,
		`{}`,
	}, {
		params.StringResult{Error: &params.Error{Message: "m", Code: "c"}, Result: "r"},
		`{"error":{"message":"m","code":"c"},"result":"r"}`,
		`{"result":""}`,
	}, {
		params.SizeResult{Error: &params.Error{Message: "m", Code: "c"}, Result: 7},
		`{"error":{"message":"m","code":"c"},"result":7}`,
		`{"result":0}`,
	}, {
		params.OwnerResult{ModelUUID: "u", EntityUUID: "v", Check: true, Error: &params.Error{Message: "m", Code: "c"}},
		`{"model-uuid":"u","entity-uuid":"v","check":true,"error":{"message":"m","code":"c"}}`,
		`{"model-uuid":"","entity-uuid":""}`,
	}, {
		params.LifeResult{Life: life.Dying, Error: &params.Error{Message: "m", Code: "c"}},
		`{"life":"dying","error":{"message":"m","code":"c"}}`,
		`{"life":""}`,
	}, {
		params.AskedVolume{
			ID: "i", Name: "n", Storage: "s", Pool: "p", Kind: storage.StorageKindFilesystem, Filesystem: "xfs", MkfsOptions: "k", MountOptions: "o",
			SizeMiB: 1, WantedMiB: 2, CannotGrowToMiB: 3, GrowsAttached: true, FromSnapshot: "f", FromVolume: "v", Machine: "web", Provisioned: true, Life: life.Alive, Status: "attached",
			Message: "m", Absence: "a", AttachedTo: "web", Detaching: true, Location: "/m",
		},
		`{"id":"i","name":"n","storage":"s","pool":"p","kind":2,"filesystem":"xfs","mkfs-options":"k","mount-options":"o",` +
			`"size-mib":1,"wanted-mib":2,"cannot-grow-to-mib":3,"grows-attached":true,"from-snapshot":"f","from-volume":"v","machine":"web","provisioned":true,"life":"alive","status":"attached",` +
			`"message":"m","absence":"a","attached-to":"web","detaching":true,"location":"/m"}`,
		`{"id":"","name":"","storage":"","pool":"","kind":0,"size-mib":0,"wanted-mib":0,"life":"","status":""}`,
	}, {
		params.AskedVolumeSize{ID: "i", SizeMiB: 1},
		`{"id":"i","size-mib":1}`,
		`{"id":"","size-mib":0}`,
	}, {
		params.EntityStatusArgs{Tag: "volume-0", Status: "error", Info: "i", Data: map[string]any{"k": "v"}},
		`{"tag":"volume-0","status":"error","info":"i","data":{"k":"v"}}`,
		`{"tag":"","status":"","info":"","data":null}`,
	}, {
		params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: "volume-0"},
		`{"machine-tag":"machine-0","attachment-tag":"volume-0"}`,
		`{"machine-tag":"","attachment-tag":""}`,
	}, {
		params.VolumeInfo{VolumeId: "v", HardwareId: "h", WWN: "w", Pool: "p", Size: 1, Persistent: true},
		`{"volume-id":"v","hardware-id":"h","wwn":"w","pool":"p","size":1,"persistent":true}`,
		`{"volume-id":"","size":0,"persistent":false}`,
	}, {
		params.Volume{VolumeTag: "volume-0", Info: params.VolumeInfo{VolumeId: "v"}},
		`{"volume-tag":"volume-0","info":{"volume-id":"v","size":0,"persistent":false}}`,
		`{"volume-tag":"","info":{"volume-id":"","size":0,"persistent":false}}`,
	}, {
		params.VolumeParams{
			VolumeTag: "volume-0", Size: 1, Provider: "p", Attributes: map[string]any{"a": "b"},
			Tags: map[string]string{"t": "u"}, Attachment: &volumeAttachmentParams,
		},
		`{"volume-tag":"volume-0","size":1,"provider":"p","attributes":{"a":"b"},"tags":{"t":"u"},"attachment":` + volumeAttachmentParamsJSON + `}`,
		`{"volume-tag":"","size":0,"provider":""}`,
	}, {
		volumeAttachmentParams,
		volumeAttachmentParamsJSON,
		`{"volume-tag":"","machine-tag":"","provider":""}`,
	}, {
		params.RemoveVolumeParams{Provider: "p", VolumeId: "v", Destroy: true},
		`{"provider":"p","volume-id":"v","destroy":true}`,
		`{"provider":"","volume-id":""}`,
	}, {
		params.VolumeAttachmentInfo{DeviceName: "n", DeviceLink: "l", BusAddress: "b", ReadOnly: true, PlanInfo: &plan},
		`{"device-name":"n","device-link":"l","bus-address":"b","read-only":true,"plan-info":` + planJSON + `}`,
		`{}`,
	}, {
		params.VolumeAttachment{VolumeTag: "volume-0", MachineTag: "machine-0", Info: params.VolumeAttachmentInfo{DeviceName: "n"}},
		`{"volume-tag":"volume-0","machine-tag":"machine-0","info":{"device-name":"n"}}`,
		`{"volume-tag":"","machine-tag":"","info":{}}`,
	}, {
		params.VolumeAttachmentPlan{VolumeTag: "volume-0", MachineTag: "machine-0", Life: life.Alive, PlanInfo: plan, BlockDevice: device},
		`{"volume-tag":"volume-0","machine-tag":"machine-0","life":"alive","plan-info":` + planJSON + `,"block-device":` + deviceJSON + `}`,
		`{"volume-tag":"","machine-tag":"","plan-info":{},"block-device":` + noDeviceJSON + `}`,
	}, {
		plan,
		planJSON,
		`{}`,
	}, {
		params.FilesystemInfo{FilesystemId: "f", Pool: "p", Size: 1},
		`{"filesystem-id":"f","pool":"p","size":1}`,
		`{"filesystem-id":"","pool":"","size":0}`,
	}, {
		params.Filesystem{FilesystemTag: "filesystem-0", VolumeTag: "volume-0", Info: params.FilesystemInfo{FilesystemId: "f"}},
		`{"filesystem-tag":"filesystem-0","volume-tag":"volume-0","info":{"filesystem-id":"f","pool":"","size":0}}`,
		`{"filesystem-tag":"","info":{"filesystem-id":"","pool":"","size":0}}`,
	}, {
		params.FilesystemParams{
			FilesystemTag: "filesystem-0", VolumeTag: "volume-0", Size: 1, Provider: "p", Attributes: map[string]any{"a": "b"},
			Tags: map[string]string{"t": "u"}, Attachment: &filesystemAttachmentParams,
		},
		`{"filesystem-tag":"filesystem-0","volume-tag":"volume-0","size":1,"provider":"p","attributes":{"a":"b"},"tags":{"t":"u"},"attachment":` + filesystemAttachmentParamsJSON + `}`,
		`{"filesystem-tag":"","size":0,"provider":""}`,
	}, {
		filesystemAttachmentParams,
		filesystemAttachmentParamsJSON,
		`{"filesystem-tag":"","machine-tag":"","provider":""}`,
	}, {
		params.RemoveFilesystemParams{Provider: "p", FilesystemId: "f", Destroy: true},
		`{"provider":"p","filesystem-id":"f","destroy":true}`,
		`{"provider":"","filesystem-id":""}`,
	}, {
		params.FilesystemAttachmentInfo{MountPoint: "/m", ReadOnly: true},
		`{"mount-point":"/m","read-only":true}`,
		`{}`,
	}, {
		params.FilesystemAttachment{FilesystemTag: "filesystem-0", MachineTag: "machine-0", Info: params.FilesystemAttachmentInfo{MountPoint: "/m"}},
		`{"filesystem-tag":"filesystem-0","machine-tag":"machine-0","info":{"mount-point":"/m"}}`,
		`{"filesystem-tag":"","machine-tag":"","info":{}}`,
	}, {
		params.BlockDeviceResult{Result: device, Error: &params.Error{Message: "m", Code: "c"}},
		`{"result":` + deviceJSON + `,"error":{"message":"m","code":"c"}}`,
		`{"result":` + noDeviceJSON + `}`,
	}, {
		params.MachineBlockDevices{Machine: "machine-0", BlockDevices: []storage.BlockDevice{device}},
		`{"machine":"machine-0","block-devices":[` + deviceJSON + `]}`,
		`{"machine":""}`,
	}, {
		params.Entity{Tag: "volume-0"},
		`{"tag":"volume-0"}`,
		`{"tag":""}`,
	}} {
		typ := reflect.TypeOf(test.full)
		t.Run(typ.Name(), func(t *testing.T) {
			checkJSON(t, test.full, test.want)
			checkJSON(t, reflect.Zero(typ).Interface(), test.wantZero)
		})
	}
}

// checkJSON checks that value is encoded as want, and that want is decoded as value.
func checkJSON(t *testing.T, value any, want string) {
	t.Helper()
	got, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	back := reflect.New(reflect.TypeOf(value))
	if err := json.Unmarshal([]byte(want), back.Interface()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back.Elem().Interface(), value) {
		t.Errorf("%s decodes to %+v", want, back.Elem().Interface())
	}
}

// Every result has a field "result" and an optional field "error". Every request and every
// list of results has a single field.
func TestWireFormatOfResultsAndEnvelopes(t *testing.T) {
	for _, result := range []any{
		params.VolumeResult{}, params.VolumeParamsResult{}, params.RemoveVolumeParamsResult{},
		params.VolumeAttachmentResult{}, params.VolumeAttachmentParamsResult{}, params.VolumeAttachmentPlanResult{},
		params.FilesystemResult{}, params.FilesystemParamsResult{}, params.RemoveFilesystemParamsResult{},
		params.FilesystemAttachmentResult{}, params.FilesystemAttachmentParamsResult{}, params.BlockDeviceResult{},
		params.AskedVolumeResult{},
	} {
		typ := reflect.TypeOf(result)
		if typ.NumField() != 2 || typ.Field(0).Tag.Get("json") != "result" || typ.Field(1).Tag.Get("json") != "error,omitempty" {
			t.Errorf("%s is not a result and an optional error", typ)
		}
	}
	for key, lists := range map[string][]any{
		"results": {
			params.ErrorResults{}, params.StringResults{}, params.SizeResults{}, params.OwnerResults{}, params.LifeResults{}, params.BlockDeviceResults{},
			params.VolumeResults{}, params.VolumeParamsResults{}, params.VolumeContextResults{}, params.RemoveVolumeParamsResults{},
			params.VolumeAttachmentResults{}, params.VolumeAttachmentParamsResults{}, params.VolumeAttachmentPlanResults{},
			params.FilesystemResults{}, params.FilesystemParamsResults{}, params.RemoveFilesystemParamsResults{},
			params.FilesystemAttachmentResults{}, params.FilesystemAttachmentParamsResults{},
		},
		"entities":               {params.Entities{}},
		"ids":                    {params.MachineStorageIds{}},
		"volumes":                {params.Volumes{}},
		"volume-attachments":     {params.VolumeAttachments{}},
		"volume-plans":           {params.VolumeAttachmentPlans{}},
		"filesystems":            {params.Filesystems{}},
		"filesystem-attachments": {params.FilesystemAttachments{}},
	} {
		for _, list := range lists {
			if got, err := json.Marshal(list); err != nil || string(got) != `{"`+key+`":null}` {
				t.Errorf("%T: got %s, %v", list, got, err)
			}
		}
	}
}

// Printing a value that contains a plan reveals no secret.
// Promise S20.
// Finding N16.
func TestPlanSecretsAreNotPrinted(t *testing.T) {
	attributes := map[string]string{"chap-secret": "sesame", "iqn": "iqn.2001-04.com.example"}
	wire := params.VolumeAttachmentPlanInfo{DeviceType: "iscsi", DeviceAttributes: attributes}
	info := storage.VolumeAttachmentPlanInfo(wire)
	for _, value := range []any{
		wire, &wire, params.VolumeAttachmentPlan{PlanInfo: wire}, params.VolumeAttachment{Info: params.VolumeAttachmentInfo{PlanInfo: &wire}},
		info, &info, storage.VolumeAttachmentPlan{Volume: names.NewVolumeTag("0"), Machine: names.NewMachineTag("0"), VolumeAttachmentPlanInfo: info},
		storage.VolumeAttachment{VolumeAttachmentInfo: storage.VolumeAttachmentInfo{PlanInfo: &info}},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			if got := fmt.Sprintf(verb, value); strings.Contains(got, "sesame") {
				t.Errorf("%s of %T: %s", verb, value, got)
			}
		}
	}
	if got, want := fmt.Sprint(wire), `{iscsi ["chap-secret" "iqn"]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
