package providerfake_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"go.uber.org/goleak"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/providerfake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	machine0    = storage.AttachmentParams{Machine: names.NewMachineTag("0"), InstanceId: instance.Id("instance-0")}
	volume0     = storage.VolumeParams{Tag: names.NewVolumeTag("0"), Size: 1024}
	onMachine0  = storage.VolumeAttachmentParams{AttachmentParams: machine0, Volume: volume0.Tag, VolumeId: "vol-0"}
	filesystem0 = storage.FilesystemParams{Tag: names.NewFilesystemTag("0"), Volume: volume0.Tag, Size: 1000}
	mounted     = storage.FilesystemAttachmentParams{AttachmentParams: machine0, Filesystem: filesystem0.Tag, FilesystemId: "fs-0", Path: "/srv"}
)

func background() envcontext.ProviderCallContext { return envcontext.New(context.Background()) }

func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// only returns the result of a call with one argument.
func only[R any](t *testing.T) func([]R, error) R {
	return func(results []R, err error) R {
		t.Helper()
		if err != nil || len(results) != 1 {
			t.Fatalf("got %v, %v", results, err)
		}
		return results[0]
	}
}

func TestVolumeLifecycle(t *testing.T) {
	p := providerfake.New(providerfake.Options{})
	ctx := background()
	want := storage.Volume{Tag: volume0.Tag, VolumeInfo: storage.VolumeInfo{
		VolumeId: "vol-0", HardwareId: "hw-0", WWN: "wwn-0", Size: 1024, Persistent: true,
	}}
	again := volume0
	again.Size = 9999
	for _, params := range []storage.VolumeParams{volume0, again} {
		created := only[storage.CreateVolumesResult](t)(p.CreateVolumes(ctx, []storage.VolumeParams{params}))
		check(t, "created", *created.Volume, want)
	}
	check(t, "volumes", p.Volumes(), []storage.Volume{want})
	ids, err := p.ListVolumes(ctx)
	check(t, "list", ids, []string{"vol-0"})
	check(t, "list", err, nil)
	described, err := p.DescribeVolumes(ctx, []string{"vol-0", "vol-9"})
	if err != nil || *described[0].VolumeInfo != want.VolumeInfo || !errors.Is(described[1].Error, errors.NotFound) {
		t.Errorf("described: %v, %v", described, err)
	}
	for range 2 {
		attached := only[storage.AttachVolumesResult](t)(p.AttachVolumes(ctx, []storage.VolumeAttachmentParams{onMachine0}))
		check(t, "device", attached.VolumeAttachment.DeviceName, "dev-0")
		check(t, "machine", attached.VolumeAttachment.Machine, names.Tag(machine0.Machine))
	}
	check(t, "attached", p.Attached(), []string{"volume-0 machine-0"})
	for range 2 {
		check(t, "detaching", only[error](t)(p.DetachVolumes(ctx, []storage.VolumeAttachmentParams{onMachine0})), nil)
		check(t, "destroying", only[error](t)(p.DestroyVolumes(ctx, []string{"vol-0"})), nil)
	}
	check(t, "attached", p.Attached(), []string{})
	check(t, "volumes", p.Volumes(), []storage.Volume{})
	check(t, "breaches", p.Breaches(), []string(nil))
	check(t, "deeds", p.About("volume-0"), []string{
		"CreateVolumes", "CreateVolumes", "DestroyVolumes", "DestroyVolumes",
	})
}

