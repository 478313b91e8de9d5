package accessortest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
)

// bench is what the check of a rule works with.
type bench struct {
	testing.TB
	Subject
	patience time.Duration
}

// missing is the number of entities that do not exist.
const missing = "4294967294"

// missingID is the ID of a volume or filesystem of the same scope as the volume.
func (b *bench) missingID() string {
	if machine, _, ok := strings.Cut(b.Volume.Id(), "/"); ok {
		return machine + "/" + missing
	}
	return missing
}

func (b *bench) missingVolume() names.VolumeTag { return names.NewVolumeTag(b.missingID()) }

func (b *bench) missingFilesystem() names.FilesystemTag {
	return names.NewFilesystemTag(b.missingID())
}

func attachment(machine names.MachineTag, tag names.Tag) params.MachineStorageId {
	return params.MachineStorageId{MachineTag: machine.String(), AttachmentTag: tag.String()}
}

func (b *bench) attachment() params.MachineStorageId { return attachment(b.Machine, b.Volume) }

// made is the info with which the suite records the volume, attached that of its attachment.
func (b *bench) made(id string) params.Volume {
	return params.Volume{VolumeTag: b.Volume.String(), Info: params.VolumeInfo{VolumeId: id, Size: 1 << 20, HardwareId: "hardware", Persistent: true}}
}

func (b *bench) attached(device string) params.VolumeAttachment {
	return params.VolumeAttachment{
		VolumeTag: b.Volume.String(), MachineTag: b.Machine.String(), Info: params.VolumeAttachmentInfo{DeviceName: device},
	}
}

// results makes a bulk call, and returns its results and the codes of their errors.
func results[A, R any](b *bench, what string, call func([]A) ([]R, error), errorOf func(R) *params.Error, args ...A) ([]R, []string) {
	b.Helper()
	all, err := call(args)
	if err != nil {
		b.Fatalf("%s: the whole call fails: %v", what, err)
	}
	if len(all) != len(args) {
		b.Fatalf("%s: %d results for %d arguments", what, len(all), len(args))
	}
	codes := make([]string, len(all))
	for i, r := range all {
		if e := errorOf(r); e != nil {
			codes[i] = e.Code
			if e.Code == "" {
				codes[i] = e.Message
			}
		}
	}
	return all, codes
}

// write makes a bulk call that writes, and returns the codes of its errors.
func write[A any](b *bench, what string, call func([]A) ([]params.ErrorResult, error), args ...A) []string {
	b.Helper()
	_, codes := results(b, what, func(args []A) ([]params.ErrorResult, error) {
		all, err := call(args)
		if all == nil && err == nil {
			all = make([]params.ErrorResult, len(args))
		}
		return all, err
	}, func(r params.ErrorResult) *params.Error { return r.Error }, args...)
	return codes
}

func (b *bench) expect(what string, codes []string, want ...string) {
	b.Helper()
	if !slices.Equal(codes, want) {
		b.Errorf("%s: the codes are %q, want %q", what, codes, want)
	}
}

func (b *bench) record() {
	b.Helper()
	b.expect("SetVolumeInfo", write(b, "SetVolumeInfo", b.Accessors.SetVolumeInfo, b.made("id")), "")
	b.expect("SetVolumeAttachmentInfo", write(b, "SetVolumeAttachmentInfo", b.Accessors.SetVolumeAttachmentInfo, b.attached("sdx")), "")
}

func volumeError(r params.VolumeResult) *params.Error               { return r.Error }
func attachmentError(r params.VolumeAttachmentResult) *params.Error { return r.Error }
func lifeError(r params.LifeResult) *params.Error                   { return r.Error }

func (b *bench) life() (life.Value, string) {
	b.Helper()
	all, codes := results(b, "Life", b.Accessors.Life, lifeError, names.Tag(b.Volume))
	return all[0].Life, codes[0]
}

func (b *bench) attachmentLife() (life.Value, string) {
	b.Helper()
	all, codes := results(b, "AttachmentLife", b.Accessors.AttachmentLife, lifeError, b.attachment())
	return all[0].Life, codes[0]
}

