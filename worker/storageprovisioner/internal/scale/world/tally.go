package world

import "sync"

// Tally counts what the worker has told the state, under its world's lock.
type Tally struct {
	mu      *sync.Mutex
	count   int
	goal    int
	reached chan struct{}
}

// Reach returns a channel that is closed when the count has reached n. There is one
// goal at a time: a new one replaces that of the call before.
func (t *Tally) Reach(n int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.goal, t.reached = n, make(chan struct{})
	if t.count >= n {
		close(t.reached)
	}
	return t.reached
}

// add counts one more. The world's lock is held.
func (t *Tally) add() {
	t.count++
	if t.count == t.goal {
		close(t.reached)
	}
}
