package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// memory is a provider whose filesystems exist only in its fields. The zero value creates and
// attaches filesystems at once.
type memory struct {
	storage.Provider
	// attach, if not nil, is received from before each attachment.
	attach chan struct{}
	// environ gives the provider the scope of the environment.
	environ bool

	mu       sync.Mutex
	made     map[string]uint64
	attached map[string]string
}

func (m *memory) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindFilesystem
}
func (m *memory) Scope() storage.Scope {
	if m.environ {
		return storage.ScopeEnviron
	}
	return storage.ScopeMachine
}
func (m *memory) Dynamic() bool                        { return true }
func (m *memory) Releasable() bool                     { return false }
func (m *memory) DefaultPools() []*storage.Config      { return nil }
func (m *memory) ValidateConfig(*storage.Config) error { return nil }
func (m *memory) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("volumes")
}

func (m *memory) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return &memorySource{memory: m}, nil
}

type memorySource struct {
	storage.FilesystemSource
	*memory
}

func (s *memorySource) ValidateFilesystemParams(storage.FilesystemParams) error { return nil }

func (s *memorySource) CreateFilesystems(_ envcontext.ProviderCallContext, all []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	results := make([]storage.CreateFilesystemsResult, len(all))
	for i, p := range all {
		id := p.Tag.String()
		if s.made == nil {
			s.made = map[string]uint64{}
		}
		s.made[id] = p.Size
		// Larger than requested, as is allowed.
		results[i].Filesystem = &storage.Filesystem{Tag: p.Tag, FilesystemInfo: storage.FilesystemInfo{FilesystemId: id, Size: p.Size + 1}}
	}
	return results, nil
}

func (s *memorySource) AttachFilesystems(ctx envcontext.ProviderCallContext, all []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	if s.attach != nil {
		select {
		case <-s.attach:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	results := make([]storage.AttachFilesystemsResult, len(all))
	for i, p := range all {
		if s.attached == nil {
			s.attached = map[string]string{}
		}
		s.attached[p.FilesystemId] = p.Path
		results[i].FilesystemAttachment = &storage.FilesystemAttachment{
			Filesystem: p.Filesystem, Machine: p.Machine,
			FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: p.Path},
		}
	}
	return results, nil
}

func (s *memorySource) DetachFilesystems(_ envcontext.ProviderCallContext, all []storage.FilesystemAttachmentParams) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all {
		delete(s.attached, p.FilesystemId)
	}
	return make([]error, len(all)), nil
}

func (s *memorySource) DestroyFilesystems(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.made, id)
	}
	return make([]error, len(ids)), nil
}

// empty reports whether the provider has no filesystems.
func (m *memory) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.made)+len(m.attached) == 0
}

type logger struct{ t *testing.T }

func (l logger) log(level, format string, args ...any) { l.t.Logf(level+" "+format, args...) }

func (l logger) Tracef(format string, args ...any)   {}
func (l logger) Debugf(format string, args ...any)   { l.log("DEBUG", format, args...) }
func (l logger) Infof(format string, args ...any)    { l.log("INFO", format, args...) }
func (l logger) Warningf(format string, args ...any) { l.log("WARNING", format, args...) }
func (l logger) Errorf(format string, args ...any)   { l.log("ERROR", format, args...) }

func config(t *testing.T, dir string, m *memory) agent.Config {
	return agent.Config{
		Config: process.Config{
			Registry: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
				"memory": m, "loop": m, "rootfs": m,
			}},
			Clock:  clock.WallClock,
			Logger: logger{t},
		},
		DataDir:    dir,
		SocketPath: filepath.Join(dir, "stowage.sock"),
	}
}

// start starts an agent. stop ends it, at the latest when the test ends.
func start(t *testing.T, c agent.Config) (a *agent.Agent, stop func()) {
	t.Helper()
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		a.Kill()
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return a, stop
}

