package state

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/label"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
	"github.com/stowage-io/stowage/watcher"
)

// StorageParams describes a storage instance to add.
type StorageParams struct {
	// Name is NAME or NAME/N: NAME is a lower-case letter and up to 62 lower-case
	// letters, digits and hyphens, N a number.
	Name string

	Kind storage.StorageKind

	// Pool is the name of a pool, see [poolmanager.Manager.List].
	Pool string

	// Size is the least size, in MiB. It is not zero.
	Size uint64

	// Attributes are the instance's own settings. They override the pool's. They are stored as
	// JSON, so numbers are read back as float64.
	Attributes map[string]any

	// MountPoint is where to mount a filesystem, a clean absolute path. Empty leaves the
	// choice to the provider. It must be empty for a block instance.
	MountPoint string

	ReadOnly bool

	// Labels are what users say about the instance, such as tier: fast; see [label.Check].
	Labels map[string]string

	// Machine is the machine to attach the instance to. The zero tag leaves it detached, which
	// is possible only for storage that does not need a machine to be made.
	Machine names.MachineTag

	// Detached leaves the instance detached. Then Machine is where it is made, and it is the zero tag
	// for storage of the environment. A filesystem on a volume of the environment is made when the
	// instance is attached first.
	Detached bool

	// Asker is who asks for the instance. With one, Name may be empty: [State.NameFor] chooses it.
	Asker Asker

	// From says whose contents the instance gets. The zero value leaves it empty.
	From From

	// Source is the source that was passed to [State.PrepareImport]. It is for imports only.
	Source string

	// VolumeContext is what the provider needs to attach the imported volume; see SetVolumeContexts. It is for
	// imports only.
	VolumeContext map[string]string

	// By says who asks for the import, for [Event.By]. It is for imports only.
	By string
}

// Storage is a storage instance as users see it.
type Storage struct {
	Name     string
	Kind     storage.StorageKind
	Pool     string
	Provider storage.ProviderType

	// SizeMiB is the requested size until the provider has reported the size that it made.
	// RequestedMiB is the size that was last requested: storage with less is to grow.
	SizeMiB, RequestedMiB uint64

	// VolumeMiB is the size of the volume if its filesystem is known to have less: the volume has grown,
	// and the filesystem has not, or not yet. Otherwise it is 0.
	VolumeMiB uint64

	// MountPoint is the requested mount point.
	MountPoint string

	// MoveTo is the machine to which the instance is being moved; zero: it is not being moved.
	MoveTo names.MachineTag

	// Attributes are the pool's at the time when the instance was added, overridden by the
	// instance's own.
	Attributes map[string]any
	ReadOnly   bool

	// Labels are what users have said about the instance.
	Labels map[string]string

	// Claim is the name of the claim that has the instance, or has left it if it is Retained; empty
	// for none. A claim can have only storage without either.
	Claim    string
	Retained bool

	// Asker is who asked for the instance; zero for a user.
	Asker Asker

	// From says whose contents the instance got; zero if it was made empty. Those may be gone. FromUUID is
	// the UUID of the snapshot or of the storage.
	From     From
	FromUUID string

	Life life.Value

	// Revision identifies what users want of the instance: it changes with its size, its labels, its
	// claim and the machine that it is to be attached to, and when it is to be removed or released, but
	// not with its status. No two instances have the same one, even if one gets the name of the other.
	Revision string

	// StatusInfo is the most important status of the instance's volume and filesystem: an
	// error first, then a status with a message, then one of removal, then the least advanced.
	// An attached entity's status is the least important, and its message is a remark; if both
	// have a remark, the volume's comes first. CannotGrowTo is that of either.
	StatusInfo

	// Failing says that something about the instance has failed, as Message says: a request for it, such
	// as one in [Changes.Keep], is a retry.
	Failing bool

	// Location is the mount point of an attached filesystem, or the path of an attached
	// volume's block device once the machine has published it. Otherwise it is empty. A status
	// is set before the fact that it reports is recorded: storage can be used when it is
	// attached and has a location.
	Location string

	// Volume and Filesystem are the parts of the instance; each is nil if the instance does
	// not have it.
	Volume, Filesystem *Entity

	// Attachments are the instance's attachments to machines, at most one.
	Attachments []Attachment
}

// Entity is a volume or filesystem of a storage instance.
type Entity struct {
	// Tag is a names.VolumeTag or a names.FilesystemTag.
	Tag names.Tag

	// Scope says whether the environment's worker or a machine's looks after the entity. A
	// filesystem on a volume always has ScopeMachine.
	Scope storage.Scope

	Life life.Value
	StatusInfo

	// UUID never changes and is never reused. The provider keeps it in the resource tag that
	// names the owner.
	UUID string

	// ProviderID is the provider's ID of the entity; empty until it is provisioned.
	ProviderID string
}

