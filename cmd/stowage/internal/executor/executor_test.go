package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/executor"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// world is a machine with a provider of volumes (disk), whose data directory has one of filesystems
// (rootfs).
type world struct {
	*executor.Executor
	t    *testing.T
	dir  string
	disk *providerfake.Provider
	// known are the IDs of the objects that the state has.
	known []string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), disk: providerfake.New(providerfake.Options{
		Scope: storage.ScopeMachine, Unsupported: []storage.StorageKind{storage.StorageKindFilesystem},
	})}
	w.must(os.MkdirAll(filepath.Join(w.dir, "storage", "disk"), 0o700))
	w.Executor = executor.New(executor.Config{
		Registry: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"disk": w.disk}},
		Dir:      datadir.Dir(w.dir),
		Clock:    clock.WallClock,
		Owners: func(objects []inventory.Object) ([]storage.Owner, error) {
			owners := make([]storage.Owner, len(objects))
			for n, o := range objects {
				if slices.Contains(w.known, o.ID) {
					owners[n] = storage.Owner{ModelUUID: "m", EntityUUID: "e-0"}
				}
			}
			return owners, nil
		},
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(errors.ErrorStack(err))
	}
}

// add makes a volume whose owner is m and e-NUMBER, with as many more bytes of tags.
func (w *world) add(number, bytes int) task.Owned {
	w.t.Helper()
	o := task.Owned{ModelUUID: "m", EntityUUID: fmt.Sprint("e-", number), Ref: task.Ref{Provider: "disk", Kind: "volume", ID: fmt.Sprintf("vol-0/%d", number)}}
	made, err := w.disk.CreateVolumes(envcontext.New(w.t.Context()), []storage.VolumeParams{{
		Tag: names.NewVolumeTag(fmt.Sprint("0/", number)), Size: 10,
		ResourceTags: map[string]string{storage.ModelUUIDTag: o.ModelUUID, storage.EntityUUIDTag: o.EntityUUID, "more": strings.Repeat("x", bytes)},
	}})
	w.must(err)
	w.must(made[0].Error)
	return o
}

func (w *world) ids() []string {
	var ids []string
	for _, v := range w.disk.Volumes() {
		ids = append(ids, v.VolumeId)
	}
	return ids
}

// A scan has all objects that the state may not have, in parts that fit into a result.
func TestScanInParts(t *testing.T) {
	w := newWorld(t)
	const all = 20
	for number := range all {
		w.add(number, 20<<10)
	}
	w.known = []string{"vol-0/0", "vol-0/1"} // the second has another owner than the state says
	var found []string
	after, parts := "", 0
	for {
		result, err := w.Do(t.Context(), task.Request{Scan: &task.Scan{After: after}})
		w.must(err)
		size := 0
		for _, o := range result.Scan.Objects {
			found = append(found, o.ID)
			size += len(o.ResourceTags["more"])
		}
		if size > task.MaxResult {
			t.Errorf("a part has %d bytes", size)
		}
		parts++
		if after = result.Scan.Next; after == "" {
			break
		}
	}
	slices.Sort(found)
	if len(found) != all-1 || len(slices.Compact(found)) != all-1 || slices.Contains(found, "vol-0/0") || parts < 3 {
		t.Errorf("%d parts have %d objects: %q", parts, len(found), found)
	}
}

// Only an object that has the expected owner is deleted or tagged, and none that is in use.
func TestObjectsOfOthersStay(t *testing.T) {
	w := newWorld(t)
	mine := w.add(1, 0)
	other := mine
	other.EntityUUID = "e-2"
	_, err := w.Do(t.Context(), task.Request{Tag: &task.Tag{Objects: []task.Tags{{Owned: other, ResourceTags: map[string]string{"a": "b"}}}}})
	w.must(err)
	if calls := w.disk.Count("TagVolumes"); calls != 0 {
		t.Errorf("another owner's volume was tagged")
	}
	for what, test := range map[string]struct {
		object task.Owned
		kind   errors.ConstError
		says   string
	}{
		"another owner": {other, errors.NotValid, "volume vol-0/1 has another owner now"},
		"none":          {task.Owned{Ref: task.Ref{Provider: "disk", Kind: "volume", ID: "x"}, ModelUUID: "m", EntityUUID: "e"}, errors.NotFound, "does not exist any more"},
	} {
		_, err := w.Do(t.Context(), task.Request{Delete: &task.Delete{Owned: test.object}})
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	attachment := []storage.VolumeAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0"), InstanceId: "i"}, Volume: names.NewVolumeTag("0/1"), VolumeId: mine.ID,
	}}
	_, err = w.disk.AttachVolumes(envcontext.New(t.Context()), attachment)
	w.must(err)
	if _, err := w.Do(t.Context(), task.Request{Delete: &task.Delete{Owned: mine}}); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("in use: %v", err)
	}
	_, err = w.disk.DetachVolumes(envcontext.New(t.Context()), attachment)
	w.must(err)
	result, err := w.Do(t.Context(), task.Request{Delete: &task.Delete{Owned: mine}})
	if err != nil || result.Delete == nil || result.Delete.KeptSeconds != 0 || len(w.ids()) != 0 {
		t.Errorf("deleted: %+v, %v; volumes %q", result, err, w.ids())
	}
}

