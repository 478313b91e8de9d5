package program_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/program"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// script is a program in a directory of its own.
type script struct {
	testing.TB
	dir  string
	path string
}

// newScript writes a shell script, which finds its directory in DIR.
func newScript(tb testing.TB, text string) *script {
	tb.Helper()
	dir := tb.TempDir()
	s := &script{TB: tb, dir: dir, path: filepath.Join(dir, "program")}
	text = "#!/bin/sh\nDIR='" + dir + "'\n" + text
	if err := os.WriteFile(s.path, []byte(text), 0o700); err != nil {
		tb.Fatal(err)
	}
	return s
}

// newRecorder writes a program that records its request and prints the answer that was
// set for the operation.
func newRecorder(tb testing.TB) *script {
	return newScript(tb, `cat > "$DIR/$1.in"; cat "$DIR/$1.out"`)
}

func (s *script) answer(operation, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, operation+".out"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// wantRequest compares the recorded request as JSON.
func (s *script) wantRequest(operation, want string) {
	s.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, operation+".in"))
	if err != nil {
		s.Fatal(err)
	}
	var x, y any
	if err := json.Unmarshal([]byte(want), &y); err != nil {
		s.Fatal(err)
	}
	if err := json.Unmarshal(data, &x); err != nil || !reflect.DeepEqual(x, y) {
		s.Errorf("%s was asked\n\t%s\nwant\n\t%s\n(%v)", operation, data, want, err)
	}
}

func (s *script) source() storage.VolumeSource {
	s.Helper()
	p, err := program.New("disks", s.path)
	if err != nil {
		s.Fatal(err)
	}
	config, err := storage.NewConfig("disks", "disks", nil)
	if err != nil {
		s.Fatal(err)
	}
	source, err := p.VolumeSource(config)
	if err != nil {
		s.Fatal(err)
	}
	return source
}

var (
	volume0       = names.NewVolumeTag("0")
	volume1       = names.NewVolumeTag("1")
	machine       = names.NewMachineTag("0")
	machineParams = storage.AttachmentParams{Provider: "disks", Machine: machine, InstanceId: "i-0"}
	volume0Params = storage.VolumeAttachmentParams{AttachmentParams: machineParams, Volume: volume0, VolumeId: "a"}
)

func callContext(t *testing.T) envcontext.ProviderCallContext { return envcontext.New(t.Context()) }

func TestCreateVolumes(t *testing.T) {
	s := newRecorder(t)
	s.answer("create-volumes", `{"results": [
		{"volume-id": "a", "hardware-id": "h", "wwn": "w", "persistent": true,
		 "attachment": {"device-name": "sdx", "device-link": "/dev/disk/by-id/x", "bus-address": "scsi@0:0.0.1", "read-only": true,
		                "plan": {"device-type": "iscsi", "attributes": {"iqn": "x"}}}},
		{"volume-id": "b", "size-mib": 20},
		{"volume-id": "c", "size-mib": 9},
		{"error": {"message": "no room"}},
		{},
		{"volume-id": "f", "attachment": {"device-name": "sdf"}}
	]}`)
	readOnly := volume0Params
	readOnly.ReadOnly = true
	six := make([]storage.VolumeParams, 6)
	for i := range six {
		six[i] = storage.VolumeParams{Tag: names.NewVolumeTag(strconv.Itoa(i)), Size: 10}
	}
	six[0].Attributes = map[string]any{"tier": "fast"}
	six[0].ResourceTags = map[string]string{"owner": "me"}
	six[0].Attachment = &readOnly
	got, err := s.source().CreateVolumes(callContext(t), six)
	if err != nil {
		t.Fatal(err)
	}
	s.wantRequest("create-volumes", `{"arguments": [
		{"volume": "volume-0", "size-mib": 10, "attributes": {"tier": "fast"}, "tags": {"owner": "me"},
		 "machine": "machine-0", "instance-id": "i-0", "read-only": true},
		{"volume": "volume-1", "size-mib": 10}, {"volume": "volume-2", "size-mib": 10},
		{"volume": "volume-3", "size-mib": 10}, {"volume": "volume-4", "size-mib": 10},
		{"volume": "volume-5", "size-mib": 10}
	]}`)
	want := storage.CreateVolumesResult{
		Volume: &storage.Volume{Tag: volume0, VolumeInfo: storage.VolumeInfo{
			VolumeId: "a", HardwareId: "h", WWN: "w", Size: 10, Persistent: true,
		}},
		VolumeAttachment: &storage.VolumeAttachment{Volume: volume0, Machine: machine, VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
			DeviceName: "sdx", DeviceLink: "/dev/disk/by-id/x", BusAddress: "scsi@0:0.0.1", ReadOnly: true,
			PlanInfo: &storage.VolumeAttachmentPlanInfo{DeviceType: "iscsi", DeviceAttributes: map[string]string{"iqn": "x"}},
		}},
	}
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v, %+v", got[0].Volume, got[0].VolumeAttachment)
	}
	want = storage.CreateVolumesResult{Volume: &storage.Volume{Tag: volume1, VolumeInfo: storage.VolumeInfo{VolumeId: "b", Size: 20}}}
	if !reflect.DeepEqual(got[1], want) {
		t.Errorf("got %+v", got[1])
	}
	for i, want := range map[int]string{
		2: "the program made volume c with 9 MiB, but at least 10 MiB were requested",
		3: "no room",
		4: "the program gave neither a volume-id nor an error",
		5: "the program attached volume f, but no attachment was requested",
	} {
		if got[i].Error == nil || got[i].Error.Error() != want || got[i].Volume != nil {
			t.Errorf("%d: got %+v, want %s", i, got[i], want)
		}
	}
}

