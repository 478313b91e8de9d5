package backend

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/life"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Asked is the storage that programs ask for by one way in. It implements asked.Manager.
type Asked struct {
	backend   *Backend
	way, host string
	// session, if set, is that of the agent whose machine may use the storage: see [MachineAsked].
	session state.Session
}

// Asked returns the storage of a way in, such as csi. host, unless it is empty, is the name of the
// machine on which the process runs: in a state of its own, the machine has none.
func (b *Backend) Asked(way, host string) *Asked { return &Asked{backend: b, way: way, host: host} }

// machineOf returns the tag of a machine. The error satisfies errors.Is(err, asked.ErrElsewhere) if it
// does not exist.
func (a *Asked) machineOf(name string) (names.MachineTag, error) {
	if name == a.host && a.backend.isLocal() {
		return a.backend.config.Machine, nil
	}
	machine, err := a.backend.state.MachineNamed(name)
	if errors.Is(err, errors.NotFound) {
		err = errors.WithType(errors.Errorf("machine %q is not known", name), asked.ErrElsewhere)
	}
	return machine, errors.Trace(err)
}

// nameOf returns the name of a machine.
func (a *Asked) nameOf(machine names.MachineTag) string {
	if a.host != "" && a.backend.isLocal() && machine == a.backend.config.Machine {
		return a.host
	}
	return a.backend.machineName(machine)
}

// find returns the storage with an ID, and its revision, by which a change can tell that it is still the
// same.
func (a *Asked) find(id string) (state.Storage, []state.Revision, error) {
	s, err := a.backend.state.AskedByUUID(a.way, id)
	if err == nil {
		err = a.checkBound(&s, id)
	}
	return s, revisionsOf([]state.Storage{s}), errors.Trace(err)
}

// Volume implements asked.Volumes.
func (a *Asked) Volume(id string) (asked.Volume, error) {
	s, _, err := a.find(id)
	if err != nil {
		return asked.Volume{}, err
	}
	return a.volume(&s)
}

// Named implements asked.Manager.
func (a *Asked) Named(name string) (asked.Volume, error) {
	s, err := a.backend.state.Asked(state.Asker{Way: a.way, Name: name})
	if err != nil {
		return asked.Volume{}, errors.Trace(err)
	}
	return a.volume(&s)
}

// IDs implements asked.Manager.
func (a *Asked) IDs() ([]string, error) { return a.backend.state.AskedUUIDs(a.way) }

// volume returns storage as its asker sees it.
func (a *Asked) volume(s *state.Storage) (asked.Volume, error) {
	v := asked.Volume{
		ID: s.UUID(), Name: s.Asker.Name, Storage: s.Name, Pool: s.Pool, Kind: s.Kind,
		SizeMiB: s.SizeMiB, WantedMiB: s.RequestedMiB, CannotGrowToMiB: s.CannotGrowTo,
		Life: s.Life, Status: s.Status, Message: s.Message, Location: s.Location, Detaching: !isDetached(s),
	}
	if s.From.Snapshot != "" {
		v.FromSnapshot = s.FromUUID
	} else {
		v.FromVolume = s.FromUUID
	}
	if s.Kind == storage.StorageKindFilesystem {
		v.Filesystem, v.MkfsOptions, v.MountOptions = converge.FilesystemOf(s)
	}
	if machine, ok := converge.HomeMachine(s); ok {
		v.Machine = a.nameOf(machine)
	}
	if len(s.Attachments) > 0 {
		v.AttachedTo, v.Detaching = a.nameOf(s.Attachments[0].Machine), s.Attachments[0].Life != life.Alive
	} else if s.MoveTo != (names.MachineTag{}) {
		v.AttachedTo, v.Detaching = a.nameOf(s.MoveTo), false
	}
	if machine, ok := workerOf(s); ok {
		v.Absence = a.backend.absence(machine)
	}
	if s.Volume == nil {
		v.Provisioned = s.Filesystem.ProviderID != ""
		return v, nil
	}
	v.Provisioned = s.Volume.ProviderID != ""
	if !v.Provisioned || s.Kind == storage.StorageKindBlock || len(s.Attachments) > 0 {
		return v, nil
	}
	size, err := a.volumeSize(s)
	if err != nil {
		return v, errors.Trace(err)
	}
	if s.Filesystem == nil || s.Filesystem.ProviderID == "" {
		v.SizeMiB = size // the filesystem is made as large as the volume
	} else {
		v.GrowsAttached = v.SizeMiB < v.WantedMiB && size >= v.WantedMiB
	}
	return v, nil
}

