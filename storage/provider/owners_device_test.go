//go:build linux

package provider

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/record"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// ownedTest is a storage directory of one of the four sources. Tests ask the source for
// objects with the tag 0/1, for different owners.
type ownedTest struct {
	*testing.T
	kind     storage.ProviderType
	top, dir string
	ctx      envcontext.ProviderCallContext

	// volumes or filesystems is the source.
	volumes     storage.VolumeSource
	filesystems storage.FilesystemSource
	devices     oneDevice
}

// oneDevice is the block device of every volume.
type oneDevice struct{ device storage.BlockDevice }

func (d oneDevice) BlockDevice(names.VolumeTag) (storage.BlockDevice, bool) {
	return d.device, true
}

func (d oneDevice) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{Volume: ownedVolume}, true
}

var (
	ownedVolume     = names.NewVolumeTag("0/1")
	ownedFilesystem = names.NewFilesystemTag("0/1")
)

// managedType stands for the managed source.
const managedType storage.ProviderType = "managed"

// forEachSource runs a test with each of the four sources.
func forEachSource(t *testing.T, test func(*ownedTest)) {
	for _, kind := range []storage.ProviderType{LoopProviderType, TmpfsProviderType, RootfsProviderType, managedType} {
		t.Run(string(kind), func(t *testing.T) {
			top := devicetest.Dir(t)
			ot := &ownedTest{T: t, kind: kind, top: top, dir: filepath.Join(top, "storage"), ctx: envcontext.New(t.Context())}
			if kind == managedType {
				devicetest.RequireProgram(t, "mkfs.ext4")
				loop := devicetest.NewLoop(t, 32<<20)
				ot.devices = oneDevice{storage.BlockDevice{DeviceName: loop.Name(), Size: 32}}
			}
			ot.open(ot.dir)
			test(ot)
		})
	}
}

// open opens the source of a directory.
func (t *ownedTest) open(dir string) {
	t.Helper()
	t.dir = dir
	var err error
	switch pool := sourcetest.PoolOf(t.T, t.kind, storage.Attrs{storage.ConfigStorageDir: dir}); t.kind {
	case LoopProviderType:
		t.volumes, err = commonProvider(t.T, t.kind).VolumeSource(pool)
	case managedType:
		t.filesystems = NewManagedFilesystemSource(dir, t.devices)
	default:
		t.filesystems, err = commonProvider(t.T, t.kind).FilesystemSource(pool)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// another returns a copy of the test that works on another directory.
func (t *ownedTest) another(dir string) *ownedTest {
	other := *t
	other.open(dir)
	return &other
}

func ownerTags(modelUUID, entityUUID string) map[string]string {
	return map[string]string{storage.ModelUUIDTag: modelUUID, storage.EntityUUIDTag: entityUUID, "user": "tag"}
}

func (t *ownedTest) tag() names.Tag {
	if t.kind == LoopProviderType {
		return ownedVolume
	}
	return ownedFilesystem
}

func (t *ownedTest) create(resourceTags map[string]string) (id string, err error) {
	t.Helper()
	if t.volumes != nil {
		results, err := t.volumes.CreateVolumes(t.ctx, []storage.VolumeParams{{Tag: ownedVolume, Size: 4, ResourceTags: resourceTags}})
		if err != nil || results[0].Error != nil {
			return "", errors.Trace(firstOf(err, results[0].Error))
		}
		return results[0].Volume.VolumeId, nil
	}
	params := storage.FilesystemParams{Tag: ownedFilesystem, Size: 2, ResourceTags: resourceTags}
	if t.kind == managedType {
		params.Volume, params.Size = ownedVolume, 0
	}
	results, err := t.filesystems.CreateFilesystems(t.ctx, []storage.FilesystemParams{params})
	if err != nil || results[0].Error != nil {
		return "", errors.Trace(firstOf(err, results[0].Error))
	}
	return results[0].Filesystem.FilesystemId, nil
}

func firstOf(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *ownedTest) mustCreate(resourceTags map[string]string) string {
	t.Helper()
	id, err := t.create(resourceTags)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (t *ownedTest) path() string { return filepath.Join(t.top, "data") }

// attach attaches the object and returns the path of its data: a device or a directory.
func (t *ownedTest) attach(id string) (string, error) {
	t.Helper()
	if t.volumes != nil {
		results, err := t.volumes.AttachVolumes(t.ctx, []storage.VolumeAttachmentParams{t.volumeAttachment(id)})
		if err != nil || results[0].Error != nil {
			return "", errors.Trace(firstOf(err, results[0].Error))
		}
		return "/dev/" + results[0].VolumeAttachment.DeviceName, nil
	}
	results, err := t.filesystems.AttachFilesystems(t.ctx, []storage.FilesystemAttachmentParams{t.filesystemAttachment(id)})
	if err != nil || results[0].Error != nil {
		return "", errors.Trace(firstOf(err, results[0].Error))
	}
	return results[0].FilesystemAttachment.Path, nil
}

func (t *ownedTest) volumeAttachment(id string) storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")}, Volume: ownedVolume, VolumeId: id,
	}
}

func (t *ownedTest) filesystemAttachment(id string) storage.FilesystemAttachmentParams {
	return storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
		Filesystem:       ownedFilesystem, FilesystemId: id, Path: t.path(),
	}
}

