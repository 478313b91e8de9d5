// Command bench measures the data plane: how long the providers take to make and remove
// volumes, filesystems and mounts, compared with the classic commands and with bare system
// calls, all in one run on one machine.
//
// It prints a table in Markdown and says which targets are met. It needs root. It removes
// everything that it made when it ends, also when it is interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// settings hold how much is measured.
type settings struct {
	// volumes is the number of volumes that exist at once, size the size of each in MiB, and
	// rounds the number of measurements.
	volumes int
	size    uint64
	rounds  int
	// loops is the number of volumes that one bulk call attaches. It is compared with a call
	// for a tenth of them.
	loops int
}

func main() {
	s := settings{volumes: 100, size: 64, rounds: 5, loops: 1000}
	flag.IntVar(&s.volumes, "volumes", s.volumes, "how many `volumes` to have at once")
	flag.Uint64Var(&s.size, "size", s.size, "size of a volume in `MiB`")
	flag.IntVar(&s.rounds, "rounds", s.rounds, "how many `times` to measure; the median counts")
	flag.IntVar(&s.loops, "loops", s.loops, "how many `volumes` to attach in one call, beside a tenth of them")
	dir := flag.String("dir", os.TempDir(), "where to work: a `directory` on a real disk")
	check := flag.Bool("check", false, "measure little, and exit with status 1 when a ratio is worse than what is known here")
	flag.Parse()
	if *check {
		s = settings{volumes: 20, size: 16, rounds: 3, loops: 200}
	}

	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	worse, err := run(ctx, s, *dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if *check && worse > 0 {
		os.Exit(1)
	}
}

// run measures, writes the report, cleans up, and returns the number of ratios that exceed
// their bounds.
func run(ctx context.Context, s settings, parent string) (worse int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("it needs root: it makes loop devices and mounts")
	}
	place, err := makePlace(parent)
	if err != nil {
		return 0, errors.Trace(err)
	}
	defer func() {
		if rerr := place.remove(); err == nil {
			err = errors.Trace(rerr)
		}
	}()
	if err := place.fit(&s); err != nil {
		return 0, errors.Trace(err)
	}

	var r results
	if r.volumes, err = measureVolumes(ctx, s, place); err != nil {
		return 0, errors.Annotate(err, "measuring volumes")
	}
	if r.mounts, err = measureMounts(ctx, s, place); err != nil {
		return 0, errors.Annotate(err, "measuring mounts")
	}
	if r.few, r.many, err = measureLoops(ctx, s, place); err != nil {
		return 0, errors.Annotate(err, "measuring many loop devices")
	}
	return r.write(os.Stdout, s, place), nil
}