func TestFilesystemLifecycle(t *testing.T) {
	p := providerfake.New(providerfake.Options{Prefix: "managed."})
	ctx := background()
	want := storage.Filesystem{
		Tag: filesystem0.Tag, Volume: volume0.Tag,
		FilesystemInfo: storage.FilesystemInfo{FilesystemId: "fs-0", Size: 1000},
	}
	for range 2 {
		created := only[storage.CreateFilesystemsResult](t)(p.CreateFilesystems(ctx, []storage.FilesystemParams{filesystem0}))
		check(t, "created", *created.Filesystem, want)
		attached := only[storage.AttachFilesystemsResult](t)(p.AttachFilesystems(ctx, []storage.FilesystemAttachmentParams{mounted}))
		check(t, "path", attached.FilesystemAttachment.Path, "/srv")
	}
	check(t, "filesystems", p.Filesystems(), []storage.Filesystem{want})
	check(t, "attached", p.Attached(), []string{"filesystem-0 machine-0"})
	for range 2 {
		check(t, "detaching", only[error](t)(p.DetachFilesystems(ctx, []storage.FilesystemAttachmentParams{mounted})), nil)
		check(t, "releasing", only[error](t)(p.ReleaseFilesystems(ctx, []string{"fs-0"})), nil)
		check(t, "destroying", only[error](t)(p.DestroyFilesystems(ctx, []string{"fs-0"})), nil)
	}
	check(t, "filesystems", p.Filesystems(), []storage.Filesystem{})
	check(t, "attachment calls", p.Names("managed.AttachFilesystems", "AttachFilesystems"), []string{"managed.AttachFilesystems", "managed.AttachFilesystems"})
}

func TestScriptedFailures(t *testing.T) {
	p := providerfake.New(providerfake.Options{})
	ctx := background()
	create := func() ([]storage.CreateVolumesResult, error) {
		return p.CreateVolumes(ctx, []storage.VolumeParams{volume0, {Tag: names.NewVolumeTag("1")}})
	}
	p.FailCall("CreateVolumes", errors.New("no connection"))
	if results, err := create(); err == nil || results != nil || len(p.Volumes()) != 0 {
		t.Errorf("whole call: %v, %v, and there are %v", results, err, p.Volumes())
	}
	p.FailItem("CreateVolumes", "volume-0", storage.InProgress(errors.New("cloning")))
	if results, err := create(); err != nil || !errors.Is(results[0].Error, storage.ErrInProgress) || results[1].Volume == nil {
		t.Errorf("item: %v, %v", results, err)
	}
	p.Shorten("CreateVolumes", 1)
	if results, err := create(); err != nil || len(results) != 1 {
		t.Errorf("too few: %v, %v", results, err)
	}
	p.FailItem("ValidateVolumeParams", "volume-0", errors.NotValidf("size"))
	p.FailItem("ValidateFilesystemParams", "filesystem-0", errors.NotValidf("size"))
	for range 2 {
		// The second call succeeds.
		if v, f := p.ValidateVolumeParams(volume0), p.ValidateFilesystemParams(filesystem0); (v == nil) != (f == nil) {
			t.Errorf("validating: %v, %v", v, f)
		}
	}
	for name, call := range map[string]func() error{
		"VolumeSource":     func() error { _, err := p.VolumeSource(nil); return err },
		"FilesystemSource": func() error { _, err := p.FilesystemSource(nil); return err },
		"ListVolumes":      func() error { _, err := p.ListVolumes(ctx); return err },
		"DescribeVolumes":  func() error { _, err := p.DescribeVolumes(ctx, nil); return err },
	} {
		p.FailCall(name, errors.New("no connection"))
		if call() == nil || call() != nil {
			t.Errorf("%s does not fail once", name)
		}
	}
}

func TestHeldCallEndsWithContext(t *testing.T) {
	p := providerfake.New(providerfake.Options{})
	gate := calls.NewGate()
	p.OnCall("AttachVolumes", gate.Wait)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.AttachVolumes(envcontext.New(ctx), []storage.VolumeAttachmentParams{onMachine0})
		done <- err
	}()
	gate.Entered(t)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || len(p.Attached()) != 0 {
		t.Errorf("got %v, attached %v", err, p.Attached())
	}
	check(t, "contexts", len(p.Contexts()), 1)
}

