package main

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/internal/looptest"
)

// newSettings returns the settings of a run in which no disk fails.
func newSettings(t *testing.T) settings {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("loop devices and mounts need root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("loop devices and mounts need root")
	}
	dir, err := os.MkdirTemp("", "soak") // a socket needs a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("the directory is not empty: %v", err)
		}
		if err := kernelHasNothing(dir); err != nil {
			t.Error(err)
		}
	})
	// A disk that is shut down disturbs everything that reads loop devices, such as the
	// tests of other packages, which run at the same time.
	return settings{seed: 1, disksOneIn: math.MaxInt, parent: dir, retryMin: soonRetry}
}

// TestEvents runs each event once, on a machine with storage of each kind.
func TestEvents(t *testing.T) {
	var out strings.Builder
	settings := newSettings(t)
	settings.withDriver = true
	s, err := newSoak(settings, &out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			s.printFailure()
			t.Log(out.String())
		}
		if err := s.clear(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() error{
		s.makeOfEach, s.useSnapshots, s.takeBackup, s.makeOfEach, s.useSnapshots, s.goBack, s.useSnapshots, s.copyDirectory,
		s.moveDirectory, s.useSnapshots, s.goBack, s.useSnapshots, s.loseState, s.useSnapshots,
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if err := s.converge(time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
}

// makeOfEach creates storage until there is little space for more of any kind, and writes
// to it.
func (s *soak) makeOfEach() error {
	for range 40 {
		o, err := s.create()
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		if err := errors.Join(s.operate(o), s.converge(time.Now())); err != nil {
			return err
		}
	}
	for range 20 {
		if err := s.write(); err != nil {
			return err
		}
	}
	return nil
}

// useSnapshots makes snapshots of attached storage, and storage from one, and deletes some.
func (s *soak) useSnapshots() error {
	for range 12 {
		o, err := s.nextSnapshot(s.settledOnes((*instance).onVolume), nil)
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		if err := errors.Join(s.operate(o), s.converge(time.Now())); err != nil {
			return err
		}
	}
	return nil
}

// TestChecksFindViolations does by hand what an agent must never do, while a correct agent
// runs.
func TestChecksFindViolations(t *testing.T) {
	var out strings.Builder
	s, err := newSoak(newSettings(t), &out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.clear(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	var raw, memory *instance
	for raw == nil || memory == nil {
		o, err := s.create()
		if err != nil {
			t.Fatal(err)
		}
		if o == nil {
			continue
		}
		if err := s.operate(o); err != nil {
			t.Fatal(err)
		}
		for i := range o.after {
			switch i.kind.name {
			case "raw":
				raw = i
			case "tmpfs":
				memory = i
			}
		}
	}
	if err := s.converge(time.Now()); err != nil {
		t.Fatal(err)
	}
	w := writer{soak: s, rand: s.rand}
	for _, i := range []*instance{raw, memory} {
		if err := w.write(i); err != nil {
			t.Fatal(err)
		}
		if err := s.checkData(i, i.settled.Location); err != nil {
			t.Fatal(err)
		}
	}
	problems := func() string {
		t.Helper()
		status, err := s.stowage.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.problems(status)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "\n")
	}
	if all := problems(); all != "" {
		t.Fatal(all)
	}

	// There are as many of a kind as there may be.
	var others []*instance
	for _, i := range s.all {
		if i != raw && i != memory {
			others = append(others, i)
		}
	}
	if remove := change("remove", others, func(want) *want { return nil }); remove != nil {
		if err := errors.Join(s.operate(remove), s.converge(time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	// An attached block device cannot be copied on every filesystem.
	detach := change("detach", []*instance{raw}, func(w want) *want { w.attached = false; return &w })
	if err := errors.Join(s.operate(detach), s.converge(time.Now())); err != nil {
		t.Fatal(err)
	}
	taken := s.makeSnapshot([]*instance{raw})
	attach := change("attach", []*instance{raw}, func(w want) *want { w.attached = true; return &w })
	if err := errors.Join(s.operate(taken), s.converge(time.Now()), s.operate(attach), s.converge(time.Now())); err != nil {
		t.Fatal(err)
	}
	kept := taken.snapshots[0]
	for _, d := range kept.data {
		contents := filepath.Join(s.boundStorage(), snapshotDir, "volumes/snapshot-"+kept.uuid)
		f, err := os.OpenFile(contents, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte{^d.contents()[0]}, d.offset)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var restored *operation
	for restored == nil { // the name may be taken
		if restored, err = s.createFrom(kept); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.operate(restored); err != nil {
		t.Fatal(err)
	}
	if err := s.converge(time.Now()); err == nil || !strings.Contains(err.Error(), "byte 0 is another") {
		t.Errorf("storage from a snapshot that lacks data: got %v, want it reported", err)
	}
	nobodys := filepath.Join(s.boundStorage(), snapshotDir, "records/snapshot-1.json")
	if err := os.WriteFile(nobodys, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all := problems(); !strings.Contains(all, "records/snapshot-1.json is nobody's") {
		t.Errorf("problems %q, want the record of no snapshot", all)
	}
	if err := os.Remove(nobodys); err != nil {
		t.Fatal(err)
	}
	kept.wanted = false
	if all := problems(); !strings.Contains(all, "snapshot "+kept.name+" is not gone") {
		t.Errorf("problems %q, want the snapshot that is not wanted", all)
	}
	kept.wanted = true

	stray := filepath.Join(s.boundStorage(), "loop/volumes/volume-0-999.tmp")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all := problems(); !strings.Contains(all, "volume-0-999.tmp is nobody's") {
		t.Errorf("problems %q, want the stray file", all)
	}
	if err := os.Truncate(stray, 1<<20); err != nil {
		t.Fatal(err)
	}
	device, err := looptest.Attach(stray)
	if err != nil {
		t.Fatal(err)
	}
	if all := problems(); !strings.Contains(all, "nothing needs ["+device+"]") {
		t.Errorf("problems %q, want the stray loop device", all)
	}
	if _, err := program("losetup", "--detach", device); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	// The kernel detaches the device when no process has it open any more.
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); problems() != ""; <-again.C {
		if time.Since(begun) > 30*time.Second {
			t.Fatal(problems())
		}
	}

	if err := unix.Mount("tmpfs", memory.mount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	// The agent may have noticed it before.
	if all := problems(); !strings.Contains(all, memory.name+" should be mounted once") && !strings.Contains(all, "is mounted over it") {
		t.Errorf("problems %q, want the second mount", all)
	}
	if err := s.checkData(memory, memory.mount); err == nil || !strings.Contains(err.Error(), "is lost") {
		t.Errorf("data under another mount: got %v, want it reported as lost", err)
	}
	if err := unmount(memory.mount); err != nil {
		t.Fatal(err)
	}
	name := slices.Collect(func(yield func(string) bool) {
		for name := range raw.data {
			yield(name)
		}
	})[0]
	f, err := os.OpenFile(raw.settled.Location, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{^raw.data[name].contents()[0]}, raw.data[name].offset)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.checkData(raw, raw.settled.Location); err == nil || !strings.Contains(err.Error(), "byte 0 is another") {
		t.Errorf("changed byte: got %v, want it reported", err)
	}

	// Storage that the harness did not request is an error, and so is storage that is missing.
	status, err := s.stowage.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	status["another"] = command.Storage{Name: "another", Life: "alive"}
	if err := s.resolve(status); err == nil || !strings.Contains(err.Error(), "another, not wanted") {
		t.Errorf("storage that was not requested: got %v", err)
	}
	delete(status, "another")
	delete(status, raw.name)
	if err := s.resolve(status); err == nil || !strings.Contains(err.Error(), "what was acknowledged is not there") {
		t.Errorf("acknowledged storage that is missing: got %v", err)
	}
}
