// Command bench measures the agent's state: how long it takes to declare, record, read and
// watch storage, with a thousand storage instances and with a hundred thousand, each a
// filesystem on a loop volume, all on one machine. It makes no devices.
//
// It writes a table in Markdown: the cost of each instance, and how that grows with their
// number. A cost for each instance that does not depend on their number grows by 1.0.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"

	"github.com/juju/errors"
)

// settings are the command's flags.
type settings struct {
	counts   []int
	rounds   int
	parent   string
	csv      string
	profiles string
}

func main() {
	var s settings
	counts := flag.String("n", "1000,10000,100000", "how many `instances` to measure with, ascending")
	flag.IntVar(&s.rounds, "rounds", 1, "how many `times` to measure; the least counts")
	flag.StringVar(&s.parent, "dir", os.TempDir(), "where to work: a `directory` on a real disk")
	flag.StringVar(&s.csv, "csv", "", "a `file` to write the figures to")
	flag.StringVar(&s.profiles, "profiles", "", "a `directory` to write a CPU profile of each step to")
	check := flag.Bool("check", false, "measure little, and exit with status 1 when something grows more than it should")
	flag.Parse()
	if *check {
		*counts, s.rounds = "1000,10000", 2
	}
	violations, err := run(s, *counts, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if *check && len(violations) > 0 {
		for _, line := range violations {
			fmt.Fprintln(os.Stderr, "bench:", line)
		}
		os.Exit(1)
	}
}

// run measures, reports, and returns the figures that exceed their bounds.
func run(s settings, counts string, out io.Writer) (violations []string, err error) {
	for text := range strings.SplitSeq(counts, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, errors.Errorf("-n %q: write numbers such as 1000,10000", counts)
		}
		s.counts = append(s.counts, n)
	}
	r := newReport(s.counts)
	for _, n := range s.counts {
		for range s.rounds {
			fmt.Fprintf(os.Stderr, "%d instances\n", n)
			all, err := s.measure(n)
			if err != nil {
				return nil, errors.Annotatef(err, "measuring with %d instances", n)
			}
			r.add(n, all)
		}
	}
	r.write(out)
	if s.csv == "" {
		return r.violations(), nil
	}
	file, err := os.Create(s.csv)
	if err != nil {
		return nil, errors.Trace(err)
	}
	r.writeCSV(file)
	return r.violations(), errors.Trace(file.Close())
}

// measure runs all steps in a new directory.
func (s settings) measure(n int) (all []figure, err error) {
	dir, err := os.MkdirTemp(s.parent, "stowage-bench-")
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil {
			err = errors.Trace(rerr)
		}
	}()
	w := &world{n: n, dir: dir}
	if err := w.open(); err != nil {
		return nil, errors.Trace(err)
	}
	defer func() {
		if cerr := w.close(); err == nil {
			err = errors.Trace(cerr)
		}
	}()
	var f figures
	for _, step := range steps {
		runtime.GC()
		stop, err := s.profile(n, step.name)
		if err != nil {
			return nil, errors.Trace(err)
		}
		step.do(w, &f)
		stop()
	}
	return f.all, errors.Trace(f.err)
}

// profile writes a CPU profile until stop is called, if profiles are wanted.
func (s settings) profile(n int, step string) (stop func(), err error) {
	if s.profiles == "" {
		return func() {}, nil
	}
	file, err := os.Create(fmt.Sprintf("%s/%d-%s.pprof", s.profiles, n, strings.ReplaceAll(step, " ", "-")))
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Trace(err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}