// workerOf returns the machine whose agent does what is to be done for storage. Storage of the environment
// that is not attached has no such machine.
func workerOf(s *state.Storage) (names.MachineTag, bool) {
	if len(s.Attachments) > 0 {
		return s.Attachments[0].Machine, true
	}
	return converge.BoundMachine(s)
}

// isDetached reports whether storage without an attachment is not being detached any more.
func isDetached(s *state.Storage) bool { return s.Status != status.Detaching }

// volumeSize returns the size of the volume of storage, in MiB; 0 if it was removed since.
func (a *Asked) volumeSize(s *state.Storage) (uint64, error) {
	accessor := a.backend.state.ForEnviron()
	if machine, ok := converge.HomeMachine(s); ok {
		accessor = a.backend.state.ForMachine(machine)
	}
	results, err := accessor.Volumes([]names.VolumeTag{s.Volume.Tag.(names.VolumeTag)})
	if err != nil || results[0].Error != nil {
		return 0, errors.Trace(err)
	}
	return results[0].Result.Info.Size, nil
}

// Create implements asked.Manager.
func (a *Asked) Create(ctx context.Context, request asked.Request) (asked.Volume, error) {
	asker := state.Asker{Way: a.way, Name: request.Name}
	if err := asker.Validate(); err != nil {
		return asked.Volume{}, errors.Trace(err)
	}
	err := a.backend.change(ctx, "", func() (*state.Changes, error) {
		situation, err := a.backend.situation(nil)
		if err != nil {
			return nil, errors.Trace(err)
		}
		declared, err := a.declare(asker, request)
		if err != nil {
			return nil, errors.Trace(err)
		}
		changes, err := converge.Ask(situation, declared)
		changes.By = asker.String()
		return &changes, errors.Trace(err)
	})
	if err != nil {
		return asked.Volume{}, errors.Trace(err)
	}
	return a.Named(request.Name)
}

// declare returns the request as a file would declare it.
func (a *Asked) declare(asker state.Asker, request asked.Request) (declared spec.Storage, err error) {
	from, err := a.applyOrigin(&request)
	if err != nil {
		return declared, errors.Trace(err)
	}
	size, err := a.enlarge(request)
	if err != nil {
		return declared, errors.Trace(err)
	}
	environ, err := a.isEnviron(request.Pool)
	if err != nil {
		return declared, errors.Trace(err)
	}
	machine := coremachine.Any
	switch {
	case environ:
		machine = "" // it is made on no machine
	case request.Machine != "":
		tag, err := a.machineOf(request.Machine)
		if err != nil {
			return declared, errors.Trace(err)
		}
		machine = tag.Id()
	}
	name, err := a.backend.state.NameFor(asker) // for messages
	if err != nil {
		return declared, errors.Trace(err)
	}
	declared, err = spec.Request("storage "+name, name, storage.Directive{Pool: request.Pool, Size: size, Count: 1}, map[string]string{
		"kind": request.Kind.String(), "machine": machine, "filesystem": request.Filesystem,
		"mkfs-options": request.MkfsOptions, "mount-options": request.MountOptions,
	})
	declared.Asker, declared.Detached, declared.From = asker, true, from
	declared.Filesystem, declared.MkfsOptions, declared.MountOptions = request.Filesystem, request.MkfsOptions, request.MountOptions
	return declared, errors.Trace(err)
}

// pool returns a pool, and its provider. The error satisfies errors.IsNotFound if there is no such pool.
func (a *Asked) pool(name string) (*storage.Config, storage.Provider, error) {
	pools, err := a.backend.pools().List()
	if err != nil {
		return nil, nil, errors.Trace(err)
	}
	for _, pool := range pools {
		if pool.Config.Name() == name {
			p, err := a.backend.config.Registry.StorageProvider(pool.Provider())
			return pool.Config, p, errors.Trace(err)
		}
	}
	return nil, nil, errors.NewNotFound(nil, fmt.Sprintf("pool %q is not known: `stowage pools` lists the pools", name))
}

