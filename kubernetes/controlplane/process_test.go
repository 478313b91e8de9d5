package controlplane_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// process is a program that runs, with its messages in a file.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

// start starts a program, which is killed if this process dies.
func start(dir, name string, env []string, program string, args ...string) (*process, error) {
	p := &process{log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// signal sends a signal to the process, which may have ended.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill kills the process, and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// stop ends the process in order, and waits for it. A process that does not end within 20 seconds is
// killed, which is an error.
func (p *process) stop() error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(20 * time.Second):
		p.kill()
		return fmt.Errorf("%s did not end on SIGTERM", p.cmd.Path)
	}
}

// tail returns the end of the process's messages.
func (p *process) tail() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(content) > 8000 {
		content = content[len(content)-8000:]
	}
	return string(content)
}

// freePort returns a port of the loopback interface that nothing uses.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = listener.Close() }()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

// await polls until the condition is met, or five minutes are over.
func await(ctx context.Context, condition func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 5*time.Minute, true, condition)
}

func eventually(t *testing.T, what string, condition func() (bool, error)) {
	t.Helper()
	if err := await(t.Context(), func(context.Context) (bool, error) { return condition() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
