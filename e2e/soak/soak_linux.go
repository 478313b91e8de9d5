package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

const (
	// liveness is how long the agent may take, from its start, until everything is as wanted.
	liveness = time.Minute
	// mostHistory is how many lines of the history are printed after a failure.
	mostHistory = 200
	// stateFile and storageDir are entries of an agent's data directory.
	stateFile  = "state.db"
	storageDir = "storage"
)

// soak is a machine, with its user and the killer of its agent. One goroutine owns it, except
// that others run commands and write to storage while the agent is killed.
type soak struct {
	settings
	rand      *rand.Rand
	growsExt4 bool
	out       io.Writer
	dir       string
	mounts    string // contains all mount points
	log       string // of the agents since everything was last as wanted
	stateDisk *disk  // has the data directory, without the storage
	dataDisk  *disk  // has the storage
	stowage   command.Stowage
	agent     *command.Agent
	second    *command.Agent // in a copied directory
	driver    *csiDriver     // or nil
	kinds     []*kind
	metrics   string // host and port where the agent serves its metrics
	rest      resources
	keys      []string // of a state without storage
	all       map[string]*instance
	// numbers maps each number of a volume or filesystem that the agents ever showed to its
	// instance.
	numbers   map[string]*instance
	snapshots map[string]*snapshot
	files     int
	doubtful  []*operation // interrupted by a crash
	history   []string
	backup    *backup
	rounds    int
	figures   figures
}

// newSoak makes the disks of the machine.
func newSoak(settings settings, out io.Writer) (s *soak, err error) {
	s = &soak{
		settings:  settings,
		rand:      rand.New(rand.NewPCG(settings.seed, 0)),
		out:       out,
		all:       map[string]*instance{},
		numbers:   map[string]*instance{},
		snapshots: map[string]*snapshot{},
		// An address that no other program uses.
		metrics: fmt.Sprintf("127.77.%d.%d:9163", os.Getpid()>>8&255, os.Getpid()&255),
	}
	s.figures.begun = time.Now()
	s.figures.told = s.figures.begun
	if s.growsExt4, err = kernel.GrowsExt4(); err != nil {
		return nil, err
	}
	// Make processes that a killed agent leaves running children of this one.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming a reaper: %w", err)
	}
	if s.dir, err = os.MkdirTemp(s.parent, "stowage-soak"); err != nil {
		return nil, err
	}
	made := s
	defer func() {
		if err != nil {
			err = errors.Join(err, made.clear())
		}
	}()
	s.log, s.mounts = filepath.Join(s.dir, "agent.log"), filepath.Join(s.dir, "mnt")
	if err := os.Mkdir(s.mounts, 0o700); err != nil {
		return nil, err
	}
	// A mount can be moved only if its parent mount is private.
	if err := unix.Mount(s.dir, s.dir, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("binding %s: %w", s.dir, err)
	}
	if err := unix.Mount("", s.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("making %s private: %w", s.dir, err)
	}
	if s.binary == "" {
		if s.binary, err = command.Build(s.dir); err != nil {
			return nil, err
		}
	}
	s.kinds = kinds
	if s.withDriver {
		if s.driver, err = newDriver(s.dir, s.binary); err != nil {
			return nil, err
		}
		s.kinds = slices.Concat(kinds, driverKinds)
	}
	types := []string{"ext4", "xfs"}
	if s.dataDisk, err = newDisk(s.dir, "data", types[s.rand.IntN(2)], 8192); err != nil {
		return nil, err
	}
	if s.stateDisk, err = newDisk(s.dir, "state", types[s.rand.IntN(2)], 320); err != nil {
		return nil, err
	}
	s.stowage = command.Stowage{Binary: s.binary, DataDir: filepath.Join(s.stateDisk.dir, "stowage")}
	if err := os.Mkdir(s.storageOnDisk(), 0o700); err != nil {
		return nil, err
	}
	// The disk may be shut down before it would have written that by itself.
	return s, fsync.Dir(s.dataDisk.dir)
}

