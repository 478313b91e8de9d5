// Command scale measures the cost of the storage provisioner for a volume with its attachment,
// with a thousand to a million volumes, and compares it with a floor: the same calls made
// without the worker.
//
// State and provider are in memory and act at once (package world), so that the remaining cost
// is the worker's.
//
// The command writes a table and says which targets are met. On request it also writes CSV and
// a plot. Compare times only as ratios within one run. To see where the time goes:
//
//	go run ./worker/storageprovisioner/internal/scale -workload bulk -n 100000 -cpuprofile cpu.pprof
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
)

// settings say what to measure and where to write the results.
type settings struct {
	numbers   []int
	workloads []workload
	// runs is how often a workload with few entities is measured; the best run counts.
	runs                      int
	bounds                    bounds
	csv, plot                 string
	cpuProfile, memoryProfile string
}

// repeatedUpTo is the number of entities above which a workload is measured at most twice.
const repeatedUpTo = 100_000

func main() {
	s, check, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	var missed int
	if err == nil {
		missed, err = s.run(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(2)
	}
	if check && missed > 0 {
		os.Exit(1)
	}
}

// parse returns the settings of the arguments, and whether to fail when a bound is missed.
func parse(args []string) (s settings, check bool, err error) {
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	numbers := flags.String("n", "1000,10000,100000,1000000", "with how many `entities` to measure, separated by commas")
	only := flags.String("workload", "", "the `names` of the workloads to measure, separated by commas; empty: all")
	delay := flags.Duration("accessor-delay", time.Millisecond, "how long each accessor call takes in trickle-slow")
	flags.IntVar(&s.runs, "runs", 3, fmt.Sprintf("measure that many `times`, at most twice with more than %d entities; the best counts", repeatedUpTo))
	flags.StringVar(&s.csv, "csv", "", "write the table to this `file` as well")
	flags.StringVar(&s.plot, "plot", "", "draw what an entity costs in this SVG `file`")
	flags.StringVar(&s.cpuProfile, "cpuprofile", "", "write a CPU profile to this `file`; floors are left out")
	flags.StringVar(&s.memoryProfile, "memprofile", "", "write a profile of allocations to this `file`; floors are left out")
	flags.BoolVar(&check, "check", false, "measure little, and exit with status 1 when a ratio is far from what it should be")
	if err := flags.Parse(args); err != nil {
		return settings{}, false, err
	}
	s.bounds = targets
	if check {
		s.bounds = alarms
		*numbers = fmt.Sprintf("%d,%d", alarms.small, alarms.large)
	}
	if s.numbers, err = parseNumbers(*numbers); err != nil {
		return settings{}, false, errors.Annotate(err, "-n")
	}
	s.workloads, err = choose(workloads(*delay), *only)
	return s, check, errors.Annotate(err, "-workload")
}

func parseNumbers(list string) ([]int, error) {
	var numbers []int
	for field := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return nil, errors.NotValidf("number of entities %q", field)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// choose returns the workloads in a list of names, or all if the list is empty.
func choose(all []workload, list string) ([]workload, error) {
	if list == "" {
		return all, nil
	}
	var chosen []workload
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(wl workload) bool { return wl.name == name })
		if i < 0 {
			return nil, errors.NotFoundf("workload %q (there are: %s)", name, strings.Join(convert(all, workload.String), ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func (wl workload) String() string { return wl.name }

// run measures and writes everything, and returns how many bounds are missed.
func (s settings) run(out io.Writer) (missed int, err error) {
	var all rows
	var tried []verdict
	err = s.profiled(func() error {
		if all, err = s.measure(out); err != nil {
			return err
		}
		tried, err = s.try(out)
		return err
	})
	if err != nil {
		return 0, errors.Trace(err)
	}
	fmt.Fprintln(out)
	for _, v := range append(s.bounds.judge(all), tried...) {
		fmt.Fprintln(out, v)
		if !v.held() {
			missed++
		}
	}
	if err := writeFile(s.csv, func(out io.Writer) error { return writeCSV(out, all) }); err != nil {
		return 0, err
	}
	return missed, writeFile(s.plot, func(out io.Writer) error { return writePlot(out, all) })
}

// measure measures the workloads of the table, and writes the table as it goes.
func (s settings) measure(out io.Writer) (rows, error) {
	tabled := slices.DeleteFunc(slices.Clone(s.workloads), func(wl workload) bool { return wl.try != nil })
	if len(tabled) == 0 {
		return nil, nil
	}
	if err := writeHead(out); err != nil {
		return nil, err
	}
	var all rows
	for _, wl := range tabled {
		for _, n := range s.numbers {
			if wl.most > 0 && n > wl.most {
				continue
			}
			times := s.runs
			if n > repeatedUpTo {
				times = min(times, 2) // the second run reuses the memory that the first had to allocate
			}
			r, err := measure(wl, n, times, s.cpuProfile == "" && s.memoryProfile == "")
			if err != nil {
				return nil, err
			}
			all = append(all, r)
			if err := writeRow(out, all, r); err != nil {
				return nil, err
			}
		}
	}
	_, err := fmt.Fprintf(out, "\n%s\n", legend)
	return all, errors.Trace(err)
}

// try runs the workloads without a row in the table, with the greatest number of entities.
func (s settings) try(out io.Writer) ([]verdict, error) {
	var all []verdict
	for _, wl := range s.workloads {
		if wl.try == nil {
			continue
		}
		verdicts, err := wl.try(out, slices.Max(s.numbers), s.bounds)
		if err != nil {
			return nil, errors.Trace(err)
		}
		all = append(all, verdicts...)
	}
	return all, nil
}

// profiled calls do and writes the profiles of the settings.
func (s settings) profiled(do func() error) error {
	if s.cpuProfile != "" {
		unprofiled := do
		do = func() error {
			return writeFile(s.cpuProfile, func(out io.Writer) error {
				if err := pprof.StartCPUProfile(out); err != nil {
					return errors.Trace(err)
				}
				defer pprof.StopCPUProfile()
				return unprofiled()
			})
		}
	}
	if err := do(); err != nil {
		return err
	}
	return writeFile(s.memoryProfile, func(out io.Writer) error {
		return errors.Trace(pprof.Lookup("allocs").WriteTo(out, 0))
	})
}

// writeFile writes a file; with an empty name it does nothing.
func writeFile(name string, write func(io.Writer) error) (err error) {
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return errors.Trace(err)
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = errors.Trace(cerr)
		}
	}()
	return write(file)
}
