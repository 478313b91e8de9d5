package calls

import (
	"context"
	"sync"
	"time"
)

// Gate blocks calls until it is opened.
type Gate struct {
	opened chan struct{}
	open   sync.Once
	pass   chan struct{}

	mu sync.Mutex
	// entered counts the calls at the gate that Entered has not returned for yet.
	entered int
	changed chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate {
	return &Gate{opened: make(chan struct{}), pass: make(chan struct{}), changed: make(chan struct{})}
}

// Wait returns nil when the gate is opened or the call may pass, or the context's error when
// the context ends. It is for [Script.OnCall].
func (g *Gate) Wait(ctx context.Context) error {
	g.mu.Lock()
	g.entered++
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
	select {
	case <-g.opened:
		return nil
	case <-g.pass:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Entered waits until a call has reached the gate. Each call of Entered waits for one more. It
// fails the test after [Patience].
func (g *Gate) Entered(t TB) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
		g.mu.Lock()
		changed := g.changed
		if g.entered > 0 {
			g.entered--
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("no call comes to the gate")
			return
		}
	}
}

// Pass lets one call through that is waiting at the gate, or the next to reach it. It fails
// the test after [Patience].
func (g *Gate) Pass(t TB) {
	if h, ok := t.(helper); ok {
		h.Helper()
	}
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case g.pass <- struct{}{}:
	case <-timeout.C:
		t.Fatalf("no call passes the gate")
	}
}

// Open lets all current and later calls through. It may be called more than once.
func (g *Gate) Open() {
	g.open.Do(func() { close(g.opened) })
}
