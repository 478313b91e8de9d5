package command

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Agent is an agent that runs, or has run.
type Agent struct {
	cmd *exec.Cmd
	// Listening is closed when the agent accepts commands.
	Listening <-chan struct{}
	// Ended is closed when the agent has ended.
	Ended <-chan struct{}
	err   error
}

// Start starts an agent, which appends its log to a file.
func (s Stowage) Start(logFile string, args ...string) (*Agent, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.Binary, append([]string{"run", "--data-dir", s.DataDir, "--log-level", "debug"}, args...)...)
	start := s.StartProcess
	if start == nil {
		start = (*exec.Cmd).Start
	}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = start(cmd)
	}
	if err != nil {
		log.Close()
		return nil, err
	}
	listening, ended := make(chan struct{}), make(chan struct{})
	a := &Agent{cmd: cmd, Listening: listening, Ended: ended}
	go func() {
		defer close(ended)
		defer log.Close()
		told := false
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(log, lines.Text())
			if !told && strings.Contains(lines.Text(), "listening on "+s.DataDir) {
				told = true
				close(listening)
			}
		}
		a.err = cmd.Wait()
	}()
	return a, nil
}

// PID returns the agent's process ID.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Signal sends the agent a signal.
func (a *Agent) Signal(signal os.Signal) error { return a.cmd.Process.Signal(signal) }

// Err waits until the agent has ended, and returns its error.
func (a *Agent) Err() error {
	<-a.Ended
	return a.err
}
