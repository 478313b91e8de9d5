// Package converge works out what applying a file changes, or why the file cannot be applied. It
// changes nothing itself and does no I/O: its knowledge of the machines and of existing storage
// is a [Situation] that the caller has read.
//
// Storage that the file declares and that does not exist is added. Existing storage is attached
// if it is detached, at the mount point of the file, grows if it is smaller, gets the labels of the file, and otherwise stays as it is. A declaration that
// differs from existing storage in another way is an error: no storage is altered in place, and
// attached storage does not move to another machine. If its entry names no machine, existing
// storage that is attached stays where it is.
// Storage that is not in the file is left alone, because data is destroyed only when its name
// was given for that.
//
// [Resize] and [Import] plan what a command requests, by the same rules.
package converge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// Situation is what a file is compared with.
type Situation struct {
	// Machine is the machine of entries that name none. Reserved is about it. The zero tag: each entry
	// must name a machine.
	Machine names.MachineTag
	// Machines are all machines, in the order in which errors list them.
	Machines  []state.Machine
	Providers storage.ProviderRegistry
	// Manager says that the environment's storage is managed too.
	Manager bool
	// Pools are all pools, including the providers' default pools.
	Pools []*storage.Config
	// Storage is the existing storage of the names that the plan is about.
	Storage []state.Storage
	// ListAll lists all storage. It is called only if the plan depends on that.
	ListAll func() ([]state.Storage, error)
	// TakenMountPoints is as [state.State.TakenMountPoints].
	TakenMountPoints func([]state.MountPoint) ([]*state.MountPoint, error)
	// Undeclared says that the plan lists the storage that is not in the file.
	Undeclared bool
	// Reserved are directories that must not be mounted on, in or above.
	Reserved []string
	// Space is the free space of machines, by provider. What it lacks is not known, and not checked
	// here.
	Space map[names.MachineTag]map[storage.ProviderType]Space
	// Filesystems has the rules for filesystems on volumes.
	Filesystems interface {
		ValidateFilesystemParams(storage.FilesystemParams) error
	}
	// Snapshot returns a snapshot by its name.
	Snapshot func(name string) (state.Snapshot, error)
	// CheckGrowth returns an error if storage cannot grow, regardless of free space.
	CheckGrowth func(*state.Storage) error
	// KeepDiffering keeps storage that is larger than the file says, or is mounted elsewhere, which are errors
	// otherwise: the file may be older than the storage's growth, or than its new mount point.
	KeepDiffering bool
}

// Plan is the result of planning to apply a file.
type Plan struct {
	State state.Changes
	// Changes describes the changes, and what is left alone, to the user.
	Changes []user.Change
	// Names are the names of the storage in the file.
	Names []string
	// Attached is how many instances in the file are attached and as large as declared already.
	// Unfinished are the names of the others. Detached are the names of those that are not to be
	// attached; they are in neither.
	Attached   int
	Unfinished []string
	Detached   []string
}

// defaultFilesystem is the type of the filesystem on a volume if nobody chooses one.
const defaultFilesystem = "ext4"

// attributeOf returns the attribute that a field of a file sets.
func attributeOf(field string) string {
	if field == "filesystem" {
		return storage.FilesystemTypeAttribute
	}
	return field
}

// Make returns the plan for a file. The error names the file, the line, the
// entry and the field, and satisfies errors.IsNotValid.
func Make(file *spec.File, situation Situation) (Plan, error) {
	p := newPlanner(situation)
	for _, pool := range file.Pools {
		if err := p.planPool(pool); err != nil {
			return Plan{}, err
		}
	}
	for _, declared := range file.Storage {
		if err := p.planStorage(declared); err != nil {
			return Plan{}, err
		}
	}
	if err := p.checkMounts(); err != nil {
		return Plan{}, err
	}
	if situation.Undeclared {
		if err := p.recordUndeclared(file); err != nil {
			return Plan{}, err
		}
	}
	return p.plan, nil
}

