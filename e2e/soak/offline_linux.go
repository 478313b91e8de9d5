package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// event is something that an administrator does to the data directory, or that happens to it.
type event struct {
	// The event happens in each round whose number modulo every is first. If every is 0,
	// it never happens.
	every, first int
	run          func() error
}

// events returns all events. They are spread over the rounds, so that a short run has each.
func (s *soak) events() []event {
	return []event{
		{s.restoreEvery, s.restoreEvery / 3, s.goBack},
		{s.copyEvery, s.copyEvery / 2, s.copyDirectory},
		{s.moveEvery, s.moveEvery * 2 / 3, s.moveDirectory},
		{s.loseEvery, s.loseEvery * 5 / 6, s.loseState},
		{s.interfereEvery, s.interfereEvery * 2 / 3, s.interfere},
	}
}

// runEvents runs the events of this round, each after everything is as wanted.
func (s *soak) runEvents() error {
	s.rounds++
	for _, e := range s.events() {
		if e.every == 0 || s.rounds%e.every != e.first {
			continue
		}
		if err := s.converge(time.Now()); err != nil {
			return err
		}
		if err := e.run(); err != nil {
			return err
		}
	}
	return nil
}

// halt kills the agent, or asks it to end.
func (s *soak) halt() error {
	if s.rand.IntN(2) == 0 {
		s.note("kill -9 at rest")
		return s.kill()
	}
	s.note("stop")
	return s.stop()
}

// must runs a command that has to succeed.
func (s *soak) must(where command.Stowage, args ...string) error {
	ctx, cancel := limited()
	defer cancel()
	r, err := where.Run(ctx, args...)
	if err != nil {
		return err
	}
	s.note("%q: %s", args, r.Stdout)
	if r.Code != 0 {
		return fmt.Errorf("refused:\n%s", r.All())
	}
	return nil
}

// offline runs a command while no agent runs. It may kill the command and run it again: the
// second run may be refused if the first was complete. The following checks decide.
func (s *soak) offline(where command.Stowage, args ...string) error {
	if s.rand.IntN(3) > 0 {
		return s.must(where, args...)
	}
	delay := s.delay()
	short, cancel := context.WithTimeout(context.Background(), delay)
	_, _ = where.Run(short, args...) // killed, or completed before
	cancel()
	s.note("%q: kill -9 after %s", args, delay)
	s.figures.commandKills++
	ctx, cancel := limited()
	defer cancel()
	r, err := where.Run(ctx, args...)
	s.note("%q once more: exit status %d, %s%s", args, r.Code, r.Stdout, r.Stderr)
	return err
}

// refusesToStart checks that an agent ends at once, names a remedy, and changes nothing.
func (s *soak) refusesToStart(where command.Stowage, remedy string) error {
	before, err := s.kernelHas(s.dir)
	if err != nil {
		return err
	}
	logged := filepath.Join(s.dir, "refused.log")
	agent, err := where.Start(logged)
	if err != nil {
		return err
	}
	select {
	case <-agent.Ended:
	case <-time.After(liveness):
		// It dumps its goroutines.
		err := errors.Join(agent.Signal(unix.SIGQUIT), agent.Err())
		said, _ := os.ReadFile(logged)
		return fmt.Errorf("an agent in %s goes on for %s, and does not name %q: %w\n%s", where.DataDir, liveness, remedy, err, said)
	}
	said, err := os.ReadFile(logged)
	if err != nil {
		return err
	}
	if agent.Err() == nil || !strings.Contains(string(said), remedy) {
		return fmt.Errorf("an agent in %s ended with %v, and should name %q:\n%s", where.DataDir, agent.Err(), remedy, said)
	}
	after, err := s.kernelHas(s.dir)
	if err == nil && after != before {
		err = fmt.Errorf("an agent that refused to start had before\n%sand left\n%s", before, after)
	}
	return errors.Join(err, os.Remove(logged))
}
