package backend

import (
	"context"
	"fmt"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/userapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/storage"
)

// Import implements userapi.Backend. It makes all checks first. Then the provider takes over the object
// on its machine, and the state records it. If the agent or the server dies in between, repeating the
// import finds the object taken over already.
func (b *Backend) Import(ctx context.Context, args user.ImportArgs) (user.ChangesResult, error) {
	i := &importing{Backend: b, args: args, machine: b.config.Machine}
	fail := func(err error) (user.ChangesResult, error) {
		return user.ChangesResult{}, errors.Annotatef(err, "importing storage %q", args.Name)
	}
	switch {
	case args.Machine != "":
		machine, err := b.state.MachineNamed(args.Machine)
		if err != nil {
			return fail(err)
		}
		i.machine = machine
	case !b.isLocal():
		return fail(errors.NewNotValid(nil, "no machine is named: name the one that has it with --machine"))
	}
	unlock, err := b.lockImports(ctx, i.machine)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	t, err := i.inspect(ctx)
	if err != nil {
		return fail(err)
	}
	imported, err := i.takeOver(ctx, t)
	if err != nil {
		return fail(err)
	}
	end, err := b.beginChange(ctx)
	if err != nil {
		return fail(err)
	}
	defer end()
	if t, err = i.plan(); err != nil { // others may have changed the state in between
		return fail(errors.Annotate(err, "it has been taken over, and importing it again completes that"))
	}
	if err := i.record(t, imported); err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	return user.ChangesResult{Changes: []user.Change{t.Change(imported.Size)}}, nil
}

// lockImports excludes other imports from a machine by this process: they may be of the same object.
func (b *Backend) lockImports(ctx context.Context, machine names.MachineTag) (unlock func(), err error) {
	lock, _ := b.imports.LoadOrStore(machine, make(chan struct{}, 1))
	held := lock.(chan struct{})
	select {
	case held <- struct{}{}:
		return func() { <-held }, nil
	case <-ctx.Done():
		return nil, errors.Annotate(context.Cause(ctx), "waiting for another import from the machine")
	}
}

// importing is an import in progress.
type importing struct {
	*Backend
	args    user.ImportArgs
	machine names.MachineTag
	at      place

	// path is that of the object, and file that of its contents, for messages. uuid and device are set if
	// the user gave the UUID of the filesystem on a device.
	path, file, uuid, device string
	// contents is nil for a filesystem of a provider that makes filesystems itself, and for a file that
	// is not there, since an earlier import has moved it.
	contents *task.Contents
	// reserved are the paths that must not be mounted over.
	reserved []string
}

// inspect makes all checks, and returns what the import is to add.
func (i *importing) inspect(ctx context.Context) (*converge.Takeover, error) {
	t, err := i.plan() // before the machine is asked
	if err != nil {
		return nil, errors.Trace(err)
	}
	if i.args.Copy && !t.OnVolume {
		return nil, errors.NewNotSupported(nil, fmt.Sprintf("provider %s cannot import a copy of a filesystem: leave out --copy", t.Pool.Provider()))
	}
	if err := i.findSource(t); err != nil {
		return nil, errors.Trace(err)
	}
	if t.Environ && !i.isLocal() {
		t, err = i.plan() // what the machine reserves is known to its agent alone, as for files
		return t, errors.Trace(err)
	}
	if i.at, err = i.placeOf(i.machine); err != nil {
		return nil, errors.Trace(err)
	}
	request := task.Inspect{}
	if t.OnVolume && !t.ByID {
		request = task.Inspect{Path: i.path, Device: i.device}
	}
	result, err := i.do(ctx, i.at, task.Request{Inspect: &request})
	if err != nil {
		return nil, errors.Trace(err)
	}
	i.contents, i.reserved = result.Inspect.Contents, result.Inspect.Reserved
	if t.OnVolume && !t.ByID {
		i.path, i.file = result.Inspect.Path, result.Inspect.Path
		if err := task.CheckPath(i.path); err != nil {
			return nil, errors.Trace(err)
		}
	}
	t, err = i.plan()
	return t, errors.Trace(err)
}

// findSource finds what the user has named: an ID, a path, or the UUID of the filesystem on a block device.
func (i *importing) findSource(t *converge.Takeover) error {
	if t.ByID {
		id, ok := strings.CutPrefix(i.args.Source, "ID=")
		if !ok {
			return errors.NewNotValid(nil, fmt.Sprintf("storage of provider %s is imported by its ID there: write ID=…", t.Pool.Provider()))
		}
		i.path = id
		return task.CheckID(id)
	}
	id, ok := strings.CutPrefix(i.args.Source, "UUID=")
	if !ok || !t.OnVolume {
		i.path = i.args.Source
		return task.CheckPath(i.path)
	}
	devices, err := i.state.MachineBlockDevices(i.machine)
	if err != nil {
		return errors.Trace(err)
	}
	var found []string
	for _, d := range devices {
		if id != "" && strings.EqualFold(d.UUID, id) {
			found = append(found, d.DeviceName)
			id = d.UUID
		}
	}
	switch len(found) {
	case 0:
		return errors.NewNotFound(nil, fmt.Sprintf("no block device has a filesystem with UUID %q: name the path of its file", id))
	case 1:
		i.uuid, i.device = id, found[0]
		return nil
	}
	return errors.NewNotValid(nil, fmt.Sprintf("UUID %q is on several block devices, %s: name the path of the file that is meant",
		id, strings.Join(found, ", ")))
}