func TestNewVolumes(t *testing.T) {
	s := newRecorder(t)
	s.answer("create-volumes", `{"results": [{"volume-id": "a", "new": true}, {"volume-id": "b"}, {"error": {"message": "no room"}, "new": true}]}`)
	three := make([]storage.VolumeParams, 3)
	for i := range three {
		three[i] = storage.VolumeParams{Tag: names.NewVolumeTag(strconv.Itoa(i)), Size: 10}
	}
	source := s.source()
	created := func() {
		t.Helper()
		if _, err := source.CreateVolumes(callContext(t), three); err != nil {
			t.Fatal(err)
		}
	}
	isNew := source.(storage.NewVolumes).IsNewVolume
	created()
	if !isNew("a") || isNew("b") || isNew("") {
		t.Error("IsNewVolume does not agree with the program's answer")
	}
	// The last answer counts.
	created()
	s.answer("create-volumes", `{"results": [{"volume-id": "a"}, {"volume-id": "b", "new": true}, {}]}`)
	created()
	if isNew("a") || !isNew("b") {
		t.Error("IsNewVolume does not agree with the program's last answer")
	}
}

func TestAttachAndDetachVolumes(t *testing.T) {
	s := newRecorder(t)
	s.answer("attach-volumes", `{"results": [{"attachment": {"device-name": "sdx", "plan": {"device-type": "local"}}}, {}]}`)
	s.answer("detach-volumes", `{"results": [{}, {"error": {"message": "gone", "code": "not-found"}}]}`)
	other := storage.VolumeAttachmentParams{AttachmentParams: machineParams, Volume: volume1, VolumeId: "b"}
	both := []storage.VolumeAttachmentParams{volume0Params, other}
	attached, err := s.source().AttachVolumes(callContext(t), both)
	if err != nil {
		t.Fatal(err)
	}
	want := &storage.VolumeAttachment{Volume: volume0, Machine: machine, VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
		DeviceName: "sdx", PlanInfo: &storage.VolumeAttachmentPlanInfo{DeviceType: storage.DeviceTypeLocal},
	}}
	if !reflect.DeepEqual(attached[0].VolumeAttachment, want) || attached[0].Error != nil {
		t.Errorf("got %+v", attached[0])
	}
	if err := attached[1].Error; err == nil || err.Error() != "the program gave neither an attachment nor an error" {
		t.Errorf("got %v", err)
	}
	errs, err := s.source().DetachVolumes(callContext(t), both)
	if err != nil || errs[0] != nil || errs[1] != nil {
		t.Errorf("detaching: %v, %v", errs, err)
	}
	for _, operation := range []string{"attach-volumes", "detach-volumes"} {
		s.wantRequest(operation, `{"arguments": [
			{"volume": "volume-0", "volume-id": "a", "machine": "machine-0", "instance-id": "i-0"},
			{"volume": "volume-1", "volume-id": "b", "machine": "machine-0", "instance-id": "i-0"}
		]}`)
	}
}

