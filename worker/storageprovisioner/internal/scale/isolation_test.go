package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

// isolation measures whether a source that hangs in a call delays other sources. Single
// volumes with their attachments appear for the other sources, one after another, in rounds:
// during one half of each round the source hangs, during the other it does not. At the end the
// worker is killed while the source hangs.
type isolation struct {
	// known is how many volumes are attached beforehand, spread over all sources.
	known int
	// rounds is the number of rounds, and volumes the number of volumes in each half. Halves
	// are short, so that a disturbance of the machine affects both.
	rounds, volumes int
	// pace is the time between two volumes; 0: the next one appears as soon as the worker has
	// accepted the one before.
	pace time.Duration
}

// sources is the number of sources. hanging is the number of the source that hangs: the last,
// so that it is also the count of the other sources.
const (
	sources = 8
	hanging = sources - 1
)

// isolated is the result of isolation.
type isolated struct {
	// free and hung are how long volumes took, from their events to the records of their
	// attachments, while no source hung and while one did.
	free, hung latencies
	// end is how long the worker took to end after the call that hung had returned.
	end time.Duration
}

// latencies are the times that single volumes took.
type latencies []time.Duration

// percentile returns the time that p percent of the latencies do not exceed.
func (l latencies) percentile(p int) time.Duration {
	return slices.Sorted(slices.Values(l))[(len(l)*p+99)/100-1]
}

func (i isolation) run() (isolated, error) {
	s := newStream(i)
	s.startIdle()
	s.begin()
	var seen isolated
	// The source hangs for a moment before free halves, too, so that the halves differ in
	// nothing else.
	free := func() {
		s.unblock(s.hang())
		seen.free = append(seen.free, s.half("free")...)
	}
	hung := func() {
		block := s.hang()
		seen.hung = append(seen.hung, s.half("hung")...)
		s.unblock(block)
	}
	for round := range i.rounds {
		// Alternate the order, so that neither half always comes first.
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
		seen.end = time.Since(block.CancelledAt())
	}
	s.stop()
	return seen, errors.Annotate(s.err, "isolation")
}

// stream is a course on which volumes appear one after another.
type stream struct {
	isolation
	*course
	ids         []string
	attachments []params.MachineStorageId
	// came is when each volume appeared, and took how long it took.
	came []time.Time
	took []time.Duration
	// attached counts the attached volumes, streamed those of them that appeared in the
	// stream, and hangs how often the source has hung.
	attached, streamed, hangs int
}

func newStream(i isolation) *stream {
	i.known -= i.known % sources
	// One volume of each group is for the source that hangs.
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

// begin waits until the known volumes are attached.
func (s *stream) begin() {
	s.attach("known", s.known, func() {
		s.world.Volumes.Notify(s.ids[:s.known]...)
		s.world.Volumes.NotifyAttachments(s.attachments[:s.known]...)
	})
}

// attach runs an action and waits until n more volumes are attached.
func (s *stream) attach(name string, n int, act func()) {
	s.attached += n
	s.until(s.world.Volumes.Attached.Reach(s.attached), name, func() error {
		act()
		return nil
	})
}

// addVolume makes the volume of a group for one source appear, and returns its number.
func (s *stream) addVolume(group, source int) (number int) {
	number = s.known + group*sources + source
	s.came[number] = time.Now()
	s.world.Volumes.Notify(s.ids[number])
	s.world.Volumes.NotifyAttachments(s.attachments[number])
	return number
}

// half makes volumes appear for the sources that do not hang, and returns how long each took.
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
			numbers[i] = s.addVolume(s.streamed/hanging, s.streamed%hanging)
			s.streamed++
		}
	})
	took := make(latencies, len(numbers))
	for i, number := range numbers {
		took[i] = s.took[number]
	}
	return took
}

// hang makes a volume appear for the source that hangs, and waits until the source hangs.
func (s *stream) hang() *world.Block {
	block := s.world.Block(hanging)
	s.until(block.Entered(), "hang", func() error {
		s.addVolume(s.hangs, hanging)
		s.hangs++
		return nil
	})
	return block
}

// unblock ends the hang of a source.
func (s *stream) unblock(block *world.Block) { s.attach("unblock", 1, block.Lift) }

func TestHangingSourceDelaysNoOther(t *testing.T) {
	const rounds, volumes = 3, 20
	seen, err := isolation{known: 100, rounds: rounds, volumes: volumes}.run()
	if err != nil {
		t.Fatal(err)
	}
	for what, half := range map[string]latencies{"without the hanging source": seen.free, "with it": seen.hung} {
		if len(half) != rounds*volumes {
			t.Errorf("%d volumes were created %s, want %d", len(half), what, rounds*volumes)
		}
		if slices.Min(half) <= 0 {
			t.Errorf("volumes have taken %v %s", half, what)
		}
	}
	if seen.end <= 0 || seen.end > time.Minute {
		t.Errorf("the worker ended %v after its last call", seen.end)
	}
}

func TestPercentile(t *testing.T) {
	for _, test := range []struct {
		of      latencies
		p, want int
	}{
		{latencies{7}, 50, 7},
		{latencies{7}, 99, 7},
		{latencies{3, 1, 2}, 50, 2},
		{latencies{3, 1, 2}, 99, 3},
		{latencies{4, 3, 2, 1}, 50, 2},
		{latencies{4, 3, 2, 1}, 75, 3},
	} {
		if got := test.of.percentile(test.p); got != time.Duration(test.want) {
			t.Errorf("p%d of %v: got %d, want %d", test.p, test.of, got, test.want)
		}
	}
}