// until watches storage until wanted returns true.
func until(t *testing.T, a *agent.Agent, wanted func(rows map[string]user.Storage) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := errors.New("done")
	rows := map[string]user.Storage{}
	err := a.Watch(ctx, user.WatchArgs{}, func(event user.Event) error {
		for _, s := range event.Storage {
			rows[s.Name] = s
		}
		for _, name := range event.Gone {
			delete(rows, name)
		}
		if wanted(rows) {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatalf("%v; the storage is %+v", err, rows)
	}
}

// all returns a condition: there are n rows, and all have the status.
func all(n int, s status.Status) func(map[string]user.Storage) bool {
	return func(rows map[string]user.Storage) bool {
		for _, row := range rows {
			if row.Status != s {
				return false
			}
		}
		return len(rows) == n
	}
}

func apply(t *testing.T, a *agent.Agent, text string) error {
	t.Helper()
	_, err := a.Apply(t.Context(), user.ApplyArgs{File: "f.yaml", Content: text})
	return err
}

// two declares two filesystems, data/0 and data/1, and their pool.
const two = `
storage:
  - {name: data, directive: 'fast,64M,2', kind: filesystem, mount: /srv/data}
pools:
  - {name: fast, provider: memory, attributes: {depth: 3}}
`

func TestStorageLifecycle(t *testing.T) {
	m := &memory{}
	a, _ := start(t, config(t, filepath.Join(t.TempDir(), "new", "dir"), m))
	ctx := t.Context()
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, func(rows map[string]user.Storage) bool {
		return all(2, status.Attached)(rows) && rows["data/0"].Location == "/srv/data/0" && rows["data/1"].Location == "/srv/data/1"
	})
	for _, test := range []struct {
		names []string
		want  []string
	}{
		{nil, []string{"data/0", "data/1"}}, {[]string{"data"}, []string{"data/0", "data/1"}},
		{[]string{"data/1"}, []string{"data/1"}}, {[]string{"data", "data/1", "data"}, []string{"data/0", "data/1"}},
	} {
		rows, err := a.Storage(ctx, test.names)
		var got []string
		for _, row := range rows {
			got = append(got, row.Name)
		}
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("Storage(%q) = %q, %v", test.names, got, err)
		}
	}

	// Applying the file again changes nothing, although the storage is larger than requested.
	result, err := a.Apply(ctx, user.ApplyArgs{File: "f.yaml", Content: two})
	if err != nil || len(result.Changes) != 0 {
		t.Errorf("applied again: %+v, %v", result, err)
	}

	if err := a.Detach(ctx, []string{"data/1"}); err != nil {
		t.Fatal(err)
	}
	until(t, a, func(rows map[string]user.Storage) bool { return len(rows["data/1"].Attachments) == 0 })
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))

	if err := a.Remove(ctx, user.RemoveArgs{Names: []string{"data"}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(0, ""))
	if !m.empty() {
		t.Errorf("left behind: %v, %v", m.made, m.attached)
	}
}

