package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
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
	seed uint64
	// duration is how long to run; zero: until all cases are tried.
	duration time.Duration
	// every makes each call fail, rather than one of each class.
	every bool
	// only selects cases by fields of their names; from is the first case to try.
	only, from string
	// jobs is the number of machines at a time.
	jobs   int
	parent string
	binary string
}

// faultCase is one call that fails in one life.
type faultCase struct {
	Life  string
	Call  string
	Error unix.Errno
	// Class is the ID of a class of calls whose Nth call fails. If Class is empty, the Nth
	// of all calls of the name fails.
	Class string
	N     int
}

func (c faultCase) String() string {
	n := strconv.Itoa(c.N)
	if c.Class != "" {
		n = "@" + c.Class + "/" + n
	}
	return fmt.Sprintf("%s:%s:%s:%s", c.Life, c.Call, unix.ErrnoName(c.Error), n)
}

// parseCase is the inverse of String.
func parseCase(text string) (c faultCase, err error) {
	fields := strings.Split(text, ":")
	if len(fields) != 4 {
		return c, fmt.Errorf("%q is not KIND:CALL:ERROR:N or KIND:CALL:ERROR:@CLASS/N", text)
	}
	c.Life, c.Call = fields[0], fields[1]
	for _, errno := range faults[c.Call] {
		if unix.ErrnoName(errno) == fields[2] {
			c.Error = errno
		}
	}
	p := parsePattern(fields[3])
	if c.Class, c.N = p.class, p.n; c.Error == 0 || !isLife(c.Life) || c.Class == "" && c.N == 0 {
		return c, fmt.Errorf("there is no case %q", text)
	}
	return c, nil
}

func (c faultCase) fault() syscallfault.Fault {
	return syscallfault.Fault{Call: c.Call, Error: c.Error, Class: c.Class, N: c.N}
}

// pattern selects cases by fields of their names, in any order.
type pattern struct {
	fields []string
	class  string
	n      int
}

func parsePattern(text string) pattern {
	var p pattern
	for field := range strings.SplitSeq(text, ":") {
		if n, err := strconv.Atoi(field); err == nil {
			p.n = n
		} else if class, ok := strings.CutPrefix(field, "@"); ok {
			class, number, _ := strings.Cut(class, "/")
			p.class = class
			p.n, _ = strconv.Atoi(number) // none: it is drawn
		} else if field != "" {
			p.fields = append(p.fields, field)
		}
	}
	return p
}

// single reports whether the pattern is about a call that is counted among all of its name.
func (p pattern) single() bool { return p.class == "" && p.n > 0 }

// matches reports whether each field, except the number, is one of the case's.
func (p pattern) matches(c faultCase) bool {
	if p.class != "" && c.Class != p.class {
		return false
	}
	for _, field := range p.fields {
		if field != c.Life && field != c.Call && field != unix.ErrnoName(c.Error) {
			return false
		}
	}
	return true
}

func mainOneFault(args []string) {
	s := faultSettings{parent: os.TempDir()}
	flags := flag.NewFlagSet("soak one-fault", flag.ExitOnError)
	flags.DurationVar(&s.duration, "for", 0, "how long to go on, with cases in an order that is drawn, such as `1h`; 0: until all are tried")
	flags.BoolVar(&s.every, "every", false, "try each call, rather than one of each class, however long it takes")
	flags.StringVar(&s.only, "only", "", "only the `cases` that have these fields of KIND:CALL:ERROR:@CLASS/N, or of KIND:CALL:ERROR:N with N counted over all classes, such as fsync, raw:EIO, or ext4:rename:EIO:3")
	flags.StringVar(&s.from, "from", "", "the `case` to begin with")
	flags.Uint64Var(&s.seed, "seed", rand.Uint64(), "the `number` that says which call of each class fails")
	flags.IntVar(&s.jobs, "jobs", 2*runtime.NumCPU(), "how `many` machines to use at a time; half of a case is waiting")
	flags.StringVar(&s.binary, "binary", "", "the `command` under test; empty: it is built")
	flags.StringVar(&s.parent, "dir", s.parent, "where to work: a `directory` with 10 GiB of room")
	_ = flags.Parse(args) // it exits
	if flags.NArg() > 0 || s.jobs < 1 || s.from != "" && s.duration > 0 {
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

// search makes one call after the other fail.
type search struct {
	faultSettings
	out      io.Writer
	rand     *rand.Rand
	dir      string // of the binary and the machines
	logs     string // of the agents of findings; empty: there are none
	begun    time.Time
	cases    int
	planned  int // cases
	tallies  map[string]*tally
	findings []string
}

// tally counts the outcomes of the cases of a call and an error.
type tally struct {
	cases, refused, retried, ended, unreached, findings int
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
	return x, nil
}

// run tries cases until there are no more, or the time is over. It returns an error if it has
// findings.
func (x *search) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, x.end()) }()
	fmt.Fprintf(x.out, "seed %d\n", x.seed)
	workers, err := startWorkers(x.faultSettings, x.dir)
	defer func() { err = errors.Join(err, workers.end()) }()
	if err != nil {
		return err
	}
	plan, err := x.census(workers)
	if err == nil {
		plan, err = x.begin(plan)
	}
	if err != nil {
		return err
	}
	x.begun = time.Now()
	if x.planned = len(plan); x.duration > 0 {
		x.rand.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, x.duration)
		defer cancel()
	}
	err = workers.each(ctx, plan, x.note)
	x.table()
	if err == nil && len(x.findings) > 0 {
		err = fmt.Errorf("%d findings, the agents' logs in %s:\n%s", len(x.findings), x.logs, strings.Join(x.findings, "\n"))
	}
	return err
}

