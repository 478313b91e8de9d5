package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/syscallfault"
)

// faultSettings say which calls fail.
type faultSettings struct {
	seed     uint64
	duration time.Duration
	all      bool
	// only selects cases by fields of their names; from is the first case of a whole pass.
	only, from string
	parent     string
	binary     string
}

// faultCase is one call that fails in one life.
type faultCase struct {
	life  string
	call  string
	error unix.Errno
	n     int
}

func (c faultCase) String() string {
	return fmt.Sprintf("%s:%s:%s:%d", c.life, c.call, unix.ErrnoName(c.error), c.n)
}

// matches tells whether each field of a pattern is one of the case's.
func (c faultCase) matches(pattern string) bool {
	fields := strings.Split(c.String(), ":")
	for field := range strings.SplitSeq(pattern, ":") {
		if _, err := strconv.Atoi(field); pattern != "" && err != nil && !slices.Contains(fields[:3], field) {
			return false
		}
	}
	return true
}

// number returns the number in a pattern; 0: it has none.
func number(pattern string) int {
	n, _ := strconv.Atoi(pattern[strings.LastIndex(pattern, ":")+1:])
	return n
}

func mainOneFault(args []string) {
	s := faultSettings{parent: os.TempDir()}
	flags := flag.NewFlagSet("soak one-fault", flag.ExitOnError)
	flags.DurationVar(&s.duration, "for", 10*time.Minute, "how long to go on with a sample of all cases, such as `1h`")
	flags.BoolVar(&s.all, "all", false, "try every case, however long it takes")
	flags.StringVar(&s.only, "only", "", "only the `cases` that have these fields of KIND:CALL:ERROR:N, such as fsync, raw:EIO, or ext4:rename:EIO:3")
	flags.StringVar(&s.from, "from", "", "with -all, the `case` to begin with, KIND:CALL:ERROR:N")
	flags.Uint64Var(&s.seed, "seed", rand.Uint64(), "the `number` that the sample follows from")
	flags.StringVar(&s.binary, "binary", "", "the `command` under test; empty: it is built")
	flags.StringVar(&s.parent, "dir", s.parent, "where to work: a `directory` with 10 GiB of room")
	_ = flags.Parse(args) // it exits
	if flags.NArg() > 0 || s.from != "" && !s.all {
		fmt.Fprintln(os.Stderr, "soak one-fault: see -help")
		os.Exit(2)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "soak: loop devices and mounts need root")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	x, err := newSearch(s, os.Stdout)
	if err == nil {
		err = x.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, "FAIL:", err)
		os.Exit(1)
	}
}

// search has one call after the other fail.
type search struct {
	faultSettings
	out      io.Writer
	rand     *rand.Rand
	dir      string // of the binary and the machine
	logs     string // of the agents in which something was wrong; empty: there are none
	injector *syscallfault.Injector
	// machine is one on which nothing was wrong yet, or nil.
	machine  *soak
	history  strings.Builder
	machines uint64
	begun    time.Time
	cases    int
	estimate int // of all cases
	tallies  map[string]*tally
	findings []string
}

// tally is what came of the cases of a call and an error.
type tally struct {
	cases, refused, retried, ended, findings int
}

func newSearch(s faultSettings, out io.Writer) (*search, error) {
	x := &search{faultSettings: s, out: out, rand: rand.New(rand.NewPCG(s.seed, 1)), begun: time.Now(), tallies: map[string]*tally{}}
	var err error
	if x.dir, err = os.MkdirTemp(s.parent, "one-fault"); err != nil {
		return nil, err
	}
	if x.binary == "" {
		if x.binary, err = command.Build(x.dir); err != nil {
			return nil, errors.Join(err, os.RemoveAll(x.dir))
		}
	}
	x.injector = syscallfault.New(func(path string) bool { return matters(path, x.dir) })
	return x, nil
}