// The device of another volume is not attached: writing to it might destroy the other
// volume's data.
func TestDeviceOfAnotherVolumeIsRefused(t *testing.T) {
	s := newRecorder(t)
	source, ctx := s.source(), callContext(t)
	volume2 := names.NewVolumeTag("2")
	on := func(machine string, volumes ...names.VolumeTag) (all []storage.VolumeAttachmentParams) {
		for _, v := range volumes {
			p := storage.VolumeAttachmentParams{AttachmentParams: machineParams, Volume: v, VolumeId: v.Id()}
			p.Machine = names.NewMachineTag(machine)
			all = append(all, p)
		}
		return all
	}
	attach := func(answer string, all []storage.VolumeAttachmentParams, want ...string) {
		t.Helper()
		s.answer("attach-volumes", `{"results": [`+answer+`]}`)
		results, err := source.AttachVolumes(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			got := ""
			if r.Error != nil {
				got = r.Error.Error()
			}
			if got != want[i] || (r.VolumeAttachment == nil) != (got != "") || storage.IsPermanent(r.Error) {
				t.Errorf("%s: got %+v for volume %s, want %q", answer, r, all[i].Volume.Id(), want[i])
			}
		}
	}
	const sdb, sdc = `{"attachment": {"device-name": "sdb"}}`, `{"attachment": {"device-name": "sdc"}}`

	attach(sdb+","+sdb, on("0", volume0, volume1),
		`the program gave volume 0 the device of volume 1, device-name "sdb"`,
		`the program gave volume 1 the device of volume 0, device-name "sdb"`)
	attach(sdb+","+sdc, on("0", volume0, volume1), "", "")
	attach(sdb, on("0", volume2), `the program gave volume 2 the device of volume 0, device-name "sdb"`)
	attach(sdb, on("1", volume2), "") // another machine's
	attach(sdb+","+sdc, on("0", volume0, volume1), "", "")
	attach(sdc+","+sdb, on("0", volume0, volume1), "", "") // they have swapped devices
	attach(`{"attachment": {"device-link": "/dev/disk/by-id/x", "bus-address": "scsi@1"}}`, on("0", volume0), "")
	attach(`{"attachment": {"device-link": "/dev/disk/by-id/y", "bus-address": "scsi@1"}}`, on("0", volume2),
		`the program gave volume 2 the device of volume 0, bus-address "scsi@1"`)

	s.answer("create-volumes", `{"results": [{"volume-id": "b", "attachment": {"device-name": "sdb"}}]}`)
	attachment := on("0", volume2)[0]
	created, err := source.CreateVolumes(ctx, []storage.VolumeParams{{Tag: volume2, Attachment: &attachment}})
	if err != nil || created[0].Error == nil || created[0].Volume != nil || !strings.Contains(created[0].Error.Error(), "the device of volume 1") {
		t.Errorf("created with another volume's device: %+v, %v", created, err)
	}

	s.answer("detach-volumes", `{"results": [{"error": {"message": "busy"}}]}`)
	detach := func(want bool) {
		t.Helper()
		if errs, err := source.DetachVolumes(ctx, on("0", volume1)); err != nil || (errs[0] == nil) != want {
			t.Fatalf("detaching: %v, %v", errs, err)
		}
	}
	detach(false)
	attach(sdb, on("0", volume2), `the program gave volume 2 the device of volume 1, device-name "sdb"`)
	s.answer("detach-volumes", `{"results": [{}]}`)
	detach(true)
	attach(sdb, on("0", volume2), "")
}

