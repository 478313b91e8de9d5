package agent

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/statefile"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
	"github.com/stowage-io/stowage/watcher"
)

// backend is a control.Backend over the state. It lasts as long as the agent,
// however often the control socket is recreated.
type backend struct {
	config Config
	dir    datadir.Dir
	state  *state.State
	store  *boltkv.Store
	report func() map[string]any

	// changing is held while what users want is changed: what a change was
	// checked against stays true until it is made.
	changing sync.Mutex

	// looking guards look, the first look for orphans.
	looking sync.Mutex
	look    look
}

// Apply is part of control.Backend. What cannot be seen from the file is checked
// before anything is changed.
func (b *backend) Apply(_ context.Context, args control.ApplyArgs) (control.ApplyResult, error) {
	return b.apply(args, false)
}

// apply applies a file. With keepLarger, storage may be larger than the file says.
func (b *backend) apply(args control.ApplyArgs, keepLarger bool) (control.ApplyResult, error) {
	file, err := spec.Parse(args.File, args.Content)
	if err != nil {
		return control.ApplyResult{}, errors.Trace(err)
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	world, err := b.world()
	if err != nil {
		return control.ApplyResult{}, errors.Annotatef(err, "applying %s", args.File)
	}
	world.KeepLarger = keepLarger
	plan, err := converge.Make(file, world)
	if err != nil {
		return control.ApplyResult{}, errors.Trace(err)
	}
	if !args.DryRun {
		if err := b.state.Apply(plan.State); err != nil {
			return control.ApplyResult{}, errors.Annotatef(err, "applying %s", args.File)
		}
	}
	return control.ApplyResult{Changes: plan.Changes, Names: plan.Names}, nil
}

// Storage is part of control.Backend.
func (b *backend) Storage(_ context.Context, names []string) ([]control.Storage, error) {
	found, err := b.choose(names)
	if err != nil {
		return nil, err
	}
	host, err := b.hostOf(found)
	if err != nil {
		return nil, err
	}
	rows := make([]control.Storage, len(found))
	for i, s := range found {
		rows[i] = b.wireStorage(s, host)
	}
	return rows, nil
}

// choose returns the storage that names mean (none: all of it). It is an error that one
// means nothing.
func (b *backend) choose(names []string) ([]state.Storage, error) {
	if len(names) == 0 {
		all, err := b.state.AllStorage()
		return all, errors.Trace(err)
	}
	found, missing, err := b.state.StorageOf(names...)
	if err == nil && len(missing) > 0 {
		err = errors.NotFoundf("storage %q", missing[0])
	}
	return found, errors.Trace(err)
}

// choice is the names that a client has given; none mean all.
type choice map[string]struct{}

func newChoice(names []string) choice {
	c := make(choice, len(names))
	for _, name := range names {
		c[name] = struct{}{}
	}
	return c
}

// has reports whether the choice means the instance: by its own name, or by NAME for
// NAME/N.
func (c choice) has(instance string) bool {
	_, exact := c[instance]
	_, whole := c[state.BaseName(instance)]
	return exact || whole || len(c) == 0
}

// watchPause is how long changes are collected before watchers are notified. It bounds
// the cost of a watcher, however fast things change.
const watchPause = 100 * time.Millisecond

// Watch is part of control.Backend.
func (b *backend) Watch(ctx context.Context, names []string, send func(control.Event) error) error {
	changes, err := b.state.WatchStorageNames()
	if err != nil {
		return errors.Trace(err)
	}
	defer stop(changes)
	devices, err := b.state.WatchBlockDevices(machine)
	if err != nil {
		return errors.Trace(err)
	}
	defer stop(devices)
	v := viewer{
		backend: b,
		chosen:  newChoice(names),
		told:    map[string]uint64{},
		seed:    maphash.MakeSeed(),
		blocks:  map[string]struct{}{},
	}
	for first := true; ; first = false {
		var changed []string
		var ok bool
		moved := devices.Changes()
		if first {
			moved = nil // the names come first
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case changed, ok = <-changes.Changes():
			if !ok {
				return watcher.EnsureErr(changes)
			}
		case _, ok = <-moved:
			if !ok {
				return watcher.EnsureErr(devices)
			}
			changed = slices.Sorted(maps.Keys(v.blocks))
		}
		if err := v.tell(changed, first, send); err != nil {
			return errors.Trace(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.config.Clock.After(watchPause):
		}
	}
}

// stop ends a watcher. Its error came through the channel's closing before.
func stop(w worker.Worker) {
	w.Kill()
	_ = w.Wait()
}

// viewer tells one client of what changes. It reads what has changed and nothing else:
// with much storage, and many clients, that is what watching costs.
type viewer struct {
	*backend
	chosen choice
	// told has a sum of each row as it was told, by name.
	told map[string]uint64
	seed maphash.Seed
	// blocks are the names of block storage that was told: its location changes with
	// the machine's block devices.
	blocks map[string]struct{}
}

// maxEvent is how many names are looked at for one event, but for the first: so that
// an event is of a size that passes through everybody's memory easily.
const maxEvent = 1000

// tell sends what is not as it was told, of the storage with these names. The first
// event is one, even if there is nothing.
func (v *viewer) tell(names []string, first bool, send func(control.Event) error) error {
	names = slices.DeleteFunc(names, func(name string) bool { return !v.chosen.has(name) })
	var event control.Event
	for some := range slices.Chunk(names, maxEvent) {
		if err := v.look(some, &event); err != nil {
			return errors.Trace(err)
		}
		if first || len(event.Storage)+len(event.Gone) == 0 {
			continue
		}
		if err := send(event); err != nil {
			return errors.Trace(err)
		}
		event = control.Event{}
	}
	if first {
		return send(event)
	}
	return nil
}

// look adds to an event what is not as it was told.
func (v *viewer) look(names []string, event *control.Event) error {
	found, missing, err := v.state.FindStorage(names...)
	if err != nil {
		return errors.Trace(err)
	}
	host, err := v.hostOf(found)
	if err != nil {
		return errors.Trace(err)
	}
	for _, s := range found {
		row := v.wireStorage(s, host)
		sum, err := v.sum(row)
		if err != nil {
			return errors.Trace(err)
		}
		if before, ok := v.told[s.Name]; ok && before == sum {
			continue
		}
		v.told[s.Name] = sum
		if s.Kind == storage.StorageKindBlock {
			v.blocks[s.Name] = struct{}{}
		}
		event.Storage = append(event.Storage, row)
	}
	for _, name := range missing {
		if _, ok := v.told[name]; ok {
			delete(v.told, name)
			delete(v.blocks, name)
			event.Gone = append(event.Gone, name)
		}
	}
	return nil
}

func (v *viewer) sum(row control.Storage) (uint64, error) {
	var hash maphash.Hash
	hash.SetSeed(v.seed)
	err := json.NewEncoder(&hash).Encode(row)
	return hash.Sum64(), err
}

// Attach is part of control.Backend.
func (b *backend) Attach(_ context.Context, names []string) error {
	return b.change(names, func(names []string) error { return b.state.AttachStorage(names, machine) })
}

// Detach is part of control.Backend.
func (b *backend) Detach(_ context.Context, names []string) error {
	return b.change(names, b.state.DetachStorage)
}

// Remove is part of control.Backend.
func (b *backend) Remove(_ context.Context, names []string) error {
	return b.change(names, b.state.RemoveStorage)
}

// Release is part of control.Backend.
func (b *backend) Release(_ context.Context, names []string) error {
	return b.change(names, b.state.ReleaseStorage)
}

// Retry is part of control.Backend.
func (b *backend) Retry(_ context.Context, names []string) error {
	found, err := b.choose(names)
	if err != nil {
		return err
	}
	return errors.Trace(b.state.RetryStorage(fullNames(found)))
}

// Format is part of control.Backend.
func (b *backend) Format(_ context.Context, names []string) error {
	return b.change(names, func(found []string) error {
		for _, name := range found {
			if !slices.Contains(names, name) {
				return errors.NewNotValid(nil, "name each storage that is to be formatted, such as "+name)
			}
		}
		return b.state.FormatStorage(found)
	})
}

// change calls do with the full names of what names mean.
func (b *backend) change(names []string, do func([]string) error) error {
	if len(names) == 0 {
		return errors.NewNotValid(nil, "no storage is named")
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	found, err := b.choose(names)
	if err != nil {
		return err
	}
	return errors.Trace(do(fullNames(found)))
}

func fullNames(found []state.Storage) []string {
	full := make([]string, len(found))
	for i, s := range found {
		full[i] = s.Name
	}
	return full
}

// Backup is part of control.Backend.
func (b *backend) Backup(ctx context.Context, args control.BackupArgs) (control.BackupResult, error) {
	if err := checkPath(args.Path); err != nil {
		return control.BackupResult{}, errors.Trace(err)
	}
	meta, err := statefile.Backup(ctx, b.store, args.Path, datadir.Identify, b.config.Clock.Now())
	if errors.Is(err, fs.ErrExist) {
		return control.BackupResult{}, errors.NewAlreadyExists(nil, args.Path+" is there already: choose another file")
	}
	return control.BackupResult{UUID: meta.UUID, Generation: meta.Generation, Schema: meta.Schema, Bytes: meta.Size}, errors.Trace(err)
}

// Pools is part of control.Backend.
func (b *backend) Pools(context.Context) ([]control.Pool, error) {
	pools, err := b.pools().List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]control.Pool, len(pools))
	for i, pool := range pools {
		wire[i] = control.Pool{
			Name: pool.Name(), Provider: string(pool.Provider()), Attributes: pool.Attrs(), Default: pool.Default,
		}
		if wire[i].Attributes == nil {
			wire[i].Attributes = map[string]any{}
		}
	}
	return wire, nil
}

// AddPool is part of control.Backend.
func (b *backend) AddPool(_ context.Context, args control.AddPoolArgs) error {
	b.changing.Lock()
	defer b.changing.Unlock()
	set := b.pools().Create
	if args.Replace {
		set = b.pools().Replace
	}
	return errors.Trace(set(args.Name, storage.ProviderType(args.Provider), args.Attributes))
}

// RemovePools is part of control.Backend.
func (b *backend) RemovePools(_ context.Context, names []string) error {
	if len(names) == 0 {
		return errors.NewNotValid(nil, "no pool is named")
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	return errors.Trace(b.pools().Remove(names...))
}

func (b *backend) pools() *poolmanager.Manager {
	return poolmanager.New(b.state, b.config.Registry)
}

// Report is part of control.Backend.
func (b *backend) Report(context.Context) (map[string]any, error) {
	report := b.report()
	host, err := b.wholeHost()
	if err != nil {
		return nil, errors.Trace(err)
	}
	report["host"] = host.report()
	return report, nil
}

// noManager is what users see of storage that nobody looks after.
const noManager = "no environment manager runs: start the agent with --manager"

// wireStorage returns storage as users see it, on a host.
func (b *backend) wireStorage(s state.Storage, on host) control.Storage {
	row := control.Storage{
		Name:            s.Name,
		Kind:            s.Kind.String(),
		Pool:            s.Pool,
		Provider:        string(s.Provider),
		SizeMiB:         s.SizeMiB,
		WantedMiB:       s.RequestedMiB,
		CannotGrowToMiB: s.CannotGrowTo,
		Life:            s.Life,
		Status:          s.Status,
		Message:         s.Message,
		Since:           s.Since,
		Location:        s.Location,
		Attachments:     make([]control.Attachment, len(s.Attachments)),
	}
	if s.Volume != nil {
		row.Volume = s.Volume.Tag.Id()
	}
	if s.Filesystem != nil {
		row.Filesystem = s.Filesystem.Tag.Id()
	}
	if !b.config.Manager && environs(s) {
		row.Message = strings.TrimPrefix(row.Message+"; "+noManager, "; ")
	}
	if remark := on.remark(s); remark != "" {
		row.Message = strings.TrimPrefix(row.Message+"; "+remark, "; ")
	}
	for i, a := range s.Attachments {
		row.Attachments[i] = control.Attachment{
			Machine: a.Machine.Id(), Life: a.Life, Location: a.Location, ReadOnly: a.ReadOnly,
		}
	}
	return row
}

// environs reports whether what storage stands on is the environment's.
func environs(s state.Storage) bool {
	if s.Volume != nil {
		return s.Volume.Scope == storage.ScopeEnviron
	}
	return s.Filesystem != nil && s.Filesystem.Scope == storage.ScopeEnviron
}
