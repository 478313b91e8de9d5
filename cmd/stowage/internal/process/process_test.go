package process

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/clock/testclock"
	"github.com/juju/loggo"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"
	"gopkg.in/tomb.v2"
)

// Workers resync, for changes that no event announces. The jitter keeps agents from doing so at the same
// moment.
// Behaviour 31.
func TestProvisionersResync(t *testing.T) {
	p := New(Config{Clock: clock.WallClock, Resync: 15 * time.Minute})
	for _, scope := range []string{"machine-0", "environment"} {
		config := p.Provisioner("accessors", scope)
		if config.ResyncInterval != 15*time.Minute || config.ResyncJitter <= 0 {
			t.Errorf("%s resyncs every %v, with jitter %v", scope, config.ResyncInterval, config.ResyncJitter)
		}
	}
}

// lines is a logger that passes on what is logged at INFO.
type lines struct {
	Logger
	info chan string
}

func (l lines) Infof(format string, args ...any) { l.info <- fmt.Sprintf(format, args...) }

// busy is a worker that ends when its operation does.
type busy struct{ tomb tomb.Tomb }

func (b *busy) Kill()       {}
func (b *busy) Wait() error { return b.tomb.Wait() }

// A process that cannot stop at once says what it waits for.
func TestStoppingNamesWhatRuns(t *testing.T) {
	discard := loggo.GetLogger("process")
	logger := lines{Logger: &discard, info: make(chan string, 100)}
	clock := testclock.NewClock(time.Now())
	p := New(Config{Clock: clock, Logger: logger})
	ended, started := make(chan struct{}), make(chan struct{})
	err := p.Run(dependency.Manifolds{
		"copying": Start(func() (worker.Worker, error) {
			b := &busy{}
			b.tomb.Go(func() error { <-ended; return nil })
			close(started)
			return b, nil
		}),
	}, func(error) bool { return false }, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	<-started
	p.Kill()
	for !strings.Contains(<-logger.info, "stopping") {
	}
	for waiting := ""; !strings.Contains(waiting, "waiting for copying;"); {
		select {
		case waiting = <-logger.info:
		case <-time.After(time.Millisecond):
			clock.Advance(drainInterval)
		}
	}
	close(ended)
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}
