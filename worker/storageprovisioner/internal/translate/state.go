package translate

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// State is where facts are read and results are recorded: the worker's accessors, reduced to
// the methods that this package calls. The accessors document these methods.
type State struct {
	Guard       *guard.Guard
	Volumes     Volumes
	Filesystems Filesystems
	Life        Life
}

// Volumes reads and records volumes. It may also be a volumeRemovals, volumeContexts,
// volumeSizes or attachmentPlans.
type Volumes interface {
	Volumes([]names.VolumeTag) ([]params.VolumeResult, error)
	VolumeAttachments([]params.MachineStorageId) ([]params.VolumeAttachmentResult, error)
	VolumeParams([]names.VolumeTag) ([]params.VolumeParamsResult, error)
	VolumeAttachmentParams([]params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error)
	SetVolumeInfo([]params.Volume) ([]params.ErrorResult, error)
	SetVolumeAttachmentInfo([]params.VolumeAttachment) ([]params.ErrorResult, error)
}

// Filesystems reads and records filesystems. It may also be a filesystemRemovals or
// filesystemSizes.
type Filesystems interface {
	Filesystems([]names.FilesystemTag) ([]params.FilesystemResult, error)
	FilesystemAttachments([]params.MachineStorageId) ([]params.FilesystemAttachmentResult, error)
	FilesystemParams([]names.FilesystemTag) ([]params.FilesystemParamsResult, error)
	FilesystemAttachmentParams([]params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error)
	SetFilesystemInfo([]params.Filesystem) ([]params.ErrorResult, error)
	SetFilesystemAttachmentInfo([]params.FilesystemAttachment) ([]params.ErrorResult, error)
}

// Life reads lives and removes entities. It may also be an attempts or owners.
type Life interface {
	Life([]names.Tag) ([]params.LifeResult, error)
	Remove([]names.Tag) ([]params.ErrorResult, error)
	AttachmentLife([]params.MachineStorageId) ([]params.LifeResult, error)
	RemoveAttachments([]params.MachineStorageId) ([]params.ErrorResult, error)
}

// The optional capabilities of accessors.
type (
	volumeRemovals interface {
		RemoveVolumeParams([]names.VolumeTag) ([]params.RemoveVolumeParamsResult, error)
	}
	filesystemRemovals interface {
		RemoveFilesystemParams([]names.FilesystemTag) ([]params.RemoveFilesystemParamsResult, error)
	}
	volumeContexts interface {
		SetVolumeContexts([]params.VolumeContext) ([]params.ErrorResult, error)
		VolumeContexts([]names.VolumeTag) ([]params.VolumeContextResult, error)
	}
	volumeSizes interface {
		VolumeSizes([]names.VolumeTag) ([]params.SizeResult, error)
	}
	filesystemSizes interface {
		FilesystemSizes([]names.FilesystemTag) ([]params.SizeResult, error)
	}
	attachmentPlans interface {
		VolumeAttachmentPlans([]params.MachineStorageId) ([]params.VolumeAttachmentPlanResult, error)
		CreateVolumeAttachmentPlans([]params.VolumeAttachmentPlan) ([]params.ErrorResult, error)
		RemoveVolumeAttachmentPlan([]params.MachineStorageId) ([]params.ErrorResult, error)
		SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan) ([]params.ErrorResult, error)
	}
	attempts interface {
		SetAttempts([]params.Attempt) ([]params.ErrorResult, error)
		Attempts([]params.MachineStorageId) ([]params.AttemptResult, error)
	}
	owners interface {
		Owners([]names.Tag) ([]params.OwnerResult, error)
	}
)

// CallAccessor makes one bulk call of an accessor. Without arguments it calls nothing.
func CallAccessor[A, R any](g *guard.Guard, doing string, accessor func([]A) ([]R, error), args []A) ([]R, error) {
	if len(args) == 0 {
		return nil, nil
	}
	var results []R
	err := g.CallErr(guard.Accessor, func() string { return doing }, func() (err error) {
		results, err = accessor(args)
		return err
	})
	if err != nil {
		return nil, errors.Annotate(err, doing)
	}
	if len(results) != len(args) {
		return nil, errors.Errorf("%s: got %d results for %d arguments", doing, len(results), len(args))
	}
	return results, nil
}

// callWriter makes one bulk call of an accessor that writes, and returns an error for each
// argument.
func callWriter[A any](g *guard.Guard, doing string, accessor func([]A) ([]params.ErrorResult, error), args []A) ([]error, error) {
	results, err := CallAccessor(g, doing, func(args []A) ([]params.ErrorResult, error) {
		results, err := accessor(args)
		if results == nil {
			results = make([]params.ErrorResult, len(args))
		}
		return results, err
	}, args)
	errs := make([]error, len(results))
	for i, result := range results {
		errs[i] = wireError(result.Error)
	}
	return errs, err
}

// wireError converts the error of one result to the error type that its code stands for.
func wireError(err *params.Error) error {
	if err == nil {
		return nil
	}
	return guard.SanitizeError(params.TranslateWellKnownError(err))
}

// NoteAttempts notes in the state, if it remembers attempts, that entities are about to be
// made. It returns an error or nil for each entity; the slice is nil if the state does not
// remember attempts.
func (s State) NoteAttempts(subjects []plan.Subject) ([]error, error) {
	return s.setAttempts(attemptArgs(subjects, params.Attempt{Attempted: true}))
}

// attemptArgs returns the same attempt for each entity.
func attemptArgs(subjects []plan.Subject, attempt params.Attempt) []params.Attempt {
	args := make([]params.Attempt, len(subjects))
	for i, s := range subjects {
		args[i] = attempt
		args[i].Id = attachmentID(s)
	}
	return args
}

func (s State) setAttempts(args []params.Attempt) ([]error, error) {
	accessor, ok := s.Life.(attempts)
	if !ok {
		return nil, nil
	}
	return callWriter(s.Guard, "recording attempts", accessor.SetAttempts, args)
}
