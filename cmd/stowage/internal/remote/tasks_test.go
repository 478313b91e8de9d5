package remote_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// importer is a provider of the machines that takes over any path as a filesystem.
type importer struct {
	*providerfake.Provider

	mu    sync.Mutex
	paths []string // in the order of the calls
	// attributes are those of the last import.
	attributes map[string]any
	// during, if set, is called when an import has taken over its object.
	during func(context.Context) error
}

func newImporter() *importer {
	return &importer{Provider: providerfake.New(providerfake.Options{
		Scope: storage.ScopeMachine, Unsupported: []storage.StorageKind{storage.StorageKindBlock},
	})}
}

func (i *importer) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) { return i, nil }

func (i *importer) ImportFilesystem(ctx envcontext.ProviderCallContext, path string, tags map[string]string) (storage.FilesystemInfo, error) {
	i.mu.Lock()
	i.paths = append(i.paths, path)
	during := i.during
	i.mu.Unlock()
	if strings.Contains(path, "none") {
		return storage.FilesystemInfo{}, errors.NotFoundf("%s", path)
	}
	tag, err := names.ParseFilesystemTag(tags[storage.EntityTag])
	if err != nil {
		return storage.FilesystemInfo{}, err
	}
	made, err := i.CreateFilesystems(envcontext.New(context.Background()), []storage.FilesystemParams{{Tag: tag, Size: 16, ResourceTags: tags}})
	if err == nil {
		err = made[0].Error
	}
	if err == nil && during != nil {
		err = during(ctx)
	}
	if err != nil {
		return storage.FilesystemInfo{}, err
	}
	return made[0].Filesystem.FilesystemInfo, nil
}

func (i *importer) ImportFilesystemWithParams(ctx envcontext.ProviderCallContext, p storage.FilesystemImportParams) (storage.FilesystemInfo, error) {
	i.mu.Lock()
	i.attributes = p.Attributes
	i.mu.Unlock()
	return i.ImportFilesystem(ctx, p.FilesystemId, p.ResourceTags)
}

// imported returns the paths that were imported.
func (i *importer) imported() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.paths)
}

func (i *importer) set(during func(context.Context) error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.during = during
}

// newTaskSite is a site with an importer, whose server does not wait between two scans.
func newTaskSite(t *testing.T) (*site, *importer) {
	s, i := newSite(t), newImporter()
	s.stop()
	s.registry.Providers["files"] = i
	s.clock = quickClock{clock.WallClock}
	s.start()
	return s, i
}

// quickClock does not wait for seconds where somebody only waits.
type quickClock struct{ clock.Clock }

func (c quickClock) After(d time.Duration) <-chan time.Time {
	return c.Clock.After(min(d, time.Millisecond))
}