func TestOptions(t *testing.T) {
	plain := providerfake.New(providerfake.Options{})
	odd := providerfake.New(providerfake.Options{
		Scope: storage.ScopeMachine, Static: true, Unreleasable: true,
		Unsupported:             []storage.StorageKind{storage.StorageKindFilesystem},
		MaxConcurrentCalls:      7,
		ShouldCreateVolume:      func(storage.VolumeParams) bool { return false },
		ShouldCreateFilesystem:  func(storage.FilesystemParams) bool { return false },
		ShouldDestroyVolume:     func(string) bool { return false },
		ShouldDestroyFilesystem: func(string) bool { return false },
	})
	describe := func(p *providerfake.Provider) string {
		return fmt.Sprint(p.Scope() == storage.ScopeMachine, p.Dynamic(), p.Releasable(),
			p.Supports(storage.StorageKindBlock), p.Supports(storage.StorageKindFilesystem), p.MaxConcurrentCalls(),
			p.ShouldCreateVolume(volume0), p.ShouldCreateFilesystem(filesystem0), p.ShouldDestroyVolume("vol-0"), p.ShouldDestroyFilesystem("fs-0"),
			p.DefaultPools(), p.ValidateConfig(nil), p.ValidateForK8s(nil))
	}
	check(t, "plain", describe(plain), "false true true true true 0 true true true true [] <nil> <nil>")
	check(t, "odd", describe(odd), "true false false true false 7 false false false false [] <nil> <nil>")
	if _, err := odd.FilesystemSource(nil); !errors.Is(err, errors.NotSupported) {
		t.Errorf("filesystems: %v", err)
	}
	if err := only[error](t)(odd.ReleaseVolumes(background(), []string{"vol-0"})); !errors.Is(err, errors.NotSupported) {
		t.Errorf("releasing: %v", err)
	}
	cfg, err := storage.NewConfig("pool", "pretend", nil)
	if err != nil {
		t.Fatal(err)
	}
	source, err := plain.VolumeSource(cfg)
	if err != nil || source != storage.VolumeSource(plain) {
		t.Errorf("source: %v, %v", source, err)
	}
	check(t, "configs", plain.Configs(), []*storage.Config{cfg})
	registry, err := providerfake.Registry(map[storage.ProviderType]storage.Provider{"pretend": plain})(nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := registry.StorageProvider("pretend"); err != nil || p != storage.Provider(plain) {
		t.Errorf("provider: %v, %v", p, err)
	}
}

func TestAttachOnCreateAndEditedResults(t *testing.T) {
	p := providerfake.New(providerfake.Options{
		AttachOnCreate: true,
		EditCreated:    func(r *storage.CreateVolumesResult) { r.Volume.WWN = "" },
		EditAttached: func(a *storage.VolumeAttachment) {
			a.PlanInfo = &storage.VolumeAttachmentPlanInfo{DeviceType: storage.DeviceTypeISCSI}
		},
	})
	wanted := volume0
	wanted.Attachment = &onMachine0
	r := only[storage.CreateVolumesResult](t)(p.CreateVolumes(background(), []storage.VolumeParams{wanted}))
	check(t, "WWN", r.Volume.WWN, "")
	check(t, "plan", r.VolumeAttachment.PlanInfo.DeviceType, storage.DeviceTypeISCSI)
	check(t, "attached", p.Attached(), []string{"volume-0 machine-0"})
	if err := only[error](t)(p.DestroyVolumes(background(), []string{"vol-0"})); err == nil || err.Error() != `"vol-0" is attached: volume-0 machine-0` {
		t.Errorf("destroying: %v", err)
	}
	check(t, "breaches", p.Breaches(), []string{"DestroyVolumes of volume-0, which is attached"})
}

// state is a state that has recorded volume 0, which backs filesystem 0.
type state struct{}

func (state) Recorded(tag string) bool { return tag == "volume-0" }
func (state) Backing(tag string) string {
	if tag == "filesystem-0" {
		return "volume-0"
	}
	return ""
}

func TestRuleBreaches(t *testing.T) {
	ctx := background()
	create := func(p *providerfake.Provider) { p.CreateVolumes(ctx, []storage.VolumeParams{volume0}) }
	attach := func(p *providerfake.Provider) { p.AttachVolumes(ctx, []storage.VolumeAttachmentParams{onMachine0}) }
	detach := func(p *providerfake.Provider) { p.DetachVolumes(ctx, []storage.VolumeAttachmentParams{onMachine0}) }
	destroy := func(p *providerfake.Provider) { p.DestroyVolumes(ctx, []string{"vol-0"}) }
	mount := func(p *providerfake.Provider) {
		p.AttachFilesystems(ctx, []storage.FilesystemAttachmentParams{mounted})
	}
	unmount := func(p *providerfake.Provider) {
		p.DetachFilesystems(ctx, []storage.FilesystemAttachmentParams{mounted})
	}
	grow := func(p *providerfake.Provider) {
		p.ResizeFilesystems(ctx, []storage.FilesystemResizeParams{{Tag: filesystem0.Tag, FilesystemId: "fs-0", Size: 2000}})
	}
	failing := func(name, subject string, err error) func(*providerfake.Provider) {
		return func(p *providerfake.Provider) { p.FailItem(name, subject, err) }
	}
	type step = func(*providerfake.Provider)
	for _, test := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"creation of a recorded volume", []step{create}, []string{"CreateVolumes of volume-0, which is recorded"}},
		{"destruction of an attached volume", []step{attach, destroy}, []string{"DestroyVolumes of volume-0, which is attached"}},
		{"destruction after detachment", []step{attach, detach, destroy}, nil},
		{"detachment failed", []step{attach, failing("DetachVolumes", "volume-0 machine-0", errors.New("busy")), detach, destroy},
			[]string{"DestroyVolumes of volume-0, which is attached"}},
		{"attachment failed, perhaps", []step{failing("AttachVolumes", "volume-0 machine-0", errors.New("lost")), attach, destroy},
			[]string{"DestroyVolumes of volume-0, which is attached"}},
		{"attachment failed for good", []step{failing("AttachVolumes", "volume-0 machine-0", errors.NotValidf("size")), attach, destroy}, nil},
		{"detachment under a mount", []step{attach, mount, detach}, []string{"DetachVolumes of volume-0 machine-0, which backs volume-0 filesystem-0 machine-0"}},
		{"growth of an unattached filesystem", []step{mount, unmount, grow}, []string{"ResizeFilesystems of filesystem-0, which is not attached"}},
		{"growth of an attached filesystem", []step{mount, grow, unmount}, nil},
		{"detachment after unmounting", []step{attach, mount, unmount, detach, destroy}, nil},
	} {
		p := providerfake.New(providerfake.Options{Rules: providerfake.NewRules(state{})})
		for _, step := range test.steps {
			step(p)
		}
		if got := p.Breaches(); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestConcurrentOperationsBreakRules(t *testing.T) {
	rules := providerfake.NewRules(nil)
	one, other := providerfake.New(providerfake.Options{Rules: rules}), providerfake.New(providerfake.Options{Rules: rules})
	gate := calls.NewGate()
	one.OnCall("CreateVolumes", gate.Wait)
	done := make(chan struct{})
	go func() {
		defer close(done)
		one.CreateVolumes(background(), []storage.VolumeParams{volume0})
	}()
	gate.Entered(t)
	other.DestroyVolumes(background(), []string{"vol-0"})
	other.DestroyVolumes(background(), []string{"foreign"})
	gate.Open()
	<-done
	check(t, "breaches", rules.Breaches(), []string{"DestroyVolumes of volume-0 during CreateVolumes"})
}

func TestDetachDuringResizeBreaksRules(t *testing.T) {
	p := providerfake.New(providerfake.Options{})
	gate := calls.NewGate()
	p.OnCall("ResizeFilesystems", gate.Wait)
	p.AttachFilesystems(background(), []storage.FilesystemAttachmentParams{mounted})
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ResizeFilesystems(background(), []storage.FilesystemResizeParams{{Tag: filesystem0.Tag, FilesystemId: "fs-0", Size: 2000}})
	}()
	gate.Entered(t)
	p.DetachFilesystems(background(), []storage.FilesystemAttachmentParams{mounted})
	gate.Open()
	<-done
	check(t, "breaches", p.Breaches(), []string{"DetachFilesystems of filesystem-0 machine-0, which grows"})
}