// What a request names is read as a path of a user is: no link is followed.
func TestInspect(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.dir, "file")
	w.must(os.WriteFile(file, make([]byte, 4<<20), 0o600))
	w.must(os.Symlink(file, filepath.Join(w.dir, "link")))
	result, err := w.Do(t.Context(), task.Request{Inspect: &task.Inspect{Path: file}})
	if err != nil || *result.Inspect.Contents != (task.Contents{Size: 4 << 20}) || !slices.Equal(result.Inspect.Reserved, []string{w.dir}) {
		t.Errorf("%+v, %v", result.Inspect, err)
	}
	if result, err := w.Do(t.Context(), task.Request{Inspect: &task.Inspect{Path: filepath.Join(w.dir, "none")}}); err != nil || result.Inspect.Contents != nil {
		t.Errorf("nothing there: %+v, %v", result.Inspect, err)
	}
	for path, want := range map[string]string{"link": "is a symbolic link", "storage": "is not a regular file"} {
		if _, err := w.Do(t.Context(), task.Request{Inspect: &task.Inspect{Path: filepath.Join(w.dir, path)}}); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := w.Do(t.Context(), task.Request{Inspect: &task.Inspect{Device: "none"}}); !errors.Is(err, errors.NotValid) {
		t.Errorf("no device: %v", err)
	}
}

// A snapshot is made of a volume or of a filesystem, as the request says, and deleted by its ID or by its
// owner. What the provider refuses is in the result.
func TestSnapshots(t *testing.T) {
	w := newWorld(t)
	both := providerfake.New(providerfake.Options{Scope: storage.ScopeMachine})
	x := executor.New(executor.Config{
		Registry: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{"both": both, "program": withoutSnapshots{both}}},
		Dir:      datadir.Dir(w.dir), Clock: clock.WallClock,
	})
	ctx := envcontext.New(t.Context())
	volume, err := both.CreateVolumes(ctx, []storage.VolumeParams{{Tag: names.NewVolumeTag("0/1"), Size: 10}})
	w.must(err)
	filesystem, err := both.CreateFilesystems(ctx, []storage.FilesystemParams{{Tag: names.NewFilesystemTag("0/2"), Size: 20}})
	w.must(err)
	do := func(s task.Snapshot) task.Snapshotted {
		t.Helper()
		result, err := x.Do(t.Context(), task.Request{Snapshot: &s})
		w.must(err)
		return *result.Snapshot
	}
	counts := func(volumes, filesystems int) {
		t.Helper()
		v, err := both.ListVolumeSnapshots(ctx)
		w.must(err)
		f, err := both.ListFilesystemSnapshots(ctx)
		w.must(err)
		if len(v) != volumes || len(f) != filesystems {
			t.Errorf("there are %d snapshots of volumes and %d of filesystems, want %d and %d", len(v), len(f), volumes, filesystems)
		}
	}
	tags := func(id string) map[string]string {
		return map[string]string{storage.ModelUUIDTag: "m", storage.EntityUUIDTag: id}
	}
	ofVolume := task.Snapshot{Provider: "both", VolumeID: volume[0].Volume.VolumeId, ResourceTags: tags("a")}
	ofFilesystem := task.Snapshot{Provider: "both", FilesystemID: filesystem[0].Filesystem.FilesystemId, ResourceTags: tags("b")}
	if made := do(ofVolume); made.ID == "" || made.SizeMiB != 10 || made.Failure != "" {
		t.Errorf("of the volume: %+v", made)
	}
	counts(1, 0)
	made := do(ofFilesystem)
	if again := do(ofFilesystem); made.ID == "" || made.SizeMiB != 20 || again.ID != made.ID {
		t.Errorf("of the filesystem: %+v, then %+v", made, again)
	}
	counts(1, 1)
	none := task.Snapshot{Provider: "both", FilesystemID: "none", ResourceTags: tags("c")}
	if failed := do(none); failed.Failure == "" || !failed.Final {
		t.Errorf("of nothing: %+v", failed)
	}
	for _, s := range []task.Snapshot{
		{Provider: "program", VolumeID: ofVolume.VolumeID, ResourceTags: tags("d")}, {Provider: "program", FilesystemID: ofFilesystem.FilesystemID, ResourceTags: tags("d")},
	} {
		if failed := do(s); failed.Failure != "provider program cannot make snapshots" || !failed.Final {
			t.Errorf("by a provider that makes none: %+v", failed)
		}
		s.Delete = true
		if left := do(s); left.Failure != "" {
			t.Errorf("deleting what a provider that makes none has not made: %+v", left)
		}
		s.SnapshotID = "snapshot-d" // which another version of the provider has made
		if left := do(s); left.Failure == "" {
			t.Error("a snapshot that was made counts as deleted, and is still there")
		}
	}
	ofFilesystem.Delete, ofVolume.Delete, ofVolume.SnapshotID = true, true, "snapshot-a"
	for range 2 {
		if left := do(ofFilesystem); left.Failure != "" {
			t.Errorf("deleting by the owner: %+v", left)
		}
		counts(1, 0)
	}
	if left := do(ofVolume); left.Failure != "" {
		t.Errorf("deleting by the ID: %+v", left)
	}
	counts(0, 0)
}