// bind mounts the storage, which is on a separate disk, in the data directory.
func (s *soak) bind() error {
	if err := unix.Mount(s.storageOnDisk(), s.boundStorage(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding the storage: %w", err)
	}
	return nil
}

// storageOnDisk is the directory of the storage on its disk; boundStorage is its path in the
// data directory.
func (s *soak) storageOnDisk() string { return filepath.Join(s.dataDisk.dir, storageDir) }
func (s *soak) boundStorage() string  { return filepath.Join(s.stowage.DataDir, storageDir) }

// begin starts the first agent, and measures an agent without storage.
func (s *soak) begin() (err error) {
	if s.driver != nil {
		if err := s.driver.start(); err != nil {
			return err
		}
	}
	if err := s.start(); err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}
	if s.keys, err = s.stateKeys(); err != nil {
		return err
	}
	// Make the agent's directories durable: the agent makes none in a directory that contains
	// anything else.
	for _, dir := range []string{s.stateDisk.dir, s.stowage.DataDir} {
		if err := fsync.Dir(dir); err != nil {
			return err
		}
	}
	if err := s.bind(); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	return s.converge(time.Now())
}

// round uses storage, crashes, and checks everything afterwards.
func (s *soak) round() error {
	operations, writes := s.rand.IntN(4), s.rand.IntN(5)
	if s.rand.IntN(25) == 0 { // a long life, in which a leak grows
		operations, writes = 30, 10
	}
	for range writes {
		if err := s.write(); err != nil {
			return err
		}
	}
	for range operations {
		o, err := s.nextOperation(nil)
		if err != nil {
			return err
		}
		if o == nil {
			break
		}
		if err := s.operate(o); err != nil {
			return err
		}
	}
	if operations > 10 {
		if err := s.converge(time.Now()); err != nil {
			return err
		}
	}
	if err := s.crash(); err != nil {
		return err
	}
	for {
		begun := time.Now()
		if err := s.launch(); err != nil {
			return err
		}
		if s.rand.IntN(5) > 0 {
			if err := s.listening(); err != nil {
				return err
			}
			return s.converge(begun)
		}
		delay := s.delay()
		<-time.After(delay)
		s.note("kill -9 %s after a start", delay)
		s.figures.kills++
		s.figures.again++
		if err := s.kill(); err != nil {
			return err
		}
	}
}

// write writes to some storage that can be written to.
func (s *soak) write() error {
	i := s.writable(nil)
	if i == nil {
		return nil
	}
	w := writer{soak: s, rand: s.rand}
	err := w.write(i)
	s.figures.written += w.written
	if err != nil {
		return fmt.Errorf("writing to %s: %w", i.name, err)
	}
	return nil
}

// writable returns attached storage without a pending request, or nil.
func (s *soak) writable(flying []*operation) *instance {
	var some []*instance
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		i := s.all[name]
		busy := slices.ContainsFunc(flying, func(o *operation) bool { return o.about(i) })
		if i.settled != nil && i.want.attached && !busy {
			some = append(some, i)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[s.rand.IntN(len(some))]
}

// operate carries out an operation.
func (s *soak) operate(o *operation) error {
	s.figures.operations++
	r, err := s.command(o.args...)
	if err != nil {
		return err
	}
	switch {
	case r.Code == 0:
		s.note("%q: done", o.args)
		s.acknowledge(o)
	case o.mayBeRefused, o.wanted && s.cannotCopy(r.Stderr):
		s.note("%q: refused, %s", o.args, r.Stderr)
		s.figures.refused++
	default:
		return fmt.Errorf("refused:\n%s", r.All())
	}
	return nil
}

func (s *soak) acknowledge(o *operation) {
	s.figures.acknowledged++
	s.took(o)
}

// took records that the operation has taken effect.
func (s *soak) took(o *operation) {
	before := s.figures.made
	for i, w := range o.after {
		made := i.want == nil && w != nil
		if made {
			s.figures.made++
		}
		i.grown = i.grown || w != nil && i.want != nil && w.size > i.want.size
		i.want, i.settled = w, nil
		if w == nil || i.volatile && !w.attached {
			i.data = map[string]datum{}
		}
		if made && i.from != nil {
			s.figures.restored++
		}
	}
	s.tookSnapshots(o)
	if s.figures.made > before {
		s.figures.creations++
	}
}

func (s *soak) command(args ...string) (command.Result, error) {
	ctx, cancel := limited()
	defer cancel()
	return s.stowage.Run(ctx, args...)
}

// limited returns a context that ends after twice the time that the agent may take.
func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*liveness)
}

