//go:build linux && faults

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// operation is a call whose steps are tested.
type operation struct {
	name string
	// before are the calls that come first, and what happens to the storage directory.
	before []string
	// exists and attached say whether the objects exist and are attached afterwards.
	exists, attached bool
}

var operations = []operation{
	{"create", nil, true, false},
	{"attach", []string{"create", "attach", "detach"}, true, true},
	{"attach read-only", []string{"create", "attach", "detach"}, true, true},
	{"detach", []string{"create", "attach"}, true, false},
	{"resize", []string{"create", "attach"}, true, true},
	{"destroy", []string{"create", "attach", "detach"}, false, false},
	{"release", []string{"create", "attach", "detach"}, false, false},
	{"import", nil, true, false},
	{"snapshot", []string{"create", "attach", "detach"}, true, false},
	{"clone", []string{"create", "attach", "detach", "snapshot", "destroy"}, true, false},
	{"tag", []string{"create", "attach"}, true, true},
	{"import released", []string{"create", "attach", "detach", "release"}, true, false},
	{"reidentify moved", []string{"create", "attach", "switched off", "moved"}, true, false},
	{"reidentify copied", []string{"create", "attach", "copied"}, true, false},
	{"trash", []string{"create", "attach", "switched off"}, false, false},
	{"delete", []string{"create", "attach", "switched off"}, false, false},
	{"purge", []string{"create", "attach", "switched off", "trash"}, false, false},
}

// removes reports whether the operation removes something. Such operations must work on a
// full disk.
func (o operation) removes() bool {
	return slices.Contains([]string{"detach", "destroy", "release", "delete", "purge"}, o.name)
}

// isOperators reports whether operators ask for the operation, and not a worker.
func (o operation) isOperators() bool {
	return o.name == "tag" || o.name == "import released" || isOfDirectory(o.name)
}

// canBeAbandoned reports whether the objects of an unfinished operation can be removed.
// Other operations cannot be undone, and are repeated.
func (o operation) canBeAbandoned() bool {
	return slices.Contains([]string{"create", "attach", "attach read-only", "detach", "resize", "destroy", "snapshot", "clone", "tag"}, o.name)
}

// hasSnapshots reports whether there are snapshots after the operation.
func (o operation) hasSnapshots() bool { return o.name == "snapshot" || o.name == "clone" }

// stepTest is one operation in one world.
type stepTest struct {
	*base
	world
	op operation
	// used describes the mounts and devices of the original of a copy.
	used string
}

// setup carries out what comes before the operation.
func (s *stepTest) setup() {
	s.Helper()
	original := *s
	original.world = s.original()
	if s.onVolumes() {
		s.must(original.backing(), "create")
		s.must(original.backing(), "attach")
	}
	for _, op := range s.op.before {
		switch op {
		case "switched off":
			s.switchOff()
		case "moved":
			s.moveDir()
		case "copied":
			s.copyDir()
			s.used = s.inUse()
		default:
			s.must(original.world, op)
		}
		if op == "attach" {
			original.write()
		}
	}
	if s.onVolumes() && s.op.name == "resize" {
		s.must(s.backing(), "resize")
	}
	if s.op.name == "import" {
		s.placeImports()
	}
}

func (s stepTest) must(w world, op string) {
	s.Helper()
	if err := w.do(context.Background(), op); err != nil {
		s.Fatalf("%s %s: %v", w.Kind, op, err)
	}
}

// contents returns the data of an object.
func contents(i int) []byte {
	data := make([]byte, 64<<10)
	rand.NewChaCha8([32]byte{byte(i)}).Read(data)
	return data
}

// data returns the path of the file or device with the data of an attached object.
func (s stepTest) data(i int) string {
	s.Helper()
	if !s.isVolumes() {
		return filepath.Join(s.path(i), "data")
	}
	loops, err := loopsOf(s.base.dir)
	if err != nil {
		s.Fatal(err)
	}
	source, err := s.volumeSource()
	if err != nil {
		s.Fatal(err)
	}
	id, err := s.volumeID(envcontext.New(context.Background()), source, i, "attach")
	if err != nil {
		s.Fatal(err)
	}
	return "/dev/" + loops.of(filepath.Join(s.world.dir(), "volumes", id))
}