func (s *site) wantError(what string, err error, kind error, says ...string) {
	s.t.Helper()
	if !errors.Is(err, kind) {
		s.t.Errorf("%s: %v, want an error that is %v", what, err, kind)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			s.t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
}

// Storage is imported from the machine that has it, as on an agent with a state of its own.
func TestImportFromMachine(t *testing.T) {
	s, files := newTaskSite(t)
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	args := user.ImportArgs{Name: "a", Pool: "files", Source: "/old/a", Mount: "/srv/a", Machine: "web"}
	result, err := s.client.Import(t.Context(), args)
	s.must(err)
	if want := (user.Change{Action: user.ActionImport, Item: "storage", Name: "a", Detail: "filesystem, pool files, 16M, on /srv/a"}); len(result.Changes) != 1 || result.Changes[0] != want {
		t.Errorf("changes %+v, want %+v", result.Changes, want)
	}
	s.await("a", attachedTo("web"))
	if got := files.imported(); !slices.Equal(got, []string{"/old/a"}) {
		t.Errorf("the provider was called for %q", got)
	}

	for what, test := range map[string]struct {
		change func(*user.ImportArgs)
		kind   errors.ConstError
		says   string
	}{
		"no machine":               {func(a *user.ImportArgs) { a.Machine = "" }, errors.NotValid, "name the one that has it with --machine"},
		"an unknown machine":       {func(a *user.ImportArgs) { a.Machine = "db" }, errors.NotFound, `machine "db" not found`},
		"a name that is taken":     {func(a *user.ImportArgs) { a.Name = "a" }, errors.AlreadyExists, "there is storage of that name"},
		"a mount that is taken":    {func(a *user.ImportArgs) { a.Mount = "/srv/a" }, errors.NotValid, `"/srv/a" is already the mount point of a`},
		"a path with ..":           {func(a *user.ImportArgs) { a.Source = "/old/../b" }, errors.NotValid, "is not an absolute path in its shortest form"},
		"in the agent's data":      {func(a *user.ImportArgs) { a.Mount = filepath.Join(s.dir, "web", "b") }, errors.NotValid, "which the agent uses"},
		"a copy":                   {func(a *user.ImportArgs) { a.Copy = true }, errors.NotSupported, "leave out --copy"},
		"a provider of no machine": {func(a *user.ImportArgs) { a.Pool = "shared" }, errors.NotSupported, "provider shared has its storage on no machine"},
		"a provider that cannot":   {func(a *user.ImportArgs) { a.Pool = "disk" }, errors.NotSupported, "machine web: provider disk cannot import existing storage"},
		"nothing there":            {func(a *user.ImportArgs) { a.Source = "/none" }, errors.NotFound, "machine web: /none not found"},
	} {
		args := user.ImportArgs{Name: "b", Pool: "files", Source: "/old/b", Machine: "web"}
		test.change(&args)
		_, err := s.client.Import(t.Context(), args)
		s.wantError(what, err, test.kind, test.says)
	}
	all, err := s.client.Storage(t.Context(), nil)
	s.must(err)
	if len(all) != 1 {
		t.Errorf("refused imports have left %+v", all)
	}
}

// A machine whose agent is not connected is named at once, with the remedy.
func TestTaskForMachineThatIsOff(t *testing.T) {
	s, _ := newTaskSite(t)
	s.stop()
	s.absence = time.Millisecond
	s.start()
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	web.Kill()
	s.must(web.Wait())
	s.awaitStatus("web", user.MachineUnreachable)
	_, err = s.client.Import(t.Context(), user.ImportArgs{Name: "b", Pool: "files", Source: "/b", Machine: "web"})
	s.wantError("an import", err, errors.NotYetAvailable, "machine web is not connected: start its agent")
	_, err = s.client.Orphans(t.Context(), "web")
	s.wantError("its orphans", err, errors.NotYetAvailable, "machine web is not connected: start its agent")
}

// An import that is interrupted by the end of the agent, or of the server, is completed when it is
// repeated, and the object is taken over once.
// The provider learns the attributes of the pool that the filesystem joins.
func TestImportedFilesystemGetsAttributesOfPool(t *testing.T) {
	s, files := newTaskSite(t)
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	want := map[string]any{"mount-options": "noexec"}
	s.must(s.client.AddPool(t.Context(), user.AddPoolArgs{Name: "strict", Provider: "files", Attributes: want}))
	_, err = s.client.Import(t.Context(), user.ImportArgs{Name: "a", Pool: "strict", Source: "/old/a", Mount: "/srv/a", Machine: "web"})
	s.must(err)
	files.mu.Lock()
	defer files.mu.Unlock()
	if !maps.Equal(files.attributes, want) {
		t.Errorf("imported with %v, want %v", files.attributes, want)
	}
}

func TestInterruptedImport(t *testing.T) {
	s, files := newTaskSite(t)
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	args := user.ImportArgs{Name: "a", Pool: "files", Source: "/old/a", Machine: "web"}
	begun := make(chan struct{})
	files.set(func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	answered := make(chan error)
	request := func() { _, err := s.client.Import(t.Context(), args); answered <- err }

	go request()
	<-begun
	web.Kill()
	s.must(web.Wait())
	if err := <-answered; err == nil || !strings.Contains(err.Error(), "machine web: the agent is stopping") {
		t.Errorf("the agent has ended: %v", err)
	}
	web, err = s.agent("web", "", "")
	s.must(err)

	go request()
	<-begun
	s.stop()
	if err := <-answered; err == nil {
		t.Error("the server has ended, and the import has succeeded")
	}
	s.start()
	files.set(nil)
	// The agent still carries out the first request when the server is there again.
	web.Kill()
	s.must(web.Wait())
	_, err = s.agent("web", "", "")
	s.must(err)
	_, err = s.client.Import(t.Context(), args)
	s.must(err)
	s.await("a", attachedTo("web"))
	if made := files.Filesystems(); len(made) != 1 {
		t.Errorf("the provider has taken over %+v", made)
	}
	if all, err := s.client.Orphans(t.Context(), "web"); err != nil || len(all.Orphans) != 0 {
		t.Errorf("orphans %+v, %v", all.Orphans, err)
	}
}

// An agent does not begin a task again that another run of the agent has begun, and may have finished.
func TestTaskOfReplacedAgent(t *testing.T) {
	s, files := newTaskSite(t)
	first, err := s.agent("web", "web", s.token())
	s.must(err)
	begun, finish := make(chan struct{}), make(chan struct{})
	files.set(func(context.Context) error {
		close(begun)
		<-finish
		return nil
	})
	args := user.ImportArgs{Name: "a", Pool: "files", Source: "/old/a", Machine: "web"}
	answered := make(chan error)
	go func() {
		_, err := s.client.Import(t.Context(), args)
		answered <- err
	}()
	<-begun
	token, err := s.client.CreateToken(t.Context(), user.CreateTokenArgs{Role: "machine", Machine: "web", LifetimeSeconds: 3600, Uses: 1})
	s.must(err)
	_, err = s.agent("second", "web", token)
	s.must(err)
	if err := <-answered; err == nil || !strings.Contains(err.Error(), "machine web: the agent was interrupted before it had finished: repeat the command") {
		t.Errorf("the import: %v", err)
	}
	if got := files.imported(); len(got) != 1 {
		t.Errorf("the provider was called for %q", got)
	}
	close(finish)
	_ = first.Wait() // the server refuses it
	files.set(nil)
	_, err = s.client.Import(t.Context(), args)
	s.must(err)
	if made := files.Filesystems(); len(made) != 1 {
		t.Errorf("the provider has taken over %+v", made)
	}
}

// What two machines have at the same path are two objects, even if the import of one was interrupted.
func TestImportOfSamePath(t *testing.T) {
	s, files := newTaskSite(t)
	for _, name := range []string{"web", "db"} {
		_, err := s.agent(name, name, s.token())
		s.must(err)
	}
	take := func(machine string) error {
		_, err := s.client.Import(t.Context(), user.ImportArgs{Name: "of-" + machine, Pool: "files", Source: "/old/a", Machine: machine})
		return err
	}
	files.set(func(context.Context) error { return errors.New("the disk fails") })
	if err := take("web"); err == nil || !strings.Contains(err.Error(), "machine web: the disk fails") {
		t.Errorf("the import from web: %v", err)
	}
	files.set(nil)
	s.must(take("db"))
	s.must(take("web"))
	owned, err := files.ListFilesystemOwners(envcontext.New(t.Context()))
	s.must(err)
	if len(owned) != 2 || owned[0].ResourceTags[storage.EntityUUIDTag] == owned[1].ResourceTags[storage.EntityUUIDTag] {
		t.Errorf("the objects are %+v", owned)
	}
	for _, name := range []string{"web", "db"} {
		s.await("of-"+name, attachedTo(name))
	}
}

// A user who gives up ends an import that the agent has begun.
func TestImportIsCancelled(t *testing.T) {
	s, files := newTaskSite(t)
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	begun, ended := make(chan struct{}), make(chan struct{})
	files.set(func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	answered := make(chan error)
	go func() {
		_, err := s.client.Import(ctx, user.ImportArgs{Name: "a", Pool: "files", Source: "/old/a", Machine: "web"})
		answered <- err
	}()
	<-begun
	giveUp()
	s.wantError("the request", <-answered, context.Canceled)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the agent goes on")
	}
}

// lose makes an object of a machine that belongs to no storage, with the tags of one that does.
func (s *site) lose(p *importer, name, uuid, tag string) {
	s.t.Helper()
	owned, err := p.ListFilesystemOwners(envcontext.New(s.t.Context()))
	s.must(err)
	tags := maps.Clone(owned[0].ResourceTags)
	tags[storage.StorageNameTag], tags[storage.EntityUUIDTag], tags[storage.EntityTag] = name, uuid, tag
	delete(tags, storage.MountPointTag)
	parsed, err := names.ParseFilesystemTag(tag)
	s.must(err)
	_, err = p.CreateFilesystems(envcontext.New(s.t.Context()), []storage.FilesystemParams{{Tag: parsed, Size: 16, ResourceTags: tags}})
	s.must(err)
}

// Orphans of machines are listed, adopted and deleted through the server. A machine has no say in what
// others have: here both agents list the objects of both.
func TestOrphansOfMachines(t *testing.T) {
	s, files := newTaskSite(t)
	for _, name := range []string{"web", "db"} {
		s.must(os.MkdirAll(filepath.Join(s.dir, name, "storage", "files"), 0o700))
		s.must(os.Chmod(filepath.Join(s.dir, name), 0o700))
		_, err := s.agent(name, name, s.token())
		s.must(err)
	}
	_, err := s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: `storage: [{name: a, directive: "files,16M", kind: filesystem, mount: /srv/a, machine: web}]`})
	s.must(err)
	s.await("a", attachedTo("web"))
	list := func(machine string) user.OrphanList {
		t.Helper()
		all, err := s.client.Orphans(t.Context(), machine)
		s.must(err)
		return all
	}
	if all := list(""); len(all.Orphans) != 0 || len(all.NotAsked) != 0 {
		t.Errorf("without orphans: %+v", all)
	}
	const first, second = "11111111-2222-3333-4444-555555555555", "21111111-2222-3333-4444-555555555555"
	s.lose(files, "lost", first, "filesystem-0-7")
	s.lose(files, "junk", second, "filesystem-0-8")
	for _, machine := range []string{"", "web"} {
		all := list(machine)
		if len(all.Orphans) != 2 || all.Orphans[0].Name != "junk" || all.Orphans[1].UUID != first || all.Orphans[1].Machine != "web" {
			t.Errorf("orphans of %q: %+v", machine, all)
		}
	}
	if all := list("db"); len(all.Orphans) != 0 {
		t.Errorf("orphans of db: %+v", all)
	}

	_, err = s.client.Adopt(t.Context(), user.AdoptArgs{Orphan: "lost", Machine: "db"})
	s.wantError("adopting another machine's", err, errors.NotFound, "there is no such orphan")
	result, err := s.client.Adopt(t.Context(), user.AdoptArgs{Orphan: "lost", As: "found"})
	s.must(err)
	if len(result.Changes) != 1 || result.Changes[0].Name != "found" {
		t.Errorf("adopted: %+v", result.Changes)
	}
	owned, err := files.ListFilesystemOwners(envcontext.New(t.Context()))
	s.must(err)
	for _, o := range owned {
		if o.ResourceTags[storage.EntityUUIDTag] == first && o.ResourceTags[storage.StorageNameTag] != "found" {
			t.Errorf("the provider's tags are %v", o.ResourceTags)
		}
	}
	s.must(s.attach(t.Context(), user.AttachArgs{Names: []string{"found"}}))
	s.await("found", attachedTo("web"))

	deleted, err := s.client.DeleteOrphan(t.Context(), user.DeleteOrphanArgs{UUID: second})
	s.must(err)
	if len(deleted.Deleted) != 1 || deleted.Deleted[0].Name != "junk" || len(files.Filesystems()) != 2 {
		t.Errorf("deleted %+v, and the provider has %+v", deleted, files.Filesystems())
	}
	_, err = s.client.DeleteOrphan(t.Context(), user.DeleteOrphanArgs{UUID: first})
	s.wantError("deleting what was adopted", err, errors.NotFound)
	if all := list(""); len(all.Orphans) != 0 {
		t.Errorf("afterwards: %+v", all)
	}
}

