package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// eventsOf describes the events of storage, one on a line, without those that were there before.
func (w *world) eventsOf(name string, before int) string {
	w.t.Helper()
	all, err := w.Events(name)
	w.must(err)
	var lines []string
	for _, e := range all[before:] {
		line := []string{string(e.Type)}
		if e.Tag != nil {
			line = append(line, e.Tag.String())
		}
		if e.Machine != (names.MachineTag{}) {
			line = append(line, e.Machine.String())
		}
		if e.FormerMiB != 0 {
			line = append(line, fmt.Sprint("from ", e.FormerMiB))
		}
		if e.SizeMiB != 0 {
			line = append(line, fmt.Sprint(e.SizeMiB))
		}
		if e.Text != "" {
			line = append(line, e.Text)
		}
		if e.By != "" {
			line = append(line, "by "+e.By)
		}
		lines = append(lines, strings.Join(line, " "))
	}
	return strings.Join(lines, "\n")
}

func (w *world) wantEvents(name string, before int, want ...string) (after int) {
	w.t.Helper()
	if got := w.eventsOf(name, before); got != strings.Join(want, "\n") {
		w.t.Errorf("the events are\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	return before + len(want)
}

// What happens to storage can be read from its events alone, for a day after it was removed, too.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	ask := func(c state.Changes) {
		t.Helper()
		c.By = "alice"
		w.must(w.Apply(c))
	}
	ask(state.Changes{Add: []state.StorageParams{{
		Name: "it", Kind: storage.StorageKindFilesystem, Pool: "loop", Size: 10, MountPoint: "/srv/it", Machine: machine0,
	}}})
	n := w.wantEvents("it", 0, "added machine-0 10 /srv/it by alice")
	w.work()
	n = w.wantEvents("it", n,
		"made filesystem-0-0 120 id-filesystem-0-0",
		"attached filesystem-0-0 machine-0 /mnt/filesystem-0-0",
		"made volume-0-0 128 id-volume-0-0",
		"attached volume-0-0 machine-0 dev-volume-0-0")

	w.setStatus("filesystem-0-0", status.Error, "somebody has unmounted it")
	w.setStatus("filesystem-0-0", status.Error, "somebody has unmounted it")
	w.setStatus("filesystem-0-0", status.Attached, "")
	n = w.wantEvents("it", n, "error filesystem-0-0 somebody has unmounted it", "recovered filesystem-0-0")

	ask(state.Changes{Resize: []state.Resize{{Name: "it", Size: 200}}})
	machine := w.ForMachine(machine0)
	w.must(single(machine.SetFilesystemInfo([]params.Filesystem{{FilesystemTag: "filesystem-0-0", Info: params.FilesystemInfo{FilesystemId: "id-filesystem-0-0", Size: 200}}})))
	w.must(single(machine.SetVolumeInfo([]params.Volume{{VolumeTag: "volume-0-0", Info: params.VolumeInfo{VolumeId: "id-volume-0-0", Size: 200}}})))
	n = w.wantEvents("it", n, "resize-wanted from 10 200 by alice", "grown filesystem-0-0 from 120 200", "grown volume-0-0 from 128 200")

	ask(state.Changes{Detach: []string{"it"}})
	w.work()
	n = w.wantEvents("it", n, "detach-wanted by alice", "detached filesystem-0-0 machine-0", "detached volume-0-0 machine-0")
	ask(state.Changes{Attach: []state.Attach{{Name: "it", Machine: machine0}}})
	w.work()
	n = w.wantEvents("it", n, "attach-wanted machine-0 by alice",
		"attached filesystem-0-0 machine-0 /mnt/filesystem-0-0", "attached volume-0-0 machine-0 dev-volume-0-0")

	ask(state.Changes{Remove: []string{"it"}})
	w.work()
	n = w.wantEvents("it", n, "remove-wanted by alice",
		"detached filesystem-0-0 machine-0", "detached volume-0-0 machine-0", "destroyed filesystem-0-0", "destroyed volume-0-0", "removed")
	w.check()

	// Another instance of the name goes on with the numbers.
	w.clock.Advance(time.Hour)
	w.add("it", "loop", storage.StorageKindBlock)
	w.must(w.RemoveOldEvents())
	w.wantEvents("it", n, "added machine-0 100")
	w.check()
	w.clock.Advance(24 * time.Hour)
	w.must(w.RemoveOldEvents())
	w.wantEvents("it", n, "added machine-0 100")
	w.must(w.RemoveStorage([]string{"it"}))
	w.work()
	w.clock.Advance(24*time.Hour - time.Second)
	w.must(w.RemoveOldEvents())
	if w.eventsOf("it", 0) == "" {
		t.Error("the events of removed storage are kept for less than a day")
	}
	w.clock.Advance(time.Second)
	w.must(w.RemoveOldEvents())
	w.wantEvents("it", 0)
	w.check()
}

// A filesystem that moves to another machine with its volume is not made again.
func TestEventsOfMove(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.add("data", "disk", storage.StorageKindFilesystem)
	w.work()
	all, err := w.Events("data")
	w.must(err)
	w.must(w.Apply(state.Changes{Move: []state.Attach{{Name: "data", Machine: machine1}}, By: "alice"}))
	w.work()
	w.wantEvents("data", len(all),
		"move-wanted machine-1 by alice", "detached filesystem-0-0 machine-0", "detached volume-0 machine-0",
		"attached volume-0 machine-1 dev-volume-0", "imported filesystem-1-1 120 id-filesystem-1-1",
		"attached filesystem-1-1 machine-1 /mnt/filesystem-1-1")
}

// The events of a name include those of its instances, and are bounded.
func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.add("it/0", "loop", storage.StorageKindBlock)
	w.add("it/1", "loop", storage.StorageKindBlock)
	w.add("item", "loop", storage.StorageKindBlock)
	for i := range 60 {
		w.clock.Advance(time.Second)
		w.setStatus("volume-0-0", status.Pending, fmt.Sprintf("attempt %d", i))
	}
	w.setStatus("volume-0-0", status.Error, strings.Repeat("é", 1000))
	all, err := w.Events("it")
	w.must(err)
	if len(all) != 51 || all[0].Name != "it/1" || all[1].Text != "attempt 11" || all[1].Number != 13 || all[50].Number != 62 {
		t.Errorf("there are %d events, from %+v and %+v", len(all), all[0], all[1])
	}
	if text := all[50].Text; len(text) > 1030 || !strings.HasSuffix(text, "é…") {
		t.Errorf("the text of an event is %q", text)
	}
	everything, err := w.Events()
	w.must(err)
	if len(everything) != 52 || !slices.IsSortedFunc(everything, func(a, b state.Event) int { return a.Time.Compare(b.Time) }) {
		t.Errorf("there are %d events of all storage", len(everything))
	}
	if none, err := w.Events("none"); err != nil || len(none) != 0 {
		t.Errorf("the events of storage that never existed: %v, %v", none, err)
	}
	w.check()
}
