package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/syscallfault"
)

const (
	// convergeLimit is how long the agent may take after a failure until everything is as
	// wanted.
	convergeLimit = 20 * time.Second
	// reportGrace is how long the kernel may take to show what the agent reports. It is less
	// than trialRetryMin, so that a result that only a retry achieves was not there when the
	// agent reported it.
	reportGrace   = 500 * time.Millisecond
	trialRetryMin = time.Second
	// leastPause and mostPause bound the pause between requests to the agent: each request
	// starts a process, and failed operations are not retried at once.
	leastPause, mostPause = 10 * time.Millisecond, 80 * time.Millisecond
	// mostRefusals is how often one failing call may cause a user's request to be refused.
	mostRefusals = 2
)

// trial takes storage through its life on a machine where one system call of the agent fails.
type trial struct {
	*soak
	injector *syscallfault.Injector
	// cut says that the power fails after the call has failed.
	cut bool
	outcome
}

// outcome is the effect of one failing call.
type outcome struct {
	step    string // in which the call failed; empty: there is no such call
	failed  string // the call
	refused int    // requests
	died    bool   // the agent
	warned  bool   // the agent, in its log
	counts  map[string]int
	classes map[syscallfault.Class]int
}

// life is a sequence of steps for storage.
type life struct {
	name  string
	kinds []*kind
	// imported storage exists before, with its data.
	imported bool
	// started says that the call fails in an agent that starts with attached storage.
	started bool
	// givenUp storage is removed as soon as the call has failed, before it is retried.
	givenUp bool
}

func lives() []life {
	var all []life
	cheap := []*kind{kinds[0], kinds[1], kinds[4], kinds[5]}
	for _, k := range kinds {
		all = append(all, life{name: k.name, kinds: []*kind{k}})
	}
	return append(all,
		life{name: "import", kinds: []*kind{kinds[0]}, imported: true},
		life{name: "start", kinds: cheap, started: true},
		life{name: "given-up", kinds: cheap, givenUp: true})
}

// step is a part of a life: a user's request, and the wait for its result.
type step struct {
	name string
	do   func() error
}

// run makes a call fail in a life. The error describes the problem.
func (t *trial) run(l life, fault syscallfault.Fault) error {
	t.note("%s, %+v", l.name, fault)
	if err := os.Truncate(t.log, 0); err != nil {
		return err
	}
	var all []*instance
	for n, k := range l.kinds {
		name := fmt.Sprintf("%s-%d", k.name, n)
		all = append(all, newInstance(name, k, k.least, filepath.Join(t.mounts, "shared", name)))
	}
	steps := []step{
		{"create", func() error { return t.createAndAwait(all, l.imported) }},
		{"write", func() error { return t.writeAll(all) }},
		{"resize", func() error { return t.growAll(all) }},
		{"write more", func() error { return t.writeAll(all) }},
		{"detach", func() error {
			if err := t.ask(change("detach", all, func(w want) *want { w.attached = false; return &w })); err != nil {
				return err
			}
			return t.checkFilesystemsOf(all)
		}},
		{"attach", func() error {
			return t.ask(change("attach", all, func(w want) *want { w.attached = true; return &w }))
		}},
		{"remove", func() error { return t.ask(change("remove", all, func(want) *want { return nil })) }},
	}
	if l.started {
		for _, s := range steps[:2] {
			if err := s.do(); err != nil {
				return err
			}
		}
		start := step{"start", func() error { return t.restart(false) }}
		steps = append([]step{start}, steps[2:]...)
	}
	if l.givenUp {
		steps[0].do = func() error { return t.createAndGiveUp(all) }
		steps = steps[:1]
	}
	t.cut = slices.Contains([]string{"fsync", "fdatasync", "rename", "unlink"}, fault.Call)
	t.injector.Arm(fault)
	for _, s := range steps {
		t.note("%s", s.name)
		t.injector.Mark(s.name)
		if err := t.settled(s); err != nil {
			return err
		}
	}
	if t.counts == nil {
		t.counts = t.injector.Counts()
	}
	t.classes = t.injector.Classes()
	t.injector.Disarm()
	return t.nothingLeft()
}

