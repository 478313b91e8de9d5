package world

import (
	"context"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

var (
	ctx        = envcontext.New(context.Background())
	volume0    = names.NewVolumeTag("0")
	attachment = params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: "volume-0"}
	creation   = storage.VolumeParams{Tag: volume0, Size: size}
	recording  = params.Volume{VolumeTag: "volume-0", Info: params.VolumeInfo{VolumeId: "volume-0", Size: size}}
)

// attaching returns the parameters that attach volume 0.
func attaching(id, instance string) storage.VolumeAttachmentParams {
	p := storage.VolumeAttachmentParams{Volume: volume0, VolumeId: id}
	p.Machine, p.InstanceId = names.NewMachineTag("0"), "machine-0"
	if instance == "" {
		p.InstanceId = ""
	}
	return p
}

// operations are the worker's operations on a world with one volume. Their results are
// ignored.
type operations struct {
	*accessors
	volumeSource
}

func (h operations) create()  { _, _ = h.CreateVolumes(ctx, []storage.VolumeParams{creation}) }
func (h operations) destroy() { _, _ = h.DestroyVolumes(ctx, []string{"volume-0"}) }
func (h operations) record()  { _, _ = h.SetVolumeInfo([]params.Volume{recording}) }
func (h operations) removeAttachment() {
	_, _ = h.RemoveAttachments([]params.MachineStorageId{attachment})
}
func (h operations) remove() { _, _ = h.Remove([]names.Tag{volume0}) }
func (h operations) recordAttachment() {
	_, _ = h.SetVolumeAttachmentInfo([]params.VolumeAttachment{{VolumeTag: "volume-0", MachineTag: "machine-0"}})
}
func (h operations) watchMachine() { _, _ = h.WatchMachine(names.NewMachineTag("0")) }
func (h operations) attach(p ...string) {
	_, _ = h.AttachVolumes(ctx, []storage.VolumeAttachmentParams{attaching(p[0], p[1])})
}
func (h operations) detach() {
	_, _ = h.DetachVolumes(ctx, []storage.VolumeAttachmentParams{attaching("volume-0", "machine-0")})
}

func newOperations(options Options) operations {
	w := New(options)
	w.Volumes.Appear()
	return operations{&accessors{w}, volumeSource{source: w.Volumes.sources[0]}}
}

func TestMisuseBreaksTheWorld(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(operations)
		want string
	}{
		{"second creation", func(h operations) { h.create(); h.create() }, "volume-0 is created a second time"},
		{"attaching nothing", func(h operations) { h.attach("volume-0", "i") }, "volume-0 is attached before it is made"},
		{"attaching by another id", func(h operations) { h.create(); h.attach("x", "i") }, `volume-0 is attached by the id "x"`},
		{"attaching to no instance", func(h operations) { h.create(); h.attach("volume-0", "") },
			"volume-0 is attached to a machine without an instance"},
		{"destroying an attached volume", func(h operations) { h.create(); h.attach("volume-0", "i"); h.destroy() },
			"volume-0 is destroyed while it is attached"},
		{"destroying nothing", func(h operations) { h.destroy() }, "volume-0 is destroyed but does not exist"},
		{"calls of a source at once", func(h operations) { h.source.calls.enter(); h.create() }, "two calls of the source of volumes at once"},
		{"calls of accessors at once", func(h operations) { h.World.accessors.enter(); h.record() }, "two calls of the accessors at once"},
		{"recording another id", func(h operations) {
			_, _ = h.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0"}})
		}, `volume-0 is recorded with the id "" and 0 MiB`},
		{"recording an attachment of nothing", func(h operations) { h.recordAttachment() },
			"the attachment of volume-0 is recorded before the storage"},
		{"removing an attachment that is alive", func(h operations) { h.removeAttachment() },
			"the attachment of volume-0 is removed while it is alive"},
		{"removing an attachment that is attached", func(h operations) {
			h.create()
			h.attach("volume-0", "i")
			h.World.Volumes.Detach()
			h.removeAttachment()
		}, "the attachment of volume-0 is removed while it is attached"},
		{"removing an alive volume", func(h operations) { h.remove() }, "volume-0 is removed while it is alive"},
		{"removing an existing volume", func(h operations) { h.create(); h.World.Volumes.Die(); h.remove() },
			"volume-0 is removed while its provider has it"},
		{"watching a machine twice", func(h operations) { h.watchMachine(); h.watchMachine() }, "machine-0 is watched a second time"},
		{"attaching to another machine", func(h operations) {
			_, _ = h.AttachmentLife([]params.MachineStorageId{{MachineTag: "machine-7", AttachmentTag: "volume-0"}})
		}, `volume-0 is not attached to "machine-7"`},
		{"life of an unknown volume", func(h operations) { _, _ = h.Life([]names.Tag{names.NewVolumeTag("1")}) },
			`"volume-1" is not the tag of a volume`},
		{"creating an unknown volume", func(h operations) {
			_, _ = h.CreateVolumes(ctx, []storage.VolumeParams{{Tag: names.NewVolumeTag("1")}})
		}, `"volume-1" is not the tag of a volume`},
		{"attaching an unknown volume", func(h operations) {
			_, _ = h.AttachVolumes(ctx, []storage.VolumeAttachmentParams{{Volume: names.NewVolumeTag("1")}})
		}, `"volume-1" is not the tag of a volume`},
		{"destroying an unknown volume", func(h operations) { _, _ = h.DestroyVolumes(ctx, []string{"x"}) },
			`"x" is not the tag of a volume`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newOperations(Options{Volumes: 1, Machines: 1})
			test.do(h)
			select {
			case <-h.Broken():
			default:
				t.Fatal("the world is not broken")
			}
			if got := h.Err().Error(); got != test.want {
				t.Errorf("the world is broken by %q, want %q", got, test.want)
			}
			if _, err := h.VolumeSizes(nil); err == nil {
				t.Error("the next accessor call does not fail")
			}
		})
	}
}