func checkResults(b *bench) {
	const notFound = params.CodeNotFound
	lives, codes := results(b, "Life", b.Accessors.Life, lifeError, names.Tag(b.missingVolume()), names.Tag(b.Volume), names.Tag(b.missingFilesystem()))
	b.expect("Life", codes, notFound, "", notFound)
	if lives[1].Life != life.Alive {
		b.Errorf("Life: a wanted volume is %q", lives[1].Life)
	}
	none := attachment(b.Machine, b.missingVolume())
	ids := []params.MachineStorageId{none, b.attachment(), none}
	_, codes = results(b, "AttachmentLife", b.Accessors.AttachmentLife, lifeError, ids...)
	b.expect("AttachmentLife", codes, notFound, "", notFound)
	wanted, codes := results(b, "VolumeParams", b.Accessors.VolumeParams,
		func(r params.VolumeParamsResult) *params.Error { return r.Error }, b.missingVolume(), b.Volume)
	b.expect("VolumeParams", codes, notFound, "")
	if got := wanted[1].Result.VolumeTag; got != b.Volume.String() {
		b.Errorf("VolumeParams: the result for %s is that of %q", b.Volume, got)
	}
	_, codes = results(b, "VolumeAttachmentParams", b.Accessors.VolumeAttachmentParams,
		func(r params.VolumeAttachmentParamsResult) *params.Error { return r.Error }, ids...)
	b.expect("VolumeAttachmentParams", codes, notFound, "", notFound)
	_, codes = results(b, "Volumes", b.Accessors.Volumes, volumeError, b.missingVolume())
	b.expect("Volumes", codes, notFound)
	_, codes = results(b, "VolumeAttachments", b.Accessors.VolumeAttachments, attachmentError, ids[0])
	b.expect("VolumeAttachments", codes, notFound)
	_, codes = results(b, "Filesystems", b.Accessors.Filesystems,
		func(r params.FilesystemResult) *params.Error { return r.Error }, b.missingFilesystem())
	b.expect("Filesystems", codes, notFound)
	_, codes = results(b, "InstanceIds", b.Accessors.InstanceIds,
		func(r params.StringResult) *params.Error { return r.Error }, names.NewMachineTag(missing), b.Machine)
	// A machine may not read about another one.
	if codes[0] != params.CodeUnauthorized {
		b.expect("InstanceIds", codes, notFound, "")
	}
}

func checkUnmade(b *bench) {
	_, codes := results(b, "Volumes", b.Accessors.Volumes, volumeError, b.Volume)
	b.expect("Volumes", codes, params.CodeNotProvisioned)
	_, codes = results(b, "VolumeAttachments", b.Accessors.VolumeAttachments, attachmentError, b.attachment())
	b.expect("VolumeAttachments", codes, params.CodeNotProvisioned)
}

func checkParams(b *bench) {
	read := func() (params.VolumeParams, params.VolumeAttachmentParams) {
		v, codes := results(b, "VolumeParams", b.Accessors.VolumeParams,
			func(r params.VolumeParamsResult) *params.Error { return r.Error }, b.Volume)
		b.expect("VolumeParams", codes, "")
		a, codes := results(b, "VolumeAttachmentParams", b.Accessors.VolumeAttachmentParams,
			func(r params.VolumeAttachmentParamsResult) *params.Error { return r.Error }, b.attachment())
		b.expect("VolumeAttachmentParams", codes, "")
		return v[0].Result, a[0].Result
	}
	v, a := read()
	if v.Provider == "" || v.Size == 0 {
		b.Errorf("VolumeParams lacks the provider or the size: %+v", v)
	}
	if a.VolumeTag != b.Volume.String() || a.MachineTag != b.Machine.String() || a.Provider != v.Provider || a.InstanceId == "" || a.VolumeId != "" {
		b.Errorf("VolumeAttachmentParams before the volume is made: %+v", a)
	}
	b.record()
	if _, a := read(); a.VolumeId != "id" {
		b.Errorf("VolumeAttachmentParams has the volume's ID %q, want that recorded", a.VolumeId)
	}
}