func TestListVolumeOwners(t *testing.T) {
	s := newRecorder(t)
	lister, ctx := s.source().(storage.VolumeOwnerLister), callContext(t)
	s.answer("list-volumes", `{"results": [{"volume-id": "b", "tags": {"stowage-storage-uuid": "u"}, "attached": true, "size-mib": 7}, {"volume-id": "a"}]}`)
	got, err := lister.ListVolumeOwners(ctx)
	want := []storage.OwnedObject{{ID: "a"}, {ID: "b", Size: 7, ResourceTags: map[string]string{storage.EntityUUIDTag: "u"}, Attached: true}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("listed %+v, %v, want %+v", got, err, want)
	}
	for answer, want := range map[string]string{
		`{"results": [{"volume-id": "a", "tags": {"k": "v\u0007"}}]}`:                                    "not printable",
		`{"results": [{"volume-id": "a", "tags": {"k\n": "v"}}]}`:                                        "not printable",
		`{"results": [{"volume-id": "a"}, {"error": {"message": "no lists", "code": "not-supported"}}]}`: "no lists",
		`{"results": [{"volume-id": "a"}, {"volume-id": "a"}]}`:                                          `lists volume-id "a" twice`,
		`{"results": [{"volume-id": "a\ud800"}]}`:                                                        "not printable",
		`{"results": [{"volume-id": "a", "size-mib": 8796093022208}]}`:                                   "size-mib of 8796093022208",
		`{"results": [{"tags": {}}]}`:                                                                    "neither a volume-id nor an error",
	} {
		s.answer("list-volumes", answer)
		if got, err := lister.ListVolumeOwners(ctx); err == nil || got != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answer %s gives %+v, %v", answer, got, err)
		}
	}
	s.answer("list-volumes", `{"results": [{"error": {"message": "no lists", "code": "not-supported"}}]}`)
	if _, err := lister.ListVolumeOwners(ctx); !errors.Is(err, errors.NotSupported) {
		t.Errorf("got %v, want not supported", err)
	}
}

// A program can say which machines have its volumes.
// Fault F38.
func TestListVolumeAttachments(t *testing.T) {
	s := newRecorder(t)
	lister, ctx := s.source().(storage.AttachmentLister), callContext(t)
	s.answer("list-volumes", `{"results": [{"volume-id": "b", "machine": "machine-7", "attached": true}, {"volume-id": "a"}, {"volume-id": "c", "machine": "machine-0"}], "machines-known": true}`)
	got, err := lister.ListVolumeAttachments(ctx)
	want := []storage.ListedAttachment{{VolumeId: "b", Machine: names.NewMachineTag("7")}, {VolumeId: "c", Machine: machine}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("listed %+v, %v, want %+v", got, err, want)
	}
	s.wantRequest("list-volumes", `{"arguments": []}`)
	for answer, want := range map[string]string{
		`{"results": [{"volume-id": "a", "attached": true}], "machines-known": true}`:                           "volume a without the machine",
		`{"results": [{"volume-id": "a", "machine": "host"}], "machines-known": true}`:                          `the machine "host": want machine-N`,
		`{"results": [{"volume-id": "a", "machine": "\u0007"}], "machines-known": true}`:                        "not printable",
		`{"results": [{"machine": "machine-0"}], "machines-known": true}`:                                       "neither a volume-id nor an error",
		`{"results": [{"error": {"message": "no lists", "code": "not-supported"}}], "machines-known": true}`:    "no lists",
		`{"results": [{"volume-id": "a", "machine": "machine-0"}, {"volume-id": "a"}], "machines-known": true}`: "twice",
	} {
		s.answer("list-volumes", answer)
		if got, err := lister.ListVolumeAttachments(ctx); err == nil || got != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answer %s gives %+v, %v", answer, got, err)
		}
	}
	// One that does not know the machines lists volumes all the same.
	s.answer("list-volumes", `{"results": [{"volume-id": "a", "attached": true}]}`)
	if _, err := lister.ListVolumeAttachments(ctx); !errors.Is(err, errors.NotSupported) {
		t.Errorf("got %v, want not supported", err)
	}
}

