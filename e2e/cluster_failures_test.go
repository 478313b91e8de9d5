package e2e

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clusterLink is what connects a server, a machine, or etcd to the others.
type clusterLink struct {
	of   string
	host *networkHost
	heal time.Time // when it is as it should be again; the zero time: it is
}

// disturb lets something fail.
func (c *cluster) disturb() {
	switch c.rand.IntN(5) {
	case 0:
		c.disturbLink(pick(c.rand, c.links))
	case 1, 2:
		c.disturbServer(pick(c.rand, c.servers))
	default:
		c.disturbMachine(pick(c.rand, c.machines))
	}
}

func (c *cluster) disturbLink(l *clusterLink) {
	if !l.heal.IsZero() {
		return
	}
	l.heal = c.soon(30)
	if c.chance(2) {
		c.happen("cut a link", l.of)
		c.network.cut(l.host)
		return
	}
	latency, loss := time.Duration(1+c.rand.IntN(300))*time.Millisecond, c.rand.Float64()/4
	c.happen("degrade a link", fmt.Sprintf("%s: a latency of %v, and %.0f %% lost", l.of, latency, 100*loss))
	l.host.link.degrade(latency, loss)
}

func (c *cluster) disturbServer(s *clusterServer) {
	if s.name == c.disk.server && c.disk.heal.IsZero() && c.chance(3) {
		c.happen("fill the disk of a server", s.name)
		c.disk.heal = c.soon(20)
		if err := c.disk.fill(); err != nil {
			c.say("the disk is full already: %v", err)
		}
		return
	}
	if !s.heal.IsZero() {
		return
	}
	switch c.rand.IntN(4) {
	case 0:
		c.happen("kill a server", s.name)
		c.signal(s.process, unix.SIGKILL)
		<-s.Ended
		s.heal = c.soon(8)
	case 1:
		c.happen("stop a server", s.name)
		c.signal(s.process, unix.SIGINT)
		_ = s.end() // it may have to wait for a call
		s.heal = c.soon(4)
	default:
		c.happen("pause a server", s.name)
		c.signal(s.process, unix.SIGSTOP)
		s.paused, s.heal = true, c.soon(30)
	}
}

func (c *cluster) disturbMachine(m *clusterMachine) {
	switch {
	case m.off && !m.fenced && !c.asking:
		c.happen("fence a machine", m.name)
		m.fenced = true
		c.do("machine", "fence", m.name, "--confirmed")
		return
	case !m.off && !m.heal.IsZero() && !m.withoutStorage() && !c.asking && c.chance(2):
		c.happen("fence a machine that runs", m.name)
		m.reboot = c.soon(40)
		c.isolate(m)
		c.do("machine", "fence", m.name, "--confirmed")
		return
	case !m.heal.IsZero():
		return
	}
	switch c.rand.IntN(4) {
	case 0:
		c.happen("switch a machine off", m.name)
		c.powerOff(m)
		m.heal = c.soon(60)
	case 1:
		c.happen("pause an agent", m.name)
		c.signal(m.agent, unix.SIGSTOP)
		m.paused, m.heal = true, c.soon(20)
	default:
		c.happen("kill an agent", m.name)
		c.signal(m.agent, unix.SIGKILL)
		<-m.agent.Ended
		m.heal = c.soon(5)
	}
}

// heal lets what has failed go on, when it is due, or all of it.
func (c *cluster) heal(all bool) {
	c.Helper()
	due := func(at time.Time) bool { return !at.IsZero() && (all || time.Now().After(at)) }
	for _, l := range c.links {
		if due(l.heal) {
			l.heal = time.Time{}
			c.network.mend(l.host)
			l.host.link.degrade(0, 0)
		}
	}
	if due(c.disk.heal) {
		c.disk.heal = time.Time{}
		if err := c.disk.free(); err != nil {
			c.Fatal(err)
		}
	}
	for _, s := range c.servers {
		if !due(s.heal) {
			continue
		}
		s.heal = time.Time{}
		if s.paused {
			s.paused = false
			c.signal(s.process, unix.SIGCONT)
			continue
		}
		c.startServerOf(s, s.args...)
	}
	for _, m := range c.machines {
		if due(m.reboot) {
			c.powerOff(m)
			m.heal = c.soon(5)
			continue
		}
		if !due(m.heal) {
			continue
		}
		m.heal = time.Time{}
		switch {
		case m.paused:
			m.paused = false
			c.signal(m.agent, unix.SIGCONT)
		case m.off:
			c.powerOn(m)
		default:
			c.startAgentOf(m)
		}
	}
	// A server exits rather than have a call that outlives its lease, and if its disk is full. It is
	// started again.
	for _, s := range c.servers {
		if s.heal.IsZero() && hasEnded(s.process) {
			c.happen("server exits", s.name)
			s.heal = c.soon(3)
		}
	}
	for _, m := range c.machines {
		if !m.off && m.heal.IsZero() && hasEnded(m.agent) {
			c.happen("agent exits", m.name)
			m.heal = c.soon(3)
		}
	}
}

func hasEnded(p *process) bool {
	select {
	case <-p.Ended:
		return true
	default:
		return false
	}
}

func (c *cluster) signal(p *process, signal unix.Signal) {
	c.Helper()
	if err := p.Signal(signal); err != nil {
		select {
		case <-p.Ended:
		default:
			c.Fatalf("%s: %v", p.name, err)
		}
	}
}
