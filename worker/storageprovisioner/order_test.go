package storageprovisioner

import (
	"slices"
	"testing"

	"github.com/juju/loggo"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// recorder records the calls that write to the state.
type recorder struct {
	Accessors
	calls []string
}

func (r *recorder) note(call string) ([]params.ErrorResult, error) {
	r.calls = append(r.calls, call)
	return nil, nil
}

func (r *recorder) SetStatus([]params.EntityStatusArgs) error {
	_, err := r.note("statuses")
	return err
}
func (r *recorder) SetVolumeInfo([]params.Volume) ([]params.ErrorResult, error) {
	return r.note("volumes")
}
func (r *recorder) SetFilesystemInfo([]params.Filesystem) ([]params.ErrorResult, error) {
	return r.note("filesystems")
}
func (r *recorder) SetVolumeAttachmentInfo([]params.VolumeAttachment) ([]params.ErrorResult, error) {
	return r.note("volume attachments")
}
func (r *recorder) SetFilesystemAttachmentInfo([]params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return r.note("filesystem attachments")
}
func (r *recorder) RemoveAttachments([]params.MachineStorageId) ([]params.ErrorResult, error) {
	return r.note("removals of attachments")
}
func (r *recorder) Remove([]names.Tag) ([]params.ErrorResult, error) {
	return r.note("removals")
}

// S11: the parts of one publication are recorded in the order of their dependencies.
// Behaviour S11.
func TestPublicationOrder(t *testing.T) {
	volume, filesystem := names.NewVolumeTag("0"), names.NewFilesystemTag("0")
	machine := names.NewMachineTag("0")
	subject := func(kind plan.Kind, host string) plan.Subject {
		return plan.NewSubject(plan.Key{Kind: kind, ID: "0", Host: host})
	}
	state := &recorder{}
	logger := loggo.GetLogger("test")
	config := Config{Logger: &logger}.WithAccessors(state)
	l := &loop{config: setup{Config: config, guard: guard.New(&logger)}}
	_, err := l.publish(plan.Publication{
		Removals: []plan.Subject{
			subject(plan.Volume, ""), subject(plan.VolumeAttachment, machine.String()),
		},
		Records: []plan.Record{
			{Subject: subject(plan.FilesystemAttachment, machine.String()), Info: storage.FilesystemAttachment{Filesystem: filesystem, Machine: machine}},
			{Subject: subject(plan.VolumeAttachment, machine.String()), Info: storage.VolumeAttachment{Volume: volume, Machine: machine}},
			{Subject: subject(plan.Filesystem, ""), Info: translate.FilesystemInfo{Filesystem: storage.Filesystem{Tag: filesystem}}},
			{Subject: subject(plan.Volume, ""), Info: params.VolumeInfo{}},
		},
		Statuses: []plan.Status{{Subject: subject(plan.Volume, "")}},
	})()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"statuses", "volumes", "filesystems", "volume attachments", "filesystem attachments", "removals of attachments", "removals",
	}
	if !slices.Equal(state.calls, want) {
		t.Errorf("calls that write to the state: got %q, want %q", state.calls, want)
	}
}