func (s stepTest) write() {
	s.Helper()
	for i := range s.Count {
		writeDurably(s, s.data(i), contents(i))
	}
}

func writeDurably(t testing.TB, path string, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if dir, err := os.Open(filepath.Dir(path)); err != nil || dir.Sync() != nil {
		t.Fatalf("syncing the directory of %s: %v", path, err)
	} else {
		dir.Close()
	}
}

func checkContents(t testing.TB, path string, i int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(contents(i)))
	if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, contents(i)) {
		t.Fatalf("the data in %s are lost: %v", path, err)
	}
}

// placeImports makes the files or directories that are to be imported.
func (s stepTest) placeImports() {
	s.Helper()
	for i := range s.Count {
		path := s.toImport(i)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			s.Fatal(err)
		}
		if !s.isVolumes() {
			if err := os.Mkdir(path, 0o700); err != nil {
				s.Fatal(err)
			}
			path = filepath.Join(path, "data")
		}
		writeDurably(s, path, contents(i))
		if s.isVolumes() {
			command(s, "fallocate", "--length", fmt.Sprint(s.Size<<20), path)
		}
	}
	unix.Sync()
}

// repeat carries out the operation twice, in new processes.
func (s *stepTest) repeat() {
	s.Helper()
	if s.onVolumes() {
		s.must(s.backing(), "attach")
	}
	if s.Copied {
		s.attachOriginal()
	}
	if s.op.name == "resize" || s.op.name == "tag" {
		s.must(s.world, "attach") // a power cut has detached it
	}
	for range 2 {
		if o := (task{World: s.world, Op: s.op.name}).run(s); o.err != nil || o.killed {
			s.Fatalf("repeating the operation: killed %v, %v", o.killed, o.err)
		}
		s.checkOriginal()
	}
}

// verify checks the state after the operation.
func (s stepTest) verify() {
	s.Helper()
	want := func(what string, want bool, got []string, others ...bool) {
		s.Helper()
		n := 0
		for _, is := range append(others, want) {
			if is {
				n += s.Count
			}
		}
		if len(got) != n {
			s.Fatalf("%d %s, want %d: %q", len(got), what, n, got)
		}
	}
	records, err := filepath.Glob(filepath.Join(s.world.dir(), "records", "*"))
	if err != nil {
		s.Fatal(err)
	}
	want("records", s.keepsRecords(), records)
	loops, err := loopsOf(s.base.dir)
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for name := range loops {
		names = append(names, name)
	}
	want("loop devices", s.onVolumes() || s.isVolumes() && s.op.attached, names, s.Copied && (s.onVolumes() || s.isVolumes()))
	want("mounts", !s.isVolumes() && s.op.attached, s.mounts(), s.Copied && !s.isVolumes())
	trashed, objects := s.trashed()
	want("records in the trash", s.op.name == "trash", trashed)
	want("objects in the trash", s.op.name == "trash" && s.keepsObjects(), objects)
	s.noTemporaries()
	s.verifyOwners()
	if s.op.hasSnapshots() {
		s.verifySnapshots()
	}
}

// verifySnapshots checks that there is one complete snapshot of each object.
func (s stepTest) verifySnapshots() {
	s.Helper()
	all, err := s.snapshots(envcontext.New(context.Background()))
	if err != nil || len(all) != s.Count {
		s.Fatalf("%d snapshots, want %d: %v", len(all), s.Count, err)
	}
	for i := range s.Count {
		at := slices.IndexFunc(all, func(o storage.OwnedObject) bool { return o.ID == s.snapshotID(i) })
		if at < 0 || all[at].Incomplete || all[at].Size != s.Size {
			s.Fatalf("snapshot %s is listed in %+v", s.snapshotID(i), all)
		}
		data := all[at].Path
		if !s.isVolumes() {
			data = filepath.Join(data, "data")
		}
		checkContents(s, data, i)
	}
}

