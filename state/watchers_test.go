package state_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
)

const longWait = 10 * time.Second

// changes is any watcher.
type changes[E any] interface {
	Changes() <-chan E
	Kill()
	Wait() error
}

// follow returns the watcher, and ends it with the test.
func follow[E any](t *testing.T, w changes[E], err error) changes[E] {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Kill()
		_ = w.Wait()
	})
	return w
}

// next returns the next event.
func next[E any](t *testing.T, w changes[E]) (event E) {
	t.Helper()
	select {
	case event, ok := <-w.Changes():
		if !ok {
			t.Fatalf("the watcher ended: %v", w.Wait())
		}
		return event
	case <-time.After(longWait):
		t.Fatal("no event came")
	}
	return event
}

// wantNext checks the next event.
func wantNext[E any](t *testing.T, w changes[E], want E) {
	t.Helper()
	if got := next(t, w); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got event %v, want %v", got, want)
	}
}

func follows(t *testing.T, watch func() (watcher.StringsWatcher, error)) changes[[]string] {
	t.Helper()
	w, err := watch()
	return follow[[]string](t, w, err)
}

func followsIDs(t *testing.T, watch func() (watcher.MachineStorageIdsWatcher, error)) changes[[]params.MachineStorageId] {
	t.Helper()
	w, err := watch()
	return follow[[]params.MachineStorageId](t, w, err)
}

func TestWatchersAreScoped(t *testing.T) {
	w := mixed(t)
	machine, environ := w.ForMachine(machine0), w.ForEnviron()
	wantNext(t, follows(t, machine.WatchVolumes), []string{"0/0"})
	wantNext(t, follows(t, machine.WatchFilesystems), []string{"0/0", "0/1"})
	wantNext(t, follows(t, environ.WatchVolumes), []string{"2", "3", "4"})
	wantNext(t, follows(t, environ.WatchFilesystems), []string{"2"})
	wantNext(t, followsIDs(t, machine.WatchVolumeAttachments), []params.MachineStorageId{on("machine-0", "volume-0-0")})
	wantNext(t, followsIDs(t, machine.WatchFilesystemAttachments), []params.MachineStorageId{
		on("machine-0", "filesystem-0-0"), on("machine-0", "filesystem-0-1"),
	})
	wantNext(t, followsIDs(t, environ.WatchVolumeAttachments), []params.MachineStorageId{
		on("machine-0", "volume-2"), on("machine-1", "volume-3"),
	})
	wantNext(t, followsIDs(t, environ.WatchFilesystemAttachments), []params.MachineStorageId{on("machine-0", "filesystem-2")})
	wantNext(t, followsIDs(t, machine.WatchVolumeAttachmentPlans), nil)
	wantNext(t, follows(t, w.ForMachine(machine1).WatchFilesystems), nil)
}

func TestPlanWatcherIsPerMachine(t *testing.T) {
	w := mixed(t)
	machine := followsIDs(t, w.ForMachine(machine0).WatchVolumeAttachmentPlans)
	wantNext(t, machine, nil)
	other := followsIDs(t, w.ForMachine(machine1).WatchVolumeAttachmentPlans)
	wantNext(t, other, nil)
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-1", tag: "volume-3"}))
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-2"}))
	wantNext(t, machine, []params.MachineStorageId{on("machine-0", "volume-2")})
	wantNext(t, other, []params.MachineStorageId{on("machine-1", "volume-3")})
}

// A machine looks again at the plan of a volume that has grown.
func TestPlanOfGrownVolumeIsReported(t *testing.T) {
	w := mixed(t)
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-2"}))
	plans := followsIDs(t, w.ForMachine(machine0).WatchVolumeAttachmentPlans)
	wantNext(t, plans, []params.MachineStorageId{on("machine-0", "volume-2")})
	record := func(tag string, size uint64) {
		t.Helper()
		w.must(single(w.ForEnviron().SetVolumeInfo([]params.Volume{{VolumeTag: tag, Info: params.VolumeInfo{VolumeId: "id-of-" + tag, Size: size}}})))
	}
	for _, size := range []uint64{100, 100, 50} {
		record("volume-2", size) // it is made, and no larger
	}
	record("volume-3", 100) // without a plan
	record("volume-3", 200)
	w.must(w.AttachStorage([]string{"e"}, machine0))
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-4"}))
	wantNext(t, plans, []params.MachineStorageId{on("machine-0", "volume-4")})
	record("volume-2", 101)
	wantNext(t, plans, []params.MachineStorageId{on("machine-0", "volume-2")})
}

