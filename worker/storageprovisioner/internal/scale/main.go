// Command scale measures the storage provisioner: what a volume with its attachment
// costs the worker, from a thousand of them to a million, beside a floor: the same
// calls made without it.
//
// State and provider are in memory and do at once what they are told (package world),
// so that what is left is the worker.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

func main() {
	numbers := flag.String("n", "1000,10000,100000,1000000", "how many `entities` to measure with, separated by commas")
	only := flag.String("workload", "", "the `names` of the workloads to measure, separated by commas; empty: all")
	cpu := flag.String("cpuprofile", "", "write a CPU profile of the worker's phases to this `file`; floors are left out")
	mem := flag.String("memprofile", "", "write a profile of all allocations to this `file`; floors are left out")
	flag.Parse()
	if err := run(*numbers, *only, *cpu, *mem); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(2)
	}
}

func run(numbers, only, cpu, mem string) (err error) {
	if cpu != "" {
		file, err := os.Create(cpu)
		if err != nil {
			return errors.Trace(err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return errors.Trace(err)
		}
		defer pprof.StopCPUProfile()
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "workload\tn\ttime\tns/entity\tfloor\tratio\taccessor calls\tprovider calls\tallocs\tbytes\tlive\tgoroutines\tphases\t")
	for _, number := range strings.Split(numbers, ",") {
		n, err := strconv.Atoi(number)
		if err != nil {
			return errors.Annotate(err, "-n")
		}
		for _, wl := range workloads {
			if only != "" && !strings.Contains(","+only+",", ","+wl.name+",") {
				continue
			}
			if err := measure(out, wl, n, cpu == "" && mem == ""); err != nil {
				return errors.Annotatef(err, "%s with %d", wl.name, n)
			}
			out.Flush()
		}
	}
	if mem == "" {
		return nil
	}
	file, err := os.Create(mem)
	if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	return errors.Trace(pprof.Lookup("allocs").WriteTo(file, 0))
}

func measure(out *tabwriter.Writer, wl workload, n int, withFloor bool) error {
	var ground *floor
	if withFloor {
		var err error
		if ground, err = newFloor(world.New(wl.options(n))); err != nil {
			return err
		}
		runtime.GC()
		if err := wl.floor(ground); err != nil {
			return errors.Annotate(err, "floor")
		}
	} else {
		ground = &floor{}
	}
	ground.world = nil
	ground.state.Volumes = nil

	c := &course{world: world.New(wl.options(n))}
	runtime.GC()
	if err := wl.run(c); err != nil {
		return err
	}
	live, err := c.stop()
	if err != nil {
		return err
	}
	per := func(x uint64) uint64 { return x / uint64(n) }
	fmt.Fprintf(out, "%s\t%d\t%s\t%d\t%d\t%.2f\t%d\t%d\t%d\t%d\t%d\t%d\t%v\t\n", wl.name, n, c.took().Round(time.Microsecond),
		per(uint64(c.took())), per(uint64(ground.took)), float64(c.took())/float64(ground.took),
		c.used.accessorCalls, c.used.providerCalls, per(c.used.mallocs), per(c.used.bytes), per(live), c.goroutines, c.phases)
	return nil
}