func TestResize(t *testing.T) {
	p := providerfake.New(providerfake.Options{})
	ctx := background()
	p.CreateVolumes(ctx, []storage.VolumeParams{volume0})
	p.CreateFilesystems(ctx, []storage.FilesystemParams{filesystem0})
	p.AttachFilesystems(ctx, []storage.FilesystemAttachmentParams{mounted})
	for _, test := range []struct{ asked, size uint64 }{{2048, 2048}, {512, 2048}} {
		volume := only[storage.ResizeVolumesResult](t)(p.ResizeVolumes(ctx, []storage.VolumeResizeParams{{Tag: volume0.Tag, VolumeId: "vol-0", Size: test.asked}}))
		check(t, "volume", volume, storage.ResizeVolumesResult{VolumeInfo: &storage.VolumeInfo{
			VolumeId: "vol-0", HardwareId: "hw-0", WWN: "wwn-0", Size: test.size, Persistent: true,
		}})
		filesystem := only[storage.ResizeFilesystemsResult](t)(p.ResizeFilesystems(ctx, []storage.FilesystemResizeParams{{Tag: filesystem0.Tag, FilesystemId: "fs-0", Size: test.asked}}))
		check(t, "filesystem", filesystem, storage.ResizeFilesystemsResult{FilesystemInfo: &storage.FilesystemInfo{FilesystemId: "fs-0", Size: test.size}})
	}
	check(t, "volumes", p.Volumes()[0].Size, uint64(2048))
	check(t, "filesystems", p.Filesystems()[0].Size, uint64(2048))

	foreign := only[storage.ResizeVolumesResult](t)(p.ResizeVolumes(ctx, []storage.VolumeResizeParams{{Tag: names.NewVolumeTag("7"), VolumeId: "older", Size: 7}}))
	check(t, "volume of unknown origin", foreign, storage.ResizeVolumesResult{VolumeInfo: &storage.VolumeInfo{VolumeId: "older", Size: 7}})
	p.FailItem("ResizeVolumes", "volume-0", errors.New("busy"))
	if r := only[storage.ResizeVolumesResult](t)(p.ResizeVolumes(ctx, []storage.VolumeResizeParams{{Tag: volume0.Tag, VolumeId: "vol-0", Size: 4096}})); r.Error == nil {
		t.Error("the scripted failure is missing")
	}
	p.FailItem("ResizeFilesystems", "filesystem-0", errors.New("busy"))
	if r := only[storage.ResizeFilesystemsResult](t)(p.ResizeFilesystems(ctx, []storage.FilesystemResizeParams{{Tag: filesystem0.Tag, FilesystemId: "fs-0", Size: 4096}})); r.Error == nil {
		t.Error("the scripted failure is missing")
	}
	if r := only[storage.ResizeVolumesResult](t)(p.ResizeVolumes(ctx, []storage.VolumeResizeParams{{Tag: volume0.Tag, VolumeId: "vol-0", Size: 1 << 50}})); r.Error == nil {
		t.Error("a resize beyond the capacity succeeds")
	}
	p.DestroyVolumes(ctx, []string{"vol-0"})
	if r := only[storage.ResizeVolumesResult](t)(p.ResizeVolumes(ctx, []storage.VolumeResizeParams{{Tag: volume0.Tag, VolumeId: "vol-0", Size: 4096}})); !errors.Is(r.Error, errors.NotFound) {
		t.Errorf("destroyed: %v", r.Error)
	}
}