func (a *Asked) isEnviron(pool string) (bool, error) {
	_, p, err := a.pool(pool)
	return err == nil && p.Scope() == storage.ScopeEnviron, errors.Trace(err)
}

// leastSize returns the least size of a volume, in MiB.
func (a *Asked) leastSize(request asked.Request) (uint64, error) {
	config, p, err := a.pool(request.Pool)
	if err != nil {
		return 0, errors.Trace(err)
	}
	if request.Kind != storage.StorageKindFilesystem || p.Supports(storage.StorageKindFilesystem) || storage.MountsVolumes(p, config.Attrs()) {
		return 1, nil
	}
	attributes := map[string]any{}
	maps.Copy(attributes, config.ForProvider().Attrs())
	for name, value := range map[string]string{storage.FilesystemTypeAttribute: request.Filesystem, storage.MkfsOptionsAttribute: request.MkfsOptions, storage.MountOptionsAttribute: request.MountOptions} {
		if value != "" {
			attributes[name] = value
		}
	}
	return provider.LeastFilesystemSize(attributes)
}

// sizeOf returns the size that is asked for, or that of the pool.
func (a *Asked) sizeOf(request asked.Request) (uint64, error) {
	if request.SizeMiB > 0 {
		return request.SizeMiB, nil
	}
	config, _, err := a.pool(request.Pool)
	if err != nil {
		return 0, errors.Trace(err)
	}
	size, err := config.DefaultSize()
	return min(cmp.Or(size, asked.DefaultSizeMiB), request.LimitMiB), errors.Trace(err)
}

// enlarge returns the size of a volume that is to be made: the size that is asked for, or the least in
// which its filesystem fits. The error satisfies errors.Is(err, asked.ErrTooSmall) if that is more than
// is allowed.
func (a *Asked) enlarge(request asked.Request) (uint64, error) {
	size, err := a.sizeOf(request)
	if err != nil {
		return 0, errors.Trace(err)
	}
	least, err := a.leastSize(request)
	if err != nil {
		return 0, errors.Trace(err)
	}
	if least > request.LimitMiB {
		return 0, errors.WithType(errors.Errorf("the filesystem needs at least %d MiB, and the limit is %d MiB: raise the limit", least, request.LimitMiB), asked.ErrTooSmall)
	}
	return max(size, least), nil
}

// changeOne makes a change of the storage with an ID.
func (a *Asked) changeOne(ctx context.Context, id string, plan func(name string, s *state.Storage) (state.Changes, error)) error {
	return a.backend.change(ctx, "", func() (*state.Changes, error) {
		s, revisions, err := a.find(id)
		if err != nil {
			return nil, err
		}
		changes, err := plan(s.Name, &s)
		changes.Revisions, changes.Way, changes.By, changes.Session = revisions, a.way, a.way, a.session
		return &changes, errors.Trace(err)
	})
}

// Attach implements asked.Volumes.
func (a *Asked) Attach(ctx context.Context, id, machine string) error {
	to, err := a.machineOf(machine)
	if err != nil {
		return errors.Trace(err)
	}
	return a.attach(ctx, id, to)
}

func (a *Asked) attach(ctx context.Context, id string, to names.MachineTag) error {
	return a.changeOne(ctx, id, func(name string, s *state.Storage) (state.Changes, error) {
		all := []state.Attach{{Name: name, Machine: to}}
		changes := state.Changes{Attach: all}
		if _, home := converge.HomeMachine(s); !home && len(s.Attachments) == 0 {
			// The machine to which it was attached before may have a filesystem on it.
			changes = state.Changes{Move: all}
		}
		return changes, a.backend.checkMountPoints([]state.Storage{*s}, all)
	})
}

// Detach implements asked.Volumes.
func (a *Asked) Detach(ctx context.Context, id string) error {
	return a.changeOne(ctx, id, func(name string, s *state.Storage) (state.Changes, error) {
		return state.Changes{Detach: []string{name}}, a.checkAttached(s)
	})
}

// Remove implements asked.Manager.
func (a *Asked) Remove(ctx context.Context, id string) error {
	return a.changeOne(ctx, id, func(name string, _ *state.Storage) (state.Changes, error) {
		return state.Changes{Remove: []string{name}}, nil
	})
}

