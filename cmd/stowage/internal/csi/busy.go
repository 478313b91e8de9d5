package csi

import (
	"sync"

	"google.golang.org/grpc/codes"
)

// busy is the set of what calls of this process are in hand for: volumes by ID, and names of volumes to
// make. Of several servers with one state, each has its own: the state lets only one of them make a volume
// of a name, and their other calls ask it for what can be asked for twice.
type busy struct {
	mu  sync.Mutex
	set map[string]bool
}

// begin excludes other calls for a key, until end is called. The error is ABORTED if there is one.
func (b *busy) begin(kind, of string) (end func(), err error) {
	key := kind + " " + of
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.set[key] {
		return nil, fail(codes.Aborted, "%s %q: another call for it is in hand: repeat this one when that has ended", kind, of)
	}
	if b.set == nil {
		b.set = map[string]bool{}
	}
	b.set[key] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.set, key)
	}, nil
}
