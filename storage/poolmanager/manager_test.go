package poolmanager_test

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/poolmanager"
)

// memory is a poolmanager.Store in memory.
type memory struct {
	mu    sync.Mutex
	pools map[string]poolmanager.Settings
	err   error
}

func (m *memory) PoolSettings() (map[string]poolmanager.Settings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.pools), m.err
}

func (m *memory) ChangePools(changes ...poolmanager.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	pools := make(map[string]poolmanager.Settings)
	maps.Copy(pools, m.pools)
	for _, change := range changes {
		var old *poolmanager.Settings
		if settings, ok := pools[change.Name]; ok {
			old = &settings
		}
		settings, err := change.Make(old)
		if err != nil {
			return err
		}
		if settings == nil {
			delete(pools, change.Name)
			continue
		}
		kept := *settings
		kept.InUse = old != nil && old.InUse
		pools[change.Name] = kept
	}
	if m.err == nil {
		m.pools = pools
	}
	return m.err
}

// use marks a stored pool as in use.
func (m *memory) use(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	settings := m.pools[name]
	settings.InUse = true
	m.pools[name] = settings
}

// provider accepts all attributes but "bad" and "worse", and has default pools.
type provider struct {
	storage.Provider
	pools []*storage.Config
}

func (p provider) DefaultPools() []*storage.Config { return p.pools }

func (p provider) ValidateConfig(c *storage.Config) error {
	if _, ok := c.Attrs()["bad"]; ok {
		return errors.NotValidf("attribute bad")
	}
	if _, ok := c.Attrs()["worse"]; ok {
		return errors.NotValidf("storage pool %q: attribute worse", c.Name())
	}
	return nil
}

func pool(t testing.TB, name string, provider storage.ProviderType, attrs storage.Attrs) *storage.Config {
	t.Helper()
	config, err := storage.NewConfig(name, provider, attrs)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// registry has two providers: loop, without default pools, and disk, with the default
// pool ssd and settings for the pool of its own name.
func registry(t testing.TB) storage.StaticProviderRegistry {
	return storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
		"loop": provider{},
		"disk": provider{pools: []*storage.Config{
			pool(t, "ssd", "disk", storage.Attrs{"type": "ssd"}),
			pool(t, "disk", "disk", storage.Attrs{"type": "hdd"}),
		}},
	}}
}