// A retry reaches the worker of the storage, and for the plan of environment storage that of
// the machine.
func TestRetriesReachTheirWorkers(t *testing.T) {
	w := mixed(t)
	w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-1", tag: "volume-3"}))
	machine, environ := follows(t, w.ForMachine(machine1).WatchRetries), follows(t, w.ForEnviron().WatchRetries)
	other := follows(t, w.ForMachine(machine0).WatchRetries)
	for _, watcher := range []changes[[]string]{machine, environ, other} {
		wantNext(t, watcher, nil)
	}
	if err := w.RetryStorage([]string{"d", "none"}); !errors.Is(err, errors.NotFound) || err.Error() != `storage "none" not found` {
		t.Errorf("retry of unknown storage: %v", err)
	}
	for range 2 {
		w.must(w.RetryStorage([]string{"a", "d"}))
		wantNext(t, machine, []string{"volume-3"})
		wantNext(t, environ, []string{"volume-3"})
		wantNext(t, other, []string{"filesystem-0-0", "volume-0-0"})
	}
	// A retry is a request, not state: a later watcher does not report it.
	later := follows(t, w.ForEnviron().WatchRetries)
	wantNext(t, later, nil)
	w.must(w.RetryStorage([]string{"e"}))
	wantNext(t, later, []string{"volume-4"})
}

// Storage that is retried is not in error until it fails again. The status of dying storage
// stays: it says what is wrong until the storage is gone.
func TestRetryReplacesErrorStatus(t *testing.T) {
	w := newWorld(t)
	w.add("made", "loop", filesystem)
	w.add("going", "tmpfs", filesystem)
	w.work()
	w.add("new", "loop", filesystem)
	w.must(w.RemoveStorage([]string{"going"}))
	for _, tag := range []string{"filesystem-0-0", "filesystem-0-1", "volume-0-1"} {
		w.setStatus(tag, "error", "no room")
	}
	w.must(w.RetryStorage([]string{"made", "going", "new"}))
	if s := w.one("made"); s.Filesystem.Status != status.Attaching || s.Filesystem.Message != "trying again: no room" || s.Volume.Status != status.Attached {
		t.Errorf("provisioned storage: %+v, %+v", s.Volume, s.Filesystem)
	}
	if s := w.one("new"); s.Volume.Status != status.Pending || s.Volume.Message != "trying again: no room" {
		t.Errorf("storage that is not provisioned: %+v", s.Volume)
	}
	if s := w.one("going"); s.Status != status.Error || s.Message != "no room" {
		t.Errorf("dying storage: %+v", s)
	}
	w.check()
}

// A repeated request for storage that has failed is a retry.
func TestRepeatedRequestRetries(t *testing.T) {
	w := mixed(t)
	environ := follows(t, w.ForEnviron().WatchRetries)
	wantNext(t, environ, nil)
	say := func(tag string, s status.Status, message string) {
		w.must(w.ForEnviron().SetStatus([]params.EntityStatusArgs{{Tag: tag, Status: string(s), Info: message}}))
	}
	ask := func(asking string, names ...string) {
		t.Helper()
		switch asking {
		case "attach":
			w.must(w.AttachStorage(names, machine1))
		case "resize":
			w.must(w.ResizeStorage(names[0], 5))
		case "keep":
			w.must(w.Apply(state.Changes{Keep: names}))
		}
	}
	for _, asking := range []string{"attach", "resize", "keep"} {
		// e has not failed. d has, and its status says so.
		ask(asking, "e")
		say("volume-3", status.Pending, "no space")
		ask(asking, "d")
		wantNext(t, environ, []string{"volume-3"})
		say("volume-3", status.Error, "impossible")
		if !w.one("d").Failing || w.one("e").Failing {
			t.Errorf("failing: d %v, e %v; want d alone", w.one("d").Failing, w.one("e").Failing)
		}
		ask(asking, "d")
		wantNext(t, environ, []string{"volume-3"})
		say("volume-3", status.Attaching, "")
		ask(asking, "d")
	}
	// A message about attached storage is a remark, unless the storage is to grow.
	_, err := w.ForEnviron().SetVolumeInfo([]params.Volume{{VolumeTag: "volume-3", Info: params.VolumeInfo{VolumeId: "3", Size: 5}}})
	w.must(err)
	say("volume-3", status.Attached, "slow")
	if w.one("d").Failing {
		t.Error("storage with a remark is failing")
	}
	ask("keep", "d")
	say("volume-3", status.Attached, "")
	w.must(w.ResizeStorage("d", 6))
	say("volume-3", status.Attached, "cannot grow to 6 MiB")
	ask("keep", "d")
	wantNext(t, environ, []string{"volume-3"})
	say("volume-3", status.Attaching, "it is gone")
	w.must(w.DetachStorage([]string{"d"})) // the attachment is not retried
	for _, again := range []func([]string) error{w.DetachStorage, w.RemoveStorage, w.RemoveStorage} {
		say("volume-3", status.Detaching, "it is in use")
		w.must(again([]string{"d"}))
		wantNext(t, environ, []string{"volume-3"})
	}
	w.must(w.RetryStorage([]string{"e"}))
	wantNext(t, environ, []string{"volume-4"})
}