// launch starts an agent.
func (s *soak) launch() (err error) {
	s.figures.restarts++
	s.agent, err = s.stowage.Start(s.log, append(s.agentArgs(), "--metrics", s.metrics)...)
	return err
}

// agentArgs are the arguments of each agent that uses storage.
func (s *soak) agentArgs() []string {
	args := []string{"--retry-min", s.retryMin.String()}
	if s.driver != nil {
		args = append(args, "--plugins-dir", s.driver.plugins)
	}
	return args
}

// listening waits until the agent accepts commands.
func (s *soak) listening() error {
	select {
	case <-s.agent.Listening:
		return nil
	case <-s.agent.Ended:
		return fmt.Errorf("the agent ended at once: %w", s.agent.Err())
	case <-time.After(liveness):
		return fmt.Errorf("the agent does not listen after %s", liveness)
	}
}

func (s *soak) start() error {
	if err := s.launch(); err != nil {
		return err
	}
	return s.listening()
}

// stop asks the agent to end.
func (s *soak) stop() error {
	if err := s.agent.Signal(unix.SIGTERM); err != nil {
		return err
	}
	return s.ended()
}

// kill kills the agent, whatever it is doing. It may have ended already.
func (s *soak) kill() error {
	_ = s.agent.Signal(unix.SIGKILL)
	_ = s.ended() // killed
	if s.agent != nil {
		return fmt.Errorf("the agent survives kill -9 for %s", liveness)
	}
	return nil
}

func (s *soak) ended() error {
	select {
	case <-s.agent.Ended:
		err := s.agent.Err()
		s.agent = nil
		return err
	case <-time.After(liveness):
		return fmt.Errorf("the agent does not end within %s", liveness)
	}
}

// end removes everything, and checks that nothing is left.
func (s *soak) end() error {
	s.note("the end")
	if err := s.checkFilesystems(); err != nil {
		return err
	}
	snapshots := slices.Collect(maps.Values(s.snapshots))
	if s.rand.IntN(2) == 0 && len(snapshots) > 0 { // before the storage
		if err := s.operate(deleteSnapshots(snapshots)); err != nil {
			return err
		}
		snapshots = nil
	}
	if len(s.all) > 0 {
		o := change("remove", slices.Collect(maps.Values(s.all)), func(want) *want { return nil })
		o.args = append(o.args, "--wait")
		if err := s.operate(o); err != nil {
			return err
		}
	}
	if len(snapshots) > 0 {
		if err := s.operate(deleteSnapshots(snapshots)); err != nil {
			return err
		}
	}
	if err := s.converge(time.Now()); err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return fmt.Errorf("stopping the agent: %w", err)
	}
	if s.driver != nil {
		if err := errors.Join(s.driver.checkEmpty(), s.driver.clear()); err != nil {
			return err
		}
	}
	keys, err := s.stateKeys()
	if err != nil {
		return err
	}
	if !slices.Equal(keys, s.keys) {
		return fmt.Errorf("left in the state: %q, had %q", keys, s.keys)
	}
	if err := s.unmountDisks(); err != nil {
		return err
	}
	return errors.Join(s.dataDisk.check(), s.stateDisk.check())
}