// Attachment is the attachment of a storage instance to a machine.
type Attachment struct {
	Machine  names.MachineTag
	Life     life.Value
	Location string
	ReadOnly bool
}

// Changes are the changes that a user requests of [State.Apply].
type Changes struct {
	// Pools are created, or replaced for storage that is added from then on, by the rules of
	// [poolmanager.Rules.Set].
	Pools []Pool

	// Add are instances to add, as by [State.AddStorage]. They may name the pools above.
	Add []StorageParams

	// Attach are instances to attach, as by [State.AttachStorage].
	Attach []Attach

	// Label are instances whose labels are to be others.
	Label []Label

	// Resize are instances to grow, as by [State.ResizeStorage].
	Resize []Resize

	// Move are instances to move, as by [State.MoveStorage].
	Move []Attach

	// Claim are claims to record. Their storage exists, or is in Add, and belongs to no claim: else
	// the error satisfies errors.Is(err, [ErrChanged]).
	Claim []Claim

	// Unclaim are the names of claims to remove: their storage is removed, or stays and is retained.
	// Offer are the names of retained instances that claims may have again.
	Unclaim, Offer []string

	// Detach are the names of instances to detach, as by [State.DetachStorage].
	Detach []string

	// Remove are the names of instances to remove, as by [State.RemoveStorage], and Release those of
	// instances to release, as by [State.ReleaseStorage]. Instances with an [Asker] are only for those who
	// come by the same way, unless Force is set.
	Remove, Release []string
	Way             string
	Force           bool

	// Rename are the instances to rename, after all other changes. An error of one that is not made yet, or
	// has changed since, satisfies errors.Is(err, errors.NotYetAvailable) or [ErrChanged].
	Rename []Rename

	// Format are the names of instances to format, as by [State.FormatStorage], and Retry those whose
	// failed operations are to be retried, as by [State.RetryStorage].
	Format, Retry []string

	// Keep are the names of instances that are to stay as they are. Failed operations of them
	// are retried at once, as they are for the instances in Attach and Resize.
	Keep []string

	// Revisions are the revisions of the instances that the changes were planned from. If an
	// instance has another one when the changes are committed, nothing is changed, and the error
	// satisfies errors.Is(err, [ErrChanged]).
	Revisions []Revision

	// By says who asks for the changes, for [Event.By].
	By string

	// Session, if set, is that of the agent that asks for the changes. If it is not current when the
	// changes are committed, nothing is changed, and the error satisfies errors.Is(err, [ErrSessionEnded]).
	Session Session

	// Lease, if set, excludes what others plan. If it has ended when the changes are committed,
	// nothing is changed, and the error satisfies errors.Is(err, [kv.ErrLeaseLost]).
	Lease kv.Lease
}

// needsSpace reports whether the changes add or grow something. Existing storage can always be
// attached.
func (c Changes) needsSpace() bool {
	return len(c.Pools) > 0 || len(c.Add) > 0 || len(c.Label) > 0 || len(c.Resize) > 0 || len(c.Claim) > 0
}

// Attach is a request to attach an instance to a machine.
type Attach struct {
	Name    string
	Machine names.MachineTag

	// MountPoint, if it is not empty, is where a filesystem that is detached is mounted from now on, and
	// MountOptions, if it is not nil, are the options. They are not for moves.
	MountPoint   string
	MountOptions *string
}

// Label is a request to replace the labels of an instance.
type Label struct {
	Name   string
	Labels map[string]string
}

// Resize is a request to change the wanted size of an instance.
type Resize struct {
	Name string
	Size uint64 // MiB
}