func (t *ownedTest) mustAttach(id string) string {
	t.Helper()
	at, err := t.attach(id)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func (t *ownedTest) detach(id string) error {
	t.Helper()
	var failures []error
	var err error
	if t.volumes != nil {
		failures, err = t.volumes.DetachVolumes(t.ctx, []storage.VolumeAttachmentParams{t.volumeAttachment(id)})
	} else {
		failures, err = t.filesystems.DetachFilesystems(t.ctx, []storage.FilesystemAttachmentParams{t.filesystemAttachment(id)})
	}
	return firstOf(append(failures, err)...)
}

func (t *ownedTest) destroy(id string) error {
	t.Helper()
	var failures []error
	var err error
	if t.volumes != nil {
		failures, err = t.volumes.DestroyVolumes(t.ctx, []string{id})
	} else {
		failures, err = t.filesystems.DestroyFilesystems(t.ctx, []string{id})
	}
	return firstOf(append(failures, err)...)
}

// mustRemove detaches and destroys an object, and makes the device of the managed source
// blank.
func (t *ownedTest) mustRemove(id string) {
	t.Helper()
	if err := firstOf(t.detach(id), t.destroy(id)); err != nil {
		t.Error(err)
	}
	if t.kind == managedType {
		sourcetest.Run(t.T, "blkdiscard", "--zeroout", "--force", "/dev/"+t.devices.device.DeviceName)
	}
}

// write writes a text at a path that attach returned, and check compares it.
func (t *ownedTest) write(at, text string) {
	t.Helper()
	if t.volumes != nil {
		sourcetest.WriteDevice(t.T, at, text)
	} else if err := os.WriteFile(filepath.Join(at, "file"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t *ownedTest) check(at, text string) {
	t.Helper()
	if t.volumes != nil {
		sourcetest.CheckDevice(t.T, at, text)
	} else if got, err := os.ReadFile(filepath.Join(at, "file")); err != nil || string(got) != text {
		t.Errorf("read %q, %v, want %q", got, err, text)
	}
}

func (t *ownedTest) store() *record.Store {
	t.Helper()
	store, err := record.Open(filepath.Join(t.dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// editRecord changes fields of a record.
func (t *ownedTest) editRecord(id string, edit func(map[string]json.RawMessage)) {
	t.Helper()
	rec := make(map[string]json.RawMessage)
	if err := t.store().Load(id, &rec); err != nil {
		t.Fatal(err)
	}
	edit(rec)
	if err := t.store().Save(id, rec); err != nil {
		t.Fatal(err)
	}
}

func rawJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// stamp gives an object of an older version an owner.
func (t *ownedTest) stamp(id string, resourceTags map[string]string) {
	t.Helper()
	t.editRecord(id, func(rec map[string]json.RawMessage) { rec["resource-tags"] = rawJSON(t.T, resourceTags) })
}

// A state that was restored from a backup hands out the tag of storage that was made
// after the backup.
func TestReusedTagDoesNotAdopt(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		model, secret, other := uuid.NewString(), uuid.NewString(), uuid.NewString()
		id := t.mustCreate(ownerTags(model, secret))
		if want := t.tag().String() + "-" + secret; id != want {
			t.Errorf("the ID is %q, want %q", id, want)
		}
		if again := t.mustCreate(ownerTags(model, secret)); again != id {
			t.Errorf("created again as %q, want %q", again, id)
		}
		at := t.mustAttach(id)
		t.write(at, "secret")

		// The managed source has one device only, and finds it in use or not blank.
		otherID, err := t.create(ownerTags(model, other))
		if t.kind == managedType {
			if err == nil {
				t.Error("another owner's volume was formatted")
			}
		} else if err != nil || otherID == id {
			t.Errorf("created %q for another owner, %v", otherID, err)
		} else if err := t.destroy(otherID); err != nil {
			t.Error(err)
		}
		t.check(at, "secret")
		t.mustRemove(id)
	})
}

// An object of another state has the ID that is wanted.
func TestIDDoesNotProveOwnership(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		mine, theirs, entity := uuid.NewString(), uuid.NewString(), uuid.NewString()
		id := t.mustCreate(ownerTags(theirs, entity))
		_, err := t.create(ownerTags(mine, entity))
		sourcetest.CheckError(t.T, err, true, "exists and belongs to", theirs, mine)
		t.mustRemove(id)

		// An object without an owner, and a request without an owner.
		id = t.mustCreate(nil)
		if id != t.tag().String() {
			t.Errorf("the ID is %q", id)
		}
		t.stamp(id, ownerTags(theirs, entity))
		_, err = t.create(nil)
		sourcetest.CheckError(t.T, err, true, "exists and belongs to", entity, "an unknown owner")
		t.mustRemove(id)

		for _, invalid := range []string{"../../x", "6f", strings.ToUpper(entity), "urn:uuid:" + entity} {
			if _, err := t.create(ownerTags(mine, invalid)); !errors.Is(err, errors.NotValid) {
				t.Errorf("UUID %q: %v", invalid, err)
			}
		}
	})
}

// Storage of an older version is known by its ID, and once its record has an owner also
// by the owner's UUID.
func TestStorageOfOlderVersion(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		model, entity := uuid.NewString(), uuid.NewString()
		id := t.mustCreate(nil)
		if t.kind != managedType { // it has one volume only
			made := t.mustCreate(ownerTags(model, entity))
			if made == id {
				t.Error("an object without an owner was adopted")
			}
			t.mustRemove(made)
		}
		at := t.mustAttach(id)
		t.write(at, "old")
		t.stamp(id, ownerTags(model, entity))
		if got := t.mustCreate(ownerTags(model, entity)); got != id {
			t.Errorf("created again as %q, want %q", got, id)
		}
		t.check(at, "old")
		if err := t.detach(id); err != nil {
			t.Error(err)
		}
		// A state may know only the ID that it computes.
		if err := t.destroy(t.tag().String() + "-" + uuid.NewString()); err != nil {
			t.Error(err)
		}
		var rec map[string]json.RawMessage
		if err := t.store().Load(id, &rec); err != nil {
			t.Fatalf("destroyed by another owner's UUID: %v", err)
		}
		if err := t.destroy(t.tag().String() + "-" + entity); err != nil {
			t.Error(err)
		}
		if err := t.store().Load(id, &rec); !errors.Is(err, errors.NotFound) {
			t.Errorf("the record is still there: %v", err)
		}
	})
}