// end removes everything except the logs of findings.
func (x *search) end() error { return os.RemoveAll(x.dir) }

// census runs each life without a fault, to count its calls, and returns the cases to try.
func (x *search) census(workers *workers) ([]faultCase, error) {
	only := parsePattern(x.only)
	var runs []faultCase
	for _, l := range lives() {
		if !slices.ContainsFunc(only.fields, isLife) || slices.Contains(only.fields, l.name) {
			runs = append(runs, faultCase{Life: l.name})
		}
	}
	var plan []faultCase
	all := 0
	type class struct{ call, id string }
	members := map[class][]faultCase{} // N is the number of calls in the life
	err := workers.each(context.Background(), runs, func(r result) error {
		if r.Wrong != "" {
			return fmt.Errorf("%s without a fault: %s", r.Life, r.Wrong)
		}
		fmt.Fprintf(x.out, "%s:", r.Life)
		for _, call := range slices.Sorted(maps.Keys(r.Counts)) {
			fmt.Fprintf(x.out, " %d %s", r.Counts[call], call)
			for _, errno := range faults[call] {
				c := faultCase{Life: r.Life, Call: call, Error: errno}
				if !(pattern{fields: only.fields}).matches(c) {
					continue
				}
				all += r.Counts[call]
				for n := 1; n <= r.Counts[call] && (x.every || only.single()); n++ {
					if c.N = n; only.n == 0 || only.n == n {
						plan = append(plan, c)
					}
				}
			}
		}
		fmt.Fprintln(x.out)
		for _, c := range r.Classes {
			key := class{c.Call, c.ID}
			members[key] = append(members[key], faultCase{Life: r.Life, Call: c.Call, Class: c.ID, N: c.Count})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	classes := 0
	keys := slices.SortedFunc(maps.Keys(members), func(a, b class) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.id, b.id))
	})
	for _, key := range keys {
		slices.SortFunc(members[key], func(a, b faultCase) int { return cmp.Compare(a.Life, b.Life) })
		for _, errno := range faults[key.call] {
			c := draw(x.rand, members[key])
			if c.Error = errno; !only.matches(c) {
				continue
			}
			classes++
			if only.n > 0 {
				c.N = only.n
			}
			if !x.every && !only.single() {
				plan = append(plan, c)
			}
		}
	}
	if len(plan) == 0 {
		return nil, fmt.Errorf("no case matches %q", x.only)
	}
	slices.SortFunc(plan, byName)
	fmt.Fprintf(x.out, "%d calls that can fail, each with each error, in %d classes; %d cases to try\n", all, classes, len(plan))
	return plan, nil
}

// draw returns one of the calls of a class, which may be in several lives.
func draw(r *rand.Rand, lives []faultCase) faultCase {
	all := 0
	for _, c := range lives {
		all += c.N
	}
	n := r.IntN(all)
	for _, c := range lives {
		if n < c.N {
			c.N = n + 1
			return c
		}
		n -= c.N
	}
	panic("unreachable")
}

