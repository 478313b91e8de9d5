package watchertest

import (
	"sync"

	"github.com/stowage-io/stowage/worker"
)

// Group keeps watchers by name, to find and stop those that are left at the end of a test. The
// zero value is empty. Its methods are safe for concurrent use.
type Group struct {
	mu      sync.Mutex
	members []member
}

type member struct {
	name    string
	watcher Living
}

// Living is a watcher that reports whether it has been stopped; every [Watcher] does.
type Living interface {
	worker.Worker
	Alive() bool
}

// Add adds a watcher under a name, which need not be unique.
func (g *Group) Add(name string, w Living) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = append(g.members, member{name, w})
}

// Living returns the names of the watchers that have not been stopped, in the order in which
// they were added.
func (g *Group) Living() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	living := []string{}
	for _, m := range g.members {
		if m.watcher.Alive() {
			living = append(living, m.name)
		}
	}
	return living
}

// Stop stops all watchers, waits for them, and returns the names of those that had not been
// stopped before.
func (g *Group) Stop() []string {
	left := g.Living()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		m.watcher.Kill()
		// Ignore its error, which is for the code that uses the watcher.
		_ = m.watcher.Wait()
	}
	g.members = nil
	return left
}