// TestRecordsOfOlderVersion reads records that an older version wrote, and attaches and
// destroys their objects.
func TestRecordsOfOlderVersion(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		made := t.mustCreate(nil)
		now := make(map[string]json.RawMessage)
		if err := t.store().Load(made, &now); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"ready.json", "attached.json"} {
			data, err := os.ReadFile(filepath.Join(string(t.kind), "testdata", "format1", name))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.dir, "records", made+".json")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			rec := make(map[string]json.RawMessage)
			if err := t.store().Load(made, &rec); err != nil {
				t.Fatal(err)
			}
			if rec["format"] != nil || rec["size"] == nil {
				t.Fatalf("%s: %v", name, rec)
			}
			// The identity of the file, directory or device differs, and the mount point.
			t.editRecord(made, func(rec map[string]json.RawMessage) {
				for _, key := range []string{"dev", "ino", "born", "generation", "boot-id", "device", "uuid", "volume"} {
					if now[key] != nil {
						rec[key] = now[key]
					}
				}
				delete(rec, "mount-point")
				delete(rec, "made-dirs")
			})
			at := t.mustAttach(made)
			t.write(at, name)
			t.check(at, name)
			if err := t.detach(made); err != nil {
				t.Error(err)
			}
		}
		if err := t.destroy(made); err != nil {
			t.Error(err)
		}
	})
}

