// Package run starts the few programs for which there is no system call: the
// ones that make filesystems and the one that recognises them.
//
// A program is looked for in fixed directories, never in the caller's PATH,
// and runs with a fixed environment, in its own process group, with the files
// that it is handed and nothing else. Do not use it for long-running
// processes: the output is kept in memory and cut at a bound.
package run

import (
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
	// maxStdout and maxStderr bound what is kept of a program's output, in
	// bytes. A program that says more is not stopped; the rest is dropped.
	maxStdout = 64 << 10
	maxStderr = 4 << 10

	// pipeDelay is how long Run still reads the output after the program has
	// ended or been killed, for the case that something else holds the pipe.
	pipeDelay = 5 * time.Second

	searchPath = "/usr/sbin:/usr/bin:/sbin:/bin"
)

// Program names a program and the Debian package that holds it.
type Program struct {
	Name    string
	Package string
}

// Find returns the absolute path of the program. The error satisfies
// errors.IsNotSupported, and names program and package, when there is none.
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

// Error is how a program that was started ended other than with success.
type Error struct {
	Path string
	Args []string
	// ExitCode is the exit status, or -1 when a signal ended the program.
	ExitCode int
	// Stderr is the beginning of what it wrote there, printable.
	Stderr string
	// State tells the end in words: "exit status 1", "signal: killed".
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

// FilePath is the path under which the program finds the i-th of the files
// that Run hands it.
func FilePath(i int) string {
	return "/proc/self/fd/" + strconv.Itoa(3+i)
}

// Run runs the program until it ends and returns the beginning of its standard
// output. When ctx ends first, the program's whole process group is killed and
// Run still waits for the program: one that is stuck in the kernel goes on
// holding its files, and the caller must know. The error is then ctx's.
//
// Other errors are errors.IsNotSupported for a missing program and *Error for
// an unsuccessful one, with which the output is returned too.
func Run(ctx context.Context, p Program, args []string, files ...*os.File) ([]byte, error) {
	path, err := p.Find()
	if err != nil {
		return nil, errors.Trace(err)
	}
	stdout, stderr := &head{limit: maxStdout}, &head{limit: maxStderr}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C", "PATH=" + searchPath}
	cmd.Stdout = stdout
	cmd.Stderr = stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeDelay

	err = cmd.Run()
	if err == nil {
		return stdout.bytes, nil
	}
	if ctx.Err() != nil {
		return nil, errors.Annotatef(ctx.Err(), "running %s", p.Name)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return nil, errors.Annotatef(err, "running %s", p.Name)
	}
	return stdout.bytes, errors.Trace(&Error{
		Path:     path,
		Args:     args,
		ExitCode: exit.ExitCode(),
		Stderr:   printable(string(stderr.bytes)),
		State:    exit.String(),
	})
}

// head is a writer that keeps the first bytes and drops the rest.
type head struct {
	limit int
	bytes []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.bytes = append(h.bytes, p[:min(len(p), h.limit-len(h.bytes))]...)
	return len(p), nil
}

// printable makes a program's words fit for one line of a log: what it says
// can quote the contents of a disk.
func printable(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
