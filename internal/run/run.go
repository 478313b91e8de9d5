// Package run runs programs: the few system programs for whose work there is no system call,
// and the programs that users supply.
//
// It looks for system programs in fixed directories, never in the caller's PATH. All programs
// run with a fixed environment, in their own process group, with the given input and files and
// no others. Do not use this package for long-running processes: it keeps the output in memory
// and truncates it.
package run

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/juju/errors"
)

const (
	// maxStdout and maxStderr limit how much of a program's output is kept, in bytes. A
	// command can set another limit for stdout. A program that writes more is not stopped; the
	// rest is dropped.
	maxStdout = 64 << 10
	maxStderr = 4 << 10

	// pipeDelay is how long Run continues to read the output after the program has ended or
	// been killed, in case another process holds the pipe.
	pipeDelay = 5 * time.Second

	searchPath = "/usr/sbin:/usr/bin:/sbin:/bin"
)

// Program names a program and the Debian package that contains it.
type Program struct {
	Name    string
	Package string
}

// Find returns the absolute path of the program. If the program is not installed, the error
// satisfies errors.IsNotSupported, and names the program and its package.
func (p Program) Find() (string, error) {
	for _, dir := range filepath.SplitList(searchPath) {
		path := filepath.Join(dir, p.Name)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", errors.NewNotSupported(nil, fmt.Sprintf(
		"%s is not in %s: install the Debian package %s", p.Name, searchPath, p.Package))
}

// Error reports that a program was started and did not succeed.
type Error struct {
	Path string
	Args []string
	// ExitCode is the exit status, or -1 when a signal ended the program.
	ExitCode int
	// Stderr is the beginning of the program's standard error, made printable.
	Stderr string
	// State describes the end in words: "exit status 1", "signal: killed".
	State string
}

// Error implements error.
func (e *Error) Error() string {
	command := strings.Join(append([]string{e.Path}, e.Args...), " ")
	if e.Stderr == "" {
		return fmt.Sprintf("%s: %s", command, e.State)
	}
	return fmt.Sprintf("%s: %s: %s", command, e.State, e.Stderr)
}

// Is reports, for syscall.EACCES and syscall.EPERM, whether the program's standard error
// contains the text of that error.
func (e *Error) Is(target error) bool {
	return (target == syscall.EACCES || target == syscall.EPERM) &&
		strings.Contains(strings.ToLower(e.Stderr), target.Error())
}

// FilePath returns the path at which the program finds the i-th of the files that Run passes
// to it.
func FilePath(i int) string {
	return "/proc/self/fd/" + strconv.Itoa(3+i)
}

// Run finds the program and runs it with the arguments: see [Command.Run]. If the program is
// not installed, the error satisfies errors.IsNotSupported.
func Run(ctx context.Context, p Program, args []string, files ...*os.File) ([]byte, error) {
	path, err := p.Find()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return Command{Path: path, Args: args, Files: files}.Run(ctx)
}

// Command is one run of a program.
type Command struct {
	// Path is the absolute path of the program.
	Path string
	Args []string
	// Stdin is the program's standard input.
	Stdin []byte
	// Files are passed to the program, which finds them at [FilePath].
	Files []*os.File
	// MaxStdout limits how much of the output is kept, in bytes; 0: 64 KiB.
	MaxStdout int
	// Isolated runs the program in a mount namespace that has only the root filesystem and the
	// system's directories, so that the program neither sees the machine's other mounts nor
	// keeps them busy. The program still finds Files. Isolated needs CAP_SYS_ADMIN.
	Isolated bool
	// EndsWithCaller makes the kernel kill the program when this process dies, on Linux.
	EndsWithCaller bool
	// EndsWithError kills the program when it has written a line to its standard error, which is all
	// that is kept of that. It is for programs that go on after an error, with more of them.
	EndsWithError bool
}

// Run runs the program until it ends and returns the beginning of its standard output. If ctx
// ends first, Run kills the program with its process group and, on Linux, all its descendants.
// It still waits for the program: a program that is stuck in the kernel keeps its files open,
// and the caller must know. The error is then ctx's.
//
// If the program ends without success, the error is an *Error, and Run returns the output as
// well.
func (c Command) Run(ctx context.Context) ([]byte, error) {
	stdout, stderr := &head{limit: c.MaxStdout}, &head{limit: maxStderr}
	if stdout.limit == 0 {
		stdout.limit = maxStdout
	}
	running, end := context.WithCancel(ctx)
	defer end()
	if c.EndsWithError {
		stderr.endOfLine = end
	}
	cmd := exec.CommandContext(running, c.Path, c.Args...)
	cmd.Dir = "/"
	// libblkid's cache keeps a device's UUID for two seconds after the device is gone, and
	// mkfs.btrfs refuses a UUID that is in the cache. So disable the cache.
	cmd.Env = []string{"LC_ALL=C", "PATH=" + searchPath, "BLKID_FILE=/dev/null"}
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	cmd.Stdout = stdout
	cmd.Stderr = stderr
	cmd.ExtraFiles = c.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return kill(cmd.Process.Pid) }
	cmd.WaitDelay = pipeDelay

	execute := cmd.Run
	if c.Isolated {
		execute = func() error { return runIsolated(cmd) }
	}
	if c.EndsWithCaller {
		run := execute
		execute = func() error { return runWithCaller(cmd, run) }
	}
	err := execute()
	if err == nil {
		return stdout.bytes, nil
	}
	name := filepath.Base(c.Path)
	if ctx.Err() != nil {
		return nil, errors.Annotatef(ctx.Err(), "running %s", name)
	}
	failed := &Error{Path: c.Path, Args: c.Args, ExitCode: -1, Stderr: Printable(string(stderr.bytes)), State: "ended after its first error"}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if running.Err() == nil {
			failed.ExitCode, failed.State = exit.ExitCode(), exit.String()
		}
	case running.Err() == nil:
		return nil, errors.Annotatef(err, "running %s", name)
	}
	return stdout.bytes, errors.Trace(failed)
}

// head is a writer that keeps the first limit bytes and drops the rest. With endOfLine, it keeps
// the first line, and calls endOfLine at its end.
type head struct {
	limit     int
	bytes     []byte
	endOfLine func()
}

func (h *head) Write(p []byte) (int, error) {
	kept := p[:min(len(p), h.limit-len(h.bytes))]
	if end := bytes.IndexByte(kept, '\n'); h.endOfLine != nil && end >= 0 {
		kept = kept[:end]
		h.limit = len(h.bytes) + end
		h.endOfLine()
	}
	h.bytes = append(h.bytes, kept...)
	return len(p), nil
}

// Printable makes a program's output fit for one line of a log. The output may quote the
// contents of a disk.
func Printable(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
