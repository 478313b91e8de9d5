package program

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
)

// maxAnswer limits the length of a program's answer, in bytes. It is enough for a
// hundred thousand volumes with their tags.
const maxAnswer = 64 << 20

var (
	_ storage.VolumeOwnerLister = (*source)(nil)
	_ storage.NewVolumes        = (*source)(nil)
	_ storage.AttachmentLister  = (*source)(nil)
)

// source runs the program for each bulk call.
type source struct {
	name    storage.ProviderType
	path    string
	devices devices

	orchestrator storage.OrchestratorSupplier // may be nil

	mu sync.Mutex
	// fresh contains the IDs of volumes that the program's last answer about them reported as
	// new.
	fresh map[string]bool
}

// noteNew records whether the program reported a created volume as new.
func (s *source) noteNew(id string, isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fresh, id)
	if isNew {
		if s.fresh == nil {
			s.fresh = make(map[string]bool)
		}
		s.fresh[id] = true
	}
}

// IsNewVolume implements [storage.NewVolumes]. It returns true only once for a volume.
func (s *source) IsNewVolume(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew := s.fresh[id]
	delete(s.fresh, id)
	return isNew
}

// call runs the program for one operation. The results have the order and number of the
// arguments, unless there are no arguments.
func (s *source) call(ctx context.Context, operation string, args []argument) (answer, error) {
	if err := run.Check(s.path); err != nil {
		return answer{}, errors.Trace(err)
	}
	input, err := json.Marshal(request{Term: envcontext.Term(ctx), Arguments: args})
	if err != nil {
		return answer{}, errors.Annotatef(err, "writing the arguments of %s", operation)
	}
	output, err := run.Command{
		Path:      s.path,
		Args:      []string{operation},
		Stdin:     input,
		MaxStdout: maxAnswer + 1,
	}.Run(ctx)
	if err != nil {
		return answer{}, errors.Trace(err)
	}
	if len(output) > maxAnswer {
		return answer{}, errors.Errorf("%s %s: its answer is longer than %d MiB", s.path, operation, maxAnswer>>20)
	}
	got, err := decode(output)
	if err != nil {
		return answer{}, errors.Annotatef(err, "reading the answer of %s %s", s.path, operation)
	}
	if len(args) > 0 && len(got.Results) != len(args) {
		return answer{}, errors.Errorf("%s %s: it gave %d results for %d arguments", s.path, operation, len(got.Results), len(args))
	}
	return got, nil
}

// ValidateVolumeParams implements [storage.VolumeSource]. It accepts everything: the program
// itself validates parameters when it creates a volume.
func (s *source) ValidateVolumeParams(storage.VolumeParams) error { return nil }

// CreateVolumes implements [storage.VolumeSource].
func (s *source) CreateVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	results := make([]storage.CreateVolumesResult, len(all))
	err := s.each(ctx, "create-volumes", len(all), func(i int) argument {
		arg := argument{
			Volume:     all[i].Tag.String(),
			SizeMiB:    all[i].Size,
			Attributes: all[i].Attributes,
			Tags:       all[i].ResourceTags,
		}
		if all[i].Attachment != nil {
			arg.place(all[i].Attachment.AttachmentParams)
		}
		return arg
	}, func(i int, r result) {
		results[i].Volume, results[i].VolumeAttachment, results[i].Error = s.created(all[i], r)
		if v := results[i].Volume; v != nil {
			s.noteNew(v.VolumeId, r.New)
		}
	})
	s.devices.claim(len(all), func(i int) *storage.VolumeAttachment { return results[i].VolumeAttachment }, func(i int, err error) {
		results[i] = storage.CreateVolumesResult{Error: err}
	})
	return results, err
}

