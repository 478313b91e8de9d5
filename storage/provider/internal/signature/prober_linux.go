package signature

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stowage-io/stowage/storage/internal/run"
)

// Prober proves devices blank for several callers at once. Starting blkid takes
// longer than its work on a device, so those who ask while it runs share the next
// run. They are to have one context. The zero Prober is ready.
type Prober struct {
	// Limit is how long a device is read, beside its ends; 0: DefaultLimit.
	Limit time.Duration

	// Turn, if not nil, is shared with other probers: whole devices are read one at a time.
	Turn *Turn
	// own is for a prober that has none.
	own Turn

	// running is held while blkid runs.
	running sync.Mutex

	mu      sync.Mutex
	waiting []*probe
}

// Turn is held while a whole device is read. The zero Turn is ready.
type Turn struct{ mu sync.Mutex }

// turnInterval is how often a turn is tried again that somebody else has.
const turnInterval = 5 * time.Millisecond

// take waits for the turn, at most so long: a device that hangs is not to hold up all others.
// The returned function gives back what was taken.
func (t *Turn) take(ctx context.Context, most time.Duration) (end func(), err error) {
	again := time.NewTicker(turnInterval)
	defer again.Stop()
	for begun := time.Now(); !t.mu.TryLock(); {
		if time.Since(begun) > most {
			return func() {}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-again.C:
		}
	}
	return t.mu.Unlock, nil
}

// probe is a device to be probed, and what came of it.
type probe struct {
	dev   *os.File
	done  bool
	found Signature
	err   error
}

func (p *Prober) probe(ctx context.Context, dev *os.File) (Signature, error) {
	mine := &probe{dev: dev}
	p.mu.Lock()
	p.waiting = append(p.waiting, mine)
	p.mu.Unlock()

	p.running.Lock()
	defer p.running.Unlock()
	if !mine.done {
		p.mu.Lock()
		all := p.waiting
		p.waiting = nil
		p.mu.Unlock()
		probeAll(ctx, all)
	}
	return mine.found, mine.err
}

// probeAll probes devices, with one run of blkid as far as that goes: it stops at
// a device that it cannot read.
func probeAll(ctx context.Context, all []*probe) {
	if len(all) > 1 {
		probeTogether(ctx, all)
	}
	for _, one := range all {
		if !one.done {
			one.found, one.err = Probe(ctx, one.dev)
			one.done = true
		}
	}
}

func probeTogether(ctx context.Context, all []*probe) {
	args := slices.Clone(probeArgs)
	files := make([]*os.File, len(all))
	for i, one := range all {
		args = append(args, run.FilePath(i))
		files[i] = one.dev
	}
	// However it ends, what it says of a device that it has read counts.
	out, _ := run.Run(ctx, blkid, args, files...)
	byDevice := splitExport(string(out))
	for i, one := range all {
		if text, ok := byDevice[run.FilePath(i)]; ok {
			found, err := parseExport(text)
			one.found, one.done = found, err == nil
		}
	}
}

// splitExport returns what "blkid -o export" says of each of several devices, by
// the path of the device. What is not said once is left out.
func splitExport(out string) map[string]string {
	byDevice, seen := make(map[string]string), make(map[string]bool)
	for text := range strings.SplitSeq(out, "\n\n") {
		first, rest, _ := strings.Cut(text, "\n")
		device, ok := strings.CutPrefix(first, "DEVNAME=")
		if !ok {
			continue
		}
		byDevice[device] = rest
		if seen[device] {
			delete(byDevice, device)
		}
		seen[device] = true
	}
	return byDevice
}
