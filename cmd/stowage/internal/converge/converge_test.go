package converge_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

var machine = names.NewMachineTag("0")

// fakeProvider supports some kinds of storage, and refuses pools with an attribute "bad".
type fakeProvider struct {
	storage.Provider
	kinds   []storage.StorageKind
	environ bool
}

func (p fakeProvider) Scope() storage.Scope {
	if p.environ {
		return storage.ScopeEnviron
	}
	return storage.ScopeMachine
}

func (p fakeProvider) Supports(kind storage.StorageKind) bool {
	for _, k := range p.kinds {
		if k == kind {
			return true
		}
	}
	return false
}

func (p fakeProvider) ValidateConfig(config *storage.Config) error {
	if _, ok := config.Attrs()["bad"]; ok {
		return errors.NotValidf("attribute bad")
	}
	return nil
}

// mounter is a provider of volumes that are filesystems.
type mounter struct{ fakeProvider }

func (mounter) MountsVolumes(map[string]any) bool { return true }

// taken returns for each mount point that of existing storage with which it conflicts.
func taken(existing []state.Storage, wanted []state.MountPoint) []*state.MountPoint {
	result := make([]*state.MountPoint, len(wanted))
	for n, m := range wanted {
		for _, s := range existing {
			machine, _ := converge.BoundMachine(&s)
			if len(s.Attachments) > 0 {
				machine = s.Attachments[0].Machine
			}
			if s.MountPoint != "" && machine == m.Machine && (spec.Within(s.MountPoint, m.Path) || spec.Within(m.Path, s.MountPoint)) {
				result[n] = &state.MountPoint{Path: s.MountPoint, Machine: machine, Name: s.Name}
			}
		}
	}
	return result
}

// situation returns a machine that has the existing storage.
func situation(existing ...state.Storage) converge.Situation {
	pool := func(name string, provider storage.ProviderType, attrs storage.Attrs) *storage.Config {
		config, err := storage.NewConfig(name, provider, attrs)
		if err != nil {
			panic(err)
		}
		return config
	}
	return converge.Situation{
		Machine: machine,
		Providers: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
			"loop":    fakeProvider{kinds: []storage.StorageKind{storage.StorageKindBlock}},
			"tmpfs":   provider.NewTmpfsProvider(provider.TmpfsOptions{}),
			"nothing": fakeProvider{},
			"disks":   fakeProvider{kinds: []storage.StorageKind{storage.StorageKindBlock}, environ: true},
			"shares":  mounter{fakeProvider{kinds: []storage.StorageKind{storage.StorageKindBlock}, environ: true}},
		}},
		Pools: []*storage.Config{
			pool("loop", "loop", nil), pool("tmpfs", "tmpfs", nil), pool("nothing", "nothing", nil), pool("disks", "disks", nil),
			pool("shares", "shares", storage.Attrs{"fs": "nfs4", "mkfs-options": "whatever"}),
			pool("old", "loop", storage.Attrs{"depth": float64(3)}), pool("xfs", "loop", storage.Attrs{"fs": "xfs"}),
			pool("thin", "loop", storage.Attrs{"allocation": "thin"}),
		},
		Storage:          existing,
		ListAll:          func() ([]state.Storage, error) { return existing, nil },
		TakenMountPoints: func(wanted []state.MountPoint) ([]*state.MountPoint, error) { return taken(existing, wanted), nil },
		Undeclared:       true,

		Reserved: []string{"/var/lib/stowage"},
		Space: map[names.MachineTag]map[storage.ProviderType]converge.Space{
			names.NewMachineTag("0"): {"loop": {FreeMiB: 10 << 10, Reserved: true, Thin: provider.LoopIsThin}},
		},
		// The source that agents use, for its rules.
		Filesystems: provider.NewManagedFilesystemSource("", nil),
		CheckGrowth: func(s *state.Storage) error {
			if s.Name == "stiff" {
				return errors.New("it cannot grow")
			}
			return nil
		},
	}
}

// data returns the storage of dataEntry, after change if that is not nil.
func data(change func(*state.Storage)) state.Storage {
	e := state.Storage{
		Name: "data", Kind: storage.StorageKindFilesystem, Pool: "loop", Provider: "loop",
		SizeMiB: 1900, RequestedMiB: 2048, MountPoint: "/srv/data", Life: life.Alive,
		Attributes:  map[string]any{"fs": "ext4"},
		Attachments: []state.Attachment{{Machine: machine, Life: life.Alive}},
	}
	if change != nil {
		change(&e)
	}
	return e
}

const dataEntry = `
  - name: data
    directive: loop,2G
    kind: filesystem
    mount: /srv/data
`