// verifyOwners checks the owners of the objects, and that the objects are complete.
func (s stepTest) verifyOwners() {
	s.Helper()
	owned, err := s.owned(envcontext.New(context.Background()))
	if err != nil {
		s.Fatal(err)
	}
	owner := firstOwner
	if s.op.name == "tag" || s.Released {
		owner = nextOwner
	}
	wanted := make(map[storage.Owner]bool)
	for i := range s.Count {
		wanted[storage.OwnerOf(s.tags(i, owner))] = s.keepsRecords()
	}
	for _, o := range owned {
		owner := storage.OwnerOf(o.ResourceTags)
		if !wanted[owner] || o.Incomplete || o.Released != (s.op.name == "release") {
			s.Fatalf("listed %+v, want the objects of %v", o, wanted)
		}
		wanted[owner] = false
	}
}

func (s stepTest) noTemporaries() {
	s.Helper()
	patterns := []string{"records/.*", "volumes/*.*", "trash/*"}
	if s.op.hasSnapshots() {
		patterns = append(patterns, "snapshots/records/.*", "snapshots/volumes/*.*", "snapshots/trash/*")
	}
	for _, pattern := range patterns {
		if files, _ := filepath.Glob(filepath.Join(s.world.dir(), pattern)); len(files) > 0 {
			s.Fatalf("left: %q", files)
		}
	}
	leaves := s.op.attached || s.op.name == "reidentify moved" || s.Copied
	if _, err := os.Lstat(filepath.Join(s.Base, "srv")); !leaves && !errors.Is(err, os.ErrNotExist) {
		s.Fatalf("the directories of the mount points are left: %v", err)
	}
}

// finish checks the data and removes everything.
func (s stepTest) finish() {
	s.Helper()
	if s.Copied {
		original := s
		original.world = s.original()
		original.checkAndRemove()
	}
	s.checkAndRemove()
	if s.makesSnapshots() {
		s.must(s.world, "destroy snapshots")
	}
	s.checkLeaks()
}

// checkAndRemove checks the data and removes the objects that exist after the operation.
func (s stepTest) checkAndRemove() {
	s.Helper()
	w := s.world
	switch s.op.name {
	case "release":
		s.checkReleased()
	case "trash":
		s.checkAndPurgeTrash()
	case "destroy", "delete", "purge", "none":
	default:
		w.Imported = s.op.name == "import"
		s.world = w
		if s.op.name == "attach read-only" {
			s.must(w, "detach")
		}
		s.must(w, "attach")
		if s.op.name == "create" || s.isVolatile() {
			s.write()
		}
		for i := range s.Count {
			checkContents(s, s.data(i), i)
		}
		s.must(w, "detach")
		s.checkFilesystems()
		s.must(w, "destroy")
	}
	if s.onVolumes() {
		if s.op.name != "none" {
			s.checkFilesystems()
		}
		s.must(s.backing(), "detach")
		s.must(s.backing(), "destroy")
	}
	if s.op.name == "import" {
		_ = os.Remove(filepath.Join(s.Base, "imports"))
	}
}

// checkFilesystems checks the unmounted filesystems on volumes.
func (s stepTest) checkFilesystems() {
	s.Helper()
	if !s.onVolumes() {
		return
	}
	devices, err := s.devices()
	if err != nil || len(devices.blocks) != s.Count {
		s.Fatalf("devices %v, %v", devices, err)
	}
	for _, device := range devices.blocks {
		check(s, s.Kind, "/dev/"+device.DeviceName)
	}
}

// checkReleased checks and removes what a release left.
func (s stepTest) checkReleased() {
	s.Helper()
	for i := range s.Count {
		path, data := "", ""
		switch s.Kind {
		case "loop":
			path = filepath.Join(s.world.dir(), "volumes", s.id(i))
			data = path
		case "rootfs":
			path = filepath.Join(s.world.dir(), "filesystems", s.id(i))
			data = filepath.Join(path, "data")
		default:
			return // the data are on the volume
		}
		checkContents(s, data, i)
		if err := os.RemoveAll(path); err != nil {
			s.Fatal(err)
		}
	}
	s.must(s.world, "destroy") // removes the records of what is gone
}