// Retry implements asked.Manager.
func (a *Asked) Retry(ctx context.Context, id string) error {
	return a.changeOne(ctx, id, func(name string, _ *state.Storage) (state.Changes, error) {
		return state.Changes{Retry: []string{name}}, nil
	})
}

// Resize implements asked.Volumes.
func (a *Asked) Resize(ctx context.Context, id string, sizeMiB uint64) error {
	return a.changeOne(ctx, id, func(_ string, s *state.Storage) (state.Changes, error) {
		if err := a.checkAttached(s); err != nil {
			return state.Changes{}, errors.Trace(err)
		}
		situation, err := a.backend.situation(nil)
		if err != nil {
			return state.Changes{}, errors.Trace(err)
		}
		plan, err := converge.Resize(situation, []state.Storage{*s}, sizeMiB, false)
		return plan.State, errors.Trace(err)
	})
}

// Await implements asked.Volumes.
func (a *Asked) Await(ctx context.Context, id string, done asked.Done) (asked.Volume, error) {
	j, err := a.backend.openJournal()
	if err != nil {
		return asked.Volume{}, errors.Trace(err)
	}
	at, more := j.end()
	for {
		v, err := a.Volume(id)
		if err != nil {
			return v, err
		}
		if ok, err := done(&v); ok || err != nil {
			return v, err
		}
		for unchanged := true; unchanged; {
			select {
			case <-ctx.Done():
				return v, context.Cause(ctx)
			case <-j.tomb.Dying():
				return v, j.tomb.Wait()
			case <-more:
			}
			var changed changes
			var ok bool
			changed, at, more, ok = j.since(at)
			unchanged = ok && !changed.names[v.Storage] && !changed.devices && !changed.presence
		}
	}
}

// Inspect implements asked.Volumes.
func (a *Asked) Inspect(ids ...string) ([]asked.Volume, error) {
	var found []state.Storage
	for _, id := range ids {
		s, _, err := a.find(id)
		if errors.Is(err, errors.NotFound) {
			continue
		} else if err != nil {
			return nil, errors.Trace(err)
		}
		found = append(found, s)
	}
	host, err := a.backend.measureHost(found)
	if err != nil {
		return nil, errors.Trace(err)
	}
	volumes := make([]asked.Volume, len(found))
	for i := range found {
		if volumes[i], err = a.volume(&found[i]); err != nil {
			return nil, errors.Trace(err)
		}
		volumes[i].Message = a.backend.wireStorage(found[i], host).Message
	}
	return volumes, nil
}

// Remarks implements asked.Volumes.
func (a *Asked) Remarks() (remarks []asked.Remark, err error) {
	h, err := a.backend.measureHostForAll()
	if err != nil || !a.backend.isLocal() {
		return nil, errors.Trace(err)
	}
	return asked.RemarksOn(h.dir, h.size, h.free, h.promised), nil
}

// Capacity implements asked.Manager.
func (a *Asked) Capacity(request asked.Request) (asked.Capacity, error) {
	config, _, err := a.pool(request.Pool)
	if err != nil {
		return asked.Capacity{}, errors.Trace(err)
	}
	machines, err := a.backend.state.Machines()
	if err != nil {
		return asked.Capacity{}, errors.Trace(err)
	}
	free, err := a.backend.space(machines)
	if err != nil {
		return asked.Capacity{}, errors.Trace(err)
	}
	least, err := a.leastSize(request)
	if err != nil {
		return asked.Capacity{}, errors.Trace(err)
	}
	if request.Machine != "" {
		machine, err := a.machineOf(request.Machine)
		if err != nil {
			return asked.Capacity{}, errors.Trace(err)
		}
		maps.DeleteFunc(free, func(m names.MachineTag, _ map[storage.ProviderType]converge.Space) bool { return m != machine })
	}
	known := false
	capacity := asked.Capacity{MinMiB: least}
	for _, spaces := range free {
		space, ok := spaces[config.Provider()]
		if !ok {
			continue
		}
		known = true
		capacity.FreeMiB += space.FreeMiB
		if space.Thin == nil || !space.Thin(config.Attrs()) {
			capacity.MaxMiB = max(capacity.MaxMiB, space.FreeMiB)
		}
	}
	if !known {
		return capacity, errors.NewNotSupported(nil, fmt.Sprintf("how much space provider %s has is not known", config.Provider()))
	}
	return capacity, nil
}
