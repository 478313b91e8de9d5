// Command soak uses the stowage command for a long time, on real devices, while its
// agent is killed again and again.
//
// A user at random makes, attaches, detaches, grows and removes storage of all kinds,
// and writes to it. At some moment, mostly in the middle of what was asked for, the agent
// is killed; or the disk that its state is on goes, or the one with all else, or both,
// with what was not synced, and comes back. The agent is started again, and when it has
// done what is wanted, all is looked at: that what had been asked for and acknowledged is
// there and nothing else is, in the agent's view, in the kernel, and on the disk, and
// that all which was written and synced can be read. At the end all is removed, and
// nothing may be left.
//
// Now and then the machine's administrator puts an older state back, copies the agent's
// directory, moves it, or loses the state: what was made since the backup must be found as
// orphans, what was removed must be missing, a copy must leave the original alone, and no
// storage may ever be attached with the data of another.
//
// Other programs of the machine unmount filesystems and mount over them, detach loop devices,
// discard, keep copies of the mounts in a namespace of their own, and fill the storage's disk.
//
// The user's choices follow from a seed; when what happens does not.
//
// "soak one-fault" is another search on the same machine: it has one system call of the
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

// settings say how long to go on, and how.
type settings struct {
	// crashes is how many there are, unless duration says for how long.
	crashes  int
	duration time.Duration
	seed     uint64
	// disksOneIn is how many crashes there are for one of disks.
	disksOneIn int
	// Each of these events happens once in so many rounds; 0: never.
	restoreEvery, copyEvery, moveEvery, loseEvery, meddleEvery int
	// keep leaves everything in place after a failure.
	keep bool
	// parent is where to work.
	parent string
	// binary is the command under test. Empty: it is built.
	binary string
	// retryMin is how soon the agent tries again what has failed.
	retryMin time.Duration
}

// soonRetry makes a soak's agent try again before a user would give up.
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
	flag.IntVar(&s.meddleEvery, "meddle-every", 3, "other programs meddle once in so many `rounds`; 0: never")
	flag.StringVar(&s.binary, "binary", "", "the `command` under test; empty: it is built")
	flag.StringVar(&s.parent, "dir", s.parent, "where to work: a `directory` with 10 GiB of room")
	flag.Parse()
	if flag.NArg() > 0 || s.crashes < 1 || s.duration < 0 || s.disksOneIn < 1 ||
		min(s.restoreEvery, s.copyEvery, s.moveEvery, s.loseEvery, s.meddleEvery) < 0 {
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

// run goes on until all crashes have been, or the time is over, or the context ends, and
// then sees that nothing is left. The error is the first thing that is wrong.
func run(ctx context.Context, settings settings, out io.Writer) (err error) {
	s, err := newSoak(settings, out)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.tell()
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
	for ctx.Err() == nil && !s.over() {
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

func (s *soak) over() bool {
	if s.duration > 0 {
		return time.Since(s.figures.begun) >= s.duration
	}
	return s.figures.crashes() >= s.crashes
}
