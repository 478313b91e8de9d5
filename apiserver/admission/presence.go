package admission

import (
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/state"
)

// presence notes in the state which agents are connected. It writes only what changes.
type presence struct {
	config Config

	mu     sync.Mutex // guards what follows
	closed bool
	// newest has the number of the newest session of each machine that was seen here.
	newest map[names.MachineTag]uint64
	// streams has the number of streams of each machine that has any.
	streams map[names.MachineTag]int
	// absences has the machines that had an agent here a short time ago, and have no stream.
	absences map[names.MachineTag]*absence
	running  sync.WaitGroup
}

// absence is the time since an agent has had no stream.
type absence struct {
	machine names.MachineTag
	// server is the one that the agent was connected to.
	server string
	since  time.Time
	timer  clock.Timer
}

// newPresence gives each agent that was connected some time to return.
func newPresence(config Config) (*presence, error) {
	p := &presence{
		config:   config,
		newest:   make(map[names.MachineTag]uint64),
		streams:  make(map[names.MachineTag]int),
		absences: make(map[names.MachineTag]*absence),
	}
	return p, errors.Trace(p.inherit(config.Server))
}

// inherit begins to measure the absence of the agents that were connected to a server that does not
// run any more.
func (p *presence) inherit(server string) error {
	machines, err := p.config.State.Machines()
	if err != nil {
		return errors.Trace(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range machines {
		_, waiting := p.absences[m.Tag]
		waiting = waiting && p.newest[m.Tag] == m.Session.Number
		if m.Presence.Connected && m.Presence.Server == server && p.streams[m.Tag] == 0 && !waiting {
			p.note(state.Session{Machine: m.Tag, Number: m.Session.Number})
			p.startAbsence(m.Tag, server)
		}
	}
	return nil
}

// open notes that an agent has opened a session. Its stream may never begin: the machine may fail
// at that moment.
func (p *presence) open(s state.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(s)
	if p.streams[s.Machine] == 0 {
		p.startAbsence(s.Machine, p.config.Server)
	}
}

// note keeps the number of a session, if it is the newest one. The caller holds mu.
func (p *presence) note(s state.Session) {
	p.newest[s.Machine] = max(p.newest[s.Machine], s.Number)
}

// begin notes that an agent has a stream in its session, and returns the function that notes its
// end.
func (p *presence) begin(s state.Session) (end func()) {
	p.mu.Lock()
	p.note(s)
	p.streams[s.Machine]++
	if absent, ok := p.absences[s.Machine]; ok {
		absent.timer.Stop()
		delete(p.absences, s.Machine)
	}
	p.mu.Unlock()
	p.set(s, state.Presence{Connected: true, Since: p.config.Clock.Now(), Server: p.config.Server})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.streams[s.Machine]--
		if p.streams[s.Machine] == 0 {
			delete(p.streams, s.Machine)
			p.startAbsence(s.Machine, p.config.Server)
		}
	}
}

// startAbsence begins to measure the absence of an agent that was connected to a server. The caller
// holds mu.
func (p *presence) startAbsence(machine names.MachineTag, server string) {
	if p.closed {
		return
	}
	if earlier, ok := p.absences[machine]; ok {
		earlier.timer.Stop()
	}
	begun := &absence{machine: machine, server: server, since: p.config.Clock.Now()}
	begun.timer = p.config.Clock.AfterFunc(p.config.Absence, func() { p.endAbsence(begun) })
	p.absences[machine] = begun
}

// endAbsence notes that an agent is no longer connected, unless it has returned.
func (p *presence) endAbsence(a *absence) {
	p.mu.Lock()
	absent := !p.closed && a != nil && p.absences[a.machine] == a
	session := state.Session{}
	if absent {
		a.timer.Stop()
		delete(p.absences, a.machine)
		session = state.Session{Machine: a.machine, Number: p.newest[a.machine]}
		p.running.Add(1)
	}
	p.mu.Unlock()
	if absent {
		defer p.running.Done()
		p.set(session, state.Presence{Since: a.since, Server: a.server})
	}
}

func (p *presence) set(s state.Session, now state.Presence) {
	if err := p.config.State.SetPresence(s, now); err != nil {
		p.config.Logger.Warningf("%v", err)
	}
}

// lastSeen returns when the agent of a machine last had a stream here: now, if it has one, and
// the zero time if that is not known.
func (p *presence) lastSeen(machine names.MachineTag) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[machine] > 0 {
		return p.config.Clock.Now()
	}
	if absent, ok := p.absences[machine]; ok {
		return absent.since
	}
	return time.Time{}
}

// close ends all timers, and waits for what they do.
func (p *presence) close() {
	p.mu.Lock()
	p.closed = true
	for _, absent := range p.absences {
		absent.timer.Stop()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// IsConnected reports whether a machine's agent has a connection, or had one a short time ago, here
// or at another server.
func (h *Handler) IsConnected(machine names.MachineTag) bool {
	if h.config.Server == "" {
		return !h.presence.lastSeen(machine).IsZero()
	}
	known, err := h.config.State.Presence(machine)
	return err == nil && known.Connected
}

// ExpectAbsent says that somebody knows that a machine is off: if its agent has no connection now,
// it is not waited for any longer.
func (h *Handler) ExpectAbsent(machine names.MachineTag) {
	h.presence.mu.Lock()
	absent := h.presence.absences[machine]
	h.presence.mu.Unlock()
	h.presence.endAbsence(absent)
}

// LastSeen returns when a machine's agent last had a connection, as far as this server knows:
// now, if it has one, here or at another server.
func (h *Handler) LastSeen(machine state.Machine) time.Time {
	if machine.Presence.Connected && machine.Presence.Server != h.config.Server {
		return h.config.Clock.Now()
	}
	if seen := h.presence.lastSeen(machine.Tag); !seen.IsZero() {
		return seen
	}
	return machine.Presence.Since
}

// InheritAgents makes this server wait for the agents of another one, which does not run any more:
// those that do not return, to any server, are absent.
func (h *Handler) InheritAgents(server string) error {
	return errors.Annotatef(h.presence.inherit(server), "waiting for the agents of server %s", server)
}