func newManager(t testing.TB) (*poolmanager.Manager, *memory) {
	store := &memory{}
	return poolmanager.New(store, registry(t)), store
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// list returns all pools, one on a line.
func list(t testing.TB, m *poolmanager.Manager) string {
	t.Helper()
	pools, err := m.List()
	must(t, err)
	var b strings.Builder
	for _, p := range pools {
		fmt.Fprintln(&b, line(p))
	}
	return b.String()
}

func line(p poolmanager.Pool) string {
	text := fmt.Sprint(p.Name(), " ", p.Provider(), " ", map[string]any(p.Attrs()))
	if p.Default {
		text += " default"
	}
	return text
}

const defaults = "disk disk map[type:hdd] default\nloop loop map[] default\nssd disk map[type:ssd] default\n"

func TestPoolLifecycle(t *testing.T) {
	m, store := newManager(t)
	if got := list(t, m); got != defaults {
		t.Errorf("at first: got pools\n%swant\n%s", got, defaults)
	}
	must(t, m.Create("fast", "disk", storage.Attrs{"type": "nvme", "depth": 4}))
	must(t, m.Create("plain", "loop", nil))
	want := "disk disk map[type:hdd] default\nfast disk map[depth:4 type:nvme]\nloop loop map[] default\nplain loop map[]\nssd disk map[type:ssd] default\n"
	if got := list(t, m); got != want {
		t.Errorf("after create: got pools\n%swant\n%s", got, want)
	}
	if len(store.pools) != 2 {
		t.Errorf("stored pools: %v", store.pools)
	}
	for name, want := range map[string]string{"fast": "fast disk map[depth:4 type:nvme]", "ssd": "ssd disk map[type:ssd] default"} {
		if p, err := m.Get(name); err != nil || line(p) != want {
			t.Errorf("%s: got %v, %v", name, p, err)
		}
	}
	must(t, m.Replace("fast", "loop", storage.Attrs{"depth": 4}))
	must(t, m.Replace("fast", "", storage.Attrs{"depth": 5}))
	if p, err := m.Get("fast"); err != nil || line(p) != "fast loop map[depth:5]" {
		t.Errorf("after replace: %v, %v", p, err)
	}
	must(t, m.Remove("fast", "plain", "fast"))
	must(t, m.Remove())
	if got := list(t, m); got != defaults {
		t.Errorf("after remove: got pools\n%swant\n%s", got, defaults)
	}
}

func TestManagerErrors(t *testing.T) {
	long := strings.Repeat("a", poolmanager.MaxNameLength+1)
	const badName = `pool name "no good" is not valid: a letter, then letters, digits and hyphens`
	const defaultSSD = `pool "ssd" is a default pool of provider "disk" and cannot be changed: choose another name`
	for _, test := range []struct {
		about string
		do    func(*poolmanager.Manager) error
		kind  error
		want  string
	}{
		{"create with a bad name", func(m *poolmanager.Manager) error { return m.Create("no good", "loop", nil) }, errors.NotValid, badName},
		{"replace with a bad name", func(m *poolmanager.Manager) error { return m.Replace("no good", "loop", nil) }, errors.NotValid, badName},
		{"create with a long name", func(m *poolmanager.Manager) error { return m.Create(long, "loop", nil) }, errors.NotValid,
			"pool name of 256 bytes is not valid: at most 255 bytes are allowed"},
		{"create of an unknown provider", func(m *poolmanager.Manager) error { return m.Create("new", "nfs", nil) }, errors.NotFound,
			`pool "new": provider "nfs" is not known: the providers are disk, loop`},
		{"create with bad attributes", func(m *poolmanager.Manager) error { return m.Create("new", "loop", storage.Attrs{"bad": 1}) }, errors.NotValid,
			`pool "new": attribute bad not valid`},
		{"create where the provider names the pool", func(m *poolmanager.Manager) error {
			return m.Create("new", "loop", storage.Attrs{"worse": 1})
		}, errors.NotValid, `storage pool "new": attribute worse not valid`},
		{"create with the agent's attribute", func(m *poolmanager.Manager) error {
			return m.Create("new", "loop", storage.Attrs{storage.ConfigStorageDir: "/etc"})
		}, errors.NotValid, `pool "new": attribute "storage-dir" is set by the agent: leave it out`},
		{"create again", func(m *poolmanager.Manager) error { return m.Create("idle", "disk", nil) }, errors.AlreadyExists,
			`pool "idle" already exists with provider "loop": replace it, or choose another name`},
		{"create a default pool", func(m *poolmanager.Manager) error { return m.Create("ssd", "disk", nil) }, errors.AlreadyExists, defaultSSD},

		{"replace with bad attributes", func(m *poolmanager.Manager) error { return m.Replace("idle", "loop", storage.Attrs{"bad": 1}) }, errors.NotValid,
			`pool "idle": attribute bad not valid`},
		{"replace the attributes by bad ones", func(m *poolmanager.Manager) error { return m.Replace("idle", "", storage.Attrs{"bad": 1}) }, errors.NotValid,
			`pool "idle": attribute bad not valid`},
		{"replace the attributes of nothing", func(m *poolmanager.Manager) error { return m.Replace("new", "", nil) }, errors.NotFound, `pool "new" not found`},
		{"replace the attributes of a default pool", func(m *poolmanager.Manager) error { return m.Replace("ssd", "", nil) }, errors.NotValid, defaultSSD},
		{"replace nothing", func(m *poolmanager.Manager) error { return m.Replace("new", "loop", nil) }, errors.NotFound, `pool "new" not found`},
		{"replace a default pool", func(m *poolmanager.Manager) error { return m.Replace("ssd", "disk", nil) }, errors.NotValid, defaultSSD},
		{"replace the provider of a pool in use", func(m *poolmanager.Manager) error { return m.Replace("used", "disk", nil) }, errors.NotValid,
			`pool "used" is in use with provider "loop", which cannot change: make a pool of another name`},

		{"remove nothing", func(m *poolmanager.Manager) error { return m.Remove("idle", "new") }, errors.NotFound, `pool "new" not found`},
		{"remove a default pool", func(m *poolmanager.Manager) error { return m.Remove("idle", "ssd") }, errors.NotValid,
			`pool "ssd" is a default pool of provider "disk": it cannot be removed`},
		{"remove a pool in use", func(m *poolmanager.Manager) error { return m.Remove("idle", "used") }, errors.NotValid,
			`pool "used" is in use: remove its storage first`},
		{"get nothing", func(m *poolmanager.Manager) error { _, err := m.Get("new"); return err }, errors.NotFound, `pool "new" not found`},
	} {
		t.Run(test.about, func(t *testing.T) {
			m, store := newManager(t)
			must(t, m.Create("idle", "loop", nil))
			must(t, m.Create("used", "loop", nil))
			store.use("used")
			before := list(t, m)
			if err := test.do(m); !errors.Is(err, test.kind) || err.Error() != test.want {
				t.Errorf("\ngot  %v\nwant %s", err, test.want)
			}
			if after := list(t, m); after != before {
				t.Errorf("got pools\n%swant\n%s", after, before)
			}
		})
	}
}

func TestReplaceSettingsOfPoolInUse(t *testing.T) {
	m, store := newManager(t)
	must(t, m.Create("used", "loop", nil))
	store.use("used")
	must(t, m.Replace("used", "loop", storage.Attrs{"depth": 1}))
	if p, err := m.Get("used"); err != nil || line(p) != "used loop map[depth:1]" {
		t.Errorf("%v, %v", p, err)
	}
}

// A provider gains a default pool whose name a user has taken already.
func TestUserPoolShadowsLaterDefault(t *testing.T) {
	m, store := newManager(t)
	must(t, m.Create("tape", "loop", storage.Attrs{"mine": true}))
	must(t, m.Create("nvme", "loop", nil))
	later := registry(t)
	later.Providers["tape"] = provider{pools: []*storage.Config{pool(t, "nvme", "tape", nil)}}
	m = poolmanager.New(store, later)

	want := "disk disk map[type:hdd] default\nloop loop map[] default\nnvme loop map[]\nssd disk map[type:ssd] default\ntape loop map[mine:true]\n"
	if got := list(t, m); got != want {
		t.Errorf("got pools\n%swant\n%s", got, want)
	}
	if err := m.Create("tape", "disk", nil); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("created again: %v", err)
	}
	must(t, m.Replace("tape", "disk", nil))
	if p, err := m.Get("tape"); err != nil || line(p) != "tape disk map[]" {
		t.Errorf("the user's pool is %v, %v", p, err)
	}
	must(t, m.Remove("tape", "nvme"))
	for name, want := range map[string]string{"tape": "tape tape map[] default", "nvme": "nvme tape map[] default"} {
		if p, err := m.Get(name); err != nil || line(p) != want {
			t.Errorf("%s: got %v, %v", name, p, err)
		}
	}
}