// A task that the agent has not begun in time fails, and is not carried out later.
func TestTaskThatIsTooLate(t *testing.T) {
	s, files := newTaskSite(t)
	s.must(os.MkdirAll(filepath.Join(s.dir, "web", "storage", "files"), 0o700))
	s.must(os.Chmod(filepath.Join(s.dir, "web"), 0o700))
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	_, err = s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: `storage: [{name: a, directive: "files,16M", kind: filesystem, mount: /srv/a, machine: web}]`})
	s.must(err)
	s.await("a", attachedTo("web"))
	const lost = "11111111-2222-3333-4444-555555555555"
	s.lose(files, "lost", lost, "filesystem-0-7")
	begun, finish := make(chan struct{}), make(chan struct{})
	files.set(func(context.Context) error {
		close(begun)
		<-finish
		return nil
	})
	answered := make(chan error)
	go func() {
		_, err := s.client.Import(t.Context(), user.ImportArgs{Name: "b", Pool: "files", Source: "/b", Machine: "web"})
		answered <- err
	}()
	<-begun
	_, err = s.client.DeleteOrphan(t.Context(), user.DeleteOrphanArgs{UUID: lost})
	s.wantError("a deletion during an import", err, errors.NotYetAvailable, "machine web has not begun the task within 30s: its agent is busy")
	close(finish)
	s.must(<-answered)
	s.await("b", attachedTo("web")) // what would have been done, is done
	if calls := files.Count("DestroyFilesystems"); calls != 0 {
		t.Error("the orphan was deleted although the command had failed")
	}
	files.set(nil)
	_, err = s.client.DeleteOrphan(t.Context(), user.DeleteOrphanArgs{UUID: lost})
	s.must(err)
	if calls := files.Count("DestroyFilesystems"); calls != 1 {
		t.Errorf("the orphan was deleted %d times", calls)
	}
}

