// Package backend carries out the requests of users over a state: it checks them, plans what they
// change, and shows storage as users see it. What has to be done on a machine it does on the one
// where it runs.
package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/executor"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/statefile"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// Config configures a [Backend]. All fields without a meaning of zero are required.
type Config struct {
	State *state.State
	// Backup writes a copy of the state to a new file.
	Backup func(ctx context.Context, path string, now time.Time) (statefile.Meta, error)
	// Dir is the data directory, and SocketPath the path of the control socket.
	Dir        datadir.Dir
	SocketPath string
	Registry   storage.ProviderRegistry
	Clock      clock.Clock
	Logger     Logger
	// Manager says that the environment's storage is managed.
	Manager bool
	// Machine is the machine on which the process runs, as an agent. The zero tag: the process is
	// a server, which has no machine.
	Machine names.MachineTag
	// Server is set for a server.
	Server *Server
	// ChangeLease, if set, excludes changes by other servers with the same state, until release is
	// called or the lease ends.
	ChangeLease func(context.Context) (lease kv.Lease, release func(), err error)
	// Report returns the reports of the workers.
	Report func() map[string]any
	// Progress returns what the storage provisioners of the process report of unfinished operations on
	// volumes and filesystems, by entity. It may be nil.
	Progress func([]names.Tag) map[string]any
	// Audit gets what happens to storage. It may be nil.
	Audit func(user.StorageEvent)
}

// Logger receives messages for the operator.
type Logger interface {
	Warningf(format string, args ...any)
}

// Backend implements userapi.Backend. It lives as long as its process, however often the control
// socket is recreated.
type Backend struct {
	config Config
	dir    datadir.Dir
	state  *state.State

	// executor carries out what concerns this process: its machine, or the environment.
	executor *executor.Executor

	changeMu sync.Mutex // see beginChange

	// imports has a channel for each machine from which storage was imported; see lockImports.
	imports sync.Map

	// machineNames has the names of machines that were shown, by their tags.
	machineNames sync.Map

	// journalMu guards journal, which is nil until somebody watches, and closed.
	journalMu sync.Mutex
	journal   *journal
	closed    bool

	// startFile is what [Backend.ApplyFile] has applied last, or nil.
	startFile atomic.Pointer[startFile]

	// scanMu guards baseline, the first scan for orphans.
	scanMu   sync.Mutex
	baseline orphanScan
}

// isLocal reports whether the process runs on a machine of the state.
func (b *Backend) isLocal() bool { return b.config.Server == nil }

// New returns a backend.
func New(config Config) *Backend {
	b := &Backend{config: config, dir: config.Dir, state: config.State, executor: executor.New(executor.Config{
		Registry: config.Registry, Dir: config.Dir, Clock: config.Clock, Environ: config.Manager, Sockets: []string{config.SocketPath},
		Progress: config.Progress,
	})}
	if config.Audit != nil {
		config.State.LogEvents(func(events []state.Event) {
			for _, e := range events {
				config.Audit(b.wireEvent(e))
			}
		})
	}
	return b
}

// beginChange excludes other changes of the wanted state, so that the result of a check stays true
// until the change is made. The caller calls end after the change.
func (b *Backend) beginChange(ctx context.Context) (end func(), err error) {
	_, end, err = b.exclude(ctx)
	return end, err
}

// exclude is beginChange, with the lease that excludes other servers; nil if there are none. The state
// compares it when the change is committed ([state.Changes.Lease]), in case it has ended.
//
// The revisions that a change is planned from do not suffice, though the state compares them as well
// ([state.Changes.Revisions]): they are about one instance each. Whether mount points conflict, whether
// NAME and NAME/N would both exist, and how much storage a machine has, depends on all instances, which
// a transaction cannot read. And an import cannot be planned again once its provider has taken the
// object over.
func (b *Backend) exclude(ctx context.Context) (lease kv.Lease, end func(), err error) {
	b.changeMu.Lock()
	if b.config.ChangeLease == nil {
		return nil, b.changeMu.Unlock, nil
	}
	lease, release, err := b.config.ChangeLease(ctx)
	if err != nil {
		b.changeMu.Unlock()
		return nil, nil, errors.Annotate(err, "waiting for changes by other servers")
	}
	return lease, func() { release(); b.changeMu.Unlock() }, nil
}

// maxPlans is how often a change is planned, if what it was planned from changes each time.
const maxPlans = 10

