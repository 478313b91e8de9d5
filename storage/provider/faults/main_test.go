//go:build linux && faults

package faults

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const insideEnv = "STOWAGE_FAULTS_INSIDE"

// TestMain runs the tests in a mount namespace of their own, on a disk in memory, so that
// the machine's mounts and files are not affected.
func TestMain(m *testing.M) {
	if text := os.Getenv(taskEnv); text != "" {
		os.Exit(childMain(text))
	}
	if what := os.Getenv(holderEnv); what != "" {
		os.Exit(holderMain(what))
	}
	if os.Geteuid() == 0 && os.Getenv(insideEnv) == "" {
		os.Exit(inside())
	}
	code := m.Run()
	results.print()
	os.Exit(code)
}

// inside runs this program again in a mount namespace of its own.
func inside() int {
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		panic(err)
	}
	defer os.Remove(dir)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	// An interrupt reaches the child too. This process waits until it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT)
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		panic(err)
	}
	return cmd.ProcessState.ExitCode()
}

// prepare sets up the namespace for the tests, once.
var prepare = sync.OnceValue(func() error {
	dir := os.Getenv(insideEnv)
	// Copies of other tests' mounts would keep those busy.
	others, err := mountinfo.GetMounts(mountinfo.PrefixFilter(os.TempDir()))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(others) {
		if m.Mountpoint == os.TempDir() {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
			return err
		}
	}
	if err := unix.Mount("faults", dir, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return err
	}
	id, err := os.ReadFile(bootID)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "boot_id"), id, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(filepath.Join(dir, "boot_id"), bootID, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	// Processes whose parents are killed become children of this one.
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
})

const bootID = "/proc/sys/kernel/random/boot_id"

// boot changes the boot ID of the machine, in this namespace.
func boot(t testing.TB, id string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(os.Getenv(insideEnv), "boot_id"), []byte(id+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

var (
	oneIn = flag.Uint64("one-in", 1, "run one in `N` of the steps at which a fault is injected, chosen by -seed")
	part  = flag.Uint64("part", 0, "run the sample with this `number` below N: the samples of all numbers together are all steps")
	seed  = flag.Uint64("seed", 1, "the `seed` that chooses steps")
)

// inSample reports whether a step with a name is chosen.
func inSample(name string) bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", *seed, name)
	n := max(*oneIn, 1)
	return h.Sum64()%n == *part%n
}

// results is the table that is printed at the end.
var results table

type table struct {
	mu   sync.Mutex
	rows []*row
}

// row is the result of one fault.
type row struct {
	fault        string
	cases, steps int
	// sampled says that the short form injects the fault at some steps only.
	sampled bool
	// operators says that the sample includes the operations that operators ask for.
	operators bool
	failed    int
	time      time.Duration
}

// begin adds the row of a fault. It is complete when the test ends.
func begin(t *testing.T, fault string) *row {
	t.Helper()
	if os.Geteuid() == 0 {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
	}
	r := &row{fault: fault}
	results.mu.Lock()
	results.rows = append(results.rows, r)
	results.mu.Unlock()
	start := time.Now()
	t.Cleanup(func() {
		r.time = time.Since(start)
		if t.Failed() && r.failed == 0 {
			r.failed = 1
		}
	})
	return r
}

// run runs a case. If it fails, run logs how to run it alone.
func (r *row) run(t *testing.T, name string, f func(t *testing.T)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) {
		r.cases++
		t.Cleanup(func() {
			if t.Failed() {
				r.failed++
				t.Logf("alone: make faults FAULTS='-run \"%s\"'", t.Name())
			}
		})
		f(t)
	})
}

func (t *table) print() {
	if len(t.rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	total := row{fault: "total"}
	line := func(r *row) {
		result := "ok"
		if r.failed > 0 {
			result = fmt.Sprintf("%d FAILED", r.failed)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f s\t%s\t\n", r.fault, r.cases, r.steps, r.time.Seconds(), result)
	}
	fmt.Fprintln(w, "fault\tcases\tsteps\ttime\tresult\t")
	for _, r := range t.rows {
		line(r)
		total.cases += r.cases
		total.steps += r.steps
		total.failed += r.failed
		total.time += r.time
	}
	line(&total)
	w.Flush()
}
