package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// isolation tries whether a source that hangs in a call keeps others waiting. Single
// volumes with their attachments come for the others, one after another, in rounds:
// for one half of each the source hangs, for the other it does not. At the end the
// worker is killed while it hangs.
type isolation struct {
	// known is how many volumes are attached before, spread over all sources.
	known int
	// rounds is how many there are, with so many volumes in each half: short ones, so
	// that what disturbs the machine disturbs both halves.
	rounds, volumes int
	// pace is how long after one volume the next one comes; 0: as soon as the worker
	// takes it.
	pace time.Duration
}

// sources is how many there are, and hanging the number of the one that hangs: the
// last, so that it is also how many others there are.
const (
	sources = 8
	hanging = sources - 1
)

// isolated is what has been seen of isolation.
type isolated struct {
	// free and hung are how long volumes took, from their events to the records of
	// their attachments, without the source that hangs, and with it.
	free, hung latencies
	// end is how long after the return of the call that hung the worker ended.
	end time.Duration
}

// latencies are how long single volumes took.
type latencies []time.Duration

// percentile returns what so many in a hundred do not exceed.
func (l latencies) percentile(p int) time.Duration {
	return slices.Sorted(slices.Values(l))[(len(l)*p+99)/100-1]
}

// tryIsolation tries it among up to n volumes, a hundred thousand at most, and judges.
func tryIsolation(out io.Writer, n int, b bounds) ([]verdict, error) {
	return isolation{known: min(n, 100_000), rounds: 80, volumes: 50, pace: time.Millisecond / 2}.try(out, b)
}

func (i isolation) try(out io.Writer, b bounds) ([]verdict, error) {
	seen, err := i.run()
	if err != nil {
		return nil, err
	}
	var verdicts []verdict
	for _, p := range []int{50, 99} {
		free, hung := seen.free.percentile(p), seen.hung.percentile(p)
		fmt.Fprintf(out, "p%d of a volume, from its event to the record of its attachment: %v; while another source hangs: %v\n", p, free, hung)
		verdicts = append(verdicts, verdict{
			fmt.Sprintf("%s, p%d of a volume while another source hangs, beside that without", isolating, p),
			float64(hung) / float64(free), b.beside,
		})
	}
	return append(verdicts, verdict{
		fmt.Sprintf("%s, ms from the return of a call to the end of the worker that is killed", isolating),
		float64(seen.end) / float64(time.Millisecond), b.end,
	}), nil
}

func (i isolation) run() (isolated, error) {
	s := newStream(i)
	s.startIdle()
	s.begin()
	var seen isolated
	// The source hangs for a moment before free halves, too: they are to differ in
	// nothing else.
	free := func() {
		s.goOn(s.hang())
		seen.free = append(seen.free, s.half("free")...)
	}
	hung := func() {
		block := s.hang()
		seen.hung = append(seen.hung, s.half("hung")...)
		s.goOn(block)
	}
	for round := range i.rounds {
		// Neither is always the first.
		if round%2 == 0 {
			free()
			hung()
		} else {
			hung()
			free()
		}
	}
	block := s.hang()
	if s.err == nil {
		s.worker.Kill()
		<-s.ended
		seen.end = time.Since(block.Left())
	}
	s.stop()
	return seen, errors.Annotate(s.err, isolating)
}

// stream is a course on which volumes come one after another.
type stream struct {
	isolation
	*course
	ids         []string
	attachments []params.MachineStorageId
	// came and took tell of each volume when it came, and how long it took.
	came []time.Time
	took []time.Duration
	// attached counts the volumes that are, streamed those of the stream among them,
	// and hangs how often the source has hung.
	attached, streamed, hangs int
}

func newStream(i isolation) *stream {
	i.known -= i.known % sources
	// One of each group of volumes is for the source that hangs.
	groups := max(2*i.rounds*i.volumes/hanging, 2*i.rounds) + 1
	n := i.known + groups*sources
	s := &stream{isolation: i, came: make([]time.Time, n), took: make([]time.Duration, n)}
	s.course = &course{world: world.New(world.Options{
		Volumes:   n,
		Providers: sources,
		Machines:  manyMachines,
		Attached:  func(number int) { s.took[number] = time.Since(s.came[number]) },
	})}
	s.world.Volumes.Appear()
	s.ids, s.attachments = s.world.Volumes.IDs(), s.world.Volumes.AttachmentIDs()
	return s
}

// begin waits until the volumes that are known are attached.
func (s *stream) begin() {
	s.attach("known", s.known, func() {
		s.world.Volumes.Tell(s.ids[:s.known]...)
		s.world.Volumes.TellAttachments(s.attachments[:s.known]...)
	})
}

// attach waits until an action has led to the attachment of n more volumes.
func (s *stream) attach(name string, n int, act func()) {
	s.attached += n
	s.until(s.world.Volumes.Attached.Reach(s.attached), name, func() error {
		act()
		return nil
	})
}

// come has one volume of a group come, that of some source.
func (s *stream) come(group, source int) (number int) {
	number = s.known + group*sources + source
	s.came[number] = time.Now()
	s.world.Volumes.Tell(s.ids[number])
	s.world.Volumes.TellAttachments(s.attachments[number])
	return number
}

// half has volumes come for the sources that do not hang, and returns how long each
// took.
func (s *stream) half(name string) latencies {
	numbers := make([]int, s.volumes)
	s.attach(name, s.volumes, func() {
		var next <-chan time.Time
		if s.pace > 0 {
			ticker := time.NewTicker(s.pace)
			defer ticker.Stop()
			next = ticker.C
		}
		for i := range numbers {
			if next != nil {
				<-next
			}
			numbers[i] = s.come(s.streamed/hanging, s.streamed%hanging)
			s.streamed++
		}
	})
	took := make(latencies, len(numbers))
	for i, number := range numbers {
		took[i] = s.took[number]
	}
	return took
}

// hang has a volume come for the source that hangs, and waits until it does.
func (s *stream) hang() *world.Block {
	block := s.world.Block(hanging)
	s.until(block.Entered(), "hang", func() error {
		s.come(s.hangs, hanging)
		s.hangs++
		return nil
	})
	return block
}

// goOn ends that the source hangs.
func (s *stream) goOn(block *world.Block) { s.attach("go on", 1, block.Lift) }