// keepsRecords reports whether there are records of the objects after the operation. The
// record of a released object says that it has no owner.
func (s stepTest) keepsRecords() bool {
	return s.op.exists || s.op.name == "release" && !s.onVolumes()
}

// keepsObjects reports whether the objects are in the storage directory.
func (s stepTest) keepsObjects() bool {
	return s.isVolumes() || s.Kind == "rootfs"
}

// supported reports whether the source has the operation at all.
func (s stepTest) supported() bool {
	if s.isVolatile() && (s.op.name == "release" || s.op.name == "import released") || s.onVolumes() && s.op.name == "import" {
		return false
	}
	if s.op.hasSnapshots() {
		return s.makesSnapshots()
	}
	if s.op.name != "resize" && s.op.name != "import" {
		return true
	}
	if s.Kind == "ext4" && s.op.name == "resize" && !mayGrowExt4() {
		return false
	}
	w := s.world
	w.Count = 0
	w.Base = filepath.Join(s.TempDir(), "none")
	if s.op.name == "import" {
		w.Count, w.Imported = 1, true
	}
	return !errors.Is(w.do(context.Background(), s.op.name), errUnsupported)
}

// mayGrowExt4 reports whether this process has CAP_SYS_RESOURCE, which the kernel
// requires to grow an ext4.
func mayGrowExt4() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// kinds returns the worlds that are tested, each with its number of objects. Filesystems
// on volumes are included if this machine can make them.
func kinds(t *testing.T) []world {
	t.Helper()
	worlds := []world{{Kind: "loop", Count: 1}, {Kind: "loop", Count: 3}, {Kind: "tmpfs", Count: 1}, {Kind: "rootfs", Count: 1},
		{Kind: "rootfs", Count: 2}, {Kind: "ext4", Count: 1}, {Kind: "ext4", Count: 2}, {Kind: "xfs", Count: 1}}
	if makesBtrfs() {
		worlds = append(worlds, world{Kind: "btrfs", Count: 1})
	}
	return worlds
}

func makesBtrfs() bool {
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		return false
	}
	w := newWorld("btrfs", os.TempDir(), 0)
	source, err := w.filesystemSource()
	return err == nil && source.ValidateFilesystemParams(w.params(0)) == nil
}

// atSteps runs a function for each operation of each kind, on a disk with ext4 for each.
func atSteps(t *testing.T, r *row, f func(t *testing.T, s stepTest)) {
	atStepsOn(t, r, "ext4", f)
}

// atStepsOn is atSteps on disks with another filesystem.
func atStepsOn(t *testing.T, r *row, disk string, f func(t *testing.T, s stepTest)) {
	devicetest.RequireRoot(t)
	for _, w := range kinds(t) {
		name := w.Kind
		if w.Count > 1 {
			name += fmt.Sprintf(" by %d", w.Count)
		}
		t.Run(name, func(t *testing.T) {
			for _, op := range operations {
				s := stepTest{op: op, world: w, base: &base{TB: t}}
				if testing.Short() && !r.chosen(w, op) || !s.supported() {
					continue
				}
				t.Run(op.name, func(t *testing.T) {
					s.base = newBaseOf(t, disk, baseSize(w.Kind, w.Count))
					s.world = newWorld(w.Kind, s.base.dir, w.Count)
					s.Copied, s.Released = op.name == "reidentify copied", op.name == "import released"
					f(t, s)
				})
			}
		})
	}
}

// chosen reports whether an operation is in the sample of the short form.
func (r *row) chosen(w world, op operation) bool {
	switch {
	case w.Count > 1 || op.name == "attach read-only":
		return false
	case r.sampled && !r.operators && op.isOperators():
		return false
	case sizes[w.Kind] > 0:
		return !r.sampled && (op.name == "create" || op.name == "resize")
	}
	return !r.sampled || !w.isVolatile()
}

// mostSteps is more than any operation has. It ends the loops over steps when -run selects
// none of them.
const mostSteps = 400