// Records of a newer version are refused and stay unchanged.
func TestRecordsOfNewerVersionRefused(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		id := t.mustCreate(nil)
		t.editRecord(id, func(rec map[string]json.RawMessage) { rec["format"] = rawJSON(t.T, 3) })
		path := filepath.Join(t.dir, "records", id+".json")
		_, attachErr := t.attach(id)
		for doing, err := range map[string]error{"attaching": attachErr, "detaching": t.detach(id), "destroying": t.destroy(id)} {
			if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "newer version") {
				t.Errorf("%s: %v", doing, err)
			}
		}
		t.editRecordRaw(path)
		t.mustRemove(id)
	})
}

// editRecordRaw gives a record of a newer version the current format.
func (t *ownedTest) editRecordRaw(path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(data[len(data)/2:]), "\n")
	if !strings.Contains(text, `"format":3`) {
		text, _, _ = strings.Cut(string(data), "\n")
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, `"format":3`, `"format":2`)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t *ownedTest) owners() []storage.OwnedObject {
	t.Helper()
	var all []storage.OwnedObject
	var err error
	if t.volumes != nil {
		all, err = t.volumes.(storage.VolumeOwnerLister).ListVolumeOwners(t.ctx)
	} else {
		all, err = t.filesystems.(storage.FilesystemOwnerLister).ListFilesystemOwners(t.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// setTags replaces the tags of objects as an adoption does, and returns an error for
// each.
func (t *ownedTest) setTags(tags ...storage.ObjectTags) []error {
	t.Helper()
	var failures []error
	var err error
	if t.volumes != nil {
		failures, err = t.volumes.(storage.VolumeTagger).TagVolumes(t.ctx, tags)
	} else {
		failures, err = t.filesystems.(storage.FilesystemTagger).TagFilesystems(t.ctx, tags)
	}
	if err != nil || len(failures) != len(tags) {
		t.Fatalf("%d results, %v", len(failures), err)
	}
	return failures
}

func TestListOwners(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if all := t.owners(); len(all) != 0 {
			t.Errorf("at first: owners listed: %+v", all)
		}
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(tags)
		want := storage.OwnedObject{ID: id, Size: map[storage.ProviderType]uint64{LoopProviderType: 4, managedType: 32}[t.kind], ResourceTags: tags}
		if want.Size == 0 {
			want.Size = 2
		}
		switch t.kind {
		case LoopProviderType:
			want.Path = filepath.Join(t.dir, "volumes", id)
		case RootfsProviderType:
			want.Path = filepath.Join(t.dir, "filesystems", id)
		}
		check := func(when string) {
			t.Helper()
			if all := t.owners(); len(all) != 1 || !reflect.DeepEqual(all[0], want) {
				t.Errorf("%s: owners listed: %+v, want %+v", when, all, want)
			}
		}
		check("created")
		at := t.mustAttach(id)
		t.write(at, "data")
		want.Attached = true
		check("attached")

		// An adoption while the storage is in use.
		want.ResourceTags = ownerTags(uuid.NewString(), uuid.NewString())
		for range 2 {
			failures := t.setTags(storage.ObjectTags{ID: id, ResourceTags: want.ResourceTags},
				storage.ObjectTags{ID: t.tag().String() + "-9", ResourceTags: want.ResourceTags},
				storage.ObjectTags{ID: id, ResourceTags: ownerTags("", "no UUID")})
			if failures[0] != nil || !errors.Is(failures[1], errors.NotFound) || !errors.Is(failures[2], errors.NotValid) {
				t.Errorf("tagging: %q", failures)
			}
		}
		check("tagged")
		t.check(at, "data")
		_, err := t.create(tags)
		sourcetest.CheckError(t.T, err, true, "belongs to")
		if err := t.detach(id); err != nil {
			t.Error(err)
		}
		want.Attached = false
		check("detached")

		// Of an object whose record cannot be read, only the ID is listed.
		if err := os.WriteFile(filepath.Join(t.dir, "records", "damaged.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if all := t.owners(); len(all) != 2 || !reflect.DeepEqual(all[0], storage.OwnedObject{ID: "damaged"}) {
			t.Errorf("with a damaged record: owners listed: %+v", all)
		}
		if err := os.Remove(filepath.Join(t.dir, "records", "damaged.json")); err != nil {
			t.Fatal(err)
		}
		t.mustRemove(id)
	})
}

func (t *ownedTest) release(id string) error {
	t.Helper()
	var failures []error
	var err error
	if t.volumes != nil {
		failures, err = t.volumes.ReleaseVolumes(t.ctx, []string{id})
	} else {
		failures, err = t.filesystems.ReleaseFilesystems(t.ctx, []string{id})
	}
	return firstOf(append(failures, err)...)
}

func (t *ownedTest) tryImport(id string, resourceTags map[string]string) (string, error) {
	t.Helper()
	if t.volumes != nil {
		info, err := t.volumes.(storage.VolumeImporter).ImportVolume(t.ctx, id, resourceTags)
		return info.VolumeId, err
	}
	info, err := t.filesystems.(storage.FilesystemImporter).ImportFilesystem(t.ctx, id, resourceTags)
	return info.FilesystemId, err
}

// One state releases storage, and another imports it, by its ID and by its path.
func TestReleaseAndImportByNewOwner(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind == TmpfsProviderType || t.kind == managedType {
			t.Skip("a release keeps no data in the storage directory")
		}
		first := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(first)
		at := t.mustAttach(id)
		t.write(at, "kept")
		for range 2 {
			if err := firstOf(t.detach(id), t.release(id)); err != nil {
				t.Fatal(err)
			}
		}
		all := t.owners()
		if len(all) != 1 || all[0].ID != id || !all[0].Released || all[0].Attached {
			t.Fatalf("owners listed: %+v", all)
		}
		if _, err := t.create(first); !storage.IsPermanent(err) || !errors.Is(err, errors.AlreadyExists) {
			t.Errorf("creating: %v", err)
		}
		if _, err := t.attach(id); !storage.IsPermanent(err) || !strings.Contains(err.Error(), "was released") {
			t.Errorf("attaching: %v", err)
		}
		if err := t.destroy(id); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "was released") {
			t.Errorf("destroying: %v", err)
		}
		for i, by := range []string{id, all[0].Path} {
			tags := ownerTags(uuid.NewString(), uuid.NewString())
			for range 2 { // a crash may have lost the first answer
				if got, err := t.tryImport(by, tags); err != nil || got != id {
					t.Fatalf("importing %s: %q, %v", by, got, err)
				}
			}
			if _, err := t.tryImport(by, first); !errors.Is(err, errors.NotValid) || by == id && !strings.Contains(err.Error(), tags[storage.EntityUUIDTag]) {
				t.Errorf("importing another owner's object: %v", err)
			}
			if all := t.owners(); len(all) != 1 || all[0].Released || !reflect.DeepEqual(all[0].ResourceTags, tags) {
				t.Errorf("owners listed: %+v", all)
			}
			t.check(t.mustAttach(id), "kept")
			if err := t.detach(id); err != nil {
				t.Error(err)
			}
			if i == 0 {
				if err := t.release(id); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := t.release(id); err != nil {
			t.Fatal(err)
		}
		// Once its data are removed, nothing is left of a released object.
		if err := os.RemoveAll(all[0].Path); err != nil {
			t.Fatal(err)
		}
		if all := t.owners(); len(all) != 0 {
			t.Errorf("owners listed: %+v", all)
		}
		if _, err := t.tryImport(id, first); !errors.Is(err, errors.NotFound) {
			t.Errorf("importing a missing object: %v", err)
		}
	})
}

// foreign makes something that can be imported, and returns the ID to import it by.
func (t *ownedTest) foreign() string {
	t.Helper()
	path := filepath.Join(t.top, "foreign")
	switch t.kind {
	case LoopProviderType:
		if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	case RootfsProviderType:
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	case managedType:
		path = uuid.NewString()
		sourcetest.Run(t.T, "mkfs.ext4", "-q", "-F", "-U", path, "/dev/"+t.devices.device.DeviceName)
	}
	return path
}

// Two owners want to import the same storage.
func TestImportByOneOwnerOnly(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind == TmpfsProviderType {
			t.Skip("tmpfs has no import")
		}
		from := t.foreign()
		model := uuid.NewString()
		mine, theirs := ownerTags(model, uuid.NewString()), ownerTags(model, uuid.NewString())
		id, err := t.tryImport(from, mine)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(id, "-"+mine[storage.EntityUUIDTag]) {
			t.Errorf("the ID is %q", id)
		}
		if again, err := t.tryImport(from, mine); err != nil || again != id {
			t.Errorf("again: %q, %v, want %q", again, err, id)
		}
		if _, err := t.tryImport(from, theirs); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), mine[storage.EntityUUIDTag]) {
			t.Errorf("for another owner: %v", err)
		}
		if _, err := t.tryImport(from, nil); !errors.Is(err, errors.NotValid) {
			t.Errorf("without an owner: %v", err)
		}
		if all := t.owners(); len(all) != 1 || !reflect.DeepEqual(all[0].ResourceTags, mine) {
			t.Errorf("owners listed: %+v", all)
		}
		t.mustAttach(id)
		t.mustRemove(id)
	})
}