// A watcher reports each change of a life, but not what the worker itself records.
func TestWatchersReportLifeChanges(t *testing.T) {
	w := newWorld(t)
	machine := w.ForMachine(machine0)
	volumes := follows(t, machine.WatchVolumes)
	attachments := followsIDs(t, machine.WatchVolumeAttachments)
	wantNext(t, volumes, nil)
	wantNext(t, attachments, nil)

	w.add("it", "loop", block)
	wantNext(t, volumes, []string{"0/0"})
	wantNext(t, attachments, []params.MachineStorageId{on("machine-0", "volume-0-0")})

	parts := partsOf(w.one("it"))
	w.must(w.provision(parts["v"]))
	w.must(w.provision(parts["va"]))
	w.setStatus("volume-0-0", "attached", "")
	w.add("other", "loop", block)
	wantNext(t, volumes, []string{"0/1"})
	wantNext(t, attachments, []params.MachineStorageId{on("machine-0", "volume-0-1")})

	w.must(w.DetachStorage([]string{"it"}))
	wantNext(t, attachments, []params.MachineStorageId{on("machine-0", "volume-0-0")})
	w.must(w.remove(parts["va"]))
	wantNext(t, attachments, []params.MachineStorageId{on("machine-0", "volume-0-0")})
	// The parameters of its creation have changed.
	wantNext(t, volumes, []string{"0/0"})
	w.must(w.AttachStorage([]string{"it"}, machine0))
	wantNext(t, volumes, []string{"0/0"})
	wantNext(t, attachments, []params.MachineStorageId{on("machine-0", "volume-0-0")})
	w.must(w.RemoveStorage([]string{"it"}))
	wantNext(t, volumes, []string{"0/0"})
	w.must(w.remove(parts["va"]))
	wantNext(t, volumes, []string{"0/0"})
	w.must(w.remove(parts["v"]))
	wantNext(t, volumes, []string{"0/0"})
	w.add("last", "loop", block)
	wantNext(t, volumes, []string{"0/2"})
}

func TestUnreadWatcherMergesChanges(t *testing.T) {
	w := newWorld(t)
	w.add("old", "loop", block)
	volumes := follows(t, w.ForMachine(machine0).WatchVolumes)
	for i := range 50 {
		w.add(fmt.Sprintf("s%d", i), "loop", block)
	}
	w.must(w.RemoveStorage([]string{"s7"}))
	gone := partsOf(w.one("s7"))
	w.must(w.remove(gone["va"]))
	w.must(w.remove(gone["v"]))
	wantNext(t, volumes, []string{"0/0"})
	got := next(t, volumes)
	if len(got) != 49 || slices.Contains(got, "0/8") {
		t.Errorf("the event after many changes has %d ids: %q", len(got), got)
	}
}

func TestWatchersReportCommittedChangesOnly(t *testing.T) {
	w := newWorld(t)
	volumes := follows(t, w.ForMachine(machine0).WatchVolumes)
	wantNext(t, volumes, nil)
	good := state.StorageParams{Name: "a", Kind: block, Pool: "loop", Size: 1, Machine: machine0}
	if err := w.AddStorage(good, good); err == nil {
		t.Error("the same storage was added twice")
	}
	w.must(w.AddStorage(good))
	wantNext(t, volumes, []string{"0/0"})
}

// notified checks that loud causes an event, and that quiet, which comes first, does not.
func notified(t *testing.T, w changes[struct{}], quiet, loud func()) {
	t.Helper()
	quiet()
	select {
	case <-w.Changes():
		t.Error("an event came for no change")
	case <-time.After(20 * time.Millisecond):
	}
	loud()
	next(t, w)
}