func file(t *testing.T, text string) *spec.File {
	t.Helper()
	file, err := spec.Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func lines(plan converge.Plan) []string {
	var list []string
	for _, change := range plan.Changes {
		list = append(list, fmt.Sprintf("%s %s %s: %s", change.Action, change.Item, change.Name, change.Detail))
	}
	return list
}

func TestMakeAddsNewStorage(t *testing.T) {
	plan, err := converge.Make(file(t, `
storage:
  - {name: data, directive: 'fast,1G', kind: filesystem, mount: /srv/data, filesystem: xfs}
  - {name: raw, directive: 'loop,64M,2', kind: block}
  - {name: mem, directive: 'tmpfs,100T', kind: filesystem, mount: /srv/mem}
pools:
  - {name: fast, provider: loop, attributes: {depth: 4}}
  - {name: old, provider: loop, attributes: {depth: 3}}
`), situation())
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.State.Pools) != 1 || plan.State.Pools[0].Name != "fast" || plan.State.Pools[0].Provider != "loop" {
		t.Errorf("pools %v", plan.State.Pools)
	}
	want := []state.StorageParams{
		{Name: "data", Kind: storage.StorageKindFilesystem, Pool: "fast", Size: 1024, MountPoint: "/srv/data",
			Attributes: map[string]any{"fs": "xfs"}, Machine: machine},
		{Name: "raw/0", Kind: storage.StorageKindBlock, Pool: "loop", Size: 64, Machine: machine},
		{Name: "raw/1", Kind: storage.StorageKindBlock, Pool: "loop", Size: 64, Machine: machine},
		{Name: "mem", Kind: storage.StorageKindFilesystem, Pool: "tmpfs", Size: 100 << 20, MountPoint: "/srv/mem", Machine: machine},
	}
	if !reflect.DeepEqual(plan.State.Add, want) {
		t.Errorf("added\n%+v\nwant\n%+v", plan.State.Add, want)
	}
	if len(plan.State.Attach) != 0 || !reflect.DeepEqual(plan.Names, []string{"data", "raw", "mem"}) {
		t.Errorf("attach %v, names %v", plan.State.Attach, plan.Names)
	}
	if got, want := lines(plan), []string{
		"add pool fast: provider loop",
		"add storage data: filesystem, pool fast, 1G, xfs, on /srv/data",
		"add storage raw: 2 of 2: block, pool loop, 64M",
		"add storage mem: filesystem, pool tmpfs, 100T, on /srv/mem",
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMakeKeepsExistingStorage(t *testing.T) {
	for _, entry := range []string{dataEntry, dataEntry + "    filesystem: ext4\n"} {
		plan, err := converge.Make(file(t, "storage:"+entry), situation(data(nil)))
		if err != nil {
			t.Fatal(err)
		}
		if len(plan.State.Add)+len(plan.State.Attach)+len(plan.State.Pools)+len(plan.Changes) != 0 {
			t.Errorf("%+v", plan)
		}
	}
}

func TestMakeAcceptsFilesystemOfPool(t *testing.T) {
	made := data(func(e *state.Storage) { e.Pool, e.Attributes = "xfs", map[string]any{"fs": "xfs"} })
	if _, err := converge.Make(file(t, "storage:"+strings.Replace(dataEntry, "loop", "xfs", 1)), situation(made)); err != nil {
		t.Error(err)
	}
}

func TestMakeAttachesDetachedStorage(t *testing.T) {
	plan, err := converge.Make(file(t, "storage:"+dataEntry), situation(data(func(e *state.Storage) { e.Attachments = nil })))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plan.State.Attach, []state.Attach{{Name: "data", Machine: machine}}) || len(plan.State.Add) != 0 {
		t.Errorf("%+v", plan)
	}
	if got := lines(plan); !reflect.DeepEqual(got, []string{"attach storage data: filesystem, pool loop, 2G, on /srv/data"}) {
		t.Errorf("changes %q", got)
	}
}

// Only what is attached and large enough before needs no waiting for.
func TestMakeTellsWhatIsUnfinished(t *testing.T) {
	made := func(n int, change func(*state.Storage)) state.Storage {
		return data(func(e *state.Storage) {
			e.Name, e.MountPoint = fmt.Sprintf("data/%d", n), fmt.Sprintf("/srv/data/%d", n)
			e.Location, e.Status, e.SizeMiB = e.MountPoint, status.Attached, e.RequestedMiB
			if change != nil {
				change(e)
			}
		})
	}
	plan, err := converge.Make(file(t, "storage:"+strings.Replace(dataEntry, "2G", "2G,8", 1)), situation(
		made(0, nil), made(1, nil),
		made(2, func(e *state.Storage) { e.Status = status.Error }),
		made(3, func(e *state.Storage) { e.Location = "" }),
		made(4, func(e *state.Storage) { e.SizeMiB = 1024 }),
		made(5, func(e *state.Storage) { e.RequestedMiB, e.SizeMiB = 1024, 1024 }),
		made(6, func(e *state.Storage) { e.Attachments, e.Status, e.Location = nil, status.Detached, "" }),
	))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"data/2", "data/3", "data/4", "data/5", "data/6", "data/7"}
	if plan.Attached != 2 || !reflect.DeepEqual(plan.Unfinished, want) {
		t.Errorf("%d are attached, unfinished are %q, want 2 and %q", plan.Attached, plan.Unfinished, want)
	}
}