func TestVolumeLifecycle(t *testing.T) {
	h := newOperations(Options{Volumes: 1, Machines: 1})
	volumes := h.World.Volumes
	wantLife := func(want, wantAttachment life.Value) {
		t.Helper()
		lives, err := h.Life([]names.Tag{volume0})
		if err != nil || lives[0].Life != want {
			t.Errorf("life is %+v, %v; want %q", lives, err, want)
		}
		lives, err = h.AttachmentLife([]params.MachineStorageId{attachment})
		if err != nil || lives[0].Life != wantAttachment {
			t.Errorf("life of the attachment is %+v, %v; want %q", lives, err, wantAttachment)
		}
	}
	wantCode := func(want, wantAttachment string) {
		t.Helper()
		infos, err := h.Volumes([]names.VolumeTag{volume0})
		if err != nil || params.ErrCode(asError(infos[0].Error)) != want {
			t.Errorf("info is %+v, %v; want code %q", infos, err, want)
		}
		attachments, err := h.VolumeAttachments([]params.MachineStorageId{attachment})
		if err != nil || params.ErrCode(asError(attachments[0].Error)) != wantAttachment {
			t.Errorf("info of the attachment is %+v, %v; want code %q", attachments, err, wantAttachment)
		}
	}

	wantLife(life.Alive, life.Alive)
	wantCode(params.CodeNotProvisioned, params.CodeNotProvisioned)
	h.create()
	h.record()
	wantCode("", params.CodeNotProvisioned)
	h.attach("volume-0", "i")
	h.recordAttachment()
	wantCode("", "")
	wantReached(t, volumes.Attached.Reach(1), true)

	volumes.Detach()
	wantLife(life.Alive, life.Dying)
	h.detach()
	wantReached(t, volumes.Detached.Reach(1), false)
	detached := volumes.Detached.Reach(1)
	h.removeAttachment()
	wantReached(t, detached, true)
	wantCode("", params.CodeNotFound)

	volumes.Die()
	wantLife(life.Dead, "")
	h.destroy()
	h.remove()
	wantReached(t, volumes.Removed.Reach(1), true)
	wantCode(params.CodeNotFound, params.CodeNotFound)
	if err := h.Err(); err != nil {
		t.Errorf("the world is broken: %v", err)
	}
	if calls := h.ProviderCalls(); calls != 4 {
		t.Errorf("there have been %d provider calls, want 4", calls)
	}
}

func asError(err *params.Error) error {
	if err == nil {
		return nil
	}
	return err
}

func wantReached(t *testing.T, reached <-chan struct{}, want bool) {
	t.Helper()
	select {
	case <-reached:
		if !want {
			t.Error("the channel is closed already")
		}
	default:
		if want {
			t.Error("the channel is not closed")
		}
	}
}