// created returns the volume, attachment or error in the result of a creation.
func (s *source) created(p storage.VolumeParams, r result) (*storage.Volume, *storage.VolumeAttachment, error) {
	if err := r.Error.err(); err != nil {
		return nil, nil, err
	}
	info, err := r.info()
	if err != nil {
		return nil, nil, err
	}
	if info.Size == 0 {
		info.Size = p.Size
	}
	if info.Size < p.Size {
		return nil, nil, errors.Errorf("the program made volume %s with %d MiB, but at least %d MiB were requested", info.VolumeId, info.Size, p.Size)
	}
	volume := &storage.Volume{Tag: p.Tag, VolumeInfo: info}
	if r.Attachment == nil {
		return volume, nil, nil
	}
	if p.Attachment == nil {
		return nil, nil, errors.Errorf("the program attached volume %s, but no attachment was requested", info.VolumeId)
	}
	attached, err := r.attached(s.name, p.Tag, p.Attachment.Machine)
	if err != nil {
		return nil, nil, err
	}
	return volume, attached, nil
}

// ListVolumes implements [storage.VolumeSource].
func (s *source) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	objects, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(objects))
	for i, o := range objects {
		ids[i] = o.ID
	}
	return ids, nil
}

// ListVolumeOwners implements [storage.VolumeOwnerLister]. The owner of a volume is
// unknown if the program reports no tags for the volume.
func (s *source) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	objects, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(objects, func(a, b storage.OwnedObject) int { return strings.Compare(a.ID, b.ID) })
	return objects, nil
}

// ListVolumeAttachments implements [storage.AttachmentLister]. The error satisfies
// errors.IsNotSupported if the program does not say that it knows the machines.
func (s *source) ListVolumeAttachments(ctx envcontext.ProviderCallContext) ([]storage.ListedAttachment, error) {
	got, _, err := s.listAll(ctx)
	switch {
	case err != nil:
		return nil, err
	case !got.MachinesKnown:
		return nil, errors.NewNotSupported(nil, s.path+" list-volumes: the program does not say which machines have the volumes")
	}
	var attached []storage.ListedAttachment
	for _, r := range got.Results {
		holder, err := r.holder()
		if err != nil {
			return nil, errors.Annotatef(err, "%s list-volumes", s.path)
		}
		if holder != nil {
			attached = append(attached, *holder)
		}
	}
	return attached, nil
}

func (s *source) list(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	_, objects, err := s.listAll(ctx)
	return objects, err
}

// listAll returns the answer of list-volumes, and the volumes in it.
func (s *source) listAll(ctx envcontext.ProviderCallContext) (answer, []storage.OwnedObject, error) {
	got, err := s.call(ctx, "list-volumes", []argument{})
	if err != nil {
		return answer{}, nil, errors.Trace(err)
	}
	objects := make([]storage.OwnedObject, len(got.Results))
	listed := make(map[string]bool, len(got.Results))
	for i, r := range got.Results {
		err := r.Error.err()
		if err == nil {
			objects[i], err = r.owned()
		}
		if err == nil && listed[objects[i].ID] {
			err = errors.Errorf("the program lists volume-id %q twice", objects[i].ID)
		}
		listed[objects[i].ID] = true
		if err != nil {
			return answer{}, nil, errors.Annotatef(err, "%s list-volumes", s.path)
		}
	}
	return got, objects, nil
}

// DescribeVolumes implements [storage.VolumeSource].
func (s *source) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	results := make([]storage.DescribeVolumesResult, len(ids))
	return results, s.each(ctx, "describe-volumes", len(ids), func(i int) argument {
		return argument{VolumeID: ids[i]}
	}, func(i int, r result) {
		err := r.Error.err()
		if err == nil {
			var info storage.VolumeInfo
			info, err = r.info()
			results[i].VolumeInfo = &info
		}
		if err != nil {
			results[i] = storage.DescribeVolumesResult{Error: err}
		}
	})
}

// DestroyVolumes implements [storage.VolumeSource].
func (s *source) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, "destroy-volumes", ids)
}

// ReleaseVolumes implements [storage.VolumeSource].
func (s *source) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.remove(ctx, "release-volumes", ids)
}