func newPlanner(situation Situation) *planner {
	p := &planner{
		situation: situation,
		pools:     map[string]*storage.Config{},
		existing:  map[string]*state.Storage{},
		prefixes:  map[string]bool{},
		machines:  map[string]names.MachineTag{},
		mounts:    map[names.MachineTag]*spec.Mounts{},
		space:     map[place]*Space{},
	}
	for _, m := range situation.Machines {
		p.machines[m.Name], p.machines[m.Tag.Id()] = m.Tag, m.Tag
	}
	for _, pool := range situation.Pools {
		p.pools[pool.Name()] = pool
	}
	for machine, spaces := range situation.Space {
		for provider, space := range spaces {
			p.space[place{machine, provider}] = &space
		}
	}
	for i := range situation.Storage {
		s := &situation.Storage[i]
		p.existing[s.Name] = s
		p.prefixes[state.BaseName(s.Name)] = true
	}
	return p
}

type planner struct {
	situation Situation
	pools     map[string]*storage.Config
	existing  map[string]*state.Storage
	// prefixes are the names of existing storage without their numbers.
	prefixes map[string]bool
	// machines has each machine by its name and by its number; no name is a number.
	machines map[string]names.MachineTag
	// mounts are the mount points on each machine that the plan takes; wanted are all that have
	// to be compared with those of existing storage.
	mounts map[names.MachineTag]*spec.Mounts
	wanted []wantedMount
	// space is the remaining space.
	space   map[place]*Space
	chooser *Chooser
	plan    Plan
}

// planPool adds a pool to the plan unless the pool exists.
func (p *planner) planPool(declared spec.Pool) error {
	_, err := p.situation.Providers.StorageProvider(declared.Provider)
	if errors.Is(err, errors.NotFound) {
		return declared.Errorf("provider", "%q is not known: the providers are %s", declared.Provider, p.providerNames())
	}
	if err != nil {
		return declared.Errorf("provider", "%s", err)
	}
	if _, ok := declared.Attributes[storage.ConfigStorageDir]; ok {
		return declared.Errorf("attributes", "the agent sets %s: leave it out", storage.ConfigStorageDir)
	}
	config, err := storage.NewConfig(declared.Name, declared.Provider, declared.Attributes)
	if err != nil {
		return declared.Errorf("", "%s", err)
	}
	if known, ok := p.pools[declared.Name]; ok {
		if known.Provider() != config.Provider() {
			return declared.Errorf("provider", "the pool exists with provider %s, and cannot change: choose another name", known.Provider())
		}
		if !sameAttributes(known.Attrs(), config.Attrs()) {
			return declared.Errorf("attributes", "the pool exists with other attributes, and cannot change: choose another name")
		}
		return nil
	}
	if err := p.checkAttributes(config, config.Attrs()); err != nil {
		return declared.Errorf("attributes", "%s", err)
	}
	p.pools[declared.Name] = config
	p.plan.State.Pools = append(p.plan.State.Pools, state.Pool{
		Name: config.Name(), Provider: config.Provider(), Attributes: config.Attrs(),
	})
	p.plan.Changes = append(p.plan.Changes, user.Change{
		Action: user.ActionAdd, Item: "pool", Name: declared.Name, Detail: "provider " + string(declared.Provider),
	})
	return nil
}