// checkFilesystems detaches all filesystems on volumes, checks them for damage, and attaches
// those that were attached before.
func (s *soak) checkFilesystems() error {
	var attached []*instance
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		if i := s.all[name]; i.onVolume() && i.want.attached {
			attached = append(attached, i)
		}
	}
	if len(attached) == 0 {
		return nil
	}
	detach := change("detach", attached, func(w want) *want { w.attached = false; return &w })
	if err := errors.Join(s.operate(detach), s.converge(time.Now())); err != nil {
		return err
	}
	for _, i := range attached {
		if err := checkFilesystem(i.filesystem, s.volumeFile(i)); err != nil {
			return fmt.Errorf("%s is damaged: %w", i.name, err)
		}
	}
	attach := change("attach", attached, func(w want) *want { w.attached = true; return &w })
	return errors.Join(s.operate(attach), s.converge(time.Now()))
}

// stateKeys returns the keys of the state, except those of counters, events and pools, which remain, and
// those of the machine's block devices, which an agent that ends early may not have recorded.
func (s *soak) stateKeys() (keys []string, err error) {
	store, err := boltkv.Open(filepath.Join(s.stowage.DataDir, stateFile))
	if err != nil {
		return nil, err
	}
	err = store.View(context.Background(), func(snapshot kv.Snapshot) error {
		return snapshot.Scan("", func(key string, _ []byte) error {
			for _, prefix := range []string{"sequence/", "blockdevice/", "device/", "bearers/", "events/", "gone/", "pool/"} {
				if strings.HasPrefix(key, prefix) {
					return nil
				}
			}
			keys = append(keys, key)
			return nil
		})
	})
	return keys, errors.Join(err, store.Close())
}

// clear removes everything that is left, by force.
func (s *soak) clear() error {
	if s.agent != nil {
		_ = s.kill()
	}
	err := kernel.Clear(s.mounts)
	if s.driver != nil {
		err = errors.Join(err, s.driver.kill())
	}
	if err == nil {
		err = s.unmountDisks()
	}
	for _, d := range []*disk{s.dataDisk, s.stateDisk} {
		if err == nil && d != nil {
			err = d.detach()
		}
	}
	if err == nil {
		err = unmountAll(s.dir)
	}
	if err == nil {
		err = eventually(patience, func() error { return kernelHasNothing(s.dir) })
	}
	if err != nil {
		return fmt.Errorf("clearing up (nothing is deleted through a mount): %w", err)
	}
	return os.RemoveAll(s.dir)
}

func kernelHasNothing(dir string) error {
	mounts, err := kernel.Mounts(dir)
	if err != nil {
		return err
	}
	loops, err := kernel.Loops(dir)
	if err == nil && len(mounts)+len(loops) > 0 {
		err = fmt.Errorf("%d mounts are left, and the loop devices %v", len(mounts), loops)
	}
	return err
}

// note adds a line to the history.
func (s *soak) note(format string, args ...any) {
	line := strings.ReplaceAll(strings.TrimSpace(fmt.Sprintf(format, args...)), s.dir+"/", "")
	s.history = append(s.history, fmt.Sprintf("%9.3f s  %s", time.Since(s.figures.begun).Seconds(), line))
	if len(s.history) >= 2*mostHistory {
		s.history = slices.Clone(s.history[len(s.history)-mostHistory:])
	}
}

// printFailure prints the history before a failure, and the agent's report and log.
func (s *soak) printFailure() {
	fmt.Fprintf(s.out, "seed %d, after %d crashes\nhistory:\n", s.seed, s.figures.crashes())
	for _, line := range s.history[max(0, len(s.history)-mostHistory):] {
		fmt.Fprintln(s.out, line)
	}
	if s.agent != nil {
		if r, err := s.command("report"); err == nil {
			fmt.Fprint(s.out, r.All())
		}
	}
	if s.driver != nil {
		fmt.Fprintln(s.out, s.driver.printLog())
	}
	log, err := os.ReadFile(s.log)
	lines := slices.DeleteFunc(strings.SplitAfter(string(log), "\n"), func(line string) bool {
		return strings.Contains(line, " block devices\n") // mostly about others' devices
	})
	fmt.Fprintf(s.out, "log of the agents since all was as it should be, but for what it says of block devices (%v):\n%s\n",
		err, strings.Join(lines[max(0, len(lines)-mostHistory):], ""))
}
