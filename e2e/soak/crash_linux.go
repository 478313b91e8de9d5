package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// delay returns how long after an event the agent is killed: mostly at once, because the steps
// of an operation are short.
func (s *soak) delay() time.Duration {
	most := []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}
	return time.Duration(s.rand.Int64N(int64(most[s.rand.IntN(len(most))])))
}

// flight is an operation in progress.
type flight struct {
	*operation
	result command.Result
	err    error
}

// crash kills the agent while operations are in progress. One crash in s.disksOneIn first
// shuts down the disks with the agent's state, its storage, or both. When crash returns, the
// disks are back, and the interrupted operations are doubtful.
func (s *soak) crash() error {
	var stateDown, dataDown bool
	if s.rand.IntN(s.disksOneIn) == 0 {
		which := s.rand.IntN(3)
		stateDown, dataDown = which != 0, which != 1
	}
	var flying []*operation
	flights := make(chan flight)
	for range 1 + s.rand.IntN(2) {
		o, err := s.nextOperation(flying)
		if err != nil {
			return err
		}
		if o == nil {
			break
		}
		flying = append(flying, o)
		go func() {
			r, err := s.command(o.args...)
			flights <- flight{o, r, err}
		}()
	}
	busy := flying
	written := make(chan writing, 1)
	if i := s.writable(flying); i != nil && s.rand.IntN(2) == 0 {
		busy = append(busy, &operation{after: map[*instance]*want{i: i.want}})
		s.startWriting(i, written)
	} else {
		written <- writing{}
	}
	delay := s.delay()
	<-time.After(delay)

	err := s.shutDown(stateDown, dataDown)
	if err == nil && stateDown {
		err = s.refuses(busy)
	}
	if err == nil && (stateDown || dataDown) {
		<-time.After(s.delay())
	}
	err = errors.Join(err, s.kill())
	if err == nil && !stateDown && !dataDown {
		s.figures.kills++
		err = s.crashDriver()
	}
	s.note("kill -9 after %s", delay)
	for range flying {
		f := <-flights
		err = errors.Join(err, f.err)
		s.figures.operations++
		if f.err == nil && f.result.Code == 0 {
			s.note("%q: done", f.args)
			s.acknowledge(f.operation)
			continue
		}
		s.note("%q: cut short, %s", f.args, f.result.Stderr)
		s.figures.cutShort++
		if f.result.Stderr == "" {
			err = errors.Join(err, fmt.Errorf("no error about what went wrong:\n%s", f.result.All()))
		}
		s.doubtful = append(s.doubtful, f.operation)
	}
	w := <-written
	s.figures.written += w.bytes
	if w.err != nil && !dataDown {
		err = errors.Join(err, w.err)
	}
	if err != nil {
		return err
	}
	return s.repair(stateDown, dataDown)
}

// shutDown makes disks fail from now on. Data that was not synced is lost, except for what a
// flushed journal contains.
func (s *soak) shutDown(stateDown, dataDown bool) error {
	how := []int{unix.FS_SHUTDOWN_FLAGS_LOGFLUSH, unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH}[s.rand.IntN(2)]
	down := func(d *disk) error {
		s.note("shut down %s, flag %d", d.dir, how)
		return d.shutDown(how)
	}
	switch {
	case stateDown && dataDown:
		s.figures.bothDowns++
		return errors.Join(down(s.dataDisk), down(s.stateDisk))
	case stateDown:
		s.figures.stateDowns++
		return down(s.stateDisk)
	case dataDown:
		s.figures.dataDowns++
		return down(s.dataDisk)
	}
	return nil
}