func TestListDescribeAndRemoveVolumes(t *testing.T) {
	s := newRecorder(t)
	source, ctx := s.source(), callContext(t)

	s.answer("list-volumes", `{"results": [{"volume-id": "a"}, {"volume-id": "b"}]}`)
	ids, err := source.ListVolumes(ctx)
	if err != nil || !reflect.DeepEqual(ids, []string{"a", "b"}) {
		t.Errorf("listed %q, %v", ids, err)
	}
	s.wantRequest("list-volumes", `{"arguments": []}`)
	s.answer("list-volumes", `{"results": [{"error": {"message": "the array is down"}}]}`)
	if _, err := source.ListVolumes(ctx); err == nil || !strings.HasSuffix(err.Error(), "list-volumes: the array is down") {
		t.Errorf("listing: %v", err)
	}

	s.answer("describe-volumes", `{"results": [{"volume-id": "a", "size-mib": 7}, {"error": {"message": "gone", "code": "not-found"}}]}`)
	described, err := source.DescribeVolumes(ctx, []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&storage.VolumeInfo{VolumeId: "a", Size: 7}); !reflect.DeepEqual(described[0].VolumeInfo, want) || described[0].Error != nil {
		t.Errorf("described %+v", described[0])
	}
	if !errors.Is(described[1].Error, errors.NotFound) || described[1].VolumeInfo != nil {
		t.Errorf("described %+v", described[1])
	}

	for operation, remove := range map[string]func(envcontext.ProviderCallContext, []string) ([]error, error){
		"destroy-volumes": source.DestroyVolumes, "release-volumes": source.ReleaseVolumes,
	} {
		s.answer(operation, `{"results": [{}, {"error": {"message": "gone", "code": "not-found"}}, {"error": {"message": "in use"}}]}`)
		errs, err := remove(ctx, []string{"a", "b", "c"})
		if err != nil || errs[0] != nil || errs[1] != nil || errs[2] == nil {
			t.Errorf("%s: %v, %v", operation, errs, err)
		}
		s.wantRequest(operation, `{"arguments": [{"volume-id": "a"}, {"volume-id": "b"}, {"volume-id": "c"}]}`)
	}
}

// The program is told which of several servers runs it.
// Fault F38.
func TestTerm(t *testing.T) {
	s := newRecorder(t)
	s.answer("detach-volumes", `{"results": [{}]}`)
	ctx := envcontext.New(envcontext.WithTerm(t.Context(), 7))
	if results, err := s.source().DetachVolumes(ctx, []storage.VolumeAttachmentParams{volume0Params}); err != nil || results[0] != nil {
		t.Errorf("got %v, %v", results, err)
	}
	s.wantRequest("detach-volumes", `{"term": 7, "arguments": [{"volume": "volume-0", "volume-id": "a", "machine": "machine-0", "instance-id": "i-0"}]}`)
}