// Of much storage that is attached already, a client gets only the number.
func TestApplyTellsWhatIsUnfinished(t *testing.T) {
	a, _ := start(t, config(t, t.TempDir(), &memory{}))
	declared := func(n int) string { return strings.Replace(two, "64M,2", fmt.Sprintf("64M,%d", n), 1) }
	for _, test := range []struct {
		n, attached int
		unfinished  []string
	}{
		{100, 0, nil},
		{101, 0, nil}, // 100 are few enough to be watched
		{102, 101, []string{"data/101"}},
		{102, 102, nil},
	} {
		result, err := a.Apply(t.Context(), user.ApplyArgs{File: "f.yaml", Content: declared(test.n)})
		if err != nil || result.Attached != test.attached || !reflect.DeepEqual(result.Unfinished, test.unfinished) {
			t.Errorf("of %d, %d are attached and %q unfinished (%v), want %+v", test.n, result.Attached, result.Unfinished, err, test)
		}
		until(t, a, func(rows map[string]user.Storage) bool {
			for _, row := range rows {
				if row.Location == "" {
					return false
				}
			}
			return all(test.n, status.Attached)(rows)
		})
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	a, _ := start(t, config(t, t.TempDir(), &memory{}))
	result, err := a.Apply(t.Context(), user.ApplyArgs{File: "f.yaml", Content: two, DryRun: true})
	if err != nil || len(result.Changes) != 2 {
		t.Errorf("%+v, %v", result, err)
	}
	rows, err := a.Storage(t.Context(), nil)
	pools, err2 := a.Pools(t.Context())
	if len(rows) != 0 || err != nil || len(pools) != 3 || err2 != nil {
		t.Errorf("storage %+v, %v; pools %+v, %v", rows, err, pools, err2)
	}
}

func TestRefusedApplyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	a, _ := start(t, config(t, dir, &memory{}))
	for text, want := range map[string]string{
		two + "  - {name: slow, provider: disk}\n":                                                                             `f.yaml:6: pool slow: provider: "disk" is not known: the providers are loop, memory, rootfs`,
		"storage: [{name: a, directive: 'memory,1M', kind: filesystem, mount: " + dir + "/x}]":                                 fmt.Sprintf(`f.yaml:1: storage a: mount: %q would hide, or lie in, %s, which the agent uses: choose another mount point`, dir+"/x", dir),
		"storage: [{name: a, directive: 'memory,1M', kind: block}]":                                                            "f.yaml:1: storage a: kind: provider memory makes no block devices: write filesystem, or choose another pool",
		"storage: [{name: a, directive: 'memory,1M', kind: filesystem, mount: /a}, {name: b, directive: 'x,1M', kind: block}]": `f.yaml:1: storage b: directive: pool "x" is not known: the pools are loop, memory, rootfs`,
	} {
		if err := apply(t, a, text); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, provider := range []string{"loop", "rootfs"} {
		err := apply(t, a, "storage: [{name: a, directive: '"+provider+",1E', kind: filesystem, mount: /a}]")
		if err == nil || !strings.Contains(err.Error(), "f.yaml:1: storage a: directive: it does not fit: a asks for 1E, and ") {
			t.Errorf("got %v", err)
		}
	}
	if rows, err := a.Storage(t.Context(), nil); len(rows) != 0 || err != nil {
		t.Errorf("storage %+v, %v", rows, err)
	}
}

func TestUnknownNamesChangeNothing(t *testing.T) {
	a, _ := start(t, config(t, t.TempDir(), &memory{}))
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))
	attach := func(ctx context.Context, names []string) error {
		_, err := a.Attach(ctx, user.AttachArgs{Names: names})
		return err
	}
	remove := func(ctx context.Context, names []string) error {
		return a.Remove(ctx, user.RemoveArgs{Names: names})
	}
	for _, change := range []func(context.Context, []string) error{attach, a.Detach, remove} {
		for _, name := range []string{"nowhere", "data/2", "dat", ""} {
			err := change(t.Context(), []string{"data", name})
			if !errors.Is(err, errors.NotFound) || err.Error() != fmt.Sprintf("storage %q not found", name) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := change(t.Context(), nil); !errors.Is(err, errors.NotValid) {
			t.Errorf("without names: %v", err)
		}
	}
	for _, name := range []string{"nowhere", ""} {
		if _, err := a.Storage(t.Context(), []string{name}); !errors.Is(err, errors.NotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
	until(t, a, all(2, status.Attached))
}

func TestSpecIsAppliedBeforeStart(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	c.Spec = &user.ApplyArgs{File: "f.yaml", Content: "storage: [{name: a, directive: 'x,1M', kind: block}]"}
	_, err := agent.New(c)
	if want := `f.yaml:1: storage a: directive: pool "x" is not known: the pools are loop, memory, rootfs`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := os.Lstat(c.SocketPath); !os.IsNotExist(err) {
		t.Errorf("the socket: %v", err)
	}
	c.Spec.Content = two
	a, _ := start(t, c)
	until(t, a, all(2, status.Attached))
}

// A file that is applied at each start makes removed storage again, and the storage says so.
func TestSpecMakesRemovedStorageAgain(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	c.Spec = &user.ApplyArgs{File: "f.yaml", Content: two}
	for _, want := range []string{"at first", "again"} {
		a, stop := start(t, c)
		until(t, a, all(2, status.Attached))
		rows, err := a.Storage(t.Context(), []string{"data"})
		if err != nil || rows[0].Spec != "f.yaml" {
			t.Errorf("%s: %+v, %v", want, rows, err)
		}
		if err := a.Remove(t.Context(), user.RemoveArgs{Names: []string{"data/1"}}); err != nil {
			t.Error(err)
		}
		until(t, a, all(1, status.Attached))
		stop()
	}
}

// A file that is applied once does not.
func TestSpecOnce(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	c.Spec, c.SpecOnce = &user.ApplyArgs{File: "f.yaml", Content: "storage: [{name: a}]"}, true
	if _, err := agent.New(c); err == nil { // this is not the one time
		t.Fatal("a file that is not valid was applied")
	}
	c.Spec.Content = two
	a, stop := start(t, c)
	until(t, a, all(2, status.Attached))
	rows, err := a.Storage(t.Context(), []string{"data"})
	if err != nil || rows[0].Spec != "" {
		t.Errorf("%+v, %v", rows, err)
	}
	if err := a.Remove(t.Context(), user.RemoveArgs{Names: []string{rows[0].Name}}); err != nil {
		t.Error(err)
	}
	until(t, a, all(1, status.Attached))
	stop()
	a, _ = start(t, c)
	if rows, err := a.Storage(t.Context(), nil); err != nil || len(rows) != 1 {
		t.Errorf("after a start there are %+v, %v", rows, err)
	}
}

// The agent's state has one machine, number 0.
func TestSpecMayNameTheAgentsMachine(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	entry := strings.Replace(two, "kind:", "machine: %s, kind:", 1)
	c.Spec = &user.ApplyArgs{File: "f.yaml", Content: fmt.Sprintf(entry, "0")}
	a, _ := start(t, c)
	until(t, a, all(2, status.Attached))
	want := `f.yaml:3: storage data: machine: "web-1" is not known: the machines are 0`
	if err := apply(t, a, fmt.Sprintf(entry, "web-1")); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestRestartAttachesStorageAgain(t *testing.T) {
	dir, m := t.TempDir(), &memory{}
	a, stop := start(t, config(t, dir, m))
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))
	stop()
	if m.empty() {
		t.Fatal("stopping the agent removed storage")
	}

	m.attach = make(chan struct{})
	a, _ = start(t, config(t, dir, m))
	until(t, a, func(rows map[string]user.Storage) bool {
		return all(2, status.Attaching)(rows) && rows["data/0"].Message == "rechecking: the agent has started again"
	})
	close(m.attach)
	until(t, a, all(2, status.Attached))
}

// managerConfig is a configuration with a manager and a provider of the environment.
func managerConfig(t *testing.T, dir string, shares *memory) agent.Config {
	c := config(t, dir, &memory{})
	shares.environ = true
	c.Registry.(storage.StaticProviderRegistry).Providers["shares"] = shares
	c.Manager = true
	return c
}

const share = "storage: [{name: share, directive: 'shares,1M', kind: filesystem, mount: /srv/share}]"

func TestManagerProvisionsEnvironmentStorage(t *testing.T) {
	dir, shares := t.TempDir(), &memory{}
	a, stop := start(t, managerConfig(t, dir, shares))
	for _, text := range []string{two, share} {
		if err := apply(t, a, text); err != nil {
			t.Fatal(err)
		}
	}
	until(t, a, func(rows map[string]user.Storage) bool {
		return all(3, status.Attached)(rows) && rows["share"].Filesystem == "2" && rows["share"].Location == "/srv/share"
	})
	stop()

	shares.attach = make(chan struct{})
	a, _ = start(t, managerConfig(t, dir, shares))
	until(t, a, func(rows map[string]user.Storage) bool {
		return rows["share"].Message == "rechecking: the agent has started again"
	})
	close(shares.attach)
	until(t, a, all(3, status.Attached))
	if err := a.Remove(t.Context(), user.RemoveArgs{Names: []string{"data", "share"}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(0, ""))
	if !shares.empty() {
		t.Errorf("left behind: %v, %v", shares.made, shares.attached)
	}
}

func TestStatusOfEnvironmentStorageWithoutManager(t *testing.T) {
	dir, shares := t.TempDir(), &memory{}
	c := managerConfig(t, dir, shares)
	c.Manager = false
	a, stop := start(t, c)
	const want = "f.yaml:1: storage share: directive: pool shares is of provider shares, whose storage an environment manager makes and attaches: start the agent with --manager"
	if err := apply(t, a, share); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	stop()

	a, stop = start(t, managerConfig(t, dir, shares))
	if err := apply(t, a, share); err != nil {
		t.Fatal(err)
	}
	until(t, a, func(rows map[string]user.Storage) bool {
		return all(1, status.Attached)(rows) && rows["share"].Message == ""
	})
	stop()

	// Without a manager the storage stays attached, whether or not its provider is known.
	const hint = "no environment manager runs: start the agent with --manager"
	for _, c := range []agent.Config{c, config(t, dir, &memory{})} {
		a, stop = start(t, c)
		until(t, a, func(rows map[string]user.Storage) bool {
			return all(1, status.Attached)(rows) && rows["share"].Message == hint
		})
		stop()
	}
	if shares.empty() {
		t.Error("the storage was removed without a manager")
	}

	// A removal is recorded, and done when a manager runs.
	a, stop = start(t, c)
	if err := a.Remove(t.Context(), user.RemoveArgs{Names: []string{"share"}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, func(rows map[string]user.Storage) bool {
		return all(1, status.Detaching)(rows) && rows["share"].Message == hint
	})
	stop()
	a, _ = start(t, managerConfig(t, dir, shares))
	until(t, a, all(0, ""))
	if !shares.empty() {
		t.Errorf("left behind: %v, %v", shares.made, shares.attached)
	}
}

func TestSecondAgentInDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	_, stop := start(t, config(t, dir, &memory{}))
	_, err := agent.New(config(t, dir, &memory{}))
	if want := fmt.Sprintf("another agent runs in %s (PID %d): stop it, or choose another --data-dir", dir, os.Getpid()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	stop()
	start(t, config(t, dir, &memory{}))
}

func TestDirectoryWithOtherFilesIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := agent.New(config(t, dir, &memory{}))
	if want := dir + " contains files that are not an agent's: choose an empty or new --data-dir"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	entries, err := os.ReadDir(dir)
	info, err2 := os.Stat(dir)
	if len(entries) != 1 || err != nil || err2 != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory has changed: %v, %v, mode %v, %v", entries, err, info.Mode(), err2)
	}
}

// Other users could put a harmful state into a directory that they can write to: one that
// removes system directories, or that consists of links to system files.
// Promise S6.
// Finding N16.
func TestDirectoryWritableByOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, mode := range map[string]os.FileMode{
		"group": 0o770, "world": 0o707, "sticky": os.ModeSticky | 0o777, "ours": 0o755,
	} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("ours"), at("world/link")); err != nil {
		t.Fatal(err)
	}
	const remedy = ": choose another --data-dir"
	for path, want := range map[string]string{
		at("group"):          "others than root can write to " + at("group") + remedy,
		at("world"):          "others than root can write to " + at("world") + remedy,
		at("sticky"):         "others than root can write to " + at("sticky") + remedy,
		at("world/link"):     "others than root can write to " + at("world") + ", and so can replace " + at("world/link") + remedy,
		at("group/new/data"): "others than root can write to " + at("group") + ", and so can replace " + at("group/new/data") + remedy,
	} {
		_, err := agent.New(config(t, path, &memory{}))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	for name, want := range map[string][]string{"group": nil, "world": {"link"}, "sticky": nil, "ours": nil} {
		var got []string
		entries, err := os.ReadDir(at(name))
		for _, entry := range entries {
			got = append(got, entry.Name())
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: contains %q, %v, want %q", name, got, err, want)
		}
	}
}