// each injects a fault at the steps of an operation, one after another, until there is no
// such step, and calls then after each.
func (s stepTest) each(t *testing.T, r *row, fault string, from int, then func(*stepTest, outcome)) {
	stride := 1
	if testing.Short() && r.sampled {
		stride = 5
	}
	for step, more := from, true; more && step <= mostSteps; step += stride {
		more = s.at(t, r, fmt.Sprintf("%s %02d", fault, step), func(s *stepTest) bool {
			o := s.fault(r, fault, step)
			then(s, o)
			return len(o.steps) >= step
		})
	}
}

// at runs a case on the disk. It returns the result of f, false when the case fails, and true
// when the case is not selected.
func (s stepTest) at(t *testing.T, r *row, name string, f func(*stepTest) bool) (more bool) {
	more = true
	if !inSample(t.Name() + "/" + name) {
		return true
	}
	ok := r.run(t, name, func(t *testing.T) { more = s.once(t, f) })
	s.base.TB = t
	return ok && more
}

// once calls f between the beginning and the end of a case.
func (s stepTest) once(t *testing.T, f func(*stepTest) bool) bool {
	s.base.TB = t
	s.base.awaitSpace()
	s.setup()
	result := f(&s)
	s.finish()
	return result
}

// fault carries out the operation with a fault at a step.
func (s stepTest) fault(r *row, fault string, step int) outcome {
	s.Helper()
	o := task{World: s.world, Op: s.op.name, Fault: fault, Step: step}.run(s)
	s.Logf("%s at %q: killed %v, %v", fault, o.last(), o.killed, o.err)
	if len(o.steps) >= mostSteps {
		s.Fatalf("the operation has %d steps, and the loops end at %d", len(o.steps), mostSteps)
	}
	s.checkOriginal()
	r.steps++
	return o
}

// Fault F1.
func TestKill(t *testing.T) {
	r := begin(t, "kill -9 at every step, started again twice")
	atSteps(t, r, func(t *testing.T, s stepTest) {
		s.each(t, r, "kill", 1, func(s *stepTest, o outcome) {
			if !o.killed && o.err != nil {
				s.Fatal(o.err)
			}
			s.repeat()
			s.verify()
		})
	})
}

// The process is killed, and its objects are removed instead of repeating the operation.
// Fault F3.
func TestKillThenRemove(t *testing.T) {
	r := begin(t, "kill -9 at every step, then given up")
	r.sampled = true
	atSteps(t, r, func(t *testing.T, s stepTest) {
		if !s.op.canBeAbandoned() {
			return
		}
		s.each(t, r, "kill", 1, func(s *stepTest, o outcome) {
			for _, op := range []string{"detach", "destroy", "detach", "destroy"} {
				if o := (task{World: s.world, Op: op}).run(s); o.err != nil {
					s.Fatalf("%s: %v", op, o.err)
				}
			}
			undone := s.op.name == "create"
			s.op = operations[5]
			s.verify()
			if undone {
				s.op.name = "none" // there may be no filesystem to check
			}
		})
	})
}

// The second process is killed too, while it recovers from the first kill.
// Fault F2.
func TestKillDuringRecovery(t *testing.T) {
	r := begin(t, "kill -9 while recovering from a kill -9")
	r.sampled = true
	atSteps(t, r, func(t *testing.T, s stepTest) {
		for first, more := 1, true; more && first <= mostSteps; first++ {
			for second, again := 1, true; again && more && second <= mostSteps; second++ {
				if testing.Short() && second%14 != first%14 {
					again = second < 14
					continue
				}
				again = s.at(t, r, fmt.Sprintf("kill %02d, then %02d", first, second), func(s *stepTest) bool {
					more = s.fault(r, "kill", first).killed
					if s.onVolumes() {
						s.must(s.backing(), "attach")
					}
					killed := s.fault(r, "kill", second).killed
					s.repeat()
					s.verify()
					return killed
				})
			}
			more = more && !t.Failed()
		}
	})
}