func TestNotifyWatchers(t *testing.T) {
	w := mixed(t)
	notify := func(nw watcher.NotifyWatcher, err error) changes[struct{}] {
		t.Helper()
		followed := follow[struct{}](t, nw, err)
		next(t, followed)
		return followed
	}
	machine, environ := w.ForMachine(machine0), w.ForEnviron()

	devices := []storage.BlockDevice{{DeviceName: "sdb"}, {DeviceName: "sda"}}
	notified(t, notify(machine.WatchBlockDevices(machine0)), func() {
		w.must(w.SetMachineBlockDevices(machine0, nil))
		w.must(w.SetMachineBlockDevices(machine1, devices))
	}, func() { w.must(w.SetMachineBlockDevices(machine0, devices)) })
	notified(t, notify(machine.WatchBlockDevices(machine0)), func() {
		w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{devices[1], devices[0]}))
		w.must(w.provision(entry{kind: "volume", tag: "volume-0-0"}))
		w.must(w.provision(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-0-0"}))
		w.must(w.provision(entry{kind: "volume", tag: "volume-3"}))
		w.must(w.provision(entry{kind: "volume-attachment", machine: "machine-1", tag: "volume-3"}))
		w.must(w.provision(entry{kind: "volume", tag: "volume-4"}))
	}, func() { w.must(w.provision(entry{kind: "volume", tag: "volume-2"})) })
	notified(t, notify(machine.WatchBlockDevices(machine0)), func() {}, func() {
		w.must(w.provision(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-2"}))
	})

	notified(t, notify(machine.WatchBlockDevices(machine0)), func() {
		w.must(w.plan(entry{kind: "volume-attachment", machine: "machine-0", tag: "volume-2"}))
	}, func() {
		w.must(single(machine.SetVolumeAttachmentPlanBlockInfo([]params.VolumeAttachmentPlan{{
			VolumeTag: "volume-2", MachineTag: "machine-0", BlockDevice: storage.BlockDevice{WWN: "w"},
		}})))
	})

	notified(t, notify(environ.WatchMachine(machine1)), func() {
		w.must(w.SetInstanceId(machine0, "i-0"))
		w.must(w.EnsureMachine(machine1))
	}, func() { w.must(w.SetInstanceId(machine1, "i-1")) })

	attrs := map[string]any{"name": "here", "type": "manual", "uuid": "0b8a4a3c-5d2b-4f0e-9c57-0c1d2e3f4a5b"}
	notified(t, notify(environ.WatchForEnvironConfigChanges()), func() {}, func() { w.must(w.SetEnvironConfig(attrs)) })
	notified(t, notify(environ.WatchForEnvironConfigChanges()), func() { w.must(w.SetEnvironConfig(attrs)) }, func() {
		attrs["name"] = "there"
		w.must(w.SetEnvironConfig(attrs))
	})

	all := notify(w.WatchStorage())
	notified(t, all, func() {}, func() { w.setStatus("volume-0-0", "error", "no room") })
	notified(t, all, func() { w.setStatus("volume-0-0", "error", "no room") }, func() { w.add("new", "tmpfs", filesystem) })
}

func TestWatchStorageNames(t *testing.T) {
	w := newWorld(t)
	w.add("data/0", "loop", block)
	w.add("raw", "loop", block)
	names, err := w.WatchStorageNames()
	w.must(err)
	defer names.Kill()
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, ""},
		{func() { w.setStatus("volume-0-1", "error", "no room") }, "raw"},
		{func() { w.setStatus("volume-0-1", "error", "no room"); w.add("new", "tmpfs", filesystem) }, "new"},
		{func() { w.must(w.RemoveStorage([]string{"data/0", "raw"})) }, "data/0 raw"},
	} {
		step.do()
		if got := strings.Join(next[[]string](t, names), " "); got != step.want {
			t.Errorf("notified of %q, want %q", got, step.want)
		}
	}
}

func TestStorageNames(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"data/0", "data/1", "data-2", "other", "raw"} {
		w.add(name, "loop", block)
	}
	for of, want := range map[string][]string{
		"":              {"data-2", "data/0", "data/1", "other", "raw"},
		"raw data none": {"data/0", "data/1", "raw"},
		"data/1 dat":    {"data/1"},
	} {
		names, err := w.StorageNames(strings.Fields(of)...)
		w.must(err)
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("%q refers to %q, want %q", of, names, want)
		}
	}
}

func TestCloseEndsWatchersWithReason(t *testing.T) {
	w := newWorld(t)
	volumes, err := w.ForEnviron().WatchVolumes()
	w.must(err)
	all, err := w.WatchStorage()
	w.must(err)
	killed, err := w.WatchStorage()
	w.must(err)
	killed.Kill()
	w.must(killed.Wait())
	w.must(w.State.Close())
	for range volumes.Changes() {
		t.Error("a watcher of a closed state sent something")
	}
	if err := watcher.EnsureErr(all); err == nil || err.Error() != "state is closed" {
		t.Errorf("a watcher of a closed state ended with %v", err)
	}
	w.must(w.State.Close())
}