func TestFilesAreOwnerOnly(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a, _ := start(t, config(t, dir, &memory{}))
	client := control.NewClient(filepath.Join(dir, "stowage.sock"))
	defer client.Close()
	waitForReport(t, a, "control")
	if _, err := client.Storage(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "storage": 0o700, "state.db": 0o600, "stowage.sock": 0o600} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", name, info, err)
		}
	}
}

// waitForReport waits until a worker has started, and returns the report.
func waitForReport(t *testing.T, a *agent.Agent, name string) map[string]any {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		report, err := a.Report(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		manifolds, _ := report["manifolds"].(map[string]any)
		if worker, _ := manifolds[name].(map[string]any); worker["state"] == "started" {
			return report
		}
		select {
		case <-tick.C: // the engine has no event for the start of a worker
		case <-deadline:
			t.Fatalf("%s does not start: %v", name, report)
		}
	}
}

func TestReportNamesWorkers(t *testing.T) {
	a, _ := start(t, managerConfig(t, t.TempDir(), &memory{}))
	for _, name := range []string{"control", "disk-manager", "storage-provisioner", "environment-storage-provisioner"} {
		report := waitForReport(t, a, name)
		if _, err := json.Marshal(report); err != nil {
			t.Error(err)
		}
	}
}

func TestNewFailsIfSocketCannotBeCreated(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	c.SocketPath = filepath.Join(t.TempDir(), "none", "stowage.sock")
	c.Spec = &user.ApplyArgs{File: "f.yaml", Content: two}
	_, err := agent.New(c)
	if err == nil || !strings.Contains(err.Error(), "listening on "+c.SocketPath) {
		t.Errorf("got %v", err)
	}
	// The failed start has unlocked the directory, and has applied nothing.
	c.SocketPath, c.Spec = filepath.Join(c.DataDir, "stowage.sock"), nil
	a, _ := start(t, c)
	if rows, err := a.Storage(t.Context(), nil); len(rows) != 0 || err != nil {
		t.Errorf("storage %+v, %v", rows, err)
	}
}