var powerCuts = []string{"power cut, nothing written", "power cut, journal written", "power cut, all written"}

// Fault F4.
func TestPowerCut(t *testing.T) { cutPower(t, "ext4", "power cut at every step") }

// Fault F4.
func TestPowerCutOnXFS(t *testing.T) { cutPower(t, "xfs", "power cut at every step, on XFS") }

func cutPower(t *testing.T, disk, fault string) {
	r := begin(t, fault)
	r.sampled = true
	cuts := powerCuts
	if testing.Short() {
		cuts = cuts[:1]
	}
	atStepsOn(t, r, disk, func(t *testing.T, s stepTest) {
		for _, cut := range cuts {
			s.each(t, r, cut, 1, func(s *stepTest, o outcome) {
				if !o.killed {
					if o.err != nil {
						s.Fatal(o.err)
					}
					// What was reported as done must survive.
					shutDown(s.base.dir, shutDownNoLogFlush)
					s.reboot()
					s.verifyLasting()
				} else {
					s.reboot()
				}
				s.repeat()
				s.verify()
			})
		}
	})
}

// verifyLasting checks that a power cut after the operation does not undo it.
func (s stepTest) verifyLasting() {
	s.Helper()
	records, err := filepath.Glob(filepath.Join(s.world.dir(), "records", "*.json"))
	want := 0
	if s.keepsRecords() {
		want = s.Count
	}
	if err != nil || len(records) != want {
		s.Fatalf("after a power cut there are records %q, want %d: %v", records, want, err)
	}
}

// Fault F5.
func TestIOErrors(t *testing.T) { failDisk(t, "ext4", "I/O errors from any step on") }

// Fault F5.
func TestIOErrorsOnXFS(t *testing.T) { failDisk(t, "xfs", "I/O errors from any step on, on XFS") }

func failDisk(t *testing.T, disk, fault string) {
	r := begin(t, fault)
	r.sampled = true
	atStepsOn(t, r, disk, func(t *testing.T, s stepTest) {
		s.each(t, r, "I/O errors from then on", 0, func(s *stepTest, o outcome) {
			s.reboot()
			if o.err == nil {
				s.verifyLasting()
			} else if !saysOneOf(o.err, "input/output error", "read-only file system", "structure needs cleaning", "stale file handle",
				"error during mkfs: operation not permitted", // how mkfs.btrfs reports it
			) {
				s.Errorf("the error does not name the cause: %v", o.err)
			} else if o.final {
				s.Errorf("the error is permanent, although the disk may come back: %v", o.err)
			}
			s.repeat()
			s.verify()
		})
	})
}

func saysOneOf(err error, texts ...string) bool {
	said := strings.ToLower(err.Error())
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(said, text) })
}

// Fault F7.
func TestNoSpace(t *testing.T) {
	r := begin(t, "no space left from any step on")
	r.sampled, r.operators = true, true
	atSteps(t, r, func(t *testing.T, s stepTest) {
		s.each(t, r, "no space left from then on", 0, func(s *stepTest, o outcome) {
			switch {
			case o.err != nil && s.op.removes():
				s.Errorf("removing objects failed for lack of space: %v", o.err)
			case o.err != nil && !saysOneOf(o.err, "no space left on device"):
				s.Errorf("the error does not name the cause: %v", o.err)
			case o.final:
				s.Errorf("the error is permanent, although there may be space later: %v", o.err)
			}
			if err := os.Remove(filler(s.Base)); err != nil && !errors.Is(err, os.ErrNotExist) {
				s.Fatal(err)
			}
			s.repeat()
			s.verify()
		})
	})
}

// Fault F8.
func TestCancelled(t *testing.T) {
	r := begin(t, "the caller gives up at any step")
	r.sampled = true
	atSteps(t, r, func(t *testing.T, s stepTest) {
		s.each(t, r, "the caller does not wait", 0, func(s *stepTest, o outcome) {
			if o.err != nil && !saysOneOf(o.err, "context canceled") {
				s.Errorf("the error does not name the cause: %v", o.err)
			}
			s.repeat()
			s.verify()
		})
	})
}