// An older version imported the storage and did not record an owner.
func TestImportSetsOwnerOfOlderImport(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind == TmpfsProviderType {
			t.Skip("tmpfs has no import")
		}
		from := t.foreign()
		id, err := t.tryImport(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		if path := t.owners()[0].Path; path != "" {
			if _, err := t.tryImport(path, tags); !errors.Is(err, errors.NotValid) {
				t.Errorf("by the path of an object that was not released: %v", err)
			}
		}
		if got, err := t.tryImport(from, tags); err != nil || got != id {
			t.Errorf("%q, %v, want %q", got, err, id)
		}
		if all := t.owners(); len(all) != 1 || !reflect.DeepEqual(all[0].ResourceTags, tags) {
			t.Errorf("owners listed: %+v", all)
		}
		t.mustRemove(id)
	})
}

// A restored state asks for storage with the size that it had at the time of the backup.
func TestCreateAdoptsGrownStorage(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		tags := ownerTags(uuid.NewString(), uuid.NewString())
		id := t.mustCreate(tags)
		var size uint64
		switch {
		case t.volumes != nil:
			results, err := t.volumes.(storage.VolumeResizer).ResizeVolumes(t.ctx, []storage.VolumeResizeParams{{Tag: ownedVolume, VolumeId: id, Size: 8}})
			if err != nil || results[0].Error != nil {
				t.Fatal(firstOf(err, results[0].Error))
			}
			size = results[0].VolumeInfo.Size
		case t.kind == managedType:
			t.Skip("a managed filesystem is as large as its volume")
		default:
			at := t.mustAttach(id)
			results, err := t.filesystems.(storage.FilesystemResizer).ResizeFilesystems(t.ctx,
				[]storage.FilesystemResizeParams{{Tag: ownedFilesystem, FilesystemId: id, Size: 8}})
			if err != nil || results[0].Error != nil {
				t.Fatal(firstOf(err, results[0].Error))
			}
			size = results[0].FilesystemInfo.Size
			t.write(at, "grown")
		}
		if got := t.mustCreate(tags); got != id {
			t.Errorf("the ID was %s, and is %s", id, got)
		}
		if all := t.owners(); size != 8 || len(all) != 1 || all[0].Size != size {
			t.Errorf("grown to %d MiB, owners listed: %+v", size, all)
		}
		t.mustRemove(id)
	})
}

