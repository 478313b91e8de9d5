package world

import "sync"

// Tally counts the worker's reports of one kind to the state. The world's lock guards it.
type Tally struct {
	mu      *sync.Mutex
	count   int
	goal    int
	reached chan struct{}
}

// Reach returns a channel that is closed when the count has reached n. There is one goal at a
// time: each call replaces the goal of the call before.
func (t *Tally) Reach(n int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.goal, t.reached = n, make(chan struct{})
	if t.count >= n {
		close(t.reached)
	}
	return t.reached
}

// add increments the count. The caller holds the world's lock.
func (t *Tally) add() {
	t.count++
	if t.count == t.goal {
		close(t.reached)
	}
}