// plan returns what the import is to add to the state as it is now, as far as that is known.
func (i *importing) plan() (*converge.Takeover, error) {
	situation, err := i.situation([]string{i.args.Name})
	if err != nil {
		return nil, errors.Trace(err)
	}
	situation.Machine = i.machine
	if i.reserved != nil {
		situation.Reserved = i.reserved
	}
	t, err := converge.Import(situation, i.args)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if !i.isLocal() && t.Environ && !t.ByID {
		return nil, errors.NewNotSupported(nil, fmt.Sprintf("provider %s has its storage on no machine: choose another pool", t.Pool.Provider()))
	}
	if i.contents != nil {
		err = i.recognise(t)
	}
	t.State.Source = i.path
	if !i.isLocal() && !t.Environ {
		// Each machine may have an object at this path.
		t.State.Source = i.machine.String() + ":" + i.path
	}
	return t, errors.Trace(err)
}

// recognise completes a takeover with the filesystem that was found in its file, unless a block
// device is wanted, whatever it contains.
func (i *importing) recognise(t *converge.Takeover) error {
	found := i.contents
	switch {
	case found.Size < 1<<20:
		return errors.NewNotValid(nil, fmt.Sprintf("%s has %d bytes: storage has at least 1 MiB", i.file, found.Size))
	case i.uuid != "" && found.UUID != i.uuid:
		return errors.NewNotValid(nil, fmt.Sprintf("%s has a filesystem with UUID %q, not %q", i.file, found.UUID, i.uuid))
	case i.args.Block:
		return nil
	case found.Filesystem == "":
		return errors.NewNotValid(nil, fmt.Sprintf(
			"%s has no known filesystem at its start: import it as a block device with --block", i.file))
	}
	if err := t.Adopt(found.Filesystem, found.UUID); err != nil {
		return errors.NewNotValid(err, fmt.Sprintf("%s can be imported only as a block device, with --block", i.file))
	}
	return nil
}

// takeOver notes the import in the state, and then makes the provider take the object over. If the
// provider refuses, it cancels the note; after another error, importing again finds the object.
func (i *importing) takeOver(ctx context.Context, t *converge.Takeover) (*task.Imported, error) {
	t.State.By = userapi.CallerOf(ctx)
	tags, err := i.state.PrepareImport(t.State)
	if err != nil {
		return nil, errors.Trace(err)
	}
	request := task.Import{
		Provider: string(t.Pool.Provider()), Volume: t.OnVolume, Attributes: t.Pool.ForProvider().Attrs(), ResourceTags: tags,
	}
	if t.ByID {
		request.ID = i.path
	} else {
		request.Path = i.path
	}
	request.Copy = i.args.Copy
	if t.OnVolume && !t.ByID {
		request.Device, request.Reread = i.device, i.contents == nil
	}
	result, err := i.do(ctx, i.at, task.Request{Import: &request})
	if errors.Is(err, errors.NotValid) || errors.Is(err, errors.NotFound) || errors.Is(err, errors.NotSupported) {
		if cerr := i.state.CancelImport(t.State.Pool, t.State.Source); cerr != nil {
			err = errors.Annotatef(err, "(%v)", cerr)
		}
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	if request.Reread {
		if i.contents = result.Import.Contents; i.contents == nil {
			return nil, errors.Errorf("%s has not said what is in the volume", i.at)
		}
		i.file = result.Import.ID
	}
	if result.Import.Size == 0 {
		if result.Import.Size, err = t.Pool.DefaultSize(); err == nil && result.Import.Size == 0 {
			err = errors.NewNotValid(nil, fmt.Sprintf("nobody says how large it is: give pool %q the attribute %s, and import it again", t.Pool.Name(), storage.ConfigDefaultSize))
		}
	}
	return result.Import, errors.Trace(err)
}

// record records what was taken over.
func (i *importing) record(t *converge.Takeover, imported *task.Imported) error {
	if !t.OnVolume {
		return errors.Trace(i.state.ImportFilesystem(t.State, storage.FilesystemInfo{FilesystemId: imported.ID, Size: imported.Size}))
	}
	t.State.VolumeContext = imported.Context
	return errors.Trace(i.state.ImportVolume(t.State, storage.VolumeInfo{
		VolumeId: imported.ID, HardwareId: imported.HardwareID, WWN: imported.WWN, Size: imported.Size, Persistent: imported.Persistent,
	}))
}