// Without a machine, those that cannot be asked are named, and the others are asked.
func TestOrphansWithoutSomeMachines(t *testing.T) {
	s, files := newTaskSite(t)
	s.stop()
	s.absence = time.Millisecond
	s.start()
	s.must(os.MkdirAll(filepath.Join(s.dir, "web", "storage", "files"), 0o700))
	s.must(os.Chmod(filepath.Join(s.dir, "web"), 0o700))
	_, err := s.agent("web", "web", s.token())
	s.must(err)
	db, err := s.agent("db", "db", s.token())
	s.must(err)
	db.Kill()
	s.must(db.Wait())
	s.awaitStatus("db", user.MachineUnreachable)
	_, err = s.client.Apply(t.Context(), user.ApplyArgs{File: "f", Content: `storage: [{name: a, directive: "files,16M", kind: filesystem, mount: /srv/a, machine: web}]`})
	s.must(err)
	s.await("a", attachedTo("web"))
	s.lose(files, "lost", "11111111-2222-3333-4444-555555555555", "filesystem-0-7")
	all, err := s.client.Orphans(t.Context(), "")
	s.must(err)
	if len(all.Orphans) != 1 || len(all.NotAsked) != 1 || all.NotAsked[0].Machine != "db" || !strings.Contains(all.NotAsked[0].Reason, "machine db is not connected") {
		t.Errorf("orphans %+v", all)
	}
	_, err = s.client.Adopt(t.Context(), user.AdoptArgs{Orphan: "none"})
	s.wantError("an orphan that may be on a machine that was not asked", err, errors.NotFound, "(not asked: db)")
}