// withoutSnapshots is a provider whose sources have no optional capability.
type withoutSnapshots struct{ storage.Provider }

func (p withoutSnapshots) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	source, err := p.Provider.VolumeSource(config)
	return struct{ storage.VolumeSource }{source}, err
}

func (p withoutSnapshots) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	source, err := p.Provider.FilesystemSource(config)
	return struct{ storage.FilesystemSource }{source}, err
}

// A look finds out what there is to know, and says what it could not find out. It shows what workers report
// of the storage, however long their texts are.
func TestLook(t *testing.T) {
	w := newWorld(t)
	records := filepath.Join(w.dir, "storage", "rootfs", "records")
	w.must(os.MkdirAll(records, 0o700))
	w.must(os.WriteFile(filepath.Join(records, "filesystem-0.json"), []byte("{}"), 0o600))
	since := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	var asked []names.Tag
	x := executor.New(executor.Config{
		Dir: datadir.Dir(w.dir), Clock: clock.WallClock,
		Progress: func(tags []names.Tag) map[string]any {
			asked = tags
			return map[string]any{
				"filesystem 0": map[string]any{"operation": "create", "state": "scheduled", "since": since, "failures": 2,
					"last-failure": strings.Repeat("€", 10_000), "next-attempt": since.Add(time.Minute)},
				"volume 1": map[string]any{"operation": "attach", "state": "waiting", "waits-for": "volume 1"},
			}
		},
	})
	look := func(objects ...task.Ref) task.Looked {
		t.Helper()
		result, err := x.Do(t.Context(), task.Request{Look: &task.Look{Objects: objects, Entities: []string{"filesystem-0", "volume-1"}}})
		w.must(err)
		return *result.Look
	}
	found := look(task.Ref{Provider: "rootfs", Kind: "filesystem", ID: "filesystem-0"}, task.Ref{Provider: "disk", Kind: "volume", ID: "a"})
	if len(found.Notes) != 1 || !strings.HasPrefix(found.Notes[0], "the files of filesystem filesystem-0: ") || !strings.Contains(found.Notes[0], "is damaged") {
		t.Errorf("notes %q", found.Notes)
	}
	for _, id := range []string{"../../x", "filesystem-1"} {
		found := look(task.Ref{Provider: "rootfs", Kind: "filesystem", ID: id})
		if len(found.Notes) != 1 || len(found.Files) > 0 {
			t.Errorf("%s: %+v", id, found)
		}
	}
	if want := []names.Tag{names.NewFilesystemTag("0"), names.NewVolumeTag("1")}; !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
	if len(found.Operations) != 2 {
		t.Fatalf("operations %+v", found.Operations)
	}
	first := found.Operations[0]
	if n := len(first.LastFailure); n > 1100 || n < 1000 || !utf8.ValidString(first.LastFailure) {
		t.Errorf("the failure has %d bytes", n)
	}
	first.LastFailure = ""
	if want := (task.Operation{Entity: "filesystem 0", Operation: "create", State: "scheduled", Since: since, Failures: 2, NextAttempt: since.Add(time.Minute)}); first != want {
		t.Errorf("%+v, want %+v", first, want)
	}
	if want := (task.Operation{Entity: "volume 1", Operation: "attach", State: "waiting", WaitsFor: "volume 1"}); found.Operations[1] != want {
		t.Errorf("%+v, want %+v", found.Operations[1], want)
	}
}
