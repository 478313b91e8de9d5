package command

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Agent is an agent or a server that runs, or has run.
type Agent struct {
	cmd *exec.Cmd
	// Listening is closed when it accepts commands, or, for a server's agent, is connected.
	Listening <-chan struct{}
	// Ended is closed when the agent has ended.
	Ended <-chan struct{}
	err   error
}

// Start starts an agent with a state of its own, which appends its log to a file.
func (s Stowage) Start(logFile string, args ...string) (*Agent, error) {
	return s.StartAs("run", "listening on "+s.DataDir, logFile, args...)
}

// StartAs is Start for a server or a server's agent: verb is the command, and ready a part of the
// message that it logs when it is ready, for which Listening is closed.
func (s Stowage) StartAs(verb, ready, logFile string, args ...string) (*Agent, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.Binary, append([]string{verb, "--data-dir", s.DataDir, "--log-level", "debug"}, args...)...)
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
			if !told && strings.Contains(lines.Text(), ready) {
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
