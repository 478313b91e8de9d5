// Command soak uses the stowage command for a long time, on real devices, while its agent is
// killed repeatedly.
//
// A random user makes, attaches, detaches, grows and removes storage of all kinds, writes to it,
// and makes and deletes snapshots, and storage from them. At some moment, mostly in the middle of an operation, the agent is killed; or the
// disk with its state fails, or the one with everything else, or both, with the data that was
// not synced, and comes back. The agent is restarted, and when it has converged, everything is
// checked: whatever was requested and acknowledged exists, and nothing else does, in the
// agent's status, in the kernel, and on the disk; and all data that was written and synced can
// be read. At the end everything is removed, and nothing may be left.
//
// Now and then the machine's administrator restores an older state, copies the agent's
// directory, moves it, or loses the state: storage that was made since the backup must be
// found as orphans, storage that was removed must be missing, a copy must not affect the
// original, and no storage may ever be attached with the data of another.
//
// Other programs of the machine unmount filesystems and mount over them, detach loop devices,
// discard blocks, keep copies of the mounts in another mount namespace, and fill the storage's
// disk.
//
// The user's choices follow from a seed; the timing of events does not.
//
// "soak one-fault" is another search on the same machine: it makes one system call of the
// agent fail once while storage of one kind goes through its life. See its -help.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/syscallfault"
)

// settings say how long to run, and how.
type settings struct {
	// crashes is the number of crashes, unless duration is set.
	crashes  int
	duration time.Duration
	seed     uint64
	// disksOneIn says that one crash in so many is of disks.
	disksOneIn int
	// Each of these events happens once in so many rounds; 0: never.
	restoreEvery, copyEvery, moveEvery, loseEvery, interfereEvery int
	// withDriver says that there is a CSI driver, and storage of it.
	withDriver bool
	// keep leaves everything in place after a failure.
	keep bool
	// parent is the directory to work in.
	parent string
	// binary is the command under test. Empty: it is built.
	binary string
	// retryMin is the agent's delay before its first retry.
	retryMin time.Duration
}

// soonRetry makes a soak's agent retry before a user would give up.
const soonRetry = 250 * time.Millisecond

func main() {
	syscallfault.Main()
	if len(os.Args) > 1 && os.Args[1] == "one-fault" {
		mainOneFault(os.Args[2:])
		return
	}
	if len(os.Args) > 1 && os.Args[1] == workerArg {
		mainWorker()
		return
	}
	s := settings{parent: os.TempDir(), keep: os.Getenv("KEEP") == "1", retryMin: soonRetry}
	flag.IntVar(&s.crashes, "crashes", 500, "how many `times` to crash")
	flag.DurationVar(&s.duration, "for", 0, "how long to go on instead, such as `1h`")
	flag.Uint64Var(&s.seed, "seed", rand.Uint64(), "the `number` that the user's choices follow from")
	flag.IntVar(&s.disksOneIn, "disks-one-in", 10, "one crash in so `many` is of disks")
	flag.IntVar(&s.restoreEvery, "restore-every", 9, "an older state comes back once in so many `rounds`; 0: never")
	flag.IntVar(&s.copyEvery, "copy-every", 25, "the data directory is copied once in so many `rounds`; 0: never")
	flag.IntVar(&s.moveEvery, "move-every", 25, "the data directory is moved once in so many `rounds`; 0: never")
	flag.IntVar(&s.loseEvery, "lose-every", 25, "the state is lost once in so many `rounds`; 0: never")
	flag.IntVar(&s.interfereEvery, "meddle-every", 3, "other programs meddle once in so many `rounds`; 0: never")
	flag.BoolVar(&s.withDriver, "driver", true, "use storage of a CSI driver too")
	flag.StringVar(&s.binary, "binary", "", "the `command` under test; empty: it is built")
	flag.StringVar(&s.parent, "dir", s.parent, "where to work: a `directory` with 10 GiB of room")
	flag.Parse()
	if flag.NArg() > 0 || s.crashes < 1 || s.duration < 0 || s.disksOneIn < 1 ||
		min(s.restoreEvery, s.copyEvery, s.moveEvery, s.loseEvery, s.interfereEvery) < 0 {
		fmt.Fprintln(os.Stderr, "soak: see -help")
		os.Exit(2)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "soak: loop devices and mounts need root")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, "FAIL:", err)
		os.Exit(1)
	}
}

// run runs until all crashes have happened, the time is over, or the context ends, and then
// checks that nothing is left. The error describes the first problem.
func run(ctx context.Context, settings settings, out io.Writer) (err error) {
	s, err := newSoak(settings, out)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.printFailure()
			if s.keep {
				fmt.Fprintf(out, "kept for inspection: %s\n", s.dir)
				return
			}
		}
		if cerr := s.clear(); err == nil {
			err = cerr
		}
		if err == nil {
			s.figures.write(out, s.seed)
		}
	}()
	fmt.Fprintf(out, "seed %d, state on %s, storage on %s\n", s.seed, s.stateDisk.kind, s.dataDisk.kind)
	if err := s.begin(); err != nil {
		return err
	}
	for ctx.Err() == nil && !s.finished() {
		if err := s.round(); err != nil {
			return err
		}
		if err := s.runEvents(); err != nil {
			return err
		}
		s.figures.progress(out, len(s.all))
	}
	return s.end()
}

func (s *soak) finished() bool {
	if s.duration > 0 {
		return time.Since(s.figures.begun) >= s.duration
	}
	return s.figures.crashes() >= s.crashes
}