// refuses checks that the agent, whose state cannot be written, has ended or reports that: it
// must not acknowledge anything.
func (s *soak) refuses(flying []*operation) error {
	o, err := s.nextOperation(flying)
	if o == nil || err != nil {
		return err
	}
	r, err := s.command(o.args...)
	s.note("%q without a state: %s", o.args, r.Stderr)
	s.figures.operations++
	s.figures.cutShort++
	s.doubtful = append(s.doubtful, o)
	if err != nil {
		return err
	}
	if r.Code == 0 {
		return fmt.Errorf("acknowledged a request that is not on disk:\n%s", r.All())
	}
	for _, clear := range []string{"input/output error", "cannot reach the agent", "stopped before it answered"} {
		if strings.Contains(r.Stderr, clear) {
			return nil
		}
	}
	if o.mayBeRefused && strings.Contains(r.Stderr, "detach") {
		return nil
	}
	return fmt.Errorf("the error does not say what is wrong:\n%s", r.All())
}

// writing is the result of writing.
type writing struct {
	bytes int64
	err   error
}

// startWriting starts to write to storage that no operation changes. The writing continues for
// some time in the background, and its result is then sent to done.
func (s *soak) startWriting(i *instance, done chan<- writing) {
	w := writer{soak: s, rand: rand.New(rand.NewPCG(s.rand.Uint64(), 0))}
	times := 1 + s.rand.IntN(6)
	go func() {
		for range times {
			if err := w.write(i); err != nil {
				done <- writing{w.written, fmt.Errorf("writing to %s: %w", i.name, err)}
				return
			}
		}
		done <- writing{bytes: w.written}
	}()
}

// repair remounts the disks that were shut down, as a starting machine does: the filesystems
// on volumes, whose devices have failed, are no longer mounted.
func (s *soak) repair(stateDown, dataDown bool) error {
	if !stateDown && !dataDown {
		return nil
	}
	if dataDown {
		if err := s.unmountStorage(); err != nil {
			return err
		}
	}
	if !dataDown { // the storage is in use, and must not be affected
		aside := filepath.Join(s.dir, "aside")
		if err := os.Mkdir(aside, 0o700); err != nil {
			return err
		}
		return errors.Join(moveMount(s.boundStorage(), aside), s.stateDisk.remount(),
			moveMount(aside, s.boundStorage()), os.Remove(aside))
	}
	if err := errors.Join(unmount(s.boundStorage()), s.dataDisk.remount()); err != nil {
		return err
	}
	if stateDown {
		if err := s.stateDisk.remount(); err != nil {
			return err
		}
	}
	return s.bind()
}

// moveMount moves a mount to another path without interrupting its use.
func moveMount(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the mount at %s to %s: %w", from, to, err)
	}
	return nil
}

// unmountStorage removes what depends on the data disk: loop devices, and all mounts except
// those in memory.
func (s *soak) unmountStorage() error {
	mounts, err := kernel.Mounts(s.mounts)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.FSType != "tmpfs" {
			if err := unmount(m.Mountpoint); err != nil {
				return err
			}
		}
	}
	if err := s.rebootDriver(); err != nil {
		return err
	}
	loops, err := kernel.Loops(s.boundStorage())
	if err != nil {
		return err
	}
	for _, l := range loops {
		if err := kernel.Detach(l.Path); err != nil {
			return err
		}
	}
	return eventually(patience, func() error {
		loops, err := kernel.Loops(s.boundStorage())
		if err == nil && len(loops) > 0 {
			err = fmt.Errorf("still attached: %v", loops)
		}
		return err
	})
}

// unmountDisks unmounts the machine's disks, with everything on them.
func (s *soak) unmountDisks() error {
	if s.dataDisk == nil {
		return nil
	}
	if s.stateDisk != nil {
		if err := s.unmountStorage(); err != nil {
			return err
		}
		if err := unmountAll(s.stateDisk.dir); err != nil {
			return err
		}
	}
	return unmountAll(s.dataDisk.dir)
}

// unmountAll unmounts everything at a path and below it.
func unmountAll(path string) error {
	mounts, err := kernel.Mounts(path)
	if err != nil {
		return err
	}
	// A mount that was moved may be older than the mount that it is below now.
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int { return strings.Compare(b.Mountpoint, a.Mountpoint) })
	for _, m := range mounts {
		if err := unmount(m.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}
