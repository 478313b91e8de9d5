//go:build linux && faults

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	jujuerrors "github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
)

// task is the work of a child process: one call, with a fault at one of its steps.
type task struct {
	World world
	Op    string
	// Fault is one of faultsAtSteps, or none.
	Fault string
	// Step is the number of the step at which the fault happens; 0 is before the
	// first.
	Step int
	// Namespace gives the child a mount namespace of its own.
	Namespace bool
}

// faultsAtSteps are the faults that can happen at a step.
var faultsAtSteps = map[string]func(world, context.CancelFunc){
	// The process is killed.
	"kill": func(world, context.CancelFunc) { die() },
	// The power fails: with the filesystem's journal written, with the data written as
	// well, and with neither.
	"power cut, journal written": func(w world, _ context.CancelFunc) { shutDown(w.Base, shutDownLogFlush); die() },
	"power cut, all written":     func(w world, _ context.CancelFunc) { shutDown(w.Base, shutDownDefault); die() },
	"power cut, nothing written": func(w world, _ context.CancelFunc) { shutDown(w.Base, shutDownNoLogFlush); die() },
	"I/O errors from then on":    func(w world, _ context.CancelFunc) { shutDown(w.Base, shutDownNoLogFlush) },
	"no space left from then on": func(w world, _ context.CancelFunc) { fill(w.Base) },
	// A container without loop devices in /dev.
	"no loop-control": func(world, context.CancelFunc) {
		if err := unix.Mount("none", "/dev", "tmpfs", 0, ""); err != nil {
			panic(err)
		}
	},
	"the caller does not wait": func(_ world, cancel context.CancelFunc) { cancel() },
}

// The flags of EXT4_IOC_SHUTDOWN, fs/ext4/ext4.h in the kernel, and of XFS_IOC_GOINGDOWN,
// which is the same number.
const (
	iocShutdown        = 0x8004587d
	shutDownDefault    = 0
	shutDownLogFlush   = 1
	shutDownNoLogFlush = 2
)

func die() {
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

// shutDown makes all later I/O to a filesystem fail.
func shutDown(path string, flags int) {
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		err = unix.IoctlSetPointerInt(int(f.Fd()), iocShutdown, flags)
	}
	if err != nil {
		panic(err)
	}
}

// filler is the file that fills the disk.
func filler(base string) string { return base + "/filler" }

// fill leaves no block of a filesystem free.
func fill(path string) {
	f, err := os.OpenFile(filler(path), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	var end int64
	for size := int64(64 << 20); size >= 512; {
		err := unix.Fallocate(int(f.Fd()), 0, end, size)
		switch {
		case err == nil:
			end += size
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case !errors.Is(err, unix.EINTR):
			panic(err)
		}
	}
}

const (
	taskEnv = "STOWAGE_FAULTS_TASK"
	// failed is the exit status of a child whose call returned an error, and final that
	// of a child whose error is permanent.
	failed = 3
	final  = 4
)

// childMain is the main function of a child. It prints each step on its standard output
// before a fault happens there.
func childMain(text string) int {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	injectFault := func() { faultsAtSteps[t.Fault](t.World, cancel) }
	if t.Fault != "" && t.Step == 0 {
		injectFault()
	}
	var mu sync.Mutex
	step := 0
	crash.Hook = func(name string) {
		mu.Lock()
		defer mu.Unlock()
		step++
		fmt.Println(name)
		if t.Fault != "" && step == t.Step {
			injectFault()
		}
	}
	if err := t.World.do(ctx, t.Op); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if storage.IsPermanent(err) || errors.Is(err, jujuerrors.NotSupported) || errors.Is(err, jujuerrors.NotValid) {
			return final
		}
		return failed
	}
	return 0
}

// outcome is how a child ended.
type outcome struct {
	steps  []string
	killed bool
	err    error
	// final is set if the error is permanent.
	final bool
}

// patience is how long a child may run. None takes a tenth of it.
const patience = time.Minute

// run runs a child to its end.
func (t task) run(tb testing.TB) outcome {
	tb.Helper()
	_, wait := t.start(tb)
	return wait()
}

// start starts a child.
func (t task) start(tb testing.TB) (pid int, wait func() outcome) {
	tb.Helper()
	text, err := json.Marshal(t)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), taskEnv+"="+string(text))
	if t.Namespace {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	// A process that outlives the child keeps no pipe open, as the output is a file.
	stdout, stderr := &output{tb: tb}, &output{tb: tb}
	cmd.Stdout, cmd.Stderr = stdout.file(), stderr.file()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	return cmd.Process.Pid, func() outcome {
		tb.Helper()
		defer cancel()
		err := cmd.Wait()
		if ctx.Err() != nil {
			tb.Fatalf("%s %s has not ended after %s, %s at step %d", t.World.Kind, t.Op, patience, t.Fault, t.Step)
		}
		o := outcome{steps: strings.FieldsFunc(stdout.text(), func(r rune) bool { return r == '\n' })}
		said := stderr.text()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case !errors.As(err, &exit):
			tb.Fatal(err)
		case exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL:
			o.killed = true
		case exit.ExitCode() == failed, exit.ExitCode() == final:
			o.err, o.final = errors.New(strings.TrimSpace(said)), exit.ExitCode() == final
		default:
			tb.Fatalf("%s %s, %s at step %d: %v: %s", t.World.Kind, t.Op, t.Fault, t.Step, err, said)
		}
		return o
	}
}

// output is a file for the output of a child.
type output struct {
	tb testing.TB
	f  *os.File
}

func (o *output) file() *os.File {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		o.tb.Fatal(err)
	}
	o.f = os.NewFile(uintptr(fd), "output")
	return o.f
}

func (o *output) text() string {
	defer o.f.Close()
	_, err := o.f.Seek(0, io.SeekStart)
	data, rerr := io.ReadAll(o.f)
	if err = errors.Join(err, rerr); err != nil {
		o.tb.Fatal(err)
	}
	return string(data)
}

// kill kills a process.
func kill(tb testing.TB, pid int) {
	tb.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		tb.Fatal(err)
	}
}

// exists returns an error where there is no such file.
func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

// last is the last step that the child reached.
func (o outcome) last() string {
	if len(o.steps) == 0 {
		return "the start"
	}
	return o.steps[len(o.steps)-1]
}