func TestNoArgumentsRunNoProgram(t *testing.T) {
	s := newScript(t, "exit 1")
	source, ctx := s.source(), callContext(t)
	for _, call := range []func() error{
		func() error { _, err := source.CreateVolumes(ctx, nil); return err },
		func() error { _, err := source.AttachVolumes(ctx, nil); return err },
		func() error { _, err := source.DetachVolumes(ctx, nil); return err },
		func() error { _, err := source.DestroyVolumes(ctx, nil); return err },
		func() error { _, err := source.DescribeVolumes(ctx, nil); return err },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorCodes(t *testing.T) {
	s := newRecorder(t)
	for code, want := range map[string]error{
		"in-progress":   storage.ErrInProgress,
		"nothing-made":  storage.ErrNothingMade,
		"refused":       storage.ErrRefused,
		"incomplete":    storage.ErrIncomplete,
		"permanent":     storage.ErrPermanent,
		"ignored":       storage.ErrIgnored,
		"not-valid":     errors.NotValid,
		"not-supported": errors.NotSupported,
		"not-found":     errors.NotFound,
		"":              nil,
	} {
		s.answer("attach-volumes", `{"results": [{"error": {"message": "why\n\u001b[31m not", "code": "`+code+`"}}]}`)
		results, err := s.source().AttachVolumes(callContext(t), []storage.VolumeAttachmentParams{volume0Params})
		if err != nil {
			t.Fatal(err)
		}
		err = results[0].Error
		if err == nil || err.Error() != "why ?[31m not" || want != nil && !errors.Is(err, want) {
			t.Errorf("%q: got %v", code, err)
		}
		if storage.IsPermanent(err) != strings.Contains("permanent not-valid not-supported", code) && code != "" {
			t.Errorf("%q: permanent is %t", code, storage.IsPermanent(err))
		}
	}
	for problem, want := range map[string]string{
		`{"message": "m", "code": "later"}`: `m (the program's code "later" is unknown)`,
		`{}`:                                `the program gives no reason`,
		`{"message": "` + strings.Repeat("x", 2000) + `"}`: strings.Repeat("x", 1024) + "…",
	} {
		s.answer("attach-volumes", `{"results": [{"error": `+problem+`}]}`)
		results, err := s.source().AttachVolumes(callContext(t), []storage.VolumeAttachmentParams{volume0Params})
		if err != nil {
			t.Fatal(err)
		}
		if err := results[0].Error; err == nil || err.Error() != want || storage.IsPermanent(err) {
			t.Errorf("%s: got %v", problem, err)
		}
	}
}

// Finding N15.
func TestInvalidDevicesRefused(t *testing.T) {
	s := newRecorder(t)
	for attachment, want := range map[string]string{
		`{"device-name": "/dev/sdx"}`:       "without /dev/",
		`{"device-link": "disk/by-id/x"}`:   "an absolute, clean path",
		`{"device-link": "/dev/../etc"}`:    "an absolute, clean path",
		`{"bus-address": "a\nb"}`:           "bus-address that is",
		`{"plan": {"attributes": {}}}`:      "without a device-type",
		`{"device-name": "s\u001bd\u0000"}`: "not printable",
		// These were once accepted.
		`{"device-name": "../sdx"}`:                  "without /dev/",
		`{"plan": {"device-type": "i\u001bscsi\n"}}`: "not printable",
	} {
		s.answer("attach-volumes", `{"results": [{"attachment": `+attachment+`}]}`)
		results, err := s.source().AttachVolumes(callContext(t), []storage.VolumeAttachmentParams{volume0Params})
		if err != nil {
			t.Fatal(err)
		}
		if r := results[0]; r.Error == nil || !strings.Contains(r.Error.Error(), want) || r.VolumeAttachment != nil {
			t.Errorf("%s: got %+v, want %s", attachment, r, want)
		}
	}
}

func TestInvalidAnswerFailsWholeCall(t *testing.T) {
	for text, want := range map[string]string{
		`echo 'no \033[31mlicence' >&2; echo left >&2; exit 3`: "destroy-volumes: exit status 3: no ",
		`kill -9 $$`: "signal: killed",
		`true`:       "it wrote nothing",
		`echo done`:  "invalid character",
		`printf '{"results": [{}, {"volume-id": "a\377"}]}'`: "not text in UTF-8",
		`echo '{"results": [{}, {}]} more'`:                  "more than one JSON object",
		`echo '{"results": [{}]}'`:                           "it gave 1 results for 2 arguments",
		`echo '{"results": [{}, {"volume_id": "a"}]}'`:       `unknown field "volume_id"`,
		`echo '{"results": [{}, {"size-mib": -1}]}'`:         "cannot unmarshal number -1",
		`echo '{"results": ['; head -c 68000000 /dev/zero`:   "longer than 64 MiB",
		`echo '{"results": [{}, {"volume-id": "a", "error"'`: "unexpected EOF",
	} {
		s := newScript(t, text)
		_, err := s.source().DestroyVolumes(callContext(t), []string{"a", "b"})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), s.path) {
			t.Errorf("%s: got %v, want %s and the program's path", text, err, want)
			continue
		}
		if storage.IsPermanent(err) || strings.ContainsAny(err.Error(), "\033\n") {
			t.Errorf("%s: got %q", text, err)
		}
	}
}

// Promise S17.
func TestProgramRunsWithCleanEnvironment(t *testing.T) {
	t.Setenv("SECRET", "x")
	s := newScript(t, `test -z "$SECRET" && test "$(pwd)" = / && test "$#" = 1 && echo '{"results": []}'`)
	if _, err := s.source().ListVolumes(callContext(t)); err != nil {
		t.Error(err)
	}
}