// run tries cases until there are no more, or the time is over. The error tells that
// something was found.
func (x *search) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, x.end()) }()
	fmt.Fprintf(x.out, "seed %d\n", x.seed)
	strata, err := x.census()
	if err != nil {
		return err
	}
	if x.all || number(x.only) > 0 {
		err = x.wholePass(ctx, strata)
	} else {
		err = x.sample(ctx, strata)
	}
	x.table()
	if err == nil && len(x.findings) > 0 {
		err = fmt.Errorf("%d findings, the agents' logs in %s:\n%s", len(x.findings), x.logs, strings.Join(x.findings, "\n"))
	}
	return err
}

// end takes away all but the logs of findings.
func (x *search) end() error {
	if x.machine != nil {
		if err := x.machine.clear(); err != nil {
			return err
		}
	}
	return os.RemoveAll(x.dir)
}

// stratum are the cases of a life, a call and an error; n is how many there are about.
type stratum struct {
	faultCase
	life life
}

// census takes each life through without a fault, to see which calls there are.
func (x *search) census() ([]stratum, error) {
	var strata []stratum
	for _, l := range lives() {
		first := faultCase{life: l.name}
		if fields := strings.Split(x.only, ":"); x.only != "" && isLife(fields[0]) && fields[0] != first.life {
			continue
		}
		outcome, err := x.try(l, syscallfault.Fault{})
		if err != nil {
			return nil, fmt.Errorf("%s without a fault: %w", l.name, err)
		}
		fmt.Fprintf(x.out, "%s:", l.name)
		for _, call := range slices.Sorted(maps.Keys(outcome.counts)) {
			fmt.Fprintf(x.out, " %d %s", outcome.counts[call], call)
			for _, errno := range faults[call] {
				c := faultCase{l.name, call, errno, outcome.counts[call]}
				if c.matches(x.only) {
					strata = append(strata, stratum{c, l})
					x.estimate += c.n
				}
			}
		}
		fmt.Fprintln(x.out)
	}
	if len(strata) == 0 {
		return nil, fmt.Errorf("no case matches %q", x.only)
	}
	return strata, nil
}

func isLife(name string) bool {
	return slices.ContainsFunc(lives(), func(l life) bool { return l.name == name })
}

// wholePass tries each call in turn.
func (x *search) wholePass(ctx context.Context, strata []stratum) error {
	begun := x.from == ""
	for _, s := range strata {
		c := s.faultCase
		for c.n = 1; ctx.Err() == nil; c.n++ {
			if only := number(x.only); only > 0 {
				if c.n > only {
					break
				}
				c.n = only
			}
			if begun = begun || c.String() == x.from; !begun {
				if c.n > s.n {
					break
				}
				continue
			}
			there, err := x.one(s.life, c)
			if err != nil {
				return err
			}
			if !there && c.n >= s.n { // there may be more of them, or fewer, each time
				break
			}
		}
	}
	if !begun {
		return fmt.Errorf("there is no case %s", x.from)
	}
	return nil
}

