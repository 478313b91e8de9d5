package signature

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stowage-io/stowage/internal/run"
)

// Prober proves devices blank for several callers at once. Starting blkid takes longer than
// its work on a device, so callers that arrive while it runs share the next run. All callers
// must use the same context. The zero Prober is ready to use.
type Prober struct {
	// Limit is the maximum time for reading a device, except for its ends; 0 means
	// DefaultLimit.
	Limit time.Duration

	// Turn, if not nil, is shared with other Probers, so that whole devices are read one at a
	// time.
	Turn *Turn
	// own is used if Turn is nil.
	own Turn

	// running is held while blkid runs.
	running sync.Mutex

	mu      sync.Mutex
	waiting []*probe
}

// Turn is held while a whole device is read. The zero Turn is ready to use.
type Turn struct{ mu sync.Mutex }

// turnInterval is the interval between attempts to take a turn.
const turnInterval = 5 * time.Millisecond

// take waits for the turn, for at most the given time: a device that hangs must not block all
// others. After that time, take succeeds without the turn. end releases the turn if it was
// taken.
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

// probe is a device to probe, with the result.
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

// probeAll probes devices with one run of blkid as far as possible: blkid stops at a device
// that it cannot read. The remaining devices are probed one by one.
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
	// Even if blkid fails, its output for the devices that it has read is valid.
	out, _ := run.Run(ctx, blkid, args, files...)
	byDevice := splitExport(string(out))
	for i, one := range all {
		if text, ok := byDevice[run.FilePath(i)]; ok {
			found, err := parseExport(text)
			one.found, one.done = found, err == nil
		}
	}
}

// splitExport splits the output of "blkid -o export" for several devices, by the path of the
// device. It omits a device that occurs more than once.
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