func TestCancelKillsProgramAndChildren(t *testing.T) {
	for _, child := range []string{"sleep 1000", "setsid sleep 1000", "setsid sh -c 'sleep 1000; true'"} {
		t.Run(child, func(t *testing.T) { testCancel(t, child) })
	}
}

func testCancel(t *testing.T, child string) {
	s := newScript(t, child+` & echo $! > "$DIR/child.new"; mv "$DIR/child.new" "$DIR/child"; wait`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.source().ListVolumes(envcontext.New(ctx))
		done <- err
	}()
	var pid int
	until(t, func() bool {
		text, err := os.ReadFile(filepath.Join(s.dir, "child"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	until(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH || isZombie(pid) })
}

// isZombie reports whether a process has ended and its parent, which is not this process,
// has not waited for it.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// until polls a condition that has no event.
func until(t *testing.T, reached func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !reached() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("timed out waiting for the condition")
		}
	}
}

// Promise S18.
func TestNewRefusesUntrustedProgram(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	write := func(name string, mode fs.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("good", 0o755)
	inOpen := write("open/program", 0o755)
	if err := os.Chmod(filepath.Dir(inOpen), 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(inOpen, link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, want string }{
		{"disks", good, ""},
		{"disks", "good", "the path is not absolute"},
		{"disks", dir, "it is not a regular file"},
		{"disks", filepath.Join(dir, "none"), "no such file"},
		{"disks", write("data", 0o644), "it is not executable"},
		{"disks", write("group", 0o775), "others than root can write to it"},
		{"disks", write("world", 0o757), "others than root can write to it"},
		{"disks", inOpen, "others than root can write to " + filepath.Dir(inOpen)},
		{"disks", link, "others than root can write to " + filepath.Dir(inOpen)},
		{"", good, "provider name"},
		{"my disks", good, "provider name"},
		{"../disks", good, "provider name"},
	} {
		_, err := program.New(storage.ProviderType(test.name), test.path)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s=%s: got %v, want %q", test.name, test.path, err, test.want)
		}
		if err != nil && !errors.Is(err, errors.NotValid) {
			t.Errorf("%s=%s: %v is not \"not valid\"", test.name, test.path, err)
		}
	}
	if os.Geteuid() == 0 {
		path := write("theirs", 0o755)
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := program.New("disks", path); !errors.Is(err, errors.NotValid) {
			t.Errorf("the file of another user: %v", err)
		}
	}
}

// Promise S18.
func TestProgramCheckedBeforeEachRun(t *testing.T) {
	s := newScript(t, `touch "$DIR/ran"; echo '{"results": []}'`)
	source := s.source()
	if err := os.Chmod(s.path, 0o777); err != nil {
		t.Fatal(err)
	}
	// The owner can fix the mode at any time, so the error is not permanent.
	_, err := source.ListVolumes(callContext(t))
	if err == nil || !strings.Contains(err.Error(), "others than root can write to it") || storage.IsPermanent(err) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "ran")); !os.IsNotExist(err) {
		t.Errorf("the program has run (%v)", err)
	}
}

func TestProviderProperties(t *testing.T) {
	p, err := program.New("disks", newScript(t, "").path)
	if err != nil {
		t.Fatal(err)
	}
	if p.Scope() != storage.ScopeEnviron || !p.Dynamic() || !p.Releasable() ||
		!p.Supports(storage.StorageKindBlock) || p.Supports(storage.StorageKindFilesystem) {
		t.Error("not a provider of volumes in the environment")
	}
	if _, err := p.FilesystemSource(nil); !errors.Is(err, errors.NotSupported) {
		t.Errorf("filesystems: %v", err)
	}
	if err := p.ValidateForK8s(nil); !errors.Is(err, errors.NotValid) {
		t.Errorf("in Kubernetes: %v", err)
	}
	for fs, ok := range map[any]bool{"xfs": true, "fat": false, 7: false} {
		config, err := storage.NewConfig("pool", "disks", storage.Attrs{"fs": fs, "tier": "fast"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.VolumeSource(config)
		if ok && err != nil || !ok && !errors.Is(err, errors.NotValid) {
			t.Errorf("fs %v: %v", fs, err)
		}
	}
}
