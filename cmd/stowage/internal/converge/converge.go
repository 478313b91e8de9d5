// Package converge works out what applying a file changes on a machine, or why
// it cannot be applied. It changes nothing itself and does no I/O: what it knows
// of the machine is a [World] that the caller has read.
//
// What the file declares and the machine lacks is added; what is there but
// detached is attached; what is there already stays as it is. A declaration that
// differs from what is there is an error: no storage is altered in place. What
// is there and not in the file is left alone, because data goes away only where
// its name was given for it.
package converge

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// World is what a file is held against.
type World struct {
	Machine   names.MachineTag
	Providers storage.ProviderRegistry
	// Manager tells that the environment's storage is looked after too.
	Manager bool
	// Pools are all pools, the providers' own among them.
	Pools []*storage.Config
	// Storage is all storage.
	Storage []state.Storage
	// Reserved are directories that nothing is mounted on, in or above.
	Reserved []string
	// Space is what providers have room for. A provider that is not in it is
	// not checked here.
	Space map[storage.ProviderType]Space
}

// Space is the room that a provider has.
type Space struct {
	// FreeMiB is left for new storage.
	FreeMiB uint64
	// Taken tells that each storage takes its size out of FreeMiB. Otherwise
	// its size is only the most that it may come to hold.
	Taken bool
}

// Plan is what applying a file does.
type Plan struct {
	State state.Changes
	// Changes tells a person of all this, and of what is left alone.
	Changes []control.Change
	// Names are the storage in the file.
	Names []string
}

// AttributeFilesystem is the attribute by which a pool or an instance chooses the
// filesystem that is made on its volume, and defaultFilesystem what is made where
// neither does.
const (
	AttributeFilesystem = "fs"
	defaultFilesystem   = "ext4"
)

// Make returns the plan for a file. The error names the file, the line, the
// entry and the field, and satisfies errors.IsNotValid.
func Make(file *spec.File, world World) (Plan, error) {
	p := &planner{
		world:    world,
		pools:    map[string]*storage.Config{},
		existing: map[string]*state.Storage{},
		prefixes: map[string]bool{},
		space:    map[storage.ProviderType]uint64{},
	}
	p.plan.State.Machine = world.Machine
	for _, pool := range world.Pools {
		p.pools[pool.Name()] = pool
	}
	for provider, space := range world.Space {
		p.space[provider] = space.FreeMiB
	}
	for i := range world.Storage {
		s := &world.Storage[i]
		p.existing[s.Name] = s
		p.prefixes[baseName(s.Name)] = true
		if s.MountPoint != "" {
			// Those that are there are kept apart by having come through here.
			_ = p.mounts.Add(s.MountPoint, s.Name)
		}
	}
	for _, pool := range file.Pools {
		if err := p.pool(pool); err != nil {
			return Plan{}, err
		}
	}
	for _, declared := range file.Storage {
		if err := p.storage(declared); err != nil {
			return Plan{}, err
		}
	}
	p.leave(file)
	return p.plan, nil
}

type planner struct {
	world    World
	pools    map[string]*storage.Config
	existing map[string]*state.Storage
	// prefixes are the names of what exists without their numbers.
	prefixes map[string]bool
	mounts   spec.Mounts
	// space is what is left in MiB, by provider.
	space map[storage.ProviderType]uint64
	plan  Plan
}

// pool adds a pool to the plan, unless it is there.
func (p *planner) pool(declared spec.Pool) error {
	provider, err := p.world.Providers.StorageProvider(declared.Provider)
	if errors.Is(err, errors.NotFound) {
		return declared.Errorf("provider", "%q is not known: the providers are %s", declared.Provider, p.providerNames())
	}
	if err != nil {
		return declared.Errorf("provider", "%s", err)
	}
	if _, ok := declared.Attributes[storage.ConfigStorageDir]; ok {
		return declared.Errorf("attributes", "%s is the agent's to set: leave it out", storage.ConfigStorageDir)
	}
	config, err := storage.NewConfig(declared.Name, declared.Provider, declared.Attributes)
	if err != nil {
		return declared.Errorf("", "%s", err)
	}
	if known, ok := p.pools[declared.Name]; ok {
		if known.Provider() != config.Provider() {
			return declared.Errorf("provider", "the pool is there with provider %s, and cannot change: choose another name", known.Provider())
		}
		if !sameAttributes(known.Attrs(), config.Attrs()) {
			return declared.Errorf("attributes", "the pool is there with other attributes, and cannot change: choose another name")
		}
		return nil
	}
	if err := provider.ValidateConfig(config); err != nil {
		return declared.Errorf("attributes", "%s", err)
	}
	p.pools[declared.Name] = config
	p.plan.State.Pools = append(p.plan.State.Pools, state.Pool{
		Name: config.Name(), Provider: config.Provider(), Attributes: config.Attrs(),
	})
	p.plan.Changes = append(p.plan.Changes, control.Change{
		Action: control.ActionAdd, Item: "pool", Name: declared.Name, Detail: "provider " + string(declared.Provider),
	})
	return nil
}