// Apply makes all of the changes in one transaction, or none. The error is about the first
// change that cannot be made, and names it. On a full disk nothing can be added or grown: the
// error satisfies errors.Is(err, syscall.ENOSPC). While servers of an older version have the state, too,
// nothing can be labelled or claimed: the error satisfies errors.Is(err, errors.NotYetAvailable).
func (st *State) Apply(changes Changes) error {
	var rules *poolmanager.Rules
	var err error
	if len(changes.Pools)+len(changes.Add) > 0 {
		if rules, err = poolmanager.NewRules(st.registry); err != nil {
			return errors.Trace(err)
		}
	}
	pools := make([]poolmanager.Change, len(changes.Pools))
	for i, pool := range changes.Pools {
		if pools[i], err = rules.Set(pool.Name, pool.Provider, pool.Attributes); err != nil {
			return errors.Trace(err)
		}
	}
	if changes.needsSpace() {
		if err := st.checkSpace(); err != nil {
			return err
		}
	}
	chosen := make(map[Asker]string) // names
	for _, p := range changes.Add {
		if p.Name == "" && p.Asker != (Asker{}) {
			if chosen[p.Asker], err = st.NameFor(p.Asker); err != nil {
				return errors.Trace(err)
			}
		}
	}
	renames := make([]renaming, len(changes.Rename))
	for i, r := range changes.Rename {
		if renames[i], err = st.prepareRename(r); err != nil {
			return errors.Trace(err)
		}
	}
	ctx := st.ctx
	if changes.Lease != nil {
		ctx = kv.WithLease(ctx, changes.Lease)
	}
	return st.updateWith(ctx, func(tx *txn) error {
		if err := st.ForSession(changes.Session).checkSession(&tx.reader); err != nil {
			return err
		}
		tx.by = changes.By
		if len(changes.Label)+len(changes.Claim) > 0 {
			if err := st.checkLabels(&tx.reader); err != nil {
				return err
			}
		}
		if err := tx.checkRevisions(changes.Revisions); err != nil {
			return err
		}
		if _, err := tx.changePools(pools); err != nil {
			return errors.Trace(err)
		}
		for _, p := range changes.Add {
			if p.Name == "" {
				if p.Name = chosen[p.Asker]; tx.has(storageKey(p.Name)) && !tx.has(p.Asker.key()) {
					return errors.WithType(errors.Errorf("storage %q was added since its name was chosen", p.Name), ErrChanged)
				}
			}
			if err := st.addStorage(tx, rules, p, nil); err != nil {
				return errors.Annotatef(err, "adding storage %q", p.Name)
			}
		}
		for _, l := range changes.Label {
			err := changeEach(tx, []string{l.Name}, "labelling", func(i *instance) error { return i.setLabels(l.Labels) })
			if err != nil {
				return errors.Trace(err)
			}
		}
		for _, r := range changes.Resize {
			err := changeEach(tx, []string{r.Name}, "resizing", func(i *instance) error { return i.resize(r.Size) })
			if err != nil {
				return errors.Trace(err)
			}
		}
		for _, a := range changes.Attach {
			err := changeEach(tx, []string{a.Name}, "attaching", func(i *instance) error {
				if err := tx.checkTarget(newMachineTag(a.Machine)); err != nil {
					return err
				}
				i.MoveTo = ""
				if err := i.setMountPoint(a.MountPoint); err != nil {
					return err
				}
				if err := i.setMountOptions(a.MountOptions); err != nil {
					return err
				}
				return i.attach(newMachineTag(a.Machine), tx.identity().Generation, tx.now)
			})
			if err != nil {
				return errors.Trace(err)
			}
		}
		if err := tx.moveEach(changes.Move); err != nil {
			return err
		}
		if err := st.claimEach(tx, changes.Claim); err != nil {
			return err
		}
		if err := st.unclaimEach(tx, changes.Unclaim); err != nil {
			return err
		}
		if err := tx.offerEach(changes.Offer); err != nil {
			return err
		}
		if err := tx.detachEach(changes.Detach); err != nil {
			return err
		}
		if err := st.removeEach(tx, changes.Remove, changes.Way, changes.Force); err != nil {
			return err
		}
		if err := st.releaseEach(tx, changes.Release, changes.Way, changes.Force); err != nil {
			return err
		}
		if err := tx.formatEach(changes.Format); err != nil {
			return err
		}
		if err := tx.retryEach(changes.Retry); err != nil {
			return err
		}
		if err := tx.retryFailing(changes.existing()); err != nil {
			return err
		}
		return tx.renameEach(renames)
	})
}