// Promise S11.
func TestMountOverSocketIsRefused(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	dir := t.TempDir()
	c.SocketPath = filepath.Join(dir, "s.sock")
	a, _ := start(t, c)
	err := apply(t, a, "storage: [{name: a, directive: 'memory,1M', kind: filesystem, mount: "+dir+"}]")
	if err == nil || !strings.Contains(err.Error(), c.SocketPath+", which the agent uses") {
		t.Errorf("got %v", err)
	}
}

func TestWatchSendsOnlyChanges(t *testing.T) {
	a, _ := start(t, config(t, t.TempDir(), &memory{}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var events []user.Event
	begun, done := make(chan struct{}), errors.New("done")
	ended := make(chan error, 1)
	go func() {
		ended <- a.Watch(ctx, user.WatchArgs{Names: []string{"data/1", "later"}}, func(event user.Event) error {
			events = append(events, event)
			if len(events) == 1 {
				close(begun)
			}
			if len(event.Gone) > 0 {
				return done
			}
			return nil
		})
	}()
	<-begun
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))
	for i := range 3 { // a watch does not send changes of other storage
		other := fmt.Sprintf("other%d", i)
		if err := apply(t, a, "storage: [{name: "+other+", directive: 'memory,1M', kind: filesystem, mount: /"+other+"}]"); err != nil {
			t.Fatal(err)
		}
		until(t, a, all(3+i, status.Attached))
	}
	if err := a.Remove(ctx, user.RemoveArgs{Names: []string{"data"}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, done) {
		t.Fatal(err)
	}

	first, last := events[0], events[len(events)-1]
	if len(first.Storage)+len(first.Gone) != 0 {
		t.Errorf("the first event is %+v", first)
	}
	if len(last.Storage) != 0 || !reflect.DeepEqual(last.Gone, []string{"data/1"}) {
		t.Errorf("the last event is %+v", last)
	}
	for i, event := range events[1 : len(events)-1] {
		if len(event.Storage) != 1 || event.Storage[0].Name != "data/1" || len(event.Gone) != 0 {
			t.Errorf("an event is %+v", event)
		}
		if reflect.DeepEqual(event, events[i]) {
			t.Errorf("event sent twice: %+v", event)
		}
	}
}

func TestNewNamesInvalidField(t *testing.T) {
	for want, change := range map[string]func(*agent.Config){
		`DataDir "x", which is not absolute, not valid`: func(c *agent.Config) { c.DataDir = "x" },
		"empty SocketPath not valid":                    func(c *agent.Config) { c.SocketPath = "" },
		"nil Registry not valid":                        func(c *agent.Config) { c.Registry = nil },
		"nil Clock not valid":                           func(c *agent.Config) { c.Clock = nil },
		"nil Logger not valid":                          func(c *agent.Config) { c.Logger = nil },
	} {
		c := config(t, t.TempDir(), &memory{})
		change(&c)
		if _, err := agent.New(c); !errors.Is(err, errors.NotValid) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