func (p *planner) providerNames() string {
	types, err := p.world.Providers.StorageProviderTypes()
	if err != nil {
		return "unknown (" + err.Error() + ")"
	}
	list := make([]string, len(types))
	for i, t := range types {
		list[i] = string(t)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// sameAttributes compares as JSON does: what was stored comes back with other
// types of numbers.
func sameAttributes(a, b storage.Attrs) bool {
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// storage adds to the plan what the instances of a declaration need.
func (p *planner) storage(declared spec.Storage) error {
	pool, ok := p.pools[declared.Directive.Pool]
	if !ok {
		return declared.Errorf("directive", "pool %q is not known: the pools are %s", declared.Directive.Pool, p.poolNames())
	}
	provider, err := p.world.Providers.StorageProvider(pool.Provider())
	if err != nil {
		return declared.Errorf("directive", "pool %s: %s", pool.Name(), err)
	}
	onVolume, err := checkKind(declared, pool.Provider(), provider)
	if err != nil {
		return err
	}
	if err := p.checkCount(declared); err != nil {
		return err
	}
	if onVolume && declared.Kind == storage.StorageKindFilesystem && declared.Filesystem == "" {
		// What the file itself chooses has been checked with the file.
		if err := spec.CheckSize(filesystemOf(pool.Attrs()), declared.Directive.Size); err != nil {
			return declared.Errorf("directive", "pool %s: %s", pool.Name(), err)
		}
	}

	var added, attached int
	for _, instance := range declared.Instances() {
		wanted := state.StorageParams{
			Name:       instance.Name,
			Kind:       declared.Kind,
			Pool:       pool.Name(),
			Size:       declared.Directive.Size,
			MountPoint: instance.Mount,
			Machine:    p.world.Machine,
		}
		if declared.Filesystem != "" {
			wanted.Attributes = map[string]any{AttributeFilesystem: declared.Filesystem}
		}
		if existing, ok := p.existing[instance.Name]; ok {
			attach, err := compare(declared, wanted, pool, onVolume, existing)
			if err != nil {
				return err
			}
			if attach {
				p.plan.State.Attach = append(p.plan.State.Attach, instance.Name)
				attached++
			}
			continue
		}
		if err := p.add(declared, wanted, pool); err != nil {
			return err
		}
		added++
	}
	if added+attached > 0 && provider.Scope() == storage.ScopeEnviron && !p.world.Manager {
		return declared.Errorf("directive", "pool %s is of provider %s, whose storage an environment manager makes and attaches: start the agent with --manager",
			pool.Name(), pool.Provider())
	}
	p.tell(declared, control.ActionAdd, added)
	p.tell(declared, control.ActionAttach, attached)
	p.plan.Names = append(p.plan.Names, declared.Name)
	return nil
}

func (p *planner) poolNames() string {
	list := make([]string, 0, len(p.pools))
	for name := range p.pools {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// checkKind refuses what the provider cannot make, and tells whether what it
// makes is a volume, with a filesystem on it where that is what is wanted.
func checkKind(declared spec.Storage, name storage.ProviderType, provider storage.Provider) (onVolume bool, err error) {
	blocks := provider.Supports(storage.StorageKindBlock)
	filesystems := provider.Supports(storage.StorageKindFilesystem)
	switch {
	case declared.Kind == storage.StorageKindBlock && !blocks:
		return false, declared.Errorf("kind", "provider %s makes no block devices: write filesystem, or choose another pool", name)
	case declared.Kind == storage.StorageKindFilesystem && !blocks && !filesystems:
		return false, declared.Errorf("kind", "provider %s makes no filesystems: choose another pool", name)
	case declared.Filesystem != "" && filesystems:
		return false, declared.Errorf("filesystem", "provider %s makes filesystems of its own: leave it out", name)
	}
	return declared.Kind == storage.StorageKindBlock || !filesystems, nil
}

// checkCount refuses to turn NAME into NAME/0, NAME/1, … or the reverse: both
// would then answer to NAME.
func (p *planner) checkCount(declared spec.Storage) error {
	if !p.prefixes[declared.Name] {
		return nil
	}
	_, single := p.existing[declared.Name]
	if single != (declared.Directive.Count == 1) {
		return declared.Errorf("directive", "the count cannot change between one and several: %s, or choose another name",
			removeFirst(declared.Name))
	}
	return nil
}

func removeFirst(name string) string {
	return fmt.Sprintf("remove it first with `stowage remove %s`", name)
}

// compare tells whether what exists needs to be attached to be what is wanted.
// It is an error if it is something else, or on its way out.
func compare(declared spec.Storage, wanted state.StorageParams, pool *storage.Config, onVolume bool, existing *state.Storage) (attach bool, err error) {
	differs := func(field, what, have string) error {
		return declared.Errorf(field, "%s of %s cannot change, it is %s: write that, or %s",
			what, existing.Name, have, removeFirst(existing.Name))
	}
	switch {
	case existing.Life != life.Alive:
		return false, declared.Errorf("name", "%s is still being removed: apply again when `stowage status` no longer lists it", existing.Name)
	case existing.Kind != wanted.Kind:
		return false, differs("kind", "the kind", existing.Kind.String())
	case existing.Pool != wanted.Pool:
		return false, differs("directive", "the pool", existing.Pool)
	case existing.RequestedMiB != wanted.Size:
		return false, differs("directive", "the size", table.Size(existing.RequestedMiB))
	case existing.MountPoint != wanted.MountPoint:
		return false, differs("mount", "the mount point", fmt.Sprintf("%q", existing.MountPoint))
	}
	if onVolume && wanted.Kind == storage.StorageKindFilesystem {
		have := filesystemOf(existing.Attributes)
		if have != filesystemOf(wanted.Attributes, pool.Attrs()) {
			return false, differs("filesystem", "the filesystem", have)
		}
	}
	if len(existing.Attachments) == 0 && existing.Status != status.Detaching {
		return true, nil
	}
	if len(existing.Attachments) == 0 || existing.Attachments[0].Life != life.Alive {
		return false, declared.Errorf("name", "%s is still being detached: apply again when it is, `stowage detach --wait %s` tells", existing.Name, existing.Name)
	}
	return false, nil
}

// filesystemOf returns the filesystem that attributes choose, the first that
// does.
func filesystemOf(all ...map[string]any) string {
	for _, attributes := range all {
		if chosen, ok := attributes[AttributeFilesystem].(string); ok && chosen != "" {
			return chosen
		}
	}
	return defaultFilesystem
}

// add plans a new instance.
func (p *planner) add(declared spec.Storage, wanted state.StorageParams, pool *storage.Config) error {
	if at := wanted.MountPoint; at != "" {
		for _, reserved := range p.world.Reserved {
			if spec.Within(at, reserved) || spec.Within(reserved, at) {
				return declared.Errorf("mount", "%q would hide, or lie in, %s, which is the agent's own", at, reserved)
			}
		}
		if err := p.mounts.Add(at, wanted.Name); err != nil {
			return declared.Errorf("mount", "%s", err)
		}
	}
	if space, ok := p.world.Space[pool.Provider()]; ok {
		left := p.space[pool.Provider()]
		if wanted.Size > left {
			return declared.Errorf("directive", "it does not fit: %s asks for %s, and provider %s has room for %s",
				wanted.Name, table.Size(wanted.Size), pool.Provider(), table.Size(left))
		}
		if space.Taken {
			p.space[pool.Provider()] = left - wanted.Size
		}
	}
	p.plan.State.Add = append(p.plan.State.Add, wanted)
	return nil
}

// tell notes what is done about count instances of a declaration.
func (p *planner) tell(declared spec.Storage, action control.Action, count int) {
	if count == 0 {
		return
	}
	d := declared.Directive
	detail := fmt.Sprintf("%s, pool %s, %s", declared.Kind, d.Pool, table.Size(d.Size))
	if declared.Filesystem != "" {
		detail += ", " + declared.Filesystem
	}
	if declared.Mount != "" {
		detail += ", on " + declared.Mount
	}
	if d.Count > 1 {
		detail = fmt.Sprintf("%d of %d: %s", count, d.Count, detail)
	}
	p.plan.Changes = append(p.plan.Changes, control.Change{
		Action: action, Item: "storage", Name: declared.Name, Detail: detail,
	})
}

// leave notes what is there and not in the file.
func (p *planner) leave(file *spec.File) {
	declared := map[string]bool{}
	bases := map[string]bool{}
	for _, s := range file.Storage {
		bases[s.Name] = true
		for _, instance := range s.Instances() {
			declared[instance.Name] = true
		}
	}
	told := map[string]bool{}
	for _, existing := range p.world.Storage {
		name := existing.Name
		if declared[name] || existing.Life != life.Alive {
			continue
		}
		if base := baseName(name); !bases[base] {
			name = base // all its instances are not in the file
		}
		if told[name] {
			continue
		}
		told[name] = true
		p.plan.Changes = append(p.plan.Changes, control.Change{
			Action: control.ActionLeave, Item: "storage", Name: name,
			Detail: fmt.Sprintf("not in the file: left alone, remove it with `stowage remove %s`", name),
		})
	}
}

// baseName returns NAME of NAME and of NAME/N.
func baseName(name string) string {
	if dir := path.Dir(name); dir != "." {
		return dir
	}
	return name
}
