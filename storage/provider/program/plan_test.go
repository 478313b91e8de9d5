package program_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/storage/provider/program"
)

// plan returns the plan of a machine whose agent has the program, if ok.
func (s *script) plan(ok bool) plans.Plan {
	s.Helper()
	registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{}}
	if ok {
		p, err := program.New("disks", s.path)
		if err != nil {
			s.Fatal(err)
		}
		registry.Providers["disks"] = p
	}
	plan, err := program.Plans(registry)(program.DeviceType)
	if err != nil {
		s.Fatal(err)
	}
	return plan
}

// A plan of the program is carried out by the program on the machine, with what the program on the
// server has said.
func TestPlanOfProgram(t *testing.T) {
	s := newRecorder(t)
	s.answer("attach-volumes", `{"results": [{"attachment": {"plan": {"device-type": "program", "attributes": {"lun": "17"}}}}]}`)
	attached, err := s.source().AttachVolumes(callContext(t), []storage.VolumeAttachmentParams{volume0Params})
	if err != nil || attached[0].Error != nil {
		t.Fatalf("got %+v, %v", attached, err)
	}
	attributes := attached[0].VolumeAttachment.PlanInfo.DeviceAttributes

	plan := s.plan(true)
	s.answer("connect-volumes", `{"results": [{"attachment": {"device-name": "sdx", "device-link": "/dev/disk/by-id/x", "bus-address": "scsi@0:0.0.1"}}]}`)
	device, err := plan.AttachVolume(t.Context(), attributes)
	want := storage.BlockDevice{DeviceName: "sdx", DeviceLinks: []string{"/dev/disk/by-id/x"}, BusAddress: "scsi@0:0.0.1"}
	if err != nil || !reflect.DeepEqual(device, want) {
		t.Errorf("got %+v, %v, want %+v", device, err, want)
	}
	s.wantRequest("connect-volumes", `{"arguments": [{"attributes": {"lun": "17"}}]}`)
	s.answer("disconnect-volumes", `{"results": [{}]}`)
	if err := plan.DetachVolume(t.Context(), attributes); err != nil {
		t.Error(err)
	}
	s.wantRequest("disconnect-volumes", `{"arguments": [{"attributes": {"lun": "17"}}]}`)
	s.answer("disconnect-volumes", `{"results": [{"error": {"message": "no such lun", "code": "not-found"}}]}`)
	if err := plan.DetachVolume(t.Context(), attributes); err != nil {
		t.Errorf("disconnecting what is gone: %v", err)
	}
	s.answer("disconnect-volumes", `{"results": [{"error": {"message": "busy"}}]}`)
	if err := plan.DetachVolume(t.Context(), attributes); err == nil || err.Error() != "busy" {
		t.Errorf("disconnecting what is in use: %v", err)
	}
}

// A plan runs no program but those that the machine's agent was started with.
func TestPlanOfAnotherProgram(t *testing.T) {
	s := newRecorder(t)
	for name, plan := range map[string]plans.Plan{"disks": s.plan(false), s.path: s.plan(true), "": s.plan(true)} {
		_, err := plan.AttachVolume(t.Context(), map[string]string{"provider": name})
		if !storage.IsPermanent(err) || !strings.Contains(err.Error(), "start its agent with --provider "+name+"=PATH") {
			t.Errorf("attaching with provider %q: %v", name, err)
		}
		if err := plan.DetachVolume(t.Context(), map[string]string{"provider": name}); !storage.IsPermanent(err) {
			t.Errorf("detaching with provider %q: %v", name, err)
		}
	}
	s.answer("attach-volumes", `{"results": [{"attachment": {"plan": {"device-type": "program", "attributes": {"provider": "other"}}}}]}`)
	attached, err := s.source().AttachVolumes(callContext(t), []storage.VolumeAttachmentParams{volume0Params})
	if err != nil || attached[0].Error == nil || !strings.Contains(attached[0].Error.Error(), `"provider", which is reserved`) {
		t.Errorf("a plan that names a program: %+v, %v", attached, err)
	}
	if _, err := program.Plans(storage.StaticProviderRegistry{})("none"); !errors.Is(err, errors.NotFound) {
		t.Errorf("a device type without a plan: %v", err)
	}
}

func TestInvalidDeviceOfPlan(t *testing.T) {
	s := newRecorder(t)
	plan := s.plan(true)
	for answer, want := range map[string]string{
		`{}`:                                     "neither an attachment nor an error",
		`{"attachment": {}}`:                     "neither device-name, device-link nor bus-address",
		`{"error": {"message": "out of range"}}`: "out of range",
		`{"attachment": {"device-name": "../sda"}}`:                                "want the name without /dev/",
		`{"attachment": {"device-name": "sda", "plan": {"device-type": "local"}}}`: "another plan",
	} {
		s.answer("connect-volumes", `{"results": [`+answer+`]}`)
		if device, err := plan.AttachVolume(t.Context(), map[string]string{"provider": "disks"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", answer, device, err, want)
		}
	}
}