func (s *source) remove(ctx envcontext.ProviderCallContext, operation string, ids []string) ([]error, error) {
	errs := make([]error, len(ids))
	return errs, s.each(ctx, operation, len(ids), func(i int) argument {
		return argument{VolumeID: ids[i]}
	}, func(i int, r result) { errs[i] = undone(r) })
}

// AttachVolumes implements [storage.VolumeSource].
func (s *source) AttachVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	results := make([]storage.AttachVolumesResult, len(all))
	err := s.each(ctx, "attach-volumes", len(all), func(i int) argument {
		return attachmentArgument(all[i])
	}, func(i int, r result) {
		if results[i].Error = r.Error.err(); results[i].Error == nil {
			results[i].VolumeAttachment, results[i].Error = r.attached(s.name, all[i].Volume, all[i].Machine)
		}
	})
	s.devices.claim(len(all), func(i int) *storage.VolumeAttachment { return results[i].VolumeAttachment }, func(i int, err error) {
		results[i] = storage.AttachVolumesResult{Error: err}
	})
	return results, err
}

// DetachVolumes implements [storage.VolumeSource].
func (s *source) DetachVolumes(ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams) ([]error, error) {
	errs := make([]error, len(all))
	return errs, s.each(ctx, "detach-volumes", len(all), func(i int) argument {
		return attachmentArgument(all[i])
	}, func(i int, r result) {
		if errs[i] = undone(r); errs[i] == nil {
			s.devices.free(all[i].Volume, all[i].Machine)
		}
	})
}

// each runs the program for n volumes, unless n is 0, and passes each result to take.
func (s *source) each(ctx envcontext.ProviderCallContext, operation string, n int, arg func(int) argument, take func(int, result)) error {
	if n == 0 {
		return nil
	}
	args := make([]argument, n)
	for i := range args {
		args[i] = arg(i)
	}
	if err := s.findNodes(ctx, args); err != nil {
		return errors.Annotatef(err, "looking for the machines of %s", operation)
	}
	got, err := s.call(ctx, operation, args)
	if err != nil {
		return errors.Trace(err)
	}
	for i, r := range got.Results {
		take(i, r)
	}
	return nil
}

// findNodes tells the program what the orchestrator knows of the machines in the arguments.
func (s *source) findNodes(ctx context.Context, args []argument) error {
	if s.orchestrator == nil {
		return nil
	}
	known := make(map[string]*node)
	for i := range args {
		machine, err := names.ParseMachineTag(args[i].Machine)
		if err != nil {
			continue // without a machine
		}
		found, ok := known[args[i].Machine]
		if !ok {
			if found, err = s.findNode(ctx, machine); err != nil {
				return err
			}
			known[args[i].Machine] = found
		}
		args[i].Node = found
	}
	return nil
}

// findNode returns nil for a machine that the orchestrator does not know.
func (s *source) findNode(ctx context.Context, machine names.MachineTag) (*node, error) {
	orchestrator, err := s.orchestrator.Orchestrator(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	found, err := orchestrator.NodeOf(ctx, machine)
	if errors.Is(err, errors.NotFound) {
		return nil, nil
	}
	return &node{Name: found.Name, Labels: found.Labels}, errors.Trace(err)
}

func attachmentArgument(p storage.VolumeAttachmentParams) argument {
	arg := argument{Volume: p.Volume.String(), VolumeID: p.VolumeId}
	arg.place(p.AttachmentParams)
	return arg
}

// place sets where the volume is, or will be, attached.
func (a *argument) place(p storage.AttachmentParams) {
	if p.Machine != nil {
		a.Machine = p.Machine.String()
	}
	a.InstanceID = string(p.InstanceId)
	a.ReadOnly = p.ReadOnly
}

// undone returns the error of an item that was to be detached or removed. An item that does
// not exist is a success.
func undone(r result) error {
	if err := r.Error.err(); !errors.Is(err, errors.NotFound) {
		return err
	}
	return nil
}