// existing returns the names of the existing instances that the changes name.
func (c Changes) existing() []string {
	all := slices.Clone(c.Keep)
	for _, a := range c.Attach {
		all = append(all, a.Name)
	}
	for _, r := range c.Resize {
		all = append(all, r.Name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// AddStorage adds storage instances, with the volumes, filesystems and attachments that they
// need. It adds all of them or none. The error satisfies errors.IsNotValid if parameters are
// invalid, errors.IsNotFound if a pool or machine does not exist, errors.IsNotSupported if the
// pool's provider does not make the kind, and errors.IsAlreadyExists if a name is taken.
//
// An instance of kind block has a volume. One of kind filesystem has only a filesystem if the
// provider makes filesystems, and otherwise a volume with a filesystem on it.
func (st *State) AddStorage(all ...StorageParams) error {
	return st.Apply(Changes{Add: all})
}

// ResizeStorage requests that an instance grow to size, in MiB. If it is not provisioned yet,
// it is made with that size; otherwise it grows when its worker and its provider can grow it.
// Requesting the size that is already wanted is not an error, nor is requesting less, down to
// the provisioned size, if the instance has not grown. Failed operations are retried at once,
// as by [State.RetryStorage]. The error satisfies errors.IsNotFound if the name does not
// exist, and errors.IsNotValid if the size is smaller than the provisioned size, or if the
// instance is being removed.
func (st *State) ResizeStorage(name string, size uint64) error {
	return st.Apply(Changes{Resize: []Resize{{name, size}}})
}

// AttachStorage attaches the named instances to a machine, all or none. An instance that is
// attached there already stays attached; failed operations are retried at once, as by
// [State.RetryStorage]. Errors name the instance. They satisfy errors.IsNotFound if a name or
// the machine does not exist, errors.IsNotValid if an instance is being removed or cannot be
// on that machine, errors.IsAlreadyExists if another machine has it, and errors.Is(err,
// errors.NotYetAvailable) if it is still being detached.
func (st *State) AttachStorage(names []string, machine names.MachineTag) error {
	attach := make([]Attach, len(names))
	for i, name := range names {
		attach[i] = Attach{Name: name, Machine: machine}
	}
	return st.Apply(Changes{Attach: attach})
}

// DetachStorage detaches the named instances from their machines, all or none. The instances
// remain, and can be attached again. Detaching one that is detached or being detached already
// is not an error; failed operations of it are retried at once, as by [State.RetryStorage].
// The error satisfies errors.IsNotFound if a name does not exist. After a restore,
// DetachStorage also detaches an entity that may have been attached since the backup; it looks
// for an entity that may have been made since by creating it again.
func (st *State) DetachStorage(names []string) error {
	return st.Apply(Changes{Detach: names})
}

func (tx *txn) detachEach(names []string) error {
	return unwantEach(tx, names, "detaching", func(i *instance) error {
		i.MoveTo = ""
		i.assumeAttached(tx.identity().Generation)
		i.top().beginDetach(tx.now)
		return nil
	})
}

// RemoveStorage detaches and destroys the named instances with their contents, all or none.
// Removing one that is being removed already is not an error; failed operations of it are
// retried at once, as by [State.RetryStorage]. Errors satisfy errors.IsNotFound if a name does not
// exist, errors.IsNotValid if a claim has an instance, and errors.IsNotSupported if the provider cannot
// delete storage.
func (st *State) RemoveStorage(names []string) error {
	return st.Apply(Changes{Remove: names})
}

func (st *State) removeEach(tx *txn, names []string, way string, force bool) error {
	return unwantEach(tx, names, "removing", func(i *instance) error {
		if err := i.checkUnclaimed(); err != nil {
			return err
		}
		if err := i.checkAsker(way, force); err != nil {
			return err
		}
		if err := st.checkDelete(i); err != nil {
			return err
		}
		i.assumeAttached(tx.identity().Generation)
		i.Life = atLeastDying(i.Life)
		return nil
	})
}

// checkDelete returns an error if the provider of an instance is known not to delete it.
func (st *State) checkDelete(i *instance) error {
	if st.canDelete(i) {
		return nil
	}
	remedy := ", and releases none"
	if provider, err := st.registry.StorageProvider(storage.ProviderType(i.Provider)); err == nil && provider.Releasable() {
		remedy = ": release it, which leaves its data in place"
	}
	return errors.NewNotSupported(nil, fmt.Sprintf("provider %q deletes no %s storage%s", i.Provider, i.providedKind(), remedy))
}

// canDelete reports whether the provider of an instance may delete it, or is deleting it.
func (st *State) canDelete(i *instance) bool {
	provider, err := st.registry.StorageProvider(storage.ProviderType(i.Provider))
	return err != nil || i.Life != life.Alive || storage.CanDelete(provider, i.providedKind())
}

// providedKind returns the kind of what the provider makes: a filesystem on a volume is the machine's.
func (i *instance) providedKind() storage.StorageKind {
	if i.Volume != nil {
		return storage.StorageKindBlock
	}
	return storage.StorageKindFilesystem
}

// ReleaseStorage is RemoveStorage, except that the provider keeps the data, without an owner.
// Errors satisfy errors.IsNotSupported if the provider cannot release storage, and
// errors.IsNotValid if an instance is already being destroyed, or a claim has it.
func (st *State) ReleaseStorage(names []string) error {
	return st.Apply(Changes{Release: names})
}

func (st *State) releaseEach(tx *txn, names []string, way string, force bool) error {
	return unwantEach(tx, names, "releasing", func(i *instance) error {
		if err := i.checkUnclaimed(); err != nil {
			return err
		}
		if err := i.checkAsker(way, force); err != nil {
			return err
		}
		provider, err := st.registry.StorageProvider(storage.ProviderType(i.Provider))
		if err != nil {
			return errors.Trace(err)
		}
		if !provider.Releasable() {
			return errors.NotSupportedf("releasing storage of provider %q", i.Provider)
		}
		if i.Life != life.Alive && !i.Release {
			return errors.NewNotValid(nil, "it is being destroyed")
		}
		i.assumeAttached(tx.identity().Generation)
		i.Life, i.Release = atLeastDying(i.Life), true
		return nil
	})
}

// Storage returns the named instances, in order. The error satisfies errors.IsNotFound if a
// name does not exist.
func (st *State) Storage(names ...string) ([]Storage, error) {
	result, missing, err := st.FindStorage(names...)
	if err == nil && len(missing) > 0 {
		err = errors.NotFoundf("storage %q", missing[0])
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	return result, nil
}

// StorageOf returns the instances that the names refer to, each once and sorted by name, and
// the names that refer to none. NAME refers to the instance NAME and to all of NAME/0, NAME/1,
// and so on.
func (st *State) StorageOf(names ...string) (found []Storage, missing []string, err error) {
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		for _, name := range names {
			before := len(found)
			if i, ok := read[instance](r, storageKey(name)); ok {
				found = append(found, i.view(r, name))
			}
			if err := scanStorage(r, snapshot, storageKey(name)+"/", &found); err != nil {
				return errors.Trace(err)
			}
			if len(found) == before {
				missing = append(missing, name)
			}
		}
		return nil
	})
	slices.SortFunc(found, func(a, b Storage) int { return strings.Compare(a.Name, b.Name) })
	found = slices.CompactFunc(found, func(a, b Storage) bool { return a.Name == b.Name })
	return found, missing, errors.Trace(err)
}

// scanStorage appends the instances whose keys begin with prefix.
func scanStorage(r *reader, snapshot kv.Snapshot, prefix string, found *[]Storage) error {
	return snapshot.Scan(prefix, func(key string, data []byte) error {
		i, err := decodeAt[instance](key, data)
		if err != nil {
			return errors.Trace(err)
		}
		*found = append(*found, i.view(r, key[len(storagePrefix):]))
		return nil
	})
}

// FindStorage returns the named instances that exist, and the names that do not exist, each in
// the order of names.
func (st *State) FindStorage(names ...string) (found []Storage, missing []string, err error) {
	found = make([]Storage, 0, len(names))
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		for _, name := range names {
			if i, ok := read[instance](r, storageKey(name)); ok {
				found = append(found, i.view(r, name))
			} else {
				missing = append(missing, name)
			}
		}
		return nil
	})
	return found, missing, errors.Trace(err)
}