// settled carries out a step. After the step in which the call failed, it kills and restarts
// the agent, with a power failure if t.cut is set. That must change nothing.
func (t *trial) settled(s step) error {
	done := t.step != ""
	if err := s.do(); err != nil {
		if !done {
			t.step, t.failed = s.name, t.injector.Failed()
		}
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if done || t.injector.Failed() == "" {
		return nil
	}
	t.step, t.failed, t.counts = s.name, t.injector.Failed(), t.injector.Counts()
	t.injector.Disarm()
	if log, err := os.ReadFile(t.log); err == nil {
		// Each start warns about missing privileges.
		text := strings.ReplaceAll(string(log), "WARNING stowage.agent cannot grow", "")
		t.warned = strings.Contains(text, " WARNING ") || strings.Contains(text, " ERROR ")
	}
	if err := t.restart(t.cut); err != nil {
		how := "kill -9"
		if t.cut {
			how = "a power cut"
		}
		return fmt.Errorf("%s, then %s and a start: %w", s.name, how, err)
	}
	return nil
}

// restart kills the agent, starts it, and checks that everything is as wanted. With a power
// cut, data that was not synced is lost, and nothing stays attached except storage in memory.
func (t *trial) restart(cut bool) error {
	if err := t.kill(); err != nil {
		return err
	}
	patience := reportGrace
	if cut {
		patience = convergeLimit // reattaching takes a while
		t.note("power cut")
		for _, d := range []*disk{t.dataDisk, t.stateDisk} {
			if err := d.shutDown(unix.FS_SHUTDOWN_FLAGS_NOLOGFLUSH); err != nil {
				return err
			}
		}
		if err := t.repair(true, true); err != nil {
			return err
		}
	}
	if err := t.startAgain(); err != nil {
		return err
	}
	return t.await(patience)
}

// startAgain starts the agent, and once more if the failing call has ended it.
func (t *trial) startAgain() error {
	t.note("start")
	err := t.start()
	if err != nil && t.agentEnded(0) && t.injector.Failed() != "" {
		t.died = true
		t.note("the agent ended: %v", err)
		err = t.start()
	}
	return err
}

func (t *trial) agentEnded(within time.Duration) bool {
	select {
	case <-t.agent.Ended:
		return true
	default:
	}
	select {
	case <-t.agent.Ended:
		return true
	case <-time.After(within):
		return false
	}
}

// create makes storage, or imports it.
func (t *trial) create(all []*instance, imported bool) error {
	o := &operation{after: map[*instance]*want{}}
	text := "storage:\n"
	for _, i := range all {
		o.after[i] = &want{attached: true, size: i.first}
		text += i.declaration(i.name, i.first, 1, i.mount)
	}
	if err := t.declare(o, text); err != nil {
		return err
	}
	if imported {
		path, err := t.makeImportFile(all[0])
		if err != nil {
			return err
		}
		o.args = []string{"import", all[0].name, path, "--pool", "loop", "--block"}
	}
	return t.request(o)
}

func (t *trial) createAndAwait(all []*instance, imported bool) error {
	if err := t.create(all, imported); err != nil {
		return err
	}
	return t.await(reportGrace)
}

func (t *trial) status() (map[string]command.Storage, error) {
	ctx, cancel := limited()
	defer cancel()
	return t.stowage.Poll(ctx)
}

// createAndGiveUp makes storage, and removes it when the call has failed, or everything is
// made.
func (t *trial) createAndGiveUp(all []*instance) error {
	if err := t.create(all, false); err != nil {
		return err
	}
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); t.injector.Failed() == ""; <-again.C {
		status, err := t.status()
		if err != nil { // the call may have failed for this request
			if time.Since(begun) > convergeLimit {
				return err
			}
			continue
		}
		p := problems{soak: t.soak, status: status}
		if problems, err := p.look(p.agents); err != nil {
			return err
		} else if len(problems) == 0 {
			break
		} else if time.Since(begun) > convergeLimit {
			return fmt.Errorf("not done after %s: %s", convergeLimit, strings.Join(problems, "; "))
		}
	}
	<-time.After(trialRetryMin / 4) // the agent may have reported the failure, and has not retried yet
	return t.ask(change("remove", all, func(want) *want { return nil }))
}

// makeImportFile makes a file with data, from which an instance is to be imported.
func (t *trial) makeImportFile(i *instance) (string, error) {
	path := filepath.Join(t.boundStorage(), "old") // only a file on the same filesystem can be moved there
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	d := datum{seed: t.rand.Uint64(), length: mostLength}
	if _, err := f.Write(d.contents()); err != nil {
		return "", err
	}
	if err := f.Truncate(int64(i.first) << 20); err != nil {
		return "", err
	}
	i.data["MiB 0"], i.imported = d, true
	return path, f.Sync()
}

// nameImported determines the name of an imported volume on disk, which does not begin with
// its number.
func (t *trial) nameImported() error {
	records, err := filepath.Glob(filepath.Join(t.boundStorage(), "loop/records/imported-*.json"))
	if err != nil {
		return err
	}
	for _, i := range t.all {
		if i.imported && i.want != nil && len(records) == 1 {
			i.objects[volume] = strings.TrimSuffix(filepath.Base(records[0]), ".json")
		}
	}
	return nil
}

func (t *trial) writeAll(all []*instance) error {
	w := writer{soak: t.soak, rand: t.rand}
	for _, i := range all {
		if err := w.write(i); err != nil {
			return fmt.Errorf("writing to %s: %w", i.name, err)
		}
	}
	return nil
}