func (p *planner) providerNames() string {
	types, err := p.situation.Providers.StorageProviderTypes()
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

// sameAttributes compares attributes as JSON, because stored numbers are read back with other
// types.
func sameAttributes(a, b storage.Attrs) bool {
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// planStorage adds to the plan what the instances of a declaration need.
func (p *planner) planStorage(declared spec.Storage) error {
	pool, ok := p.pools[declared.Directive.Pool]
	if !ok {
		return declared.Errorf("directive", "pool %q is not known: the pools are %s", declared.Directive.Pool, p.poolNames())
	}
	provider, err := p.situation.Providers.StorageProvider(pool.Provider())
	if err != nil {
		return declared.Errorf("directive", "pool %s: %s", pool.Name(), err)
	}
	onVolume, err := checkKind(declared, pool, provider)
	if err != nil {
		return err
	}
	if err := p.checkCount(declared); err != nil {
		return err
	}
	if err := p.checkChoices(declared, pool, onVolume); err != nil {
		return err
	}

	var added, attached, detached, labelled, elsewhere int
	failed := map[string]int{}                          // what is tried again, by the error
	grown, larger := map[uint64]int{}, map[uint64]int{} // by the previous size
	for _, instance := range declared.Instances() {
		existing := p.existing[instance.Name]
		p.planFrom(instance.Name, existing)
		machine, err := p.machineFor(declared, instance, existing, provider)
		if err != nil {
			return err
		}
		wanted := state.StorageParams{
			Name:       instance.Name,
			Kind:       declared.Kind,
			Pool:       pool.Name(),
			Size:       declared.Directive.Size,
			MountPoint: instance.Mount,
			Labels:     declared.Labels,
			Machine:    machine,
			Detached:   declared.Detached,
			Asker:      declared.Asker,
			From:       declared.From,
		}
		for _, choice := range declared.Choices() {
			if *choice.Value == "" {
				continue
			}
			if wanted.Attributes == nil {
				wanted.Attributes = map[string]any{}
			}
			wanted.Attributes[attributeOf(choice.Field)] = *choice.Value
		}
		if existing != nil {
			step, err := p.compare(declared, wanted, pool, onVolume, existing)
			if err != nil {
				return err
			}
			switch {
			case wanted.Size < minSize(existing):
				larger[minSize(existing)]++
			case existing.RequestedMiB != wanted.Size:
				if err := p.planResize(existing, wanted.Size); err != nil {
					return declared.Errorf("directive", "%s", err)
				}
				grown[existing.RequestedMiB]++
			}
			if existing.MountPoint != wanted.MountPoint && step == toKeep {
				elsewhere++
			}
			if declared.Labels != nil && !maps.Equal(existing.Labels, declared.Labels) {
				p.plan.State.Label = append(p.plan.State.Label, state.Label{Name: existing.Name, Labels: declared.Labels})
				labelled++
			}
			switch step {
			case toAttach:
				if err := p.planAttach(declared, existing, machine, wanted.MountPoint); err != nil {
					return err
				}
				attached++
			case toDetach:
				p.plan.State.Detach = append(p.plan.State.Detach, instance.Name)
				detached++
			default:
				p.plan.State.Keep = append(p.plan.State.Keep, instance.Name)
				if existing.Failing && existing.RequestedMiB == wanted.Size {
					failed[existing.Message]++
				}
			}
			if declared.Detached {
				p.plan.Detached = append(p.plan.Detached, instance.Name)
			} else if existing.Status == status.Attached && existing.Location != "" && existing.SizeMiB >= wanted.Size {
				p.plan.Attached++
			} else {
				p.plan.Unfinished = append(p.plan.Unfinished, instance.Name)
			}
			continue
		}
		if declared.Detached {
			p.plan.Detached = append(p.plan.Detached, instance.Name)
		} else {
			p.plan.Unfinished = append(p.plan.Unfinished, instance.Name)
		}
		if err := p.planAdd(declared, wanted, pool); err != nil {
			return err
		}
		added++
	}
	if added+attached+len(grown) > 0 {
		if err := p.checkManager(pool, provider); err != nil {
			return declared.Errorf("directive", "%s", err)
		}
	}
	p.recordChange(declared, user.ActionAdd, added, describe(declared))
	p.recordChange(declared, user.ActionAttach, attached, describe(declared))
	p.recordChange(declared, user.ActionDetach, detached, describe(declared))
	p.recordChange(declared, user.ActionLabel, labelled, orNone(label.FormatSelector(declared.Labels)))
	for _, before := range slices.Sorted(maps.Keys(grown)) {
		p.recordChange(declared, user.ActionGrow, grown[before], formatGrowth(before, declared.Directive.Size))
	}
	for _, message := range slices.Sorted(maps.Keys(failed)) {
		p.recordChange(declared, user.ActionRetry, failed[message], message)
	}
	p.recordChange(declared, user.ActionKeep, elsewhere, "mounted in another place than "+declared.Mount)
	for _, size := range slices.Sorted(maps.Keys(larger)) {
		p.recordChange(declared, user.ActionKeep, larger[size],
			fmt.Sprintf("%s, not %s", table.ExactSize(size), table.ExactSize(declared.Directive.Size)))
	}
	p.plan.Names = append(p.plan.Names, declared.Name)
	return nil
}

// planFrom adds to the plan the revision of the instance that it was made from, which is nil if there was
// no such instance.
func (p *planner) planFrom(name string, existing *state.Storage) {
	from := state.Revision{Name: name}
	if existing != nil {
		from.Revision = existing.Revision
	}
	p.plan.State.Revisions = append(p.plan.State.Revisions, from)
}

// checkManager returns an error for storage that no worker would manage.
func (p *planner) checkManager(pool *storage.Config, provider storage.Provider) error {
	if provider.Scope() == storage.ScopeEnviron && !p.situation.Manager {
		return errors.Errorf("pool %s is of provider %s, whose storage an environment manager makes and attaches: start the agent with --manager",
			pool.Name(), pool.Provider())
	}
	return nil
}

// checkChoices checks the choices one after the other, and the size once the type is known, so
// that the error is about the field that has to change.
func (p *planner) checkChoices(declared spec.Storage, pool *storage.Config, onVolume bool) error {
	params := storage.FilesystemParams{Attributes: pool.ForProvider().Attrs()}
	if params.Attributes == nil {
		params.Attributes = map[string]any{}
	}
	choices := declared.ChoicesFor(onVolume)
	for _, choice := range choices {
		if *choice.Value != "" {
			delete(params.Attributes, attributeOf(choice.Field))
		}
	}
	check := func(field string) error {
		var err error
		if onVolume {
			err = p.checkFilesystem(params)
		}
		if err == nil {
			err = p.checkAttributes(pool, params.Attributes)
		}
		switch {
		case err == nil:
			return nil
		case field == "directive" && declared.Filesystem == "":
			return declared.Errorf(field, "pool %s: %s", pool.Name(), err)
		}
		return declared.Errorf(field, "%s", err)
	}
	for i, choice := range choices {
		field := "directive" // it names the pool, which has made the choice otherwise
		if *choice.Value != "" {
			field = choice.Field
			params.Attributes[attributeOf(field)] = *choice.Value
		}
		if err := check(field); err != nil {
			return err
		}
		if i == 0 {
			params.Size = declared.Directive.Size
			if err := check("directive"); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkFilesystem checks that the filesystem can be made on a volume. The tags of the
// filesystem and the volume are not known yet.
func (p *planner) checkFilesystem(params storage.FilesystemParams) error {
	params.Tag, params.Volume = names.NewFilesystemTag("0"), names.NewVolumeTag("0")
	return trimErrorPrefix("filesystem 0: ", p.situation.Filesystems.ValidateFilesystemParams(params))
}

// checkAttributes checks that the pool could have the attributes.
func (p *planner) checkAttributes(pool *storage.Config, attributes storage.Attrs) error {
	provider, err := p.situation.Providers.StorageProvider(pool.Provider())
	if err != nil {
		return errors.Trace(err)
	}
	config, err := storage.NewConfig(pool.Name(), pool.Provider(), attributes)
	if err != nil {
		return errors.Trace(err)
	}
	return trimErrorPrefix(fmt.Sprintf("storage pool %q: ", pool.Name()), poolmanager.Validate(provider, config))
}

// trimErrorPrefix removes a prefix from an error, because the callers' messages already
// contain it.
func trimErrorPrefix(prefix string, err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), prefix) {
		return err
	}
	return errors.NewNotValid(nil, strings.TrimPrefix(err.Error(), prefix))
}

func (p *planner) poolNames() string {
	list := make([]string, 0, len(p.pools))
	for name := range p.pools {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// checkKind returns an error if the pool cannot have the kind. It reports whether the
// provider makes a volume, on which a filesystem is made if the kind is filesystem.
func checkKind(declared spec.Storage, pool *storage.Config, provider storage.Provider) (onVolume bool, err error) {
	name := pool.Provider()
	mounted := storage.MountsVolumes(provider, pool.Attrs())
	blocks := provider.Supports(storage.StorageKindBlock)
	filesystems := provider.Supports(storage.StorageKindFilesystem) || mounted
	switch {
	case declared.Kind == storage.StorageKindBlock && mounted:
		return false, declared.Errorf("kind", "the volumes of pool %s are filesystems: write filesystem, or choose a pool of block devices", pool.Name())
	case declared.Kind == storage.StorageKindBlock && !blocks:
		return false, declared.Errorf("kind", "provider %s makes no block devices: write filesystem, or choose another pool", name)
	case declared.Kind == storage.StorageKindFilesystem && !blocks && !filesystems:
		return false, declared.Errorf("kind", "provider %s makes no filesystems: choose another pool", name)
	}
	for _, choice := range declared.Choices() {
		if *choice.Value != "" && filesystems && choice.OnVolume {
			return false, declared.Errorf(choice.Field, "provider %s makes filesystems of its own: leave it out", name)
		}
	}
	return declared.Kind == storage.StorageKindBlock || !filesystems, nil
}

// checkCount refuses to turn NAME into NAME/0, NAME/1, … or the reverse, because NAME would
// then refer to both.
func (p *planner) checkCount(declared spec.Storage) error {
	if !p.prefixes[declared.Name] {
		return nil
	}
	_, single := p.existing[declared.Name]
	if single != (declared.Directive.Count == 1) {
		return declared.Errorf("directive", "the count cannot change between one and several: %s, or choose another name",
			removeHint(declared.Name))
	}
	return nil
}

func removeHint(name string) string {
	return fmt.Sprintf("remove it first with `stowage remove %s`", name)
}

// step is what existing storage needs to match a declaration.
type step int

const (
	toKeep step = iota
	toAttach
	toDetach
)

// compare returns what existing storage needs to match the declaration. It returns an error if the
// storage differs in another way, or is being removed.
func (p *planner) compare(declared spec.Storage, wanted state.StorageParams, pool *storage.Config, onVolume bool, existing *state.Storage) (step, error) {
	differs := func(field, what, have string) error {
		return declared.Errorf(field, "%s of %s cannot change from %s: write that, or %s",
			what, existing.Name, have, removeHint(existing.Name))
	}
	switch {
	case existing.Life != life.Alive:
		return toKeep, declared.Errorf("name", "%s is still being removed: apply again when `stowage status` no longer lists it", existing.Name)
	case existing.Kind != wanted.Kind:
		return toKeep, differs("kind", "the kind", existing.Kind.String())
	case existing.Pool != wanted.Pool:
		return toKeep, differs("directive", "the pool", existing.Pool)
	case wanted.Size < minSize(existing) && !p.situation.KeepDiffering:
		return toKeep, declared.Errorf("directive", "%s has %s and cannot become smaller: write that, or %s",
			existing.Name, table.ExactSize(minSize(existing)), removeHint(existing.Name))
	case existing.Asker != wanted.Asker && wanted.Asker != (state.Asker{}) && existing.Asker != (state.Asker{}):
		return toKeep, declared.Errorf("asker", "%s was asked for by %s, as %q: choose another name", existing.Name, existing.Asker.Way, existing.Asker.Name)
	case declared.From != (state.From{}) && existing.From != wanted.From:
		return toKeep, declared.Errorf("from", "%s exists, and was not made from %s: %s, and apply again", existing.Name, declared.From, removeHint(existing.Name))
	case existing.MountPoint == wanted.MountPoint:
	case existing.Asker != (state.Asker{}):
		return toKeep, differs("mount", "the mount point", fmt.Sprintf("%q", existing.MountPoint))
	case len(existing.Attachments) > 0 && p.situation.KeepDiffering: // it stays where it is
	case len(existing.Attachments) > 0:
		return toKeep, declared.Errorf("mount", "the mount point of %s is %q and can change only while it is detached: write that, or detach it with `stowage detach --wait %s`, then apply again",
			existing.Name, existing.MountPoint, existing.Name)
	case declared.Detached:
		return toKeep, declared.Errorf("mount", "the mount point of %s is %q and changes only when it is attached: write that, or leave `attached: false` out",
			existing.Name, existing.MountPoint)
	}
	for _, choice := range declared.ChoicesFor(onVolume) {
		if existing.From != (state.From{}) && *choice.Value == "" && choice.Field != "mount-options" {
			continue // it has what was copied
		}
		have := attributeValue(choice.Field, existing.Attributes)
		if have != attributeValue(choice.Field, wanted.Attributes, pool.Attrs()) {
			return toKeep, differs(choice.Field, "the "+choice.Field, orNone(have))
		}
	}
	attached := len(existing.Attachments) > 0 && existing.Attachments[0].Life == life.Alive
	if !declared.Detached && attached && (declared.Machine == "" || existing.Attachments[0].Machine == wanted.Machine) {
		return toKeep, nil
	}
	if bound, ok := BoundMachine(existing); ok && bound != wanted.Machine && (!declared.Detached || declared.Machine != "") {
		have := p.machineName(bound)
		return toKeep, declared.Errorf("machine", "%s is bound to machine %s, and cannot move to machine %s: write `machine: %s`, or %s",
			existing.Name, have, p.machineName(wanted.Machine), have, removeHint(existing.Name))
	}
	switch {
	case declared.Detached && attached:
		return toDetach, nil
	case declared.Detached:
		return toKeep, nil
	case len(existing.Attachments) == 0 && existing.Status != status.Detaching:
		return toAttach, nil
	case !attached:
		return toKeep, declared.Errorf("name", "%s is still being detached: wait for it with `stowage detach --wait %s`, then apply again", existing.Name, existing.Name)
	default:
		return toKeep, declared.Errorf("machine", "%s is attached to machine %s: detach it first with `stowage detach --wait %s`, then apply again",
			existing.Name, p.machineName(existing.Attachments[0].Machine), existing.Name)
	}
}

// planAttach plans to attach an existing instance at a mount point. If that is another one than before,
// or if any machine can have the instance, it may be taken on this one.
func (p *planner) planAttach(declared spec.Storage, existing *state.Storage, machine names.MachineTag, mountPoint string) error {
	_, bound := BoundMachine(existing)
	attach := state.Attach{Name: existing.Name, Machine: machine}
	if mountPoint != existing.MountPoint {
		attach.MountPoint = mountPoint
	}
	if mountPoint != "" && (!bound || attach.MountPoint != "") {
		fail := func(err error) error { return declared.Errorf("mount", "%s", err) }
		if err := p.takeMount(machine, mountPoint, existing.Name, fail); err != nil {
			return err
		}
	}
	p.plan.State.Attach = append(p.plan.State.Attach, attach)
	return nil
}

// attributeValue returns the value of a field in the first of the attributes that set it, or
// the default of the field.
func attributeValue(field string, all ...map[string]any) string {
	for _, attributes := range all {
		if text, ok := attributes[attributeOf(field)].(string); ok && text != "" {
			return text
		}
	}
	if field == "filesystem" {
		return defaultFilesystem
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// planResize plans to change an instance's wanted size. The state decides whether the size may
// be smaller.
func (p *planner) planResize(existing *state.Storage, size uint64) error {
	if size > existing.RequestedMiB {
		if err := p.checkGrowth(existing, size); err != nil {
			return err
		}
	}
	p.plan.State.Resize = append(p.plan.State.Resize, state.Resize{Name: existing.Name, Size: size})
	return nil
}

// checkGrowth returns an error if an instance cannot grow to size.
func (p *planner) checkGrowth(existing *state.Storage, size uint64) error {
	if err := p.situation.CheckGrowth(existing); err != nil {
		return err
	}
	machine, ok := machineOf(existing)
	if !ok {
		return nil
	}
	at := place{machine, existing.Provider}
	more := size - existing.RequestedMiB
	needed := size
	if space := p.space[at]; space != nil && space.Reserved {
		needed = more
	}
	if !p.hasSpace(at, existing.Attributes, needed) {
		return p.noSpace(at, fmt.Sprintf("%s asks for %s more", existing.Name, table.Size(more)))
	}
	p.takeSpace(at, existing.Attributes, needed)
	return nil
}

// minSize returns the smallest size that can be requested for an instance. The size last
// requested may be larger than the size it has.
func minSize(existing *state.Storage) uint64 {
	return min(existing.RequestedMiB, existing.SizeMiB)
}

func formatGrowth(before, after uint64) string {
	if after < before {
		return fmt.Sprintf("wanted size lowered from %d MiB to %d MiB", before, after)
	}
	return fmt.Sprintf("%d MiB to %d MiB", before, after)
}

// planAdd plans a new instance.
func (p *planner) planAdd(declared spec.Storage, wanted state.StorageParams, pool *storage.Config) error {
	if wanted.MountPoint != "" {
		fail := func(err error) error { return declared.Errorf("mount", "%s", err) }
		if err := p.addMount(wanted.Machine, wanted.MountPoint, wanted.Name, fail); err != nil {
			return err
		}
	}
	at := place{wanted.Machine, pool.Provider()}
	if !p.hasSpace(at, pool.Attrs(), wanted.Size) {
		err := declared.Errorf("directive", "%s", p.noSpace(at, fmt.Sprintf("%s asks for %s", wanted.Name, table.Size(wanted.Size))))
		return errors.WithType(err, asked.ErrNoSpace)
	}
	p.takeSpace(at, pool.Attrs(), wanted.Size)
	p.plan.State.Add = append(p.plan.State.Add, wanted)
	return nil
}

// describe returns a short description of a declaration.
func describe(declared spec.Storage) string {
	detail := fmt.Sprintf("%s, pool %s, %s", declared.Kind, declared.Directive.Pool, table.Size(declared.Directive.Size))
	for _, choice := range declared.Choices() {
		if *choice.Value != "" {
			detail += ", " + *choice.Value
		}
	}
	if declared.Mount != "" {
		detail += ", on " + declared.Mount
	}
	if declared.Machine != "" {
		detail += ", machine " + declared.Machine
	}
	return detail
}

// recordChange adds to the plan the change made to count instances of a declaration.
func (p *planner) recordChange(declared spec.Storage, action user.Action, count int, detail string) {
	if count == 0 {
		return
	}
	if all := declared.Directive.Count; all > 1 {
		detail = fmt.Sprintf("%d of %d: %s", count, all, detail)
	}
	p.plan.Changes = append(p.plan.Changes, user.Change{
		Action: action, Item: "storage", Name: declared.Name, Detail: detail,
	})
}

// recordUndeclared adds to the plan the storage of users that exists and is not in the file.
func (p *planner) recordUndeclared(file *spec.File) error {
	all, err := p.situation.ListAll()
	if err != nil {
		return errors.Trace(err)
	}
	declared := map[string]bool{}
	bases := map[string]bool{}
	for _, s := range file.Storage {
		bases[s.Name] = true
		for _, instance := range s.Instances() {
			declared[instance.Name] = true
		}
	}
	reported := map[string]bool{}
	for _, existing := range all {
		name := existing.Name
		if declared[name] || existing.Life != life.Alive || existing.Asker != (state.Asker{}) {
			continue
		}
		if base := state.BaseName(name); !bases[base] {
			name = base // none of its instances is in the file
		}
		if reported[name] {
			continue
		}
		reported[name] = true
		p.plan.Changes = append(p.plan.Changes, user.Change{
			Action: user.ActionLeave, Item: "storage", Name: name,
			Detail: fmt.Sprintf("not in the file: left alone, remove it with `stowage remove %s`", name),
		})
	}
	return nil
}