func TestFixedSizeSourcesAreNoResizers(t *testing.T) {
	cfg, err := storage.NewConfig("pool", "pretend", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, fixed := range []bool{false, true} {
		p := providerfake.New(providerfake.Options{FixedSize: fixed, Remark: func(id string) string { return "about " + id }})
		volumes, err := p.VolumeSource(cfg)
		if err != nil {
			t.Fatal(err)
		}
		filesystems, err := p.FilesystemSource(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, volume := volumes.(storage.VolumeResizer)
		_, filesystem := filesystems.(storage.FilesystemResizer)
		if volume == fixed || filesystem == fixed {
			t.Errorf("fixed %v: volumes grow %v, filesystems %v", fixed, volume, filesystem)
		}
		check(t, "remark", p.FilesystemRemark("fs-0"), "about fs-0")
		check(t, "remark", p.VolumeRemark("vol-0"), "about vol-0")
	}
}

// A creation is in progress at first, and then the source fails once.
func Example() {
	provider := providerfake.New(providerfake.Options{})
	provider.FailItem("CreateVolumes", "volume-0", storage.InProgress(errors.New("cloning")))
	provider.FailCall("CreateVolumes", nil, errors.New("no connection"))

	for range 3 {
		ctx := envcontext.New(context.Background())
		results, err := provider.CreateVolumes(ctx, []storage.VolumeParams{{Tag: names.NewVolumeTag("0"), Size: 1024}})
		switch {
		case err != nil:
			fmt.Println("call:", err)
		case results[0].Error != nil:
			fmt.Println("volume:", results[0].Error, errors.Is(results[0].Error, storage.ErrInProgress))
		default:
			fmt.Println("volume:", results[0].Volume.VolumeId)
		}
	}
	fmt.Println("calls:", provider.Names())
	// Output:
	// volume: cloning true
	// call: no connection
	// volume: vol-0
	// calls: [CreateVolumes CreateVolumes CreateVolumes]
}

func TestEditedFilesystems(t *testing.T) {
	p := providerfake.New(providerfake.Options{
		EditCreatedFilesystem: func(r *storage.CreateFilesystemsResult) { r.Filesystem.FilesystemId = "" },
		EditMounted:           func(a *storage.FilesystemAttachment) { a.Path = "/elsewhere" },
	})
	created := only[storage.CreateFilesystemsResult](t)(p.CreateFilesystems(background(), []storage.FilesystemParams{filesystem0}))
	check(t, "id", created.Filesystem.FilesystemId, "")
	attached := only[storage.AttachFilesystemsResult](t)(p.AttachFilesystems(background(), []storage.FilesystemAttachmentParams{mounted}))
	check(t, "path", attached.FilesystemAttachment.Path, "/elsewhere")
}

// A call that the script ends with a panic no longer counts as running, whether it is an
// operation or a query.
func TestPanickingCallEnds(t *testing.T) {
	p := providerfake.New(providerfake.Options{})
	source := func() { p.CreateVolumes(background(), []storage.VolumeParams{volume0}) }
	calls := map[string]func(){
		"CreateVolumes":            source,
		"Scope":                    func() { p.Scope() },
		"Dynamic":                  func() { p.Dynamic() },
		"MaxConcurrentCalls":       func() { p.MaxConcurrentCalls() },
		"FilesystemRemark":         func() { p.FilesystemRemark("fs-0") },
		"VolumeFile":               func() { p.VolumeFile("vol-0") },
		"VolumeRemark":             func() { p.VolumeRemark("vol-0") },
		"IsNewVolume":              func() { p.IsNewVolume("vol-0") },
		"ShouldCreateVolume":       func() { p.ShouldCreateVolume(volume0) },
		"ShouldCreateFilesystem":   func() { p.ShouldCreateFilesystem(filesystem0) },
		"ShouldDestroyVolume":      func() { p.ShouldDestroyVolume("vol-0") },
		"ShouldDestroyFilesystem":  func() { p.ShouldDestroyFilesystem("fs-0") },
		"ValidateVolumeParams":     func() { _ = p.ValidateVolumeParams(volume0) },
		"ValidateFilesystemParams": func() { _ = p.ValidateFilesystemParams(filesystem0) },
	}
	for name, call := range calls {
		func() {
			defer func() { check(t, name, recover(), any(name+" is out of order")) }()
			p.OnCall(name, func(context.Context) error { panic(name + " is out of order") })
			call()
		}()
		p.OnCall(name, nil)
		call()
	}
	check(t, "breaches", p.Breaches(), []string(nil))
}