// change makes a change that plan returns, nil for none. It plans again if what the change was planned
// from is no longer true: a machine may have been fenced, or the lease may have ended. doing, unless it
// is empty, says in errors of the state what is done.
func (b *Backend) change(ctx context.Context, doing string, plan func() (*state.Changes, error)) error {
	for n := 1; ; n++ {
		err := b.changeOnce(ctx, doing, plan)
		outdated := errors.Is(err, state.ErrChanged) || errors.Is(err, kv.ErrLeaseLost)
		switch {
		case !outdated:
			return err
		case n == maxPlans:
			return errors.NewNotYetAvailable(err, "others change the same storage again and again: try again")
		}
	}
}

func (b *Backend) changeOnce(ctx context.Context, doing string, plan func() (*state.Changes, error)) error {
	lease, end, err := b.exclude(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	changes, err := plan()
	if err != nil || changes == nil {
		return errors.Trace(err)
	}
	changes.Lease, changes.By = lease, cmp.Or(userapi.CallerOf(ctx), changes.By)
	err = b.state.Apply(*changes)
	if doing != "" {
		err = errors.Annotate(err, doing)
	}
	return err
}

// Apply implements userapi.Backend. Before it changes anything, it makes the checks that the
// file alone does not allow.
func (b *Backend) Apply(ctx context.Context, args user.ApplyArgs) (user.ApplyResult, error) {
	return b.applyFile(ctx, args, false, user.Condition{})
}

// startFile is a file that the agent applies whenever it starts.
type startFile struct {
	path     string
	declares map[string]bool // base names
}

// ApplyFile applies the file that the agent applies whenever it starts. With keepDiffering, storage may be
// larger than the file says, or mounted elsewhere.
func (b *Backend) ApplyFile(ctx context.Context, args user.ApplyArgs, keepDiffering bool) (user.ApplyResult, error) {
	result, err := b.applyFile(ctx, args, keepDiffering, user.Condition{})
	if err != nil {
		return result, err
	}
	file := startFile{args.File, make(map[string]bool, len(result.Names))}
	for _, name := range result.Names {
		file.declares[name] = true
	}
	b.startFile.Store(&file)
	return result, nil
}

// Declare implements userapi.Backend.
func (b *Backend) Declare(ctx context.Context, on user.Condition, declared user.Declaration) error {
	// A file that declares the storage. JSON is YAML.
	type entry struct {
		Name string `json:"name"`
		user.Declaration
	}
	content, err := json.Marshal(struct {
		Storage []entry `json:"storage"`
	}{[]entry{{on.Name, declared}}})
	if err != nil {
		return errors.Trace(err)
	}
	_, err = b.applyFile(ctx, user.ApplyArgs{File: spec.RequestFile, Content: string(content)}, false, on)
	return err
}

// applyFile applies a file if storage meets the condition.
func (b *Backend) applyFile(ctx context.Context, args user.ApplyArgs, keepDiffering bool, on user.Condition) (result user.ApplyResult, err error) {
	file, err := spec.Parse(args.File, []byte(args.Content))
	if err != nil {
		return user.ApplyResult{}, errors.Trace(err)
	}
	names := make([]string, len(file.Storage))
	for i, declared := range file.Storage {
		names[i] = declared.Name
	}
	doing := "applying " + args.File
	err = b.change(ctx, doing, func() (*state.Changes, error) {
		situation, err := b.situation(names)
		if err != nil {
			return nil, errors.Annotate(err, doing)
		}
		required, err := meet(on, situation.Storage)
		if err != nil {
			return nil, errors.Trace(err)
		}
		situation.KeepDiffering, situation.Undeclared = keepDiffering, args.DryRun
		plan, err := converge.Make(file, situation)
		if err != nil {
			return nil, errors.Trace(err)
		}
		result = user.ApplyResult{Changes: plan.Changes, Names: plan.Names, Detached: plan.Detached}
		if plan.Attached > maxAttachedRows && len(plan.Unfinished)+len(plan.Detached) <= maxEventNames {
			result.Attached, result.Unfinished = plan.Attached, plan.Unfinished
		}
		if args.DryRun {
			return nil, nil
		}
		plan.State.Revisions = append(plan.State.Revisions, required...)
		plan.State.By = args.File
		return &plan.State, nil
	})
	if err != nil {
		return user.ApplyResult{}, errors.Trace(err)
	}
	return result, nil
}

// meet returns the revisions that the change needs whose condition the storage, which is all of its
// name, has to meet.
func meet(on user.Condition, found []state.Storage) ([]state.Revision, error) {
	rows := make([]user.Storage, len(found))
	for i, s := range found {
		rows[i] = user.Storage{Name: s.Name, Revision: s.Revision}
	}
	if err := on.Check(user.RevisionOf(rows)); err != nil {
		return nil, err
	}
	if len(on.Revisions) == 0 {
		return nil, nil
	}
	return revisionsOf(found), nil
}

// revisionsOf returns the revisions of storage that a change is planned from.
func revisionsOf(found []state.Storage) []state.Revision {
	revisions := make([]state.Revision, len(found))
	for i, s := range found {
		revisions[i] = state.Revision{Name: s.Name, Revision: s.Revision}
	}
	return revisions
}

// maxAttachedRows is how many instances that were attached before a client still gets when it
// waits for a file to be applied: reading and sending many would cost more than applying it.
const maxAttachedRows = 100

// Storage implements userapi.Backend.
func (b *Backend) Storage(_ context.Context, names []string) ([]user.Storage, error) {
	found, err := b.selectStorage(names)
	if err != nil {
		return nil, err
	}
	host, err := b.measureHost(found)
	if err != nil {
		return nil, err
	}
	rows := make([]user.Storage, len(found))
	for i, s := range found {
		rows[i] = b.wireStorage(s, host)
	}
	b.addOperations(rows)
	return rows, nil
}

// selectStorage returns the storage with these names, or all storage without names. A
// name that matches nothing is an error.
func (b *Backend) selectStorage(names []string) ([]state.Storage, error) {
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

// Attach implements userapi.Backend.
func (b *Backend) Attach(ctx context.Context, args user.AttachArgs) (result user.ChangesResult, err error) {
	if args.MountOptions != nil {
		// First where the filesystems are: their providers know which options they accept, and keep them.
		if err := b.setMountOptions(ctx, args.Names, *args.MountOptions); err != nil {
			return user.ChangesResult{}, errors.Trace(err)
		}
	}
	err = b.change(ctx, "", func() (*state.Changes, error) {
		found, err := b.named(args.Names)
		if err != nil {
			return nil, errors.Trace(err)
		}
		machine := b.config.Machine
		if args.Machine != "" {
			if machine, err = b.state.MachineNamed(args.Machine); err != nil {
				return nil, errors.Trace(err)
			}
		}
		changes := &state.Changes{Revisions: revisionsOf(found)}
		result.Changes = nil // of an earlier attempt
		for _, s := range found {
			to := machine
			if bound, ok := converge.BoundMachine(&s); ok && args.Machine == "" {
				to = bound
			}
			if to == (names.MachineTag{}) {
				return nil, errors.NewNotValid(nil, fmt.Sprintf("storage %q can be attached to any machine: name one with --machine", s.Name))
			}
			changes.Attach = append(changes.Attach, state.Attach{Name: s.Name, Machine: to, MountPoint: args.Mount, MountOptions: args.MountOptions})
			result.Changes = append(result.Changes, converge.Retries(&s)...)
		}
		if args.Mount != "" {
			if err := b.checkRemount(found, args.Mount, changes.Attach[0].Machine); err != nil {
				return nil, errors.Trace(err)
			}
		}
		return changes, errors.Trace(b.checkMountPoints(found, changes.Attach))
	})
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	return result, nil
}

// checkRemount returns an error unless storage can be mounted at the path, as far as it depends on that
// storage and on the path alone.
func (b *Backend) checkRemount(found []state.Storage, path string, machine names.MachineTag) error {
	invalid := func(format string, args ...any) error {
		return errors.NewNotValid(nil, fmt.Sprintf("storage %q: ", found[0].Name)+fmt.Sprintf(format, args...))
	}
	s := found[0]
	switch {
	case len(found) > 1:
		return errors.NewNotValid(nil, fmt.Sprintf("%d instances cannot be mounted at one mount point: name one, such as %s", len(found), s.Name))
	case s.Kind != storage.StorageKindFilesystem:
		return invalid("a block device has no mount point")
	case s.Asker != (state.Asker{}) && s.MountPoint != path:
		return invalid("%s asked for it, as %s, and decides where it is mounted", s.Asker.Way, s.Asker.Name)
	case len(s.Attachments) > 0 && s.MountPoint != path:
		return invalid("its mount point can change only while it is detached: detach it first, with `stowage detach --wait %s`", s.Name)
	}
	if err := spec.CheckMountPoint(path); err != nil {
		return invalid("%s", err)
	}
	if machine != b.config.Machine || !b.isLocal() {
		return nil // only what the own process uses is known, as for files
	}
	reserved, err := b.executor.Reserved()
	if err != nil {
		return errors.Trace(err)
	}
	if err := spec.CheckReserved(path, reserved); err != nil {
		return invalid("%s", err)
	}
	return nil
}

// Detach implements userapi.Backend.
func (b *Backend) Detach(ctx context.Context, names []string) error {
	return b.changeNamed(ctx, names, func(found []string) state.Changes { return state.Changes{Detach: found} })
}

// Remove implements userapi.Backend.
func (b *Backend) Remove(ctx context.Context, args user.RemoveArgs) error {
	return b.changeNamed(ctx, args.Names, func(found []string) state.Changes {
		return state.Changes{Remove: found, Way: args.Way, Force: args.Force}
	})
}

// RemoveIf implements userapi.Backend.
func (b *Backend) RemoveIf(ctx context.Context, on user.Condition) error {
	return b.change(ctx, "", func() (*state.Changes, error) {
		found, missing, err := b.state.StorageOf(on.Name)
		if err != nil {
			return nil, errors.Trace(err)
		}
		required, err := meet(on, found)
		if err == nil && len(missing) > 0 {
			err = errors.NotFoundf("storage %q", on.Name)
		}
		if err != nil {
			return nil, errors.Trace(err)
		}
		return &state.Changes{Remove: fullNames(found), Revisions: required}, nil
	})
}

// Release implements userapi.Backend.
func (b *Backend) Release(ctx context.Context, args user.RemoveArgs) error {
	return b.changeNamed(ctx, args.Names, func(found []string) state.Changes {
		return state.Changes{Release: found, Way: args.Way, Force: args.Force}
	})
}

// Retry implements userapi.Backend.
func (b *Backend) Retry(ctx context.Context, names []string) error {
	return b.change(ctx, "", func() (*state.Changes, error) {
		found, err := b.selectStorage(names)
		return &state.Changes{Retry: fullNames(found)}, err
	})
}

// Format implements userapi.Backend.
func (b *Backend) Format(ctx context.Context, names []string) error {
	return b.change(ctx, "", func() (*state.Changes, error) {
		found, err := b.named(names)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			if !slices.Contains(names, s.Name) {
				return nil, errors.NewNotValid(nil, "name each storage that is to be formatted, such as "+s.Name)
			}
		}
		return &state.Changes{Format: fullNames(found)}, nil
	})
}

// changeNamed makes the change of the storage, by its full names, that names refer to.
func (b *Backend) changeNamed(ctx context.Context, names []string, change func(found []string) state.Changes) error {
	return b.change(ctx, "", func() (*state.Changes, error) {
		found, err := b.named(names)
		if err != nil {
			return nil, err
		}
		changes := change(fullNames(found))
		return &changes, nil
	})
}

// named returns the storage with these names. At least one must be given.
func (b *Backend) named(names []string) ([]state.Storage, error) {
	if len(names) == 0 {
		return nil, errors.NewNotValid(nil, "no storage is named")
	}
	return b.selectStorage(names)
}

func fullNames(found []state.Storage) []string {
	full := make([]string, len(found))
	for i, s := range found {
		full[i] = s.Name
	}
	return full
}

// Backup implements userapi.Backend.
func (b *Backend) Backup(ctx context.Context, args user.BackupArgs) (user.BackupResult, error) {
	if err := task.CheckPath(args.Path); err != nil {
		return user.BackupResult{}, errors.Trace(err)
	}
	meta, err := b.config.Backup(ctx, args.Path, b.config.Clock.Now())
	if errors.Is(err, fs.ErrExist) {
		return user.BackupResult{}, errors.NewAlreadyExists(nil, args.Path+" already exists: choose another file")
	}
	return user.BackupResult{UUID: meta.UUID, Generation: meta.Generation, Schema: meta.Schema, Bytes: meta.Size}, errors.Trace(err)
}

// Pools implements userapi.Backend.
func (b *Backend) Pools(context.Context) ([]user.Pool, error) {
	pools, err := b.pools().List()
	if err != nil {
		return nil, errors.Trace(err)
	}
	wire := make([]user.Pool, len(pools))
	for i, pool := range pools {
		wire[i] = user.Pool{
			Name: pool.Name(), Provider: string(pool.Provider()), Attributes: pool.Attrs(), Default: pool.Default,
		}
		if wire[i].Attributes == nil {
			wire[i].Attributes = map[string]any{}
		}
	}
	return wire, nil
}

// AddPool implements userapi.Backend.
func (b *Backend) AddPool(ctx context.Context, args user.AddPoolArgs) error {
	end, err := b.beginChange(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	set := b.pools().Create
	if args.Replace {
		set = b.pools().Replace
	}
	return errors.Trace(set(args.Name, storage.ProviderType(args.Provider), args.Attributes))
}

// RemovePools implements userapi.Backend.
func (b *Backend) RemovePools(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return errors.NewNotValid(nil, "no pool is named")
	}
	end, err := b.beginChange(ctx)
	if err != nil {
		return errors.Trace(err)
	}
	defer end()
	return errors.Trace(b.pools().Remove(names...))
}

func (b *Backend) pools() *poolmanager.Manager {
	return poolmanager.New(b.state, b.config.Registry)
}

// Report implements userapi.Backend.
func (b *Backend) Report(context.Context) (map[string]any, error) {
	report := b.config.Report()
	if !b.isLocal() {
		return report, nil
	}
	host, err := b.measureHostForAll()
	if err != nil {
		return nil, errors.Trace(err)
	}
	report["host"] = host.report()
	return report, nil
}

// noManager is the message about storage that no worker manages.
const noManager = "no environment manager runs: start the agent with --manager"

// wireStorage returns storage as users see it, with the remarks about the host.
func (b *Backend) wireStorage(s state.Storage, on host) user.Storage {
	row := user.Storage{
		Name:            s.Name,
		Kind:            s.Kind.String(),
		Pool:            s.Pool,
		Provider:        string(s.Provider),
		SizeMiB:         s.SizeMiB,
		WantedMiB:       s.RequestedMiB,
		CannotGrowToMiB: s.CannotGrowTo,
		VolumeMiB:       s.VolumeMiB,
		Labels:          s.Labels,
		Claim:           s.Claim,
		Retained:        s.Retained,
		Life:            s.Life,
		Revision:        s.Revision,
		Status:          s.Status,
		Message:         s.Message,
		Since:           s.Since,
		Location:        s.Location,
		Attachments:     make([]user.Attachment, len(s.Attachments)),
	}
	if file := b.startFile.Load(); file != nil && file.declares[state.BaseName(s.Name)] {
		row.Spec = file.path
	}
	if s.Asker != (state.Asker{}) {
		row.Asker = &user.Asker{Way: s.Asker.Way, Name: s.Asker.Name}
	}
	if s.From != (state.From{}) {
		row.From = &user.Origin{Snapshot: s.From.Snapshot, Storage: s.From.Storage}
	}
	if s.Volume != nil {
		row.Volume = s.Volume.Tag.Id()
	}
	if s.Filesystem != nil {
		row.Filesystem = s.Filesystem.Tag.Id()
	}
	if !b.config.Manager && isEnviron(s) {
		row.Message = strings.TrimPrefix(row.Message+"; "+noManager, "; ")
	}
	for _, remark := range []string{growthRemark(s), on.remark(s)} {
		if remark != "" {
			row.Message = strings.TrimPrefix(row.Message+"; "+remark, "; ")
		}
	}
	for i, a := range s.Attachments {
		if remark := b.absence(a.Machine); remark != "" {
			row.Message = strings.TrimPrefix(row.Message+"; "+remark, "; ")
		}
		row.Attachments[i] = user.Attachment{
			Machine: b.machineName(a.Machine), Life: a.Life, Location: a.Location, ReadOnly: a.ReadOnly,
		}
	}
	return row
}

// growthRemark returns a remark about storage whose growth has ended half-way, as long as the volume is
// larger than the filesystem on it. While that is about to grow, there is nothing to remark.
func growthRemark(s state.Storage) string {
	grows := s.Status == status.Attached && s.CannotGrowTo == 0 && s.RequestedMiB > s.SizeMiB
	if s.VolumeMiB == 0 || grows {
		return ""
	}
	return fmt.Sprintf("half grown: its volume has %d MiB, and its filesystem %d MiB of them", s.VolumeMiB, s.SizeMiB)
}

// isEnviron reports whether the storage belongs to the environment.
func isEnviron(s state.Storage) bool {
	if s.Volume != nil {
		return s.Volume.Scope == storage.ScopeEnviron
	}
	return s.Filesystem != nil && s.Filesystem.Scope == storage.ScopeEnviron
}
