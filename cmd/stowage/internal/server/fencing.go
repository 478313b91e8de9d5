package server

import (
	"context"
	"encoding/json"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/state"
)

const (
	// fenceTimeout bounds a run of the program for fencing.
	fenceTimeout = 2 * time.Minute
	// fenceRetry is the time between two attempts for one machine.
	fenceRetry = time.Minute
	// fencePoll is how often the fencer looks for machines that are unreachable.
	fencePoll = time.Second
)

// fenceRequest is what the program for fencing gets on its standard input.
type fenceRequest struct {
	Operation  string `json:"operation"` // "fence"
	Machine    string `json:"machine"`
	Number     string `json:"number"`
	InstanceID string `json:"instance-id"`
	BootID     string `json:"boot-id,omitempty"`
}

// powerOff makes sure that a machine is off, with the program, and fences it. The program exits with
// status 0 if the machine is off, or was restarted since it was run. It may be run again for a machine
// that is off, and by several servers at once.
func (s *Server) powerOff(ctx context.Context, machine names.MachineTag) error {
	if s.config.FenceProgram == "" {
		return errors.NewNotSupported(nil, "the server has no --fence-program")
	}
	m, err := s.state.Machine(machine)
	switch {
	case err != nil:
		return errors.Trace(err)
	case m.Presence.Connected:
		return errors.NewNotValid(nil, "its agent is connected: a machine that is on is not fenced")
	}
	request := fenceRequest{
		Operation: "fence", Machine: m.Name, Number: m.Tag.Id(), InstanceID: string(m.InstanceID), BootID: m.Session.BootID,
	}
	s.config.Logger.Infof("fencing machine %s with %s", request.Machine, s.config.FenceProgram)
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	input, err := json.Marshal(request)
	if err != nil {
		return errors.Trace(err)
	}
	if _, err := (run.Command{Path: s.config.FenceProgram, Stdin: append(input, '\n')}).Run(ctx); err != nil {
		return errors.Annotatef(err, "fencing machine %s, which may be on", request.Machine)
	}
	s.handler.ExpectAbsent(machine)
	if err := s.state.FenceMachine(machine); err != nil {
		return errors.Trace(err)
	}
	s.config.Logger.Infof("machine %s is fenced", request.Machine)
	return nil
}

// fencer fences machines that have been unreachable for some time, without a user's request. Of
// several servers, the one that provisions the environment's storage does it. Time is that of this
// process: the clocks of machines are not compared.
type fencer struct {
	tomb  tomb.Tomb
	after time.Duration
	clock clock.Clock
	// leads says whether this server provisions the environment's storage.
	leads    func() bool
	machines func() ([]state.Machine, error)
	fence    func(context.Context, names.MachineTag) error
	logger   interface {
		Warningf(format string, args ...any)
	}

	// leading is since when this server leads; the zero time: it does not.
	leading time.Time
	// absent are the machines that are unreachable; tried is when the last attempt to fence one was
	// made.
	absent map[names.MachineTag]absence
	tried  map[names.MachineTag]time.Time
	// held says that too many machines are unreachable.
	held bool
}

// absence is one absence of a machine.
type absence struct {
	// seen is when this server has noticed it.
	seen time.Time
	// began is when it began, by the clock of the server that the machine was connected to. It only
	// tells one absence from the next.
	began time.Time
}

func (s *Server) startFencer() (worker.Worker, error) {
	f := &fencer{
		after: s.config.FenceAfter, clock: s.config.Clock, leads: s.leads.Load, machines: s.state.Machines, fence: s.powerOff,
		logger: s.config.Logger,
		absent: map[names.MachineTag]absence{}, tried: map[names.MachineTag]time.Time{},
	}
	f.tomb.Go(f.run)
	return f, nil
}

func (f *fencer) run() error {
	ctx := f.tomb.Context(context.Background())
	for {
		timer := f.clock.NewTimer(fencePoll)
		select {
		case <-f.tomb.Dying():
			timer.Stop()
			return tomb.ErrDying
		case <-timer.Chan():
		}
		due, err := f.due()
		if err != nil {
			return errors.Trace(err) // without the state nothing is fenced
		}
		// One at a time: the program takes a while, and then others may not be due any more.
		for _, m := range due[:min(1, len(due))] {
			f.tried[m.Tag] = f.clock.Now()
			if err := f.fence(ctx, m.Tag); err != nil && ctx.Err() == nil {
				f.logger.Warningf("machine %s was not fenced: %v", m.Name, err)
			}
		}
	}
}

// due returns the machines that are to be fenced now.
//
// There are none before twice the time has passed since this server began to lead, so that agents can
// connect again first; and none while more machines are unreachable than the larger of one and a tenth
// of all: then it is more likely that the network has failed, or this server.
func (f *fencer) due() ([]state.Machine, error) {
	now := f.clock.Now()
	switch {
	case !f.leads():
		f.leading = time.Time{}
	case f.leading.IsZero():
		f.leading = now
	}
	all, err := f.machines()
	if err != nil {
		return nil, errors.Trace(err)
	}
	absent := map[names.MachineTag]absence{}
	var due []state.Machine
	for _, m := range all {
		if m.Presence.Connected || m.Presence.Since.IsZero() || !m.Fenced.IsZero() {
			continue
		}
		this, known := f.absent[m.Tag]
		if !known || !this.began.Equal(m.Presence.Since) {
			this = absence{now, m.Presence.Since}
		}
		absent[m.Tag] = this
		if last, ok := f.tried[m.Tag]; now.Sub(this.seen) >= f.after && (!ok || now.Sub(last) >= fenceRetry) {
			due = append(due, m)
		}
	}
	f.absent = absent
	for machine := range f.tried {
		if _, ok := absent[machine]; !ok {
			delete(f.tried, machine)
		}
	}
	if f.leading.IsZero() || now.Sub(f.leading) < 2*f.after || len(due) == 0 {
		return nil, nil
	}
	if most := max(1, len(all)/10); len(absent) > most {
		if !f.held {
			f.logger.Warningf("%d of %d machines are unreachable: none is fenced without a request while there are more than %d", len(absent), len(all), most)
		}
		f.held = true
		return nil, nil
	}
	f.held = false
	return due, nil
}

// Kill implements worker.Worker.
func (f *fencer) Kill() { f.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (f *fencer) Wait() error { return f.tomb.Wait() }