// sample tries calls that are drawn, of each stratum one after another.
func (x *search) sample(ctx context.Context, strata []stratum) error {
	draws := make([][]int, len(strata))
	for i, s := range strata {
		draws[i] = shuffled(x.rand, s.n)
	}
	for more := true; more; {
		more = false
		for _, i := range x.rand.Perm(len(strata)) {
			if ctx.Err() != nil || time.Since(x.begun) >= x.duration {
				return nil
			}
			if len(draws[i]) == 0 {
				continue
			}
			c := strata[i].faultCase
			c.n, draws[i], more = draws[i][0], draws[i][1:], true
			if _, err := x.one(strata[i].life, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// shuffled returns the numbers from 1 to n in some order.
func shuffled(r *rand.Rand, n int) []int {
	all := r.Perm(n)
	for i := range all {
		all[i]++
	}
	return all
}

// one tries a case, and tells whether there was such a call.
func (x *search) one(l life, c faultCase) (bool, error) {
	begun := time.Now()
	o, wrong := x.try(l, syscallfault.Fault{Call: c.call, Error: c.error, N: c.n})
	failed := ownDir.ReplaceAllString(o.failed, "")
	x.cases++
	at := fmt.Sprintf("%s %d/%d %s", time.Since(x.begun).Round(time.Second), x.cases, x.estimate, c)
	if wrong == nil && o.step == "" {
		fmt.Fprintf(x.out, "%s: no such call\n", at)
		return false, nil
	}
	key := c.call + ":" + unix.ErrnoName(c.error)
	t := x.tallies[key]
	if t == nil {
		t = &tally{}
		x.tallies[key] = t
	}
	t.cases++
	how := "no effect"
	switch {
	case o.died:
		t.ended++
		how = "the agent ended"
	case o.refused > 0:
		t.refused++
		how = "refused"
	case o.warned:
		t.retried++
		how = "retried"
	}
	if wrong == nil {
		fmt.Fprintf(x.out, "%s, %s, %s: %s, %.1f s\n", at, o.step, failed, how, time.Since(begun).Seconds())
		return true, nil
	}
	t.findings++
	fmt.Fprintf(x.out, "%s, %s, %s\nFINDING %d: %s\n", at, o.step, failed,
		len(x.findings)+1, ownDir.ReplaceAllString(wrong.Error(), ""))
	x.findings = append(x.findings, fmt.Sprintf("%s (-only %s): %s: %s", failed, c, o.step, ownDir.ReplaceAllString(firstLine(wrong.Error()), "")))
	return true, x.keep(c)
}

// ownDir is the beginning of the paths of a machine's own files.
var ownDir = regexp.MustCompile(`/[^( ]*/stowage-soak[0-9]+/`)

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// try takes a life through. Where something is wrong, the machine is used no more.
func (x *search) try(l life, fault syscallfault.Fault) (outcome, error) {
	if x.machine == nil {
		x.machines++
		s := settings{seed: x.seed + x.machines, disksOneIn: math.MaxInt, parent: x.dir, binary: x.binary, retryMin: trialRetryMin}
		var err error
		if x.machine, err = newTrialMachine(s, x.injector, &x.history); err != nil {
			return outcome{}, fmt.Errorf("making a machine: %w", err)
		}
	}
	t := trial{soak: x.machine, injector: x.injector}
	err := t.run(l, fault)
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

// keep keeps the log of the agents of a case in which something was wrong, shows its end,
// and takes the machine away.
func (x *search) keep(c faultCase) error {
	if x.logs == "" {
		var err error
		if x.logs, err = os.MkdirTemp(x.parent, "one-fault-logs"); err != nil {
			return err
		}
	}
	x.history.Reset()
	x.machine.tell()
	log, err := os.ReadFile(x.machine.log)
	file := filepath.Join(x.logs, strings.ReplaceAll(c.String(), ":", "-"))
	err = errors.Join(err, os.WriteFile(file, append([]byte(x.history.String()), log...), 0o600), x.machine.clear())
	x.machine = nil
	fmt.Fprintf(x.out, "log: %s\nagain: -only %s\n", file, c)
	return err
}

// table tells what came of all cases.
func (x *search) table() {
	fmt.Fprintf(x.out, "\n%-20s %7s %7s %7s %7s %9s\n", "call:error", "cases", "refused", "retried", "ended", "findings")
	row := func(name string, t tally) {
		fmt.Fprintf(x.out, "%-20s %7d %7d %7d %7d %9d\n", name, t.cases, t.refused, t.retried, t.ended, t.findings)
	}
	var all tally
	for _, key := range slices.SortedFunc(maps.Keys(x.tallies), cmp.Compare) {
		t := *x.tallies[key]
		row(key, t)
		all.cases += t.cases
		all.refused += t.refused
		all.retried += t.retried
		all.ended += t.ended
		all.findings += t.findings
	}
	row("all", all)
	fmt.Fprintf(x.out, "seed %d, %s\n", x.seed, time.Since(x.begun).Round(time.Second))
}
