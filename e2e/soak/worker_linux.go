package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/syscallfault"
)

// workerArg is the argument of a worker process: a process of this program that tries the
// cases in the workerOrders on its standard input, and writes each result to its standard
// output. A process has one machine at a time: processes that agents leave running become its
// children.
const workerArg = "one-fault-worker"

type workerOrder struct {
	// Seed, Dir and Binary are the same in all orders for one worker.
	Seed        uint64
	Dir, Binary string
	Case        faultCase
}

// result is the result of a case. Paths in it are relative to the machine's directory.
type result struct {
	faultCase
	Step, Failed          string // as in outcome
	Refused, Died, Warned bool
	Seconds               float64
	Wrong                 string // empty: nothing
	Log                   string // of the agents, if something is wrong
	Counts                map[string]int
	Classes               []classCount
	// Broken says why the worker cannot continue.
	Broken string
}

// classCount is the number of calls of a class.
type classCount struct {
	Call, ID string
	Count    int
}

// tester tries cases on one machine after another.
type tester struct {
	seed        uint64
	dir, binary string
	injector    *syscallfault.Injector
	// machine is a machine without problems so far, or nil.
	machine *soak
	// reported is the name of the calls that the injector sees; empty: all.
	reported string
	history  strings.Builder
	machines uint64
}

func newTester(seed uint64, dir, binary string) *tester {
	return &tester{seed: seed, dir: dir, binary: binary, injector: syscallfault.New(
		func(path string) bool { return matters(path, dir) }, func(path string) string { return kindOf(path, dir) })}
}

// tryCase tries a case. The error is about the machine, not the agent.
func (w *tester) tryCase(c faultCase) (result, error) {
	begun := time.Now()
	r := result{faultCase: c}
	o, wrong := w.try(c)
	if wrong == nil && o.step == "" && c.Class != "" && c.N > 1 {
		// There are fewer calls of the class this time.
		c.N = 1
		r.faultCase = c
		o, wrong = w.try(c)
	}
	r.Step, r.Failed, r.Seconds = o.step, ownDir.ReplaceAllString(o.failed, ""), time.Since(begun).Seconds()
	r.Refused, r.Died, r.Warned = o.refused > 0, o.died, o.warned
	if wrong != nil {
		r.Wrong = ownDir.ReplaceAllString(wrong.Error(), "")
		var err error
		r.Log, err = w.giveUp()
		return r, err
	}
	if c.Call == "" {
		r.Counts = o.counts
		for class, n := range o.classes {
			r.Classes = append(r.Classes, classCount{class.Call, class.ID(), n})
		}
	}
	return r, nil
}

// try runs a life. After a problem, the machine is not used any more.
func (w *tester) try(c faultCase) (outcome, error) {
	l, ok := lifeOf(c.Life)
	if !ok {
		return outcome{}, fmt.Errorf("there is no kind of storage %q", c.Life)
	}
	if c.Call != w.reported {
		w.reported = c.Call
		w.injector.Only(c.Call)
		if err := w.restart(); err != nil {
			return outcome{}, fmt.Errorf("starting the agent again: %w", err)
		}
	}
	if w.machine == nil {
		w.machines++
		s := settings{seed: w.seed + w.machines, disksOneIn: math.MaxInt, parent: w.dir, binary: w.binary, retryMin: trialRetryMin}
		var err error
		if w.machine, err = newTrialMachine(s, w.injector, &w.history); err != nil {
			return outcome{}, fmt.Errorf("making a machine: %w", err)
		}
	}
	t := trial{soak: w.machine, injector: w.injector}
	err := t.run(l, c.fault())
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, t.afterRestart())
	}
	return t.outcome, err
}

// newTrialMachine makes a machine whose agent's calls an injector sees.
func newTrialMachine(s settings, injector *syscallfault.Injector, out *strings.Builder) (*soak, error) {
	m, err := newSoak(s, out)
	if err != nil {
		return nil, err
	}
	m.stowage.StartProcess = injector.Start
	if err := m.begin(); err != nil {
		return nil, errors.Join(err, m.clear())
	}
	return m, nil
}

// restart makes the injector see the calls of the machine's agent that it is set to.
func (w *tester) restart() error {
	if w.machine == nil {
		return nil
	}
	if err := w.machine.kill(); err != nil {
		return err
	}
	return w.machine.start()
}