func (t *trial) growAll(all []*instance) error {
	for _, i := range all {
		if i.filesystem == "ext4" && !t.growsExt4 {
			continue
		}
		if err := t.ask(t.grow(i)); err != nil {
			return err
		}
	}
	return nil
}

// checkFilesystemsOf checks detached filesystems for damage.
func (t *trial) checkFilesystemsOf(all []*instance) error {
	for _, i := range all {
		if i.onVolume() && t.injector.Failed() != "" {
			if err := checkFilesystem(i.filesystem, t.volumeFile(i)); err != nil {
				return fmt.Errorf("%s is damaged: %w", i.name, err)
			}
		}
	}
	return nil
}

// ask makes a request, and waits until it is carried out.
func (t *trial) ask(o *operation) error {
	if err := t.request(o); err != nil {
		return err
	}
	return t.await(reportGrace)
}

// request makes a request, as a user does: again if it is refused.
func (t *trial) request(o *operation) error {
	for {
		r, err := t.command(o.args...)
		if err != nil {
			return err
		}
		if r.Code == 0 {
			t.acknowledge(o)
			return nil
		}
		t.note("%q: refused, %s", o.args, r.Stderr)
		if t.injector.Failed() == "" {
			return fmt.Errorf("refused without a fault:\n%s", r.All())
		}
		if t.refused++; t.refused > mostRefusals {
			return fmt.Errorf("refused again:\n%s", r.All())
		}
		if t.agentEnded(reportGrace) { // the effect of the request is unknown
			t.died = true
			t.doubtful = append(t.doubtful, o)
			if err := t.startAgain(); err != nil {
				return err
			}
			status, err := t.status()
			if err != nil {
				return err
			}
			if err := t.resolve(status); err != nil {
				return err
			}
			continue
		}
		status, err := t.status()
		if err != nil {
			return err
		}
		for i := range o.after {
			if row, there := status[i.name]; !i.want.matches(row, there) {
				return fmt.Errorf("refused, but carried out (%+v):\n%s", row, r.All())
			}
		}
	}
}

// await waits until everything is as wanted, and checks the data. What the agent reports as
// done must be done within soon after the report, not only in the end.
func (t *trial) await(soon time.Duration) error {
	begun := time.Now()
	var said time.Time // since when the agent reports that everything is as wanted
	pause := leastPause
	for ; ; <-time.After(pause) {
		pause = min(pause*3/2, mostPause)
		if t.agentEnded(0) {
			if t.injector.Failed() == "" || t.died {
				return fmt.Errorf("the agent has ended by itself: %w", t.agent.Err())
			}
			t.died = true
			if err := t.startAgain(); err != nil {
				return err
			}
		}
		status, err := t.status()
		if err != nil {
			if time.Since(begun) > convergeLimit {
				return err
			}
			continue
		}
		if err := t.nameImported(); err != nil {
			return err
		}
		p := problems{soak: t.soak, status: status}
		all, err := p.look(p.objects, p.agents)
		if err != nil {
			return err
		}
		if len(all) > 0 {
			said = time.Time{}
		} else {
			if said.IsZero() {
				said = time.Now()
			}
			all, err = p.look(p.devices, p.mounted, p.files)
			if err != nil {
				return err
			}
			if len(all) > 0 && time.Since(said) > soon {
				return fmt.Errorf("reported as done, but is not: %s", strings.Join(all, "; "))
			}
			if len(all) == 0 {
				if all, err = p.look(p.processes, p.resources); err != nil {
					return err
				}
			}
		}
		if len(all) == 0 {
			t.figures.checks++
			return t.settle(status)
		}
		if time.Since(begun) > convergeLimit {
			return fmt.Errorf("not done after %s: %s", convergeLimit, strings.Join(all, "; "))
		}
	}
}

// nothingLeft stops the agent, checks that nothing is left in the state, and starts the next
// agent.
func (t *trial) nothingLeft() error {
	if err := t.stop(); err != nil {
		return fmt.Errorf("stopping the agent: %w", err)
	}
	keys, err := t.stateKeys()
	if err != nil {
		return err
	}
	if !slices.Equal(keys, t.keys) {
		return fmt.Errorf("left in the state: %q, had %q", keys, t.keys)
	}
	if err := t.start(); err != nil {
		return err
	}
	return t.await(reportGrace)
}

// afterRestart reports whether everything is as wanted after a restart of the agent.
func (t *trial) afterRestart() string {
	t.injector.Disarm()
	if t.agent == nil {
		return "the agent does not run"
	}
	var err error
	if t.doubtful, err = nil, t.restart(false); err != nil {
		return "a restart does not help: " + err.Error()
	}
	return "a restart helps"
}