func TestClosedStateRefusesCalls(t *testing.T) {
	w := newWorld(t)
	w.must(w.State.Close())
	for what, call := range map[string]func() error{
		"WatchStorage": func() error { _, err := w.WatchStorage(); return err },
		"AddStorage":   func() error { return w.AddStorage(state.StorageParams{Name: "data", Pool: "loop", Size: 1}) },
		"Fingerprint":  func() error { _, _, err := w.Fingerprint(); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "state is closed") {
			t.Errorf("%s of a closed state: %v", what, err)
		}
	}
}

func TestStoreCloseEndsWatchers(t *testing.T) {
	w := newWorld(t)
	volumes, err := w.ForEnviron().WatchVolumes()
	w.must(err)
	next[[]string](t, volumes)
	w.must(w.store.Close())
	for range volumes.Changes() {
		t.Error("a watcher of a closed store sent something")
	}
	err = watcher.EnsureErr(volumes)
	if err == nil || errors.Cause(err).Error() != "store is closed" {
		t.Errorf("the watcher ended with %v", err)
	}
}

// Users, a worker of each scope and readers use a state in a file concurrently.
func TestConcurrentUse(t *testing.T) {
	w := newFileWorld(t, filePath(t))
	const each = 8
	var users, others sync.WaitGroup
	stop := make(chan struct{})
	for user := range 3 {
		users.Go(func() {
			for i := range each {
				name := fmt.Sprintf("u%d-%d", user, i)
				pool := []string{"loop", "disk", "nfs"}[i%3]
				w.must(w.AddStorage(state.StorageParams{Name: name, Kind: filesystem, Pool: pool, Size: 1, Machine: machine0}))
				if i%2 == 1 {
					w.must(w.RemoveStorage([]string{name}))
				}
			}
		})
	}
	followed := follows(t, w.ForMachine(machine0).WatchFilesystems)
	seen := make(map[string]bool)
	others.Go(func() {
		for {
			select {
			case ids := <-followed.Changes():
				for _, id := range ids {
					seen[id] = true
				}
			case <-stop:
				return
			}
		}
	})
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			all, err := w.AllStorage()
			w.must(err)
			for _, s := range all {
				if s.Life == "dead" {
					t.Errorf("%s is dead and still there", s.Name)
				}
			}
		}
	})
	users.Wait()
	w.work()
	w.check()
	last := w.one("u0-0")
	close(stop)
	others.Wait()
	if all, err := w.AllStorage(); err != nil || len(all) != 3*each/2 {
		t.Errorf("%d instances are left (%v)", len(all), err)
	}
	if !seen[last.Filesystem.Tag.Id()] {
		t.Errorf("the watcher never reported filesystem %s", last.Filesystem.Tag.Id())
	}
}

// A request to format reaches the worker that makes the filesystem, once, and only while the
// filesystem is still to be made on a device that its machine has.
func TestFormatsReachTheirWorker(t *testing.T) {
	w := newWorld(t)
	for name, pool := range map[string]string{"it": "disk", "memory": "tmpfs"} {
		w.must(w.AddStorage(state.StorageParams{Name: name, Kind: filesystem, Pool: pool, Size: 100, MountPoint: "/srv/" + name, Machine: machine0}))
	}
	it := w.one("it")
	tag := it.Filesystem.Tag.String()
	machine := follows(t, w.ForMachine(machine0).WatchFormats)
	others := []changes[[]string]{follows(t, w.ForMachine(machine1).WatchFormats), follows(t, w.ForEnviron().WatchFormats)}
	for _, watcher := range append(others, machine) {
		wantNext(t, watcher, nil)
	}
	refused := func(name, why string) {
		t.Helper()
		err := w.FormatStorage([]string{name})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, want %q", name, err, why)
		}
	}
	refused("none", "not found")
	refused("memory", "not a filesystem on a volume")
	refused("it", "no block device on its machine")
	w.must(w.provision(entry{kind: "volume", tag: it.Volume.Tag.String()}))
	w.must(w.provision(entry{kind: "volume-attachment", machine: "machine-0", tag: it.Volume.Tag.String()}))
	refused("it", "no block device on its machine")
	w.must(w.SetMachineBlockDevices(machine0, []storage.BlockDevice{{DeviceName: "dev-" + it.Volume.Tag.String()}}))
	for range 2 {
		w.must(w.FormatStorage([]string{"it"}))
		wantNext(t, machine, []string{tag})
	}
	later := follows(t, w.ForMachine(machine0).WatchFormats)
	wantNext(t, later, nil)
	w.must(w.provision(entry{kind: "filesystem", tag: tag}))
	refused("it", "has its filesystem")
	w.check()
}
