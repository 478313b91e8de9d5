package run_test

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/run"
)

var shell = run.Program{Name: "sh", Package: "dash"}

func TestMissingProgramErrorNamesPackage(t *testing.T) {
	// A program in the caller's PATH must not be found.
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/mkfs.none", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	_, err := run.Run(t.Context(), run.Program{Name: "mkfs.none", Package: "noneprogs"}, nil)
	if !errors.Is(err, errors.NotSupported) {
		t.Fatalf("got %v, want not supported", err)
	}
	for _, want := range []string{"mkfs.none", "noneprogs"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %q", err, want)
		}
	}
}

// Promise S17.
func TestEnvironmentIsFixed(t *testing.T) {
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	t.Setenv("BLKID_FILE", "/run/blkid/blkid.tab")
	t.Setenv("MKE2FS_SYNC", "1")
	out, err := run.Run(t.Context(), shell, []string{"-c", `echo "$LC_ALL,$BLKID_FILE,$MKE2FS_SYNC,$(pwd)"`})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); got != "C,/dev/null,,/\n" {
		t.Errorf("got %q", got)
	}
}

func TestFailureReportsStatusAndStderr(t *testing.T) {
	out, err := run.Run(t.Context(), shell, []string{"-c", `echo found; printf 'no \033[31mroom\n left' >&2; exit 7`})
	var failed *run.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got %v", err)
	}
	if failed.ExitCode != 7 || failed.Stderr != "no ?[31mroom left" {
		t.Errorf("got exit code %d, stderr %q", failed.ExitCode, failed.Stderr)
	}
	if !strings.Contains(err.Error(), "exit status 7: no ?[31mroom left") {
		t.Errorf("got %q", err)
	}
	if string(out) != "found\n" {
		t.Errorf("got output %q", out)
	}
}

func TestPermissionErrorsFromStderr(t *testing.T) {
	for text, want := range map[string]error{
		"mkfs.xfs: error - cannot set blocksize: Permission denied": syscall.EACCES,
		"mount: Operation not permitted":                            syscall.EPERM,
		"No such file or directory":                                 nil,
	} {
		_, err := run.Run(t.Context(), shell, []string{"-c", "echo '" + text + "' >&2; exit 1"})
		if want != nil && !errors.Is(err, want) {
			t.Errorf("%v is not %v", err, want)
		} else if want == nil && (errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM)) {
			t.Errorf("%v is a permission error", err)
		}
	}
}

// Promise S17.
func TestOutputIsBounded(t *testing.T) {
	_, err := run.Run(t.Context(), shell, []string{"-c", `head -c 200000 /dev/zero | tr '\0' x >&2; exit 1`})
	var failed *run.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got %v", err)
	}
	if n := len(failed.Stderr); n != 4096 {
		t.Errorf("kept %d bytes of stderr, want 4096", n)
	}
}

// A program that goes on after an error is ended, and the error is that one.
func TestProgramEndsWithError(t *testing.T) {
	path, err := shell.Find()
	if err != nil {
		t.Fatal(err)
	}
	end := func(script string) error {
		_, err := run.Command{Path: path, Args: []string{"-c", script}, EndsWithError: true}.Run(t.Context())
		return err
	}
	err = end("echo made; printf 'a: No space' >&2; printf ' left\nb: No space left\n' >&2; exec sleep 1000")
	var failed *run.Error
	if !errors.As(err, &failed) || failed.Stderr != "a: No space left" || failed.ExitCode != -1 || !strings.HasSuffix(err.Error(), ": ended after its first error: a: No space left") {
		t.Errorf("got %v", err)
	}
	if err := end("printf 'no line' >&2; exit 7"); !errors.As(err, &failed) || failed.Stderr != "no line" || failed.ExitCode != 7 {
		t.Errorf("got %v", err)
	}
	if err := end("exit 0"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (run.Command{Path: path, Args: []string{"-c", "exit 0"}, EndsWithError: true}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestRunPassesFiles(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("the contents"); err != nil {
		t.Fatal(err)
	}
	out, err := run.Run(t.Context(), run.Program{Name: "cat", Package: "coreutils"}, []string{run.FilePath(0)}, f)
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != "the contents" {
		t.Errorf("got %q", out)
	}
}

func TestCommandStdinAndOutputLimit(t *testing.T) {
	cat, err := run.Program{Name: "cat", Package: "coreutils"}.Find()
	if err != nil {
		t.Fatal(err)
	}
	input := []byte(strings.Repeat("x", 100<<10))
	for limit, want := range map[int]int{0: 64 << 10, 1 << 20: 100 << 10} {
		out, err := run.Command{Path: cat, Stdin: input, MaxStdout: limit}.Run(t.Context())
		if err != nil || len(out) != want {
			t.Errorf("limit %d: %d bytes, want %d; %v", limit, len(out), want, err)
		}
	}
	// A program need not read its input.
	shell, err := shell.Find()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (run.Command{Path: shell, Args: []string{"-c", "exit 0"}, Stdin: input}).Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// Cancelling kills the children of the program too, not only the program.
func TestCancelKillsTheProcessGroup(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := run.Run(ctx, shell, []string{"-c", `(echo $$; exec sleep 1000) >&3 & wait`}, w)
		w.Close()
		done <- err
	}()
	buf := make([]byte, 32)
	n, err := r.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	// The pipe ends when the last process that holds it has ended.
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("got %q, %v", rest, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d is still there: %v", pid, err)
	}
}