func TestMakeLeavesStorageNotInFile(t *testing.T) {
	there := func(name string) state.Storage {
		return data(func(e *state.Storage) { e.Name, e.MountPoint = name, "/mnt/"+name })
	}
	plan, err := converge.Make(file(t, "storage:\n  - {name: raw, directive: 'loop,2G,2', kind: filesystem, mount: /mnt/raw}"),
		situation(there("old/0"), there("old/1"), there("other"), there("raw/0"), there("raw/1"), there("raw/2")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := lines(plan), []string{
		"leave storage old: not in the file: left alone, remove it with `stowage remove old`",
		"leave storage other: not in the file: left alone, remove it with `stowage remove other`",
		"leave storage raw/2: not in the file: left alone, remove it with `stowage remove raw/2`",
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMakeNeedsManagerForEnvironmentStorage(t *testing.T) {
	onDisk := strings.ReplaceAll("storage:"+dataEntry, "loop", "disks")
	const want = "f.yaml:3: storage data: directive: pool disks is of provider disks, whose storage an environment manager makes and attaches: start the agent with --manager"
	of := func(change func(*state.Storage)) state.Storage {
		e := data(change)
		e.Pool, e.Provider = "disks", "disks"
		return e
	}
	detached := of(func(e *state.Storage) { e.Attachments, e.Status = nil, status.Detached })
	for _, existing := range [][]state.Storage{nil, {detached}} {
		without := situation(existing...)
		if _, err := converge.Make(file(t, onDisk), without); err == nil || err.Error() != want || !errors.Is(err, errors.NotValid) {
			t.Errorf("got %v, want %s", err, want)
		}
		with := without
		with.Manager = true
		if plan, err := converge.Make(file(t, onDisk), with); err != nil || len(plan.Changes) != 1 {
			t.Errorf("with a manager: %+v, %v", plan.Changes, err)
		}
	}
	// Existing storage stays as it is, even without a manager.
	if plan, err := converge.Make(file(t, onDisk), situation(of(nil))); err != nil || len(plan.Changes) != 0 {
		t.Errorf("got %+v, %v", plan.Changes, err)
	}
}

// The filesystem on a volume that is one is its provider's: no rule of the machine's filesystems applies to it,
// and an entry of a file chooses nothing but its mount options.
func TestMakeAddsFilesystemOfVolumesProvider(t *testing.T) {
	entry := strings.ReplaceAll("storage:"+dataEntry, "loop", "shares")
	with := situation()
	with.Manager = true
	plan, err := converge.Make(file(t, entry+"    mount-options: hard\n"), with)
	if err != nil || len(plan.State.Add) != 1 || plan.State.Add[0].Attributes["mount-options"] != "hard" {
		t.Errorf("got %+v, %v", plan.State.Add, err)
	}
	for want, text := range map[string]string{
		"f.yaml:6: storage data: filesystem: provider shares makes filesystems of its own: leave it out":                                entry + "    filesystem: ext4\n",
		"f.yaml:4: storage data: kind: the volumes of pool shares are filesystems: write filesystem, or choose a pool of block devices": strings.ReplaceAll(strings.ReplaceAll(entry, "filesystem", "block"), "    mount: /srv/data\n", ""),
	} {
		if _, err := converge.Make(file(t, text), with); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestMakeGrowsExistingStorage(t *testing.T) {
	larger := "storage:" + strings.Replace(dataEntry, "2G", "4G", 1)
	plan, err := converge.Make(file(t, larger), situation(data(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plan.State.Resize, []state.Resize{{Name: "data", Size: 4096}}) || len(plan.State.Attach) != 0 {
		t.Errorf("%+v", plan.State)
	}
	if got := lines(plan); !reflect.DeepEqual(got, []string{"grow storage data: 2048 MiB to 4096 MiB"}) {
		t.Errorf("changes %q", got)
	}

	// Instances of one entry may differ, and be detached.
	instance := func(n int, size uint64) state.Storage {
		return data(func(e *state.Storage) {
			e.Name, e.MountPoint, e.RequestedMiB = fmt.Sprintf("data/%d", n), fmt.Sprintf("/srv/data/%d", n), size
			if n == 2 {
				e.Attachments = nil
			}
		})
	}
	plan, err = converge.Make(file(t, strings.Replace(larger, "4G", "4G,4", 1)), situation(instance(0, 2048), instance(1, 4096), instance(2, 3072), instance(3, 2048)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := lines(plan), []string{
		"attach storage data: 1 of 4: filesystem, pool loop, 4G, on /srv/data",
		"grow storage data: 2 of 4: 2048 MiB to 4096 MiB",
		"grow storage data: 1 of 4: 3072 MiB to 4096 MiB",
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("changes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := plan.State.Resize; !reflect.DeepEqual(got, []state.Resize{{Name: "data/0", Size: 4096}, {Name: "data/2", Size: 4096}, {Name: "data/3", Size: 4096}}) {
		t.Errorf("%v", got)
	}
}

// A file changes the labels of storage to those that it has.
func TestMakeChangesLabels(t *testing.T) {
	labelled := data(func(e *state.Storage) { e.Labels = map[string]string{"tier": "fast"} })
	for _, test := range []struct {
		labels  string
		want    []state.Label
		changes []string
	}{
		{"", nil, nil},
		{"labels: {tier: fast}", nil, nil},
		{"labels: {zone: b, tier: slow}", []state.Label{{Name: "data", Labels: map[string]string{"tier": "slow", "zone": "b"}}}, []string{"label storage data: tier=slow,zone=b"}},
		{"labels: {}", []state.Label{{Name: "data", Labels: map[string]string{}}}, []string{"label storage data: none"}},
	} {
		plan, err := converge.Make(file(t, "storage:"+dataEntry+"    "+test.labels), situation(labelled))
		if err != nil || !reflect.DeepEqual(plan.State.Label, test.want) || !reflect.DeepEqual(lines(plan), test.changes) {
			t.Errorf("%s: %+v, %q, %v", test.labels, plan.State.Label, lines(plan), err)
		}
	}
	plan, err := converge.Make(file(t, "storage:"+dataEntry+"    labels: {tier: fast}"), situation())
	if err != nil || plan.State.Add[0].Labels["tier"] != "fast" {
		t.Errorf("new storage: %+v, %v", plan.State.Add, err)
	}
}

func TestResize(t *testing.T) {
	two := []state.Storage{data(nil), data(func(e *state.Storage) { e.Name, e.RequestedMiB = "other", 1024 })}
	for _, test := range []struct {
		size    uint64
		more    bool
		want    []state.Resize
		changes []string
	}{
		{3072, false, []state.Resize{{Name: "data", Size: 3072}, {Name: "other", Size: 3072}},
			[]string{"grow storage data: 2048 MiB to 3072 MiB", "grow storage other: 1024 MiB to 3072 MiB"}},
		{1024, true, []state.Resize{{Name: "data", Size: 3072}, {Name: "other", Size: 2048}},
			[]string{"grow storage data: 2048 MiB to 3072 MiB", "grow storage other: 1024 MiB to 2048 MiB"}},
		// A size that storage has already is no change. The state refuses to shrink, not Resize.
		{2048, false, []state.Resize{{Name: "other", Size: 2048}}, []string{"grow storage other: 1024 MiB to 2048 MiB"}},
		{1024, false, []state.Resize{{Name: "data", Size: 1024}}, []string{"grow storage data: wanted size lowered from 2048 MiB to 1024 MiB"}},
		{2000, false, []state.Resize{{Name: "data", Size: 2000}, {Name: "other", Size: 2000}},
			[]string{"grow storage data: wanted size lowered from 2048 MiB to 2000 MiB", "grow storage other: 1024 MiB to 2000 MiB"}},
	} {
		plan, err := converge.Resize(situation(two...), two, test.size, test.more)
		if err != nil || !reflect.DeepEqual(plan.State.Resize, test.want) || !reflect.DeepEqual(lines(plan), test.changes) {
			t.Errorf("%d, more %v: %+v, %v", test.size, test.more, plan, err)
		}
	}

	thin := data(func(e *state.Storage) { e.Attributes["allocation"] = "thin" })
	if _, err := converge.Resize(situation(thin), []state.Storage{thin}, 11<<10, true); err != nil {
		t.Errorf("thin storage: %v", err)
	}

	stiff := data(func(e *state.Storage) { e.Name = "stiff" })
	for _, test := range []struct {
		about string
		s     state.Storage
		size  uint64
		want  string
	}{
		{"too large", data(nil), 11 << 10, `resizing storage "data": it does not fit: data asks for 11G more, and provider loop has room for 10G`},
		{"size that overflows", data(nil), 1<<64 - 1, `storage "data": 18446744073709551615 MiB more than 2048 MiB are too large`},
		{"growth that is refused", stiff, 1, `resizing storage "stiff": it cannot grow`},
	} {
		if plan, err := converge.Resize(situation(test.s), []state.Storage{test.s}, test.size, true); err == nil || err.Error() != test.want {
			t.Errorf("%s: %+v, %v", test.about, plan, err)
		}
	}
}

func TestMakeStoresOptionsInAttributes(t *testing.T) {
	plan, err := converge.Make(file(t, "storage:"+dataEntry+"    filesystem: xfs\n    mkfs-options: inode-size=512\n    mount-options: noatime\n"), situation())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"fs": "xfs", "mkfs-options": "inode-size=512", "mount-options": "noatime"}
	if got := plan.State.Add[0].Attributes; !reflect.DeepEqual(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
	if got := lines(plan); !reflect.DeepEqual(got, []string{"add storage data: filesystem, pool loop, 2G, xfs, inode-size=512, noatime, on /srv/data"}) {
		t.Errorf("changes %q", got)
	}
}

// A provider that makes filesystems itself gets the mount options, and a file that is applied again
// fits what it has made.
func TestMakeStoresMountOptionsOfTmpfs(t *testing.T) {
	text := "storage:" + strings.Replace(dataEntry, "loop", "tmpfs", 1) + "    mount-options: noexec,mode=0700\n"
	plan, err := converge.Make(file(t, text), situation())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"mount-options": "noexec,mode=0700"}
	if got := plan.State.Add[0].Attributes; !reflect.DeepEqual(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
	plan, err = converge.Make(file(t, text), situation(data(func(e *state.Storage) { e.Pool, e.Provider, e.Attributes = "tmpfs", "tmpfs", want })))
	if err != nil || len(lines(plan)) != 0 {
		t.Errorf("applied again: %q, %v", lines(plan), err)
	}
}

func TestImport(t *testing.T) {
	args := func(change func(*user.ImportArgs)) user.ImportArgs {
		a := user.ImportArgs{Name: "new", Pool: "loop", Source: "/old/file"}
		change(&a)
		return a
	}
	adopted, err := converge.Import(situation(data(nil)), args(func(a *user.ImportArgs) { a.Mount = "/srv/new" }))
	if err != nil {
		t.Fatal(err)
	}
	if err := adopted.Adopt("xfs", "11111111-2222-3333-4444-555555555555"); err != nil {
		t.Error(err)
	}
	want := state.StorageParams{
		Name: "new", Kind: storage.StorageKindFilesystem, Pool: "loop", MountPoint: "/srv/new", Machine: machine,
		Attributes: map[string]any{"fs": "xfs", "uuid": "11111111-2222-3333-4444-555555555555"},
	}
	if !reflect.DeepEqual(adopted.State, want) || !adopted.OnVolume {
		t.Errorf("%+v", adopted)
	}
	if c := adopted.Change(512); c.Action != user.ActionImport || c.Name != "new" || c.Detail != "filesystem, pool loop, 512M, xfs, on /srv/new" {
		t.Errorf("%+v", c)
	}
	if err := adopted.Adopt("ext3", "11111111-2222-3333-4444-555555555555"); !errors.Is(err, errors.NotValid) || !strings.HasPrefix(err.Error(), `the ext3 on it: attribute "fs" is "ext3", want one of `) {
		t.Errorf("got %v", err)
	}

	raw, err := converge.Import(situation(), args(func(a *user.ImportArgs) { a.Block = true }))
	if err != nil || raw.State.Kind != storage.StorageKindBlock || !raw.OnVolume || raw.Change(1).Detail != "block, pool loop, 1M" {
		t.Errorf("%+v, %v", raw, err)
	}
	native, err := converge.Import(situation(), args(func(a *user.ImportArgs) { a.Pool = "tmpfs" }))
	if err != nil || native.State.Kind != storage.StorageKindFilesystem || native.OnVolume {
		t.Errorf("%+v, %v", native, err)
	}

	for _, test := range []struct {
		about  string
		change func(*user.ImportArgs)
		kind   error
		want   string
	}{
		{"bad name", func(a *user.ImportArgs) { a.Name = "New" }, errors.NotValid, `"New" is not a name: `},
		{"name that is taken", func(a *user.ImportArgs) { a.Name = "data" }, errors.AlreadyExists, "there is storage of that name: choose another name"},
		{"unknown pool", func(a *user.ImportArgs) { a.Pool = "slow" }, errors.NotFound, `pool "slow" is not known: the pools are disks, `},
		{"pool that needs a manager", func(a *user.ImportArgs) { a.Pool = "disks" }, errors.NotValid, "pool disks is of provider disks, whose storage "},
		{"block of tmpfs", func(a *user.ImportArgs) { a.Pool, a.Block = "tmpfs", true }, errors.NotValid, "provider tmpfs has no block devices: "},
		{"mounted block", func(a *user.ImportArgs) { a.Block, a.Mount = true, "/srv/new" }, errors.NotValid, "a block device is not mounted: "},
		{"bad mount point", func(a *user.ImportArgs) { a.Mount = "srv" }, errors.NotValid, `"srv" is not absolute: `},
		{"mount point that is taken", func(a *user.ImportArgs) { a.Mount = "/srv/data" }, errors.NotValid, `"/srv/data" is already the mount point of data`},
		{"in the agent's directory", func(a *user.ImportArgs) { a.Mount = "/var/lib/stowage/x" }, errors.NotValid, `"/var/lib/stowage/x" would hide, or lie in, `},
	} {
		if got, err := converge.Import(situation(data(nil)), args(test.change)); !errors.Is(err, test.kind) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v", test.about, got, err)
		}
	}
}

func TestMakeAddsInstancesForHigherCount(t *testing.T) {
	raw := data(func(e *state.Storage) { e.Name, e.MountPoint = "data/0", "/srv/data/0" })
	plan, err := converge.Make(file(t, "storage:"+strings.Replace(dataEntry, "2G", "2G,3", 1)), situation(raw))
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.State.Add) != 2 || plan.State.Add[0].Name != "data/1" || plan.State.Add[1].Name != "data/2" {
		t.Errorf("%+v", plan.State.Add)
	}
}

// Promise S11.
func TestMakeRefusesInvalidChanges(t *testing.T) {
	changed := func(field, value string) string {
		var out []string
		for _, line := range strings.Split(dataEntry, "\n") {
			if strings.HasPrefix(strings.TrimLeft(line, " -"), field+":") {
				line = line[:strings.Index(line, ":")] + ": " + value
			}
			out = append(out, line)
		}
		return "storage:" + strings.Join(out, "\n")
	}
	same := "storage:" + dataEntry
	pool := func(fields string) string { return "pools:\n  - " + fields + "\n" }
	none := func(*state.Storage) {}
	for _, test := range []struct {
		about, text string
		// there changes the existing storage. If nil, no storage exists.
		there func(*state.Storage)
		want  string
	}{
		{"unknown pool", changed("directive", "slow,1G"), nil,
			`f.yaml:3: storage data: directive: pool "slow" is not known: the pools are disks, loop, nothing, old, shares, thin, tmpfs, xfs`},
		{"block of tmpfs", "storage:\n  - {name: data, directive: 'tmpfs,1G', kind: block}", nil,
			"f.yaml:2: storage data: kind: provider tmpfs makes no block devices: write filesystem, or choose another pool"},
		{"filesystem of nothing", changed("directive", "nothing,1G"), nil,
			"f.yaml:4: storage data: kind: provider nothing makes no filesystems: choose another pool"},
		{"filesystem for tmpfs", changed("directive", "tmpfs,1G") + "    filesystem: ext4\n", nil,
			"f.yaml:6: storage data: filesystem: provider tmpfs makes filesystems of its own: leave it out"},
		{"too large", changed("directive", "loop,11G"), nil,
			"f.yaml:3: storage data: directive: it does not fit: data asks for 11G, and provider loop has room for 10G"},
		{"too large in total", changed("directive", "loop,4G,3"), nil,
			"f.yaml:3: storage data: directive: it does not fit: data/2 asks for 4G, and provider loop has room for 2G"},
		{"too small for the pool's filesystem", changed("directive", "xfs,299M"), nil,
			"f.yaml:3: storage data: directive: pool xfs: size 299 MiB is too small for xfs: at least 300 MiB is needed"},
		{"in the agent's directory", changed("mount", "/var/lib/stowage/x"), nil,
			`f.yaml:5: storage data: mount: "/var/lib/stowage/x" would hide, or lie in, /var/lib/stowage, which the agent uses: choose another mount point`},
		{"over the agent's directory", changed("mount", "/var/lib"), nil,
			`f.yaml:5: storage data: mount: "/var/lib" would hide, or lie in, /var/lib/stowage, which the agent uses: choose another mount point`},
		{"existing mount point", same, func(e *state.Storage) { e.Name = "other" },
			`f.yaml:5: storage data: mount: "/srv/data" is already the mount point of other`},
		{"inside an existing mount point", same, func(e *state.Storage) { e.Name, e.MountPoint = "other", "/srv" },
			`f.yaml:5: storage data: mount: "/srv/data" is inside "/srv", the mount point of other`},
		{"above an existing mount point", same, func(e *state.Storage) { e.Name, e.MountPoint = "other", "/srv/data/deep" },
			`f.yaml:5: storage data: mount: "/srv/data" would hide "/srv/data/deep", the mount point of other`},

		{"too small for the filesystem", changed("directive", "loop,64M") + "    filesystem: xfs\n", nil,
			"f.yaml:3: storage data: directive: size 64 MiB is too small for xfs: at least 300 MiB is needed"},
		{"unknown filesystem", same + "    filesystem: fat\n", nil,
			`f.yaml:6: storage data: filesystem: attribute "fs" is "fat", want one of `},
		{"mkfs options for tmpfs", changed("directive", "tmpfs,1G") + "    mkfs-options: inode-size=512\n", nil,
			"f.yaml:6: storage data: mkfs-options: provider tmpfs makes filesystems of its own: leave it out"},
		{"mount options that tmpfs does not have", changed("directive", "tmpfs,1G") + "    mount-options: noexec,commit=3\n", nil,
			`f.yaml:6: storage data: mount-options: attribute "mount-options": "commit" is not an option for mounting tmpfs: allowed are noatime, `},
		{"other mount options of tmpfs", changed("directive", "tmpfs,2G") + "    mount-options: noexec\n",
			func(e *state.Storage) { e.Pool, e.Provider, e.Attributes = "tmpfs", "tmpfs", nil },
			"f.yaml:6: storage data: mount-options: the mount-options of data cannot change from none: write that, or remove it first with `stowage remove data`"},
		{"smaller", changed("directive", "loop,1G"), none,
			"f.yaml:3: storage data: directive: data has 1900M and cannot become smaller: write that, or remove it first with `stowage remove data`"},
		{"smaller by little", changed("directive", "loop,2047M"), func(e *state.Storage) { e.RequestedMiB, e.SizeMiB = 2049, 2049 },
			"f.yaml:3: storage data: directive: data has 2049M and cannot become smaller: write that, or remove it first with `stowage remove data`"},
		{"too large to grow to", changed("directive", "loop,13G"), none,
			"f.yaml:3: storage data: directive: it does not fit: data asks for 11G more, and provider loop has room for 10G"},
		{"other mkfs options", same + "    mkfs-options: inode-size=512\n", none,
			"f.yaml:6: storage data: mkfs-options: the mkfs-options of data cannot change from none: write that, or remove it first with `stowage remove data`"},
		{"mount options left out", same, func(e *state.Storage) { e.Attributes["mount-options"] = "noatime" },
			"f.yaml:2: storage data: mount-options: the mount-options of data cannot change from noatime: write that, or remove it first with `stowage remove data`"},
		{"other pool", changed("directive", "old,2G"), none,
			"f.yaml:3: storage data: directive: the pool of data cannot change from loop: write that, or remove it first with `stowage remove data`"},
		{"other kind", "storage:\n  - {name: data, directive: 'loop,2G', kind: block}", none,
			"f.yaml:2: storage data: kind: the kind of data cannot change from filesystem: write that, or remove it first with `stowage remove data`"},
		{"other mount point", changed("mount", "/srv/other"), none,
			"f.yaml:5: storage data: mount: the mount point of data is \"/srv/data\" and can change only while it is detached: write that, or detach it with `stowage detach --wait data`, then apply again"},
		{"other mount point of storage that stays detached", changed("mount", "/srv/other") + "    attached: false\n", func(e *state.Storage) { e.Attachments, e.Status = nil, status.Detached },
			"f.yaml:5: storage data: mount: the mount point of data is \"/srv/data\" and changes only when it is attached: write that, or leave `attached: false` out"},
		{"other mount point of what a program asked for", changed("mount", "/srv/other"), func(e *state.Storage) {
			e.Attachments, e.Status, e.Asker = nil, status.Detached, state.Asker{Way: "csi", Name: "a"}
		}, "f.yaml:5: storage data: mount: the mount point of data cannot change from \"/srv/data\": write that, or remove it first with `stowage remove data`"},
		{"other filesystem", same + "    filesystem: xfs\n", none,
			"f.yaml:6: storage data: filesystem: the filesystem of data cannot change from ext4: write that, or remove it first with `stowage remove data`"},
		{"filesystem left out", same, func(e *state.Storage) { e.Attributes["fs"] = "xfs" },
			"f.yaml:2: storage data: filesystem: the filesystem of data cannot change from xfs: write that, or remove it first with `stowage remove data`"},
		{"one becomes many", changed("directive", "loop,2G,2"), none,
			"f.yaml:3: storage data: directive: the count cannot change between one and several: remove it first with `stowage remove data`, or choose another name"},
		{"many become one", same, func(e *state.Storage) { e.Name, e.MountPoint = "data/0", "/srv/data/0" },
			"f.yaml:3: storage data: directive: the count cannot change between one and several: remove it first with `stowage remove data`, or choose another name"},
		{"being removed", same, func(e *state.Storage) { e.Life = life.Dying },
			"f.yaml:2: storage data: name: data is still being removed: apply again when `stowage status` no longer lists it"},
		{"being detached", same, func(e *state.Storage) { e.Attachments[0].Life = life.Dying },
			"f.yaml:2: storage data: name: data is still being detached: wait for it with `stowage detach --wait data`, then apply again"},
		{"its volume being detached", same, func(e *state.Storage) { e.Attachments, e.Status = nil, status.Detaching },
			"f.yaml:2: storage data: name: data is still being detached: wait for it with `stowage detach --wait data`, then apply again"},

		{"unknown provider", pool("{name: fast, provider: disk}"), nil,
			`f.yaml:2: pool fast: provider: "disk" is not known: the providers are disks, loop, nothing, shares, tmpfs`},
		{"attributes that the provider refuses", pool("{name: fast, provider: loop, attributes: {bad: x}}"), nil,
			"f.yaml:2: pool fast: attributes: attribute bad not valid"},
		{"attribute that the agent sets", pool("{name: fast, provider: loop, attributes: {storage-dir: /etc}}"), nil,
			"f.yaml:2: pool fast: attributes: the agent sets storage-dir: leave it out"},
		{"pool with another provider", pool("{name: old, provider: tmpfs}"), nil,
			"f.yaml:2: pool old: provider: the pool exists with provider loop, and cannot change: choose another name"},
		{"pool with other attributes", pool("{name: loop, provider: loop, attributes: {depth: 4}}"), nil,
			"f.yaml:2: pool loop: attributes: the pool exists with other attributes, and cannot change: choose another name"},
	} {
		t.Run(test.about, func(t *testing.T) {
			w := situation()
			if test.there != nil {
				w = situation(data(test.there))
			}
			plan, err := converge.Make(file(t, test.text), w)
			if err == nil {
				t.Fatalf("planned %+v", plan)
			}
			if err.Error() != test.want && !(strings.HasSuffix(test.want, " ") && strings.HasPrefix(err.Error(), test.want)) {
				t.Errorf("\ngot  %s\nwant %s", err, test.want)
			}
			if !errors.Is(err, errors.NotValid) {
				t.Errorf("%v does not satisfy errors.IsNotValid", err)
			}
		})
	}
}

// Detached storage is attached where the file says, unless others are there.
func TestMakeAttachesAtOtherMountPoint(t *testing.T) {
	detached := data(func(e *state.Storage) {
		e.Attachments, e.Status, e.Volume = nil, status.Detached, &state.Entity{Tag: names.NewVolumeTag("0/0")}
	})
	text := "storage:" + strings.Replace(dataEntry, "/srv/data", "/srv/other", 1)
	plan, err := converge.Make(file(t, text), situation(detached))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"attach storage data: filesystem, pool loop, 2G, on /srv/other"}; !slices.Equal(lines(plan), want) {
		t.Errorf("changes %q, want %q", lines(plan), want)
	}
	if want := []state.Attach{{Name: "data", Machine: machine, MountPoint: "/srv/other"}}; !slices.Equal(plan.State.Attach, want) {
		t.Errorf("attaches %+v, want %+v", plan.State.Attach, want)
	}
	// At the start of an agent, the file may be older than the mount point.
	with := situation(data(nil))
	with.KeepDiffering = true
	plan, err = converge.Make(file(t, text), with)
	if want := []string{"keep storage data: mounted in another place than /srv/other"}; err != nil || !slices.Equal(lines(plan), want) || len(plan.State.Attach) > 0 {
		t.Errorf("changes %q, %v, want %q", lines(plan), err, want)
	}
	other := data(func(e *state.Storage) { e.Name, e.MountPoint = "log", "/srv/other" })
	_, err = converge.Make(file(t, text), situation(detached, other))
	if want := `mount: "/srv/other" is already the mount point of log`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// A file, or a size, that changes nothing says what is tried again: what has failed for good, is attached
// and could not grow, or fails for now.
func TestNothingNewNamesWhatIsTriedAgain(t *testing.T) {
	for _, s := range []status.Status{status.Error, status.Attached, status.Pending} {
		broken := data(func(e *state.Storage) { e.Status, e.Message, e.Failing = s, "no loop devices", true })
		healthy := data(func(e *state.Storage) { e.Name, e.Status, e.Message = "other", s, "a remark" })
		made, err := converge.Make(file(t, "storage:"+dataEntry), situation(broken))
		if err != nil {
			t.Fatal(err)
		}
		both := []state.Storage{broken, healthy}
		resized, err := converge.Resize(situation(both...), both, broken.RequestedMiB, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range []converge.Plan{made, resized} {
			if want := []string{"retry storage data: no loop devices"}; !slices.Equal(lines(plan), want) || plan.State.Keep[0] != "data" {
				t.Errorf("%s: changes %q, keeps %q; want %q", s, lines(plan), plan.State.Keep, want)
			}
		}
	}
}

// Storage with "attached: false" is made, or detached, and stays so.
func TestMakeDetached(t *testing.T) {
	const entry = `
storage:
- {name: data, directive: "loop,2G", kind: filesystem, mount: /srv/data, attached: false}
`
	attached, detached := data(nil), data(func(e *state.Storage) { e.Attachments, e.Status = nil, status.Detached })
	for _, test := range []struct {
		what     string
		existing []state.Storage
		want     []string
	}{
		{"new", nil, []string{"add storage data: filesystem, pool loop, 2G, on /srv/data"}},
		{"attached", []state.Storage{attached}, []string{"detach storage data: filesystem, pool loop, 2G, on /srv/data"}},
		{"detached", []state.Storage{detached}, nil},
	} {
		plan, err := converge.Make(file(t, entry), situation(test.existing...))
		if err != nil {
			t.Fatalf("%s: %v", test.what, err)
		}
		if got := lines(plan); !slices.Equal(got, test.want) || !slices.Equal(plan.Detached, []string{"data"}) || len(plan.Unfinished) > 0 {
			t.Errorf("%s: changes %q, %+v", test.what, got, plan)
		}
		for _, added := range plan.State.Add {
			if !added.Detached || added.Machine != machine {
				t.Errorf("%s: %+v is added", test.what, added)
			}
		}
	}

	// Storage of the environment is made on no machine.
	onDisk := strings.ReplaceAll(entry, "loop", "disks")
	with := situation()
	with.Manager = true
	plan, err := converge.Make(file(t, onDisk), with)
	if err != nil || len(plan.State.Add) != 1 || plan.State.Add[0].Machine != (names.MachineTag{}) {
		t.Errorf("%+v, %v", plan.State.Add, err)
	}
	_, err = converge.Make(file(t, strings.Replace(onDisk, "attached", "machine: 0, attached", 1)), with)
	if err == nil || !strings.Contains(err.Error(), "machine: storage of pool disks is not made on a machine: leave it out while the storage is not to be attached") {
		t.Errorf("with a machine: %v", err)
	}
}