func checkWrites(b *bench) {
	b.record()
	again := b.made("id")
	again.Info.Size *= 2
	b.expect("SetVolumeInfo", write(b, "SetVolumeInfo", b.Accessors.SetVolumeInfo, again), "")
	b.expect("SetVolumeAttachmentInfo", write(b, "SetVolumeAttachmentInfo", b.Accessors.SetVolumeAttachmentInfo, b.attached("sdy")), "")
	v, codes := results(b, "Volumes", b.Accessors.Volumes, volumeError, b.Volume)
	b.expect("Volumes", codes, "")
	if got := v[0].Result; got.VolumeTag != b.Volume.String() || got.Info.VolumeId != "id" || got.Info.Size != again.Info.Size || got.Info.HardwareId != "hardware" {
		b.Errorf("Volumes: got %+v, want %+v", got, again)
	}
	a, codes := results(b, "VolumeAttachments", b.Accessors.VolumeAttachments, attachmentError, b.attachment())
	b.expect("VolumeAttachments", codes, "")
	if got := a[0].Result; got != b.attached("sdy") {
		b.Errorf("VolumeAttachments: got %+v, want %+v", got, b.attached("sdy"))
	}
}

func checkWritesFailOneByOne(b *bench) {
	other := b.made("other")
	other.VolumeTag = b.missingVolume().String()
	b.expect("SetVolumeInfo", write(b, "SetVolumeInfo", b.Accessors.SetVolumeInfo, other, b.made("id")), params.CodeNotFound, "")
	_, codes := results(b, "Volumes", b.Accessors.Volumes, volumeError, b.Volume)
	b.expect("Volumes", codes, "")
}

func checkStatuses(b *bench) {
	args := []params.EntityStatusArgs{{Tag: b.Volume.String(), Status: string(status.Pending), Info: "out of space"}}
	if err := b.Accessors.SetStatus(args); err != nil {
		b.Errorf("SetStatus: %v", err)
	}
}

// source is a watcher of any kind.
type source[E any] interface {
	worker.Worker
	Changes() <-chan E
}

// start starts a watcher, which the check or the end of the test stops.
func start[E any, W source[E]](b *bench, what string, w W, err error) W {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
	b.Cleanup(func() {
		w.Kill()
		_ = w.Wait() // a rule of its own checks it
	})
	return w
}

func next[E any](b *bench, what string, w source[E]) E {
	b.Helper()
	timeout := time.NewTimer(b.patience)
	defer timeout.Stop()
	select {
	case event, ok := <-w.Changes():
		if !ok {
			b.Fatalf("%s: the channel is closed: %v", what, watcher.EnsureErr(w))
		}
		return event
	case <-timeout.C:
		b.Fatalf("%s: no event after %v", what, b.patience)
	}
	panic("unreachable")
}

// await waits for an event that has the ID.
func await[T comparable](b *bench, what string, w source[[]T], id T) {
	b.Helper()
	for !slices.Contains(next(b, what, w), id) {
	}
}

func (b *bench) watchVolumes() source[[]string] {
	b.Helper()
	w, err := b.Accessors.WatchVolumes()
	return start[[]string](b, "WatchVolumes", w, err)
}

func (b *bench) watchAttachments() source[[]params.MachineStorageId] {
	b.Helper()
	w, err := b.Accessors.WatchVolumeAttachments()
	return start[[]params.MachineStorageId](b, "WatchVolumeAttachments", w, err)
}