func TestUnannouncedEntitiesAreNotFound(t *testing.T) {
	w := New(Options{Volumes: 1, Filesystems: 1, Machines: 1})
	a := &accessors{w}
	filesystem := names.NewFilesystemTag("0")
	mounted := params.MachineStorageId{MachineTag: "machine-0", AttachmentTag: "filesystem-0"}
	for what, err := range map[string]*params.Error{
		"volume":                         first(a.Volumes([]names.VolumeTag{volume0})).Error,
		"size of a volume":               first(a.VolumeSizes([]names.VolumeTag{volume0})).Error,
		"volume's parameters":            first(a.VolumeParams([]names.VolumeTag{volume0})).Error,
		"volume's removal":               first(a.RemoveVolumeParams([]names.VolumeTag{volume0})).Error,
		"volume attachment's parameters": first(a.VolumeAttachmentParams([]params.MachineStorageId{attachment})).Error,
		"block device":                   first(a.VolumeBlockDevices([]params.MachineStorageId{attachment})).Error,
		"recording a volume":             first(a.SetVolumeInfo([]params.Volume{recording})).Error,
		"removing a volume":              first(a.Remove([]names.Tag{volume0})).Error,
		"removing an attachment":         first(a.RemoveAttachments([]params.MachineStorageId{attachment})).Error,
		"recording an attachment": first(a.SetVolumeAttachmentInfo([]params.VolumeAttachment{{
			VolumeTag: "volume-0", MachineTag: "machine-0",
		}})).Error,
		"filesystem":                         first(a.Filesystems([]names.FilesystemTag{filesystem})).Error,
		"size of a filesystem":               first(a.FilesystemSizes([]names.FilesystemTag{filesystem})).Error,
		"filesystem's parameters":            first(a.FilesystemParams([]names.FilesystemTag{filesystem})).Error,
		"filesystem's removal":               first(a.RemoveFilesystemParams([]names.FilesystemTag{filesystem})).Error,
		"filesystem attachment":              first(a.FilesystemAttachments([]params.MachineStorageId{mounted})).Error,
		"filesystem attachment's parameters": first(a.FilesystemAttachmentParams([]params.MachineStorageId{mounted})).Error,
		"instance of a machine":              first(a.InstanceIds([]names.MachineTag{names.NewMachineTag("1")})).Error,
	} {
		if !params.IsCodeNotFound(asError(err)) {
			t.Errorf("%s: got %v, want not found", what, err)
		}
	}
	if _, err := a.WatchMachine(names.NewMachineTag("1")); !params.IsCodeNotFound(err) {
		t.Errorf("watching a machine: got %v, want not found", err)
	}
	if err := w.Err(); err != nil {
		t.Errorf("the world is broken: %v", err)
	}
}

func first[R any](results []R, _ error) R { return results[0] }

func TestProvisionMachine(t *testing.T) {
	w := New(Options{Volumes: 1, Machines: 1, Unprovisioned: true})
	w.Volumes.Appear()
	a := &accessors{w}
	tags := []names.MachineTag{names.NewMachineTag("0")}
	if got := first(a.InstanceIds(tags)); !params.IsCodeNotProvisioned(asError(got.Error)) {
		t.Errorf("got %+v before", got)
	}
	wantReached(t, w.MachinesWatched(), false)
	watch, err := a.WatchMachine(tags[0])
	if err != nil {
		t.Fatal(err)
	}
	<-watch.Changes() // its first event
	wantReached(t, w.MachinesWatched(), true)
	w.ProvisionMachine(0)
	<-watch.Changes()
	if got := first(a.InstanceIds(tags)); got.Error != nil || got.Result == "" {
		t.Errorf("got %+v afterwards", got)
	}
	if got := first(a.VolumeParams([]names.VolumeTag{volume0})); got.Result.Attachment.InstanceId == "" {
		t.Errorf("got %+v afterwards", got)
	}
}

func TestShowDevice(t *testing.T) {
	w := New(Options{Volumes: 2, Filesystems: 2, Backed: true, Machines: 1})
	w.Volumes.Appear()
	a := &accessors{w}
	<-a.blockDevices.Changes() // its first event
	for shown := range 3 {
		devices, err := a.VolumeBlockDevices(w.Volumes.AttachmentIDs())
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range devices {
			if known := d.Error == nil; known != (i < shown) {
				t.Errorf("with %d shown, %d is %+v", shown, i, d)
			}
		}
		w.ShowDevice()
		<-a.blockDevices.Changes()
	}
}

func TestFlakyFailsOneInTenOnce(t *testing.T) {
	w := New(Options{Volumes: 20, Machines: 1, Flaky: true})
	s := w.VolumeSource()
	failures := func() (failed int) {
		for i := range 20 {
			tag := names.NewVolumeTag(w.Volumes.IDs()[i])
			results, err := s.CreateVolumes(ctx, []storage.VolumeParams{{Tag: tag, Size: size}})
			if err != nil {
				t.Fatal(err)
			}
			if results[0].Error != nil {
				failed++
				continue
			}
			w.Volumes.made[i].made = false
		}
		return failed
	}
	if got := failures(); got != 2 {
		t.Errorf("%d of 20 fail first, want 2", got)
	}
	if got := failures(); got != 0 {
		t.Errorf("%d of 20 fail then, want none", got)
	}
}
