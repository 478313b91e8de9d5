package agent

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
	"github.com/stowage-io/stowage/watcher"
)

// backend is a control.Backend over the state. It lasts as long as the agent,
// however often the control socket is made anew.
type backend struct {
	config Config
	state  *state.State
	report func() map[string]any

	// changing is held while what users want is changed: what a change was
	// checked against stays true until it is made.
	changing sync.Mutex
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
	all, err := b.state.AllStorage()
	if err != nil {
		return nil, errors.Trace(err)
	}
	found, err := choose(all, names)
	if err != nil {
		return nil, err
	}
	rows := make([]control.Storage, len(found))
	for i, s := range found {
		rows[i] = b.wireStorage(s)
	}
	return rows, nil
}

// choose returns the storage that names mean (none: all of it). A name that means
// nothing is an error, which comes with what the others mean.
func choose(all []state.Storage, names []string) (found []state.Storage, err error) {
	if len(names) == 0 {
		return all, nil
	}
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = false
	}
	for _, s := range all {
		base, _, _ := strings.Cut(s.Name, "/")
		_, exact := wanted[s.Name]
		_, whole := wanted[base]
		if exact {
			wanted[s.Name] = true
		}
		if whole {
			wanted[base] = true
		}
		if exact || whole {
			found = append(found, s)
		}
	}
	for _, name := range names {
		if !wanted[name] {
			return found, errors.NotFoundf("storage %q", name)
		}
	}
	return found, nil
}

// watchPause is how long changes gather before watchers are told of them: what a
// watcher costs is bounded however fast things change.
const watchPause = 100 * time.Millisecond

// Watch is part of control.Backend.
func (b *backend) Watch(ctx context.Context, names []string, send func(control.Event) error) error {
	w, err := b.state.WatchStorage()
	if err != nil {
		return errors.Trace(err)
	}
	defer func() {
		w.Kill()
		_ = w.Wait() // an error came through the channel's closing before
	}()
	told := map[string]control.Storage{}
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-w.Changes():
			if !ok {
				return watcher.EnsureErr(w)
			}
		}
		all, err := b.state.AllStorage()
		if err != nil {
			return errors.Trace(err)
		}
		found, _ := choose(all, names) // a name may come, or have gone
		event := b.difference(told, found)
		if first || len(event.Storage)+len(event.Gone) > 0 {
			if err := send(event); err != nil {
				return errors.Trace(err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.config.Clock.After(watchPause):
		}
	}
}

// difference returns what is not as it was told, and notes it as told.
func (b *backend) difference(told map[string]control.Storage, now []state.Storage) control.Event {
	var event control.Event
	there := make(map[string]bool, len(now))
	for _, s := range now {
		there[s.Name] = true
		row := b.wireStorage(s)
		if old, ok := told[s.Name]; !ok || !reflect.DeepEqual(old, row) {
			told[s.Name] = row
			event.Storage = append(event.Storage, row)
		}
	}
	for name := range told {
		if !there[name] {
			delete(told, name)
			event.Gone = append(event.Gone, name)
		}
	}
	return event
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

// change calls do with the full names of what names mean.
func (b *backend) change(names []string, do func([]string) error) error {
	if len(names) == 0 {
		return errors.NewNotValid(nil, "no storage is named")
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	all, err := b.state.AllStorage()
	if err != nil {
		return errors.Trace(err)
	}
	found, err := choose(all, names)
	if err != nil {
		return err
	}
	full := make([]string, len(found))
	for i, s := range found {
		full[i] = s.Name
	}
	return errors.Trace(do(full))
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
	return b.report(), nil
}

// noManager is what users see of storage that nobody looks after.
const noManager = "no environment manager runs: start the agent with --manager"

// wireStorage returns storage as users see it.
func (b *backend) wireStorage(s state.Storage) control.Storage {
	row := control.Storage{
		Name:        s.Name,
		Kind:        s.Kind.String(),
		Pool:        s.Pool,
		Provider:    string(s.Provider),
		SizeMiB:     s.SizeMiB,
		WantedMiB:   s.RequestedMiB,
		Life:        s.Life,
		Status:      s.Status,
		Message:     s.Message,
		Since:       s.Since,
		Location:    s.Location,
		Attachments: make([]control.Attachment, len(s.Attachments)),
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