// The agent restarts in a mount namespace of its own, as a service manager may have it.
// The mounts there have other IDs.
func TestRestartInOtherMountNamespace(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		if t.kind == LoopProviderType {
			t.Skip("the loop provider mounts nothing")
		}
		id := t.mustCreate(ownerTags(uuid.NewString(), uuid.NewString()))
		at := t.mustAttach(id)
		t.write(at, "kept")
		t.editRecord(id, func(rec map[string]json.RawMessage) {
			rec["mount-id"], rec["mount-namespace"] = json.RawMessage("1"), json.RawMessage("1")
		})
		if got := t.mustAttach(id); got != at {
			t.Errorf("it was at %s, and is at %s", at, got)
		}
		t.check(at, "kept")
		t.editRecord(id, func(rec map[string]json.RawMessage) {
			rec["mount-id"], rec["mount-namespace"] = json.RawMessage("1"), json.RawMessage("1")
		})
		t.mustRemove(id)
	})
}

// A second agent works on a copy of an agent's directory that was made while the storage
// was attached. It changes nothing of the original's.
// Fault F24.
func TestCopiedDirectory(t *testing.T) {
	for about, edit := range map[string]func(*ownedTest, string){
		"current version": func(*ownedTest, string) {},
		// An older version neither marked mounts nor recorded their IDs.
		"older version, attached again since": func(t *ownedTest, id string) {
			t.editRecord(id, func(rec map[string]json.RawMessage) {
				delete(rec, "mark")
				delete(rec, "mount-id")
			})
			t.mustAttach(id)
		},
	} {
		t.Run(about, func(t *testing.T) {
			forEachSource(t, func(t *ownedTest) {
				id := t.mustCreate(ownerTags(uuid.NewString(), uuid.NewString()))
				at := t.mustAttach(id)
				t.write(at, "precious")
				edit(t, id)
				sourcetest.Run(t.T, "cp", "-a", t.dir, t.dir+"2")
				other := t.another(t.dir + "2")
				t.open(t.dir)
				for range 2 {
					if got, err := other.attach(id); err == nil {
						t.Errorf("the copy attached %s", got)
					}
					_ = other.detach(id)
					_ = other.destroy(id)
				}
				t.check(at, "precious")
				if got := t.mustAttach(id); got != at {
					t.Errorf("it was at %s, and is at %s", at, got)
				}
				t.check(at, "precious")
				if loops, mounts := devicetest.Loops(t, t.dir), devicetest.Mounts(t, t.path()); len(loops)+len(mounts) != 1 {
					t.Errorf("attached as %v, mounted %d times", loops, len(mounts))
				}
				t.mustRemove(id)
			})
		})
	}
}