// AllStorage returns all instances, sorted by name.
func (st *State) AllStorage() ([]Storage, error) {
	var result []Storage
	err := st.view(func(r *reader, snapshot kv.Snapshot) error {
		return scanStorage(r, snapshot, storagePrefix, &result)
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return result, nil
}

// StorageNames returns the names of all instances, or of those that names refer to (see
// [State.StorageOf]), in no order.
func (st *State) StorageNames(names ...string) (found []string, err error) {
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		add := func(key string, _ []byte) error {
			found = append(found, key[len(storagePrefix):])
			return nil
		}
		if len(names) == 0 {
			return snapshot.Scan(storagePrefix, add)
		}
		for _, name := range names {
			if r.has(storageKey(name)) {
				found = append(found, name)
			}
			if err := snapshot.Scan(storageKey(name)+"/", add); err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	})
	return found, errors.Trace(err)
}

// WatchStorageNames returns a watcher of the names of instances that are added, changed or removed from
// now on. The first event may have none. It does not report changes of block devices; see
// [State.WatchBlockDevices].
func (st *State) WatchStorageNames() (watcher.StringsWatcher, error) {
	w, err := watch(st, storagePrefix, kv.FromNow, func(keys []string) ([]string, error) {
		changed := make([]string, len(keys))
		for i, key := range keys {
			changed[i] = key[len(storagePrefix):]
		}
		return changed, nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// WatchStorage returns a watcher that notifies when the result of AllStorage may have changed.
func (st *State) WatchStorage() (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher("")
}

// AwaitStorage waits until done returns true or an error. It calls done with all instances, sorted by name, at
// the beginning, and when they may have changed. The error is that of done, or the cause of the end of ctx.
func (st *State) AwaitStorage(ctx context.Context, done func([]Storage) (bool, error)) error {
	changes, err := st.WatchStorage()
	if err != nil {
		return errors.Trace(err)
	}
	defer func() {
		changes.Kill()
		_ = changes.Wait() // its error is returned already
	}()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, ok := <-changes.Changes():
			if !ok {
				return errors.Trace(watcher.EnsureErr(changes))
			}
		}
		all, err := st.AllStorage()
		if err != nil {
			return errors.Trace(err)
		}
		if ok, err := done(all); ok || err != nil {
			return err
		}
	}
}

// validName matches valid names of instances. Names are parts of keys and of output.
var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}(/(0|[1-9][0-9]{0,8}))?$`)

// BaseName returns NAME for the storage names NAME and NAME/N.
func BaseName(name string) string {
	base, _, _ := strings.Cut(name, "/")
	return base
}

func checkName(name string) error {
	if !validName.MatchString(name) {
		return errors.NewNotValid(nil, "the name is not valid: a lower-case letter, then up to 62 lower-case letters, digits and hyphens")
	}
	return nil
}

func (p StorageParams) validate() error {
	if err := checkName(p.Name); err != nil {
		return err
	}
	if err := p.Asker.Validate(); err != nil {
		return errors.Trace(err)
	}
	switch {
	case p.Kind != storage.StorageKindBlock && p.Kind != storage.StorageKindFilesystem:
		return errors.NotValidf("kind %s", p.Kind)
	case p.Size == 0:
		return errors.NotValidf("size 0")
	case p.MountPoint == "":
		return nil
	case p.Kind == storage.StorageKindBlock:
		return errors.NewNotValid(nil, "a block device has no mount point")
	}
	return checkMountPoint(p.MountPoint)
}

// design is an instance that is to be added, without its entities, and what to make for it.
type design struct {
	instance
	provider storage.Provider
	machine  names.MachineTag
	attach   bool

	volume, filesystem bool

	// bound says that the machine's worker looks after everything, and not only after a
	// filesystem on a volume.
	bound bool
}

// design returns the design of an instance, or an error if the instance cannot be added.
func (st *State) design(r *reader, rules *poolmanager.Rules, p StorageParams) (design, error) {
	if err := p.validate(); err != nil {
		return design{}, errors.Trace(err)
	}
	if err := st.checkFree(r, p.Asker); err != nil {
		return design{}, err
	}
	if r.has(storageKey(p.Name)) {
		return design{}, errors.NewAlreadyExists(nil, "the name is taken")
	}
	pool, err := r.pool(rules, p.Pool)
	if err != nil {
		return design{}, errors.Trace(err)
	}
	provider, err := st.registry.StorageProvider(pool.Provider())
	if err != nil {
		return design{}, errors.Annotatef(err, "pool %q", p.Pool)
	}

	// Determine the parts of the instance, and their scope.
	placed := p.Machine != names.MachineTag{}
	native := p.Kind == storage.StorageKindFilesystem && provider.Supports(storage.StorageKindFilesystem)
	d := design{
		provider:   provider,
		machine:    p.Machine,
		attach:     placed && !p.Detached,
		volume:     !native,
		filesystem: p.Kind == storage.StorageKindFilesystem,
		bound:      provider.Scope() == storage.ScopeMachine,
	}
	if d.volume && !provider.Supports(storage.StorageKindBlock) {
		return design{}, errors.NewNotSupported(nil, "provider "+strconv.Quote(string(pool.Provider()))+" makes no "+p.Kind.String()+" storage")
	}
	switch {
	case !placed && (d.bound || d.volume && d.filesystem && !p.Detached):
		return design{}, errors.NewNotValid(nil, "storage of pool "+strconv.Quote(p.Pool)+" is made on a machine: name one")
	case !d.bound && placed && p.Detached:
		return design{}, errors.NewNotValid(nil, "storage of pool "+strconv.Quote(p.Pool)+" is not made on a machine: leave the machine out until it is attached")
	}
	if placed {
		if err := r.checkTarget(newMachineTag(p.Machine)); err != nil {
			return design{}, err
		}
	}

	attributes := make(map[string]any)
	maps.Copy(attributes, pool.ForProvider().Attrs())
	maps.Copy(attributes, p.Attributes)
	d.instance = instance{
		Kind:       p.Kind.String(),
		Pool:       p.Pool,
		Provider:   string(pool.Provider()),
		Size:       p.Size,
		Attributes: attributes,
		MountPoint: p.MountPoint,
		ReadOnly:   p.ReadOnly,
		Life:       life.Alive,
		Asker:      newAsker(p.Asker),
	}
	if p.Kind == storage.StorageKindBlock && storage.MountsVolumes(provider, attributes) {
		return design{}, errors.NewNotSupported(nil, fmt.Sprintf("the volumes of pool %q are filesystems: choose the kind filesystem, or a pool of block devices", p.Pool))
	}
	if err := st.applyFrom(r, &d, p.From); err != nil {
		return design{}, errors.Trace(err)
	}
	if d.volume && d.filesystem && !d.bound && !d.attach {
		// Its filesystem belongs to the machine that it is attached to first.
		d.filesystem, d.Moved = false, &movedFilesystem{}
	}
	if len(p.Labels) > 0 {
		if err := st.checkLabels(r); err != nil {
			return design{}, err
		}
	}
	return d, d.setLabels(p.Labels)
}

// setLabels replaces the labels. The error satisfies errors.IsNotValid.
func (i *instance) setLabels(labels map[string]string) error {
	if err := label.Check(labels); err != nil {
		return errors.Trace(err)
	}
	i.Labels = labels
	return nil
}

// setMountPoint changes where the filesystem of a detached instance is to be mounted, unless the path is
// empty. The error satisfies errors.IsNotValid.
func (i *instance) setMountPoint(mountPoint string) error {
	if mountPoint == "" || mountPoint == i.MountPoint {
		return nil
	}
	if err := i.checkRemount("mount point"); err != nil {
		return err
	}
	if err := checkMountPoint(mountPoint); err != nil {
		return err
	}
	i.MountPoint = mountPoint
	return nil
}

// checkRemount returns an error unless how an instance is mounted, in one respect, can change now.
func (i *instance) checkRemount(respect string) error {
	if i.Kind != storage.StorageKindFilesystem.String() {
		return errors.NewNotValid(nil, "a block device has no "+respect)
	}
	for _, e := range i.entities() {
		if e.Attachment != nil {
			return errors.NewNotValid(nil, "its "+respect+" can change only while it is detached")
		}
	}
	return nil
}

// setMountOptions changes the mount options of the filesystem of a detached instance, unless they are nil. The
// provider of a filesystem that is made has them too. The error satisfies errors.IsNotValid.
func (i *instance) setMountOptions(options *string) error {
	if options == nil || i.Attributes[storage.MountOptionsAttribute] == *options {
		return nil
	}
	if err := i.checkRemount("mount options"); err != nil {
		return err
	}
	i.Attributes = maps.Clone(i.Attributes)
	if i.Attributes == nil {
		i.Attributes = attributes{}
	}
	i.Attributes[storage.MountOptionsAttribute] = *options
	return nil
}

// addStorage adds an instance. If imported is not nil, it describes the part that exists
// already.
func (st *State) addStorage(tx *txn, rules *poolmanager.Rules, p StorageParams, imported *imported) error {
	if imported == nil && p.Source != "" {
		return errors.NewNotValid(nil, "storage with a source must be imported, not added")
	}
	d, err := st.design(&tx.reader, rules, p)
	if err != nil {
		return errors.Trace(err)
	}
	i := d.instance
	addToPool(tx, p.Pool)
	if d.volume {
		i.Volume = tx.newEntity(tx.nextTag(d, names.VolumeTagKind, imported))
	}
	if d.filesystem {
		i.Filesystem = tx.newEntity(tx.nextTag(d, names.FilesystemTagKind, imported))
	}
	if kind := i.providedKind(); imported == nil && !storage.CanCreate(d.provider, kind) {
		return errors.NewNotSupported(nil, fmt.Sprintf("provider %q creates no %s storage: import what exists", i.Provider, kind))
	}
	if imported != nil {
		if err := imported.apply(tx, &i); err != nil {
			return errors.Trace(err)
		}
	}
	if d.attach {
		if err := i.attach(newMachineTag(d.machine), tx.identity().Generation, tx.now); err != nil {
			return errors.Trace(err)
		}
	}
	tx.add(p.Name, &i)
	return nil
}

// nextTag returns a new tag for an entity, or the noted tag of an import.
func (tx *txn) nextTag(d design, kind string, imported *imported) entityTag {
	bound := d.bound || d.volume && kind == names.FilesystemTagKind
	prefix := tagPrefix(kind, bound, d.machine)
	if imported != nil && strings.HasPrefix(string(imported.note.Tag), prefix) && isNumber(string(imported.note.Tag[len(prefix):])) {
		return imported.note.Tag
	}
	return tx.newTag(prefix)
}

// tagPrefix returns the part of a tag before its number: KIND-, or KIND-MACHINE- for an entity
// that is bound to its machine.
func tagPrefix(kind string, bound bool, machine names.MachineTag) string {
	if !bound {
		return kind + "-"
	}
	return kind + strings.TrimPrefix(machine.String(), names.MachineTagKind) + "-"
}

// newTag returns a tag that no volume, or no filesystem, has ever had.
func (tx *txn) newTag(prefix string) entityTag {
	tx.requireMark()
	kind, _, _ := strings.Cut(prefix, "-")
	return entityTag(prefix + strconv.FormatUint(tx.increment(sequenceKey(kind)), 10))
}

// increment adds one to a counter, and returns its previous value.
func (tx *txn) increment(key string) uint64 {
	n, _ := read[counter](&tx.reader, key)
	incremented := n + 1
	tx.write(key, &incremented)
	return uint64(n)
}

// unwantEach applies fn, which at least detaches an instance, to the named instances. It
// retries failed operations of an instance that is already being detached or removed.
func unwantEach(tx *txn, names []string, doing string, fn func(*instance) error) error {
	var again []string
	for _, name := range names {
		err := changeEach(tx, []string{name}, doing, func(i *instance) error {
			detaching := func(e *entity) bool { return e.Attachment != nil && e.Attachment.detaching() }
			if i.Life != life.Alive || slices.ContainsFunc(i.entities(), detaching) {
				again = append(again, name)
			}
			return fn(i)
		})
		if err != nil {
			return err
		}
	}
	return tx.retryFailing(again)
}

// changeEach applies fn to the named instances. It stops at the first error, which names the
// instance.
func changeEach(tx *txn, names []string, doing string, fn func(*instance) error) error {
	for _, name := range names {
		i, ok := read[instance](&tx.reader, storageKey(name))
		if !ok {
			return errors.NotFoundf("storage %q", name)
		}
		if err := tx.change(name, &i, func() error { return fn(&i) }); err != nil {
			return errors.Annotatef(err, "%s storage %q", doing, name)
		}
	}
	return nil
}

// view returns the instance as users see it.
func (i *instance) view(r *reader, name string) Storage {
	s := Storage{
		Name:         name,
		Kind:         storage.StorageKindBlock,
		Pool:         i.Pool,
		Provider:     storage.ProviderType(i.Provider),
		SizeMiB:      i.Size,
		RequestedMiB: i.Size,
		MountPoint:   i.MountPoint,
		MoveTo:       i.MoveTo.tag(),
		Attributes:   i.Attributes,
		ReadOnly:     i.ReadOnly,
		Labels:       i.Labels,
		Claim:        i.Claim,
		Retained:     i.Retained,
		Asker:        i.Asker.view(),
		From:         i.Origin.view(),
		FromUUID:     i.Origin.uuid(),
		Life:         i.Life,
		Revision:     i.revision(),
		Failing:      i.failing(),
		Volume:       i.Volume.view(),
		Filesystem:   i.Filesystem.view(),
	}
	if i.Kind == storage.StorageKindFilesystem.String() {
		s.Kind = storage.StorageKindFilesystem
	}
	top := i.top()
	if top.Info != nil && top.Info.Size != 0 {
		s.SizeMiB = top.Info.Size
		if top == i.Filesystem && i.Volume != nil && i.Volume.Info != nil && i.Volume.Info.Size > s.SizeMiB {
			s.VolumeMiB = i.Volume.Info.Size
		}
	}
	for n, e := range i.entities() {
		displayed := e.displayStatus()
		if e == i.Filesystem && i.Volume != nil && e.Attachment == nil && displayed.Status == status.Pending {
			continue // it is made when the volume is attached: the volume's status says that
		}
		grows := max(s.CannotGrowTo, displayed.CannotGrowTo)
		if n == 0 || displayed.outranks(s.StatusInfo) {
			s.StatusInfo = displayed
		} else if !s.outranks(displayed) {
			s.StatusInfo = s.combine(displayed)
		}
		s.CannotGrowTo = grows
	}
	switch a := top.Attachment; {
	case a == nil || a.Info == nil:
	case top == i.Filesystem:
		s.Location = a.Info.MountPoint
	case s.Kind == storage.StorageKindBlock:
		if device, ok := r.findDevice(top); ok && device.DeviceName != "" {
			s.Location = "/dev/" + device.DeviceName
		}
	}
	// The volume is detached after its filesystem, so its attachment stands for both.
	if a := i.entities()[0].Attachment; a != nil {
		s.Attachments = []Attachment{{
			Machine:  a.Machine.tag(),
			Life:     i.attachmentLife(),
			Location: s.Location,
			// The filesystem's own options may make it read-only too.
			ReadOnly: i.ReadOnly || top.Attachment != nil && top.Attachment.Info != nil && top.Attachment.Info.ReadOnly,
		}}
	}
	return s
}

// attachmentLife returns Alive until detaching begins, and Dying from then on.
func (i *instance) attachmentLife() life.Value {
	if a := i.top().Attachment; a == nil || a.detaching() {
		return life.Dying
	}
	return life.Alive
}

func (e *entity) view() *Entity {
	if e == nil {
		return nil
	}
	view := &Entity{Tag: e.Tag.tag(), Scope: storage.ScopeMachine, Life: e.Life, StatusInfo: e.displayStatus(), UUID: e.UUID}
	if e.Tag.scope() == environScope {
		view.Scope = storage.ScopeEnviron
	}
	if e.Info != nil {
		view.ProviderID = e.Info.ID
	}
	return view
}