// byName is the order in which cases are tried. The kind of storage is drawn for a class, so
// it does not count.
func byName(a, b faultCase) int {
	byLife := 0
	if a.Class == "" && b.Class == "" {
		byLife = cmp.Compare(a.Life, b.Life)
	}
	return cmp.Or(byLife, cmp.Compare(a.Call, b.Call), cmp.Compare(unix.ErrnoName(a.Error), unix.ErrnoName(b.Error)),
		cmp.Compare(a.Class, b.Class), cmp.Compare(a.N, b.N))
}

// begin returns the cases from the one with which the search begins. The set of cases differs
// a little from one census to the next.
func (x *search) begin(plan []faultCase) ([]faultCase, error) {
	if x.from == "" {
		return plan, nil
	}
	from, err := parseCase(x.from)
	if err != nil {
		return nil, err
	}
	if from.Class != "" {
		from.N = 0 // it is drawn
	}
	i, _ := slices.BinarySearchFunc(plan, from, byName)
	return plan[i:], nil
}

func isLife(name string) bool {
	_, ok := lifeOf(name)
	return ok
}

func lifeOf(name string) (life, bool) {
	for _, l := range lives() {
		if l.name == name {
			return l, true
		}
	}
	return life{}, false
}

// note prints and counts the outcome of a case.
func (x *search) note(r result) error {
	x.cases++
	since := time.Since(x.begun)
	at := fmt.Sprintf("%s %d/%d", since.Round(time.Second), x.cases, x.planned)
	left := since / time.Duration(x.cases) * time.Duration(max(0, x.planned-x.cases))
	if x.duration > 0 {
		left = min(left, x.duration-since)
	}
	at = fmt.Sprintf("%s, %s left, %s", at, left.Round(time.Second), r.faultCase)
	key := r.Call + ":" + unix.ErrnoName(r.Error)
	t := x.tallies[key]
	if t == nil {
		t = &tally{}
		x.tallies[key] = t
	}
	t.cases++
	if r.Wrong == "" && r.Step == "" {
		t.unreached++
		fmt.Fprintf(x.out, "%s: no such call\n", at)
		return nil
	}
	how := "no effect"
	switch {
	case r.Died:
		t.ended++
		how = "the agent ended"
	case r.Refused:
		t.refused++
		how = "refused"
	case r.Warned:
		t.retried++
		how = "retried"
	}
	if r.Wrong == "" {
		fmt.Fprintf(x.out, "%s, %s, %s: %s, %.1f s\n", at, r.Step, r.Failed, how, r.Seconds)
		return nil
	}
	t.findings++
	fmt.Fprintf(x.out, "%s, %s, %s\nFINDING %d: %s\n", at, r.Step, r.Failed, len(x.findings)+1, r.Wrong)
	x.findings = append(x.findings, fmt.Sprintf("%s (-only %s): %s: %s", r.Failed, r.faultCase, r.Step, firstLine(r.Wrong)))
	return x.keep(r)
}

// ownDir matches the beginning of the paths of a machine's own files.
var ownDir = regexp.MustCompile(`/[^( ]*/stowage-soak[0-9]+/`)

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// keep keeps the log of the agents of a finding.
func (x *search) keep(r result) error {
	if x.logs == "" {
		var err error
		if x.logs, err = os.MkdirTemp(x.parent, "one-fault-logs"); err != nil {
			return err
		}
	}
	file := filepath.Join(x.logs, strings.NewReplacer(":", "-", "/", "-").Replace(r.String()))
	err := os.WriteFile(file, []byte(r.Log), 0o600)
	fmt.Fprintf(x.out, "log: %s\nagain: -only %s\n", file, r.faultCase)
	return err
}

// table prints the outcomes of all cases.
func (x *search) table() {
	fmt.Fprintf(x.out, "\n%-20s %7s %7s %7s %7s %9s %9s\n", "call:error", "cases", "refused", "retried", "ended", "unreached", "findings")
	row := func(name string, t tally) {
		fmt.Fprintf(x.out, "%-20s %7d %7d %7d %7d %9d %9d\n", name, t.cases, t.refused, t.retried, t.ended, t.unreached, t.findings)
	}
	var all tally
	for _, key := range slices.SortedFunc(maps.Keys(x.tallies), cmp.Compare) {
		t := *x.tallies[key]
		row(key, t)
		all.cases += t.cases
		all.refused += t.refused
		all.retried += t.retried
		all.ended += t.ended
		all.unreached += t.unreached
		all.findings += t.findings
	}
	row("all", all)
	fmt.Fprintf(x.out, "seed %d, %s\n", x.seed, time.Since(x.begun).Round(time.Second))
}
