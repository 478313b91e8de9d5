package backend

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
)

const (
	// lookPatience is how long a machine may take to say what it has of storage.
	lookPatience = 10 * time.Second

	// maxLooks is how much storage one request is about, and maxLooksAtOnce for how much of it tasks are
	// carried out at the same time.
	maxLooks       = 200
	maxLooksAtOnce = 8
)

// Look implements userapi.Backend.
func (b *Backend) Look(ctx context.Context, names []string) ([]user.StorageLook, error) {
	found, err := b.named(names)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if len(found) > maxLooks {
		return nil, errors.NewNotValid(nil, fmt.Sprintf("the names select %d storage instances, and a request is about %d at most: name fewer", len(found), maxLooks))
	}
	looks := make([]user.StorageLook, len(found))
	atOnce(maxLooksAtOnce, len(found), func(i int) { looks[i] = b.look(ctx, found[i]) })
	slices.SortFunc(looks, func(a, b user.StorageLook) int { return table.CompareNames(a.Name, b.Name) })
	return looks, errors.Trace(ctx.Err())
}

// look asks the machine that has storage, and the worker of the environment if that is in this process.
func (b *Backend) look(ctx context.Context, s state.Storage) user.StorageLook {
	look := user.StorageLook{Name: s.Name}
	var request task.Look
	if v := s.Volume; v != nil {
		request.Entities = append(request.Entities, v.Tag.String())
		if v.ProviderID != "" {
			request.Objects = append(request.Objects, task.Ref{Provider: string(s.Provider), Kind: v.Tag.Kind(), ID: v.ProviderID})
		}
	}
	if f := s.Filesystem; f != nil {
		request.Entities = append(request.Entities, f.Tag.String())
		if f.ProviderID != "" {
			request.Objects = append(request.Objects, filesystemRef(s))
		}
	}
	machine, has := converge.BoundMachine(&s)
	if len(s.Attachments) > 0 {
		machine, has = s.Attachments[0].Machine, true
	}
	if has {
		look.Machine = b.machineName(machine)
		if err := b.lookOn(ctx, &look, machine, request); err != nil {
			look.NotAsked = err.Error()
		}
	}
	if isEnviron(s) && (!has || !b.isLocal()) {
		// The objects are on no machine, and those of this process are not a server's storage.
		result, err := b.do(ctx, here, task.Request{Look: &task.Look{Entities: request.Entities}})
		if err == nil {
			addLooked(&look, *result.Look)
		}
	}
	return look
}

func (b *Backend) lookOn(ctx context.Context, look *user.StorageLook, machine names.MachineTag, request task.Look) error {
	at, err := b.placeOf(machine)
	if err != nil {
		return errors.Trace(err)
	}
	result, err := b.doSoon(ctx, at, lookPatience, task.Request{Look: &request})
	if err != nil {
		return errors.Trace(err)
	}
	addLooked(look, *result.Look)
	return nil
}

// addLooked adds the result of a task.
func addLooked(look *user.StorageLook, found task.Looked) {
	for _, f := range found.Files {
		look.Files = append(look.Files, user.StorageFile{
			Kind: string(f.Kind), Path: f.Path, Missing: f.Missing, SizeBytes: f.Size, AllocatedBytes: f.Allocated,
		})
	}
	look.Devices = append(look.Devices, found.Devices...)
	for _, m := range found.Mounts {
		look.Mounts = append(look.Mounts, user.StorageMount(m))
	}
	if u := found.Usage; u != nil {
		used := wireUsage(*u)
		look.Usage = &used
	}
	for _, h := range found.Holders {
		look.Holders = append(look.Holders, user.StorageHolder(h))
	}
	for _, o := range found.Operations {
		look.Operations = append(look.Operations, user.StorageOperation(o))
	}
	look.Notes = append(look.Notes, found.Notes...)
}