func TestDuplicateDefaultPoolFirstProviderWins(t *testing.T) {
	a := provider{pools: []*storage.Config{pool(t, "fast", "a", nil), pool(t, "b", "a", nil)}}
	b := provider{pools: []*storage.Config{pool(t, "fast", "b", nil)}}
	m := poolmanager.New(&memory{}, storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"a": a, "b": b}})
	want := "a a map[] default\nb a map[] default\nfast a map[] default\n"
	if got := list(t, m); got != want {
		t.Errorf("got pools\n%swant\n%s", got, want)
	}
}

func TestPoolsAreCopies(t *testing.T) {
	m, _ := newManager(t)
	given := storage.Attrs{"depth": 4}
	must(t, m.Create("fast", "loop", given))
	given["depth"] = 5
	for _, name := range []string{"fast", "ssd"} {
		before, err := m.Get(name)
		must(t, err)
		text := line(before)
		clear(before.Attrs())
		all, err := m.List()
		must(t, err)
		for _, p := range all {
			clear(p.Attrs())
		}
		if after, err := m.Get(name); err != nil || line(after) != text {
			t.Errorf("%s is %v, %v; want %s", name, after, err, text)
		}
	}
	if p, _ := m.Get("fast"); !reflect.DeepEqual(p.Attrs(), storage.Attrs{"depth": 4}) {
		t.Errorf("fast has %v", p.Attrs())
	}
}

func TestConcurrentCreatesOneWins(t *testing.T) {
	m, _ := newManager(t)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() { errs[i] = m.Create("fast", "loop", storage.Attrs{"by": i}) })
	}
	all.Wait()
	created := -1
	for i, err := range errs {
		switch {
		case err == nil && created == -1:
			created = i
		case !errors.Is(err, errors.AlreadyExists):
			t.Errorf("%d: %v", i, err)
		}
	}
	if p, err := m.Get("fast"); err != nil || p.Attrs()["by"] != created {
		t.Errorf("call %d created the pool, got %v, %v", created, p, err)
	}
}

func TestStoreAndRegistryErrors(t *testing.T) {
	full := &memory{err: errors.New("disk full"), pools: map[string]poolmanager.Settings{"a": {Provider: "loop"}}}
	for want, m := range map[string]*poolmanager.Manager{
		"disk full": poolmanager.New(full, registry(t)),
		"listing storage providers: listing storage provider types not implemented": poolmanager.New(full, storage.NotImplementedProviderRegistry{}),
	} {
		_, list := m.List()
		_, get := m.Get("loop")
		for call, err := range map[string]error{
			"create": m.Create("new", "loop", nil), "replace": m.Replace("a", "loop", nil), "remove": m.Remove("a"), "list": list, "get": get,
		} {
			if err == nil || strings.TrimPrefix(err.Error(), "reading pools: ") != want {
				t.Errorf("%s: got %v, want %s", call, err, want)
			}
		}
	}
}
