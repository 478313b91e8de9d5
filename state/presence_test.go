package state_test

import (
	"testing"
	"time"

	"github.com/stowage-io/stowage/state"
)

// The state knows since when an agent has had a connection, or none. What a server notes about an
// earlier session does not count.
func TestPresence(t *testing.T) {
	w := newWorld(t)
	open := func(secret string) state.Session {
		t.Helper()
		s, err := w.OpenSession(machine0, []string{secret}, "boot-1")
		w.must(err)
		w.must(w.ConfirmSession(s))
		return s
	}
	check := func(what string, connected bool, since time.Duration) {
		t.Helper()
		p, err := w.Presence(machine0)
		w.must(err)
		if p.Connected != connected || !p.Since.Equal(start.Add(since)) {
			t.Errorf("%s: connected %t since %v, want %t since %v", what, p.Connected, p.Since.Sub(start), connected, since)
		}
	}
	changes, err := w.WatchPresence()
	w.must(err)
	defer changes.Kill()
	<-changes.Changes()
	if p, err := w.Presence(machine0); err != nil || p != (state.Presence{}) {
		t.Errorf("an agent that never had a connection: %+v, %v", p, err)
	}
	first := open("")
	w.must(w.SetPresence(first, state.Presence{Connected: true, Since: w.clock.Now()}))
	check("connected", true, 0)
	<-changes.Changes()
	w.clock.Advance(time.Minute)
	second := open(first.Secret)
	w.must(w.SetPresence(first, state.Presence{Connected: false, Since: w.clock.Now()}))
	check("an earlier connection is lost", true, 0)
	w.must(w.SetPresence(second, state.Presence{Connected: true, Since: w.clock.Now()}))
	check("connected again", true, 0)
	w.clock.Advance(time.Minute)
	w.must(w.SetPresence(second, state.Presence{Connected: false, Since: w.clock.Now()}))
	check("lost", false, 2*time.Minute)
	w.clock.Advance(time.Minute)
	w.must(w.SetPresence(second, state.Presence{Connected: false, Since: w.clock.Now()}))
	check("still lost", false, 2*time.Minute)
	w.must(w.SetPresence(second, state.Presence{Connected: true, Since: w.clock.Now()}))
	check("in the same session", true, 3*time.Minute)
	all, err := w.Machines()
	w.must(err)
	if p := all[0].Presence; !p.Connected {
		t.Errorf("listed as %+v", p)
	}
	w.must(w.RemoveMachine(machine0))
	if p, err := w.Presence(machine0); err != nil || p != (state.Presence{}) {
		t.Errorf("a machine that was removed: %+v, %v", p, err)
	}
	w.check()
}

// With several servers, the state knows to which one an agent is connected.
// Finding N38: an agent was noted as absent from the server that it had left.
func TestPresenceOnServers(t *testing.T) {
	w := newWorld(t)
	s, err := w.OpenSession(machine0, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(s))
	note := func(connected bool, server string) {
		t.Helper()
		w.must(w.SetPresence(s, state.Presence{Connected: connected, Since: w.clock.Now(), Server: server}))
	}
	check := func(what string, want state.Presence) {
		t.Helper()
		if p, err := w.Presence(machine0); err != nil || p.Connected != want.Connected || p.Server != want.Server || !p.Since.Equal(want.Since) {
			t.Errorf("%s: %+v, %v, want %+v", what, p, err, want)
		}
	}
	note(false, "a")
	check("never connected", state.Presence{})
	note(true, "a")
	w.clock.Advance(time.Minute)
	note(true, "b")
	check("at another server", state.Presence{Connected: true, Since: start, Server: "b"})
	note(false, "a") // which may note it late, or another server for it
	check("no longer at the former server", state.Presence{Connected: true, Since: start, Server: "b"})
	note(false, "b")
	check("lost", state.Presence{Since: start.Add(time.Minute), Server: "b"})

	// A session is opened at another server, and the agent is lost before it has a connection in it.
	note(true, "b")
	s, err = w.OpenSession(machine0, []string{s.Secret}, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(s))
	w.clock.Advance(time.Minute)
	note(false, "a")
	check("lost while it reconnects", state.Presence{Since: start.Add(2 * time.Minute), Server: "a"})
}