// giveUp removes the machine, and returns its history and the log of its agents.
func (w *tester) giveUp() (string, error) {
	if w.machine == nil {
		return "", nil
	}
	w.history.Reset()
	w.machine.printFailure()
	log, err := os.ReadFile(w.machine.log)
	return w.history.String() + string(log), errors.Join(err, w.end())
}

// end removes the machine.
func (w *tester) end() error {
	if w.machine == nil {
		return nil
	}
	err := w.machine.clear()
	w.machine = nil
	return err
}

// mainWorker tries cases until the standard input ends.
func mainWorker() {
	signal.Ignore(os.Interrupt, unix.SIGTERM) // the parent process ends it
	orders, results := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var w *tester
	for {
		var o workerOrder
		err := orders.Decode(&o)
		if err == nil {
			if w == nil {
				w = newTester(o.Seed, o.Dir, o.Binary)
			}
			var r result
			if r, err = w.tryCase(o.Case); err != nil {
				r.Broken = err.Error()
			}
			err = errors.Join(err, results.Encode(r))
		}
		if err != nil {
			if w != nil {
				if cerr := w.end(); cerr != nil {
					fmt.Fprintln(os.Stderr, "soak:", cerr)
					os.Exit(1)
				}
			}
			if err != io.EOF {
				os.Exit(1)
			}
			return
		}
	}
}

// workers are processes that try cases.
type workers struct {
	order workerOrder
	all   []*worker
}

type worker struct {
	cmd     *exec.Cmd
	seed    uint64 // of its machines
	orders  io.WriteCloser
	encoder *json.Encoder
	results *json.Decoder
}

// startWorkers starts the workers. With an error it returns those that have been started.
func startWorkers(s faultSettings, dir string) (*workers, error) {
	w := &workers{order: workerOrder{Dir: dir, Binary: s.binary}}
	if w.order.Binary == "" {
		return w, errors.New("there is no command to test")
	}
	for i := range s.jobs {
		one, err := startWorker()
		if err != nil {
			return w, err
		}
		one.seed = s.seed + uint64(i)<<32
		w.all = append(w.all, one)
	}
	return w, nil
}

func startWorker() (*worker, error) {
	cmd := exec.Command("/proc/self/exe", workerArg)
	// Ctrl-C reaches this process only.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	results, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &worker{cmd: cmd, orders: orders, encoder: json.NewEncoder(orders), results: json.NewDecoder(results)}, nil
}

// end waits until the workers have removed their machines.
func (w *workers) end() error {
	var errs []error
	for _, one := range w.all {
		errs = append(errs, one.orders.Close())
	}
	for _, one := range w.all {
		errs = append(errs, one.cmd.Wait())
	}
	return errors.Join(errs...)
}

// try makes a worker try a case.
func (w *workers) try(one *worker, c faultCase) (r result, err error) {
	o := w.order
	o.Case, o.Seed = c, one.seed
	if err := one.encoder.Encode(o); err != nil {
		return r, err
	}
	if err = one.results.Decode(&r); err == nil && r.Broken != "" {
		err = errors.New(r.Broken)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", c, err)
	}
	return r, err
}

// each makes the workers try the cases, and calls note with each result, one at a time. It
// starts no more cases when the context ends or note returns an error.
func (w *workers) each(ctx context.Context, cases []faultCase, note func(result) error) error {
	type answer struct {
		result
		err error
	}
	queue, answers := make(chan faultCase), make(chan answer)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(queue)
		for _, c := range cases {
			select {
			case queue <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	ended := make(chan struct{})
	for _, one := range w.all {
		go func() {
			defer func() { ended <- struct{}{} }()
			for c := range queue {
				r, err := w.try(one, c)
				answers <- answer{r, err}
				if err != nil {
					return
				}
			}
		}()
	}
	var errs []error
	for going := len(w.all); going > 0; {
		select {
		case a := <-answers:
			err := a.err
			if err == nil {
				err = note(a.result)
			}
			if err != nil {
				errs = append(errs, err)
				cancel()
			}
		case <-ended:
			going--
		}
	}
	return errors.Join(errs...)
}
