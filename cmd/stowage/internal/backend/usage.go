package backend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage/provider"
)

// measurePatience is how long a machine may take to measure a part of its storage.
const measurePatience = 15 * time.Second

// Usage implements userapi.Backend.
func (b *Backend) Usage(ctx context.Context, names []string) (user.UsageList, error) {
	found, err := b.named(names)
	if err != nil {
		return user.UsageList{}, errors.Trace(err)
	}
	if len(found) > user.MaxUsages {
		return user.UsageList{}, errors.NewNotValid(nil, fmt.Sprintf("the names select %d storage instances, and a request is about %d at most: name fewer", len(found), user.MaxUsages))
	}
	byMachine := mountedByMachine(found)
	machines := slices.Collect(maps.Keys(byMachine))
	measured, errs := make([][]user.MeasuredStorage, len(machines)), make([]error, len(machines))
	atOnce(maxScans, len(machines), func(n int) {
		measured[n], errs[n] = b.measureOn(ctx, machines[n], byMachine[machines[n]])
	})
	list := user.UsageList{Storage: append([]user.MeasuredStorage{}, slices.Concat(measured...)...)}
	for n, err := range errs {
		if err != nil {
			list.NotAsked = append(list.NotAsked, user.NotAsked{Machine: b.machineName(machines[n]), Reason: err.Error()})
		}
	}
	slices.SortFunc(list.Storage, func(a, b user.MeasuredStorage) int { return table.CompareNames(a.Name, b.Name) })
	slices.SortFunc(list.NotAsked, func(a, b user.NotAsked) int { return strings.Compare(a.Machine, b.Machine) })
	return list, errors.Trace(ctx.Err())
}

// mountedByMachine returns the storage that has a mounted filesystem, by machine.
func mountedByMachine(found []state.Storage) map[names.MachineTag][]state.Storage {
	byMachine := make(map[names.MachineTag][]state.Storage)
	for _, s := range found {
		if s.Filesystem != nil && s.Filesystem.ProviderID != "" && s.Location != "" && len(s.Attachments) > 0 {
			machine := s.Attachments[0].Machine
			byMachine[machine] = append(byMachine[machine], s)
		}
	}
	return byMachine
}

// measureOn measures the filesystems of storage on a machine: as many in one task as that may have.
func (b *Backend) measureOn(ctx context.Context, machine names.MachineTag, storages []state.Storage) ([]user.MeasuredStorage, error) {
	at, err := b.placeOf(machine)
	if err != nil {
		return nil, errors.Trace(err)
	}
	var measured []user.MeasuredStorage
	for part := range slices.Chunk(storages, task.MaxMeasured) {
		request := task.Measure{Filesystems: make([]task.Ref, len(part))}
		for i, s := range part {
			request.Filesystems[i] = filesystemRef(s)
		}
		result, err := b.doSoon(ctx, at, measurePatience, task.Request{Measure: &request})
		if err != nil {
			return measured, errors.Trace(err)
		}
		for i, u := range result.Measure.Filesystems[:min(len(part), len(result.Measure.Filesystems))] {
			if u != nil {
				measured = append(measured, user.MeasuredStorage{Name: part[i].Name, Usage: wireUsage(*u)})
			}
		}
	}
	return measured, nil
}

// filesystemRef returns the reference to a filesystem that was made.
func filesystemRef(s state.Storage) task.Ref {
	ref := task.Ref{Provider: string(s.Provider), Kind: s.Filesystem.Tag.Kind(), ID: s.Filesystem.ProviderID}
	if s.Volume != nil {
		ref.Provider = string(provider.ManagedSourceType)
	}
	return ref
}

func wireUsage(u task.Usage) user.StorageUsage {
	return user.StorageUsage{SizeBytes: u.Size, UsedBytes: u.Used, AvailableBytes: u.Available, Shared: u.Shared}
}

// doSoon is do with a time limit.
func (b *Backend) doSoon(ctx context.Context, at place, limit time.Duration, request task.Request) (task.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.Errorf("%s has not answered within %v", at, limit))
	defer cancel()
	return b.do(ctx, at, request)
}