func checkFirstEvents(b *bench) {
	if got := next(b, "WatchVolumes", b.watchVolumes()); !slices.Equal(got, []string{b.Volume.Id()}) {
		b.Errorf("WatchVolumes: the first event is %q, want %q", got, b.Volume.Id())
	}
	if got := next(b, "WatchVolumeAttachments", b.watchAttachments()); !slices.Equal(got, []params.MachineStorageId{b.attachment()}) {
		b.Errorf("WatchVolumeAttachments: the first event is %v, want %v", got, b.attachment())
	}
	filesystems, err := b.Accessors.WatchFilesystems()
	if got := next(b, "WatchFilesystems", start[[]string](b, "WatchFilesystems", filesystems, err)); len(got) != 0 {
		b.Errorf("WatchFilesystems: the first event is %q, want none", got)
	}
	attachments, err := b.Accessors.WatchFilesystemAttachments()
	attachments = start[[]params.MachineStorageId](b, "WatchFilesystemAttachments", attachments, err)
	if got := next(b, "WatchFilesystemAttachments", attachments); len(got) != 0 {
		b.Errorf("WatchFilesystemAttachments: the first event is %v, want none", got)
	}
	machine, err := b.Accessors.WatchMachine(b.Machine)
	next(b, "WatchMachine", start[struct{}](b, "WatchMachine", machine, err))
	environ, err := b.Accessors.WatchForEnvironConfigChanges()
	next(b, "WatchForEnvironConfigChanges", start[struct{}](b, "WatchForEnvironConfigChanges", environ, err))
	if config, err := b.Accessors.EnvironConfig(); err != nil || config == nil {
		b.Errorf("EnvironConfig: got %v, %v", config, err)
	}
}

func checkChanges(b *bench) {
	volumes, attachments := b.watchVolumes(), b.watchAttachments()
	next(b, "WatchVolumes", volumes)
	next(b, "WatchVolumeAttachments", attachments)
	b.record()
	b.Remove()
	await(b, "WatchVolumes", volumes, b.Volume.Id())
	await(b, "WatchVolumeAttachments", attachments, b.attachment())
	for l, _ := b.life(); l != life.Dead; l, _ = b.life() {
		if _, code := b.attachmentLife(); code == "" {
			write(b, "RemoveAttachments", b.Accessors.RemoveAttachments, b.attachment())
		}
		await(b, "WatchVolumes", volumes, b.Volume.Id())
	}
}

func checkWatchersStop(b *bench) {
	first, second := b.watchVolumes(), b.watchVolumes()
	first.Kill()
	if err := first.Wait(); err != nil {
		b.Errorf("a killed watcher ends with %v", err)
	}
	next(b, "WatchVolumes", second)
}

func checkLives(b *bench) {
	b.record()
	b.Remove()
	if l, code := b.life(); l != life.Dying || code != "" {
		b.Errorf("an attached volume that is not wanted is %q (%s), want dying", l, code)
	}
	if l, code := b.attachmentLife(); l != life.Dying || code != "" {
		b.Errorf("its attachment is %q (%s), want dying", l, code)
	}
	b.expect("RemoveAttachments", write(b, "RemoveAttachments", b.Accessors.RemoveAttachments, b.attachment()), "")
	if l, code := b.life(); l != life.Dead || code != "" {
		b.Errorf("without its attachment the volume is %q (%s), want dead", l, code)
	}
}

func checkRemoved(b *bench) {
	b.record()
	b.Remove()
	b.expect("RemoveAttachments", write(b, "RemoveAttachments", b.Accessors.RemoveAttachments, b.attachment()), "")
	if _, code := b.attachmentLife(); code != params.CodeNotFound {
		b.Errorf("AttachmentLife of a removed attachment: %q, want not found", code)
	}
	b.expect("Remove", write(b, "Remove", b.Accessors.Remove, names.Tag(b.Volume)), "")
	if _, code := b.life(); code != params.CodeNotFound {
		b.Errorf("Life of a removed volume: %q, want not found", code)
	}
	again := append(
		write(b, "RemoveAttachments", b.Accessors.RemoveAttachments, b.attachment()),
		write(b, "Remove", b.Accessors.Remove, names.Tag(b.Volume))...)
	for _, code := range again {
		if code != "" && code != params.CodeNotFound {
			b.Errorf("removing again: %s", code)
		}
	}
}
