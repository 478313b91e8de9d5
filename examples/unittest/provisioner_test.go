package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"go.uber.org/goleak"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/clocktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/testing/providerfake"
)

// fixture is the environment of start in a test: a model in memory that wants a volume on a
// machine, a fake provider, and a clock that the test advances.
type fixture struct {
	model    *modeltest.Model
	provider *providerfake.Provider
	clock    *clocktest.Clock
	out      bytes.Buffer
	// stop ends the worker. Call it before out is read.
	stop func()
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{
		model:    modeltest.New(modeltest.Options{}),
		provider: providerfake.New(providerfake.Options{}),
		clock:    clocktest.New(),
	}
	f.model.ProvisionMachine("machine-0", "instance-0")
	f.model.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1024, Provider: "fake"})
	f.model.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "fake"})
	return f
}

// start starts the worker, after the test has set the failures of the provider.
func (f *fixture) start(t *testing.T) {
	config := f.model.Config(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"))
	config.Clock = f.clock
	config.Registry = providerfake.Registry(map[storage.ProviderType]storage.Provider{"fake": f.provider})
	worker, err := start(config, &f.out)
	if err != nil {
		t.Fatal(err)
	}
	f.stop = func() {
		worker.Kill()
		if err := worker.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		f.stop()
		if left := f.model.Close(); len(left) > 0 {
			t.Errorf("the worker has left watchers: %v", left)
		}
		goleak.VerifyNone(t)
	})
}

func (f *fixture) expectOutput(t *testing.T, want string) {
	t.Helper()
	f.stop()
	if got := f.out.String(); got != want {
		t.Errorf("the output is\n%swant\n%s", got, want)
	}
}

// A failed creation is retried after 30 seconds, and not before: the clock does not advance
// by itself.
func TestFailureIsRetried(t *testing.T) {
	f := newFixture(t)
	f.provider.FailItem("CreateVolumes", "volume-0", errors.New("out of space"))
	f.start(t)

	// Step waits until the worker has set its timer, which it does after the failure.
	f.clock.Step(t, 29*time.Second, 1)
	if n := f.provider.Count("CreateVolumes"); n != 1 {
		t.Errorf("%d attempts after 29 s, want 1", n)
	}
	f.clock.Step(t, time.Second, 1)
	f.model.Await(t, "the attachment", func() bool {
		_, attached := f.model.VolumeAttachment("machine-0", "volume-0")
		return attached
	})
	f.expectOutput(t, `create-volume volume-0: failure: out of space
create-volume volume-0: success
attach-volume volume-0: success
`)
}

func TestGivesUpAfterThirdFailure(t *testing.T) {
	f := newFixture(t)
	f.provider.FailItemAlways("CreateVolumes", "volume-0", errors.New("out of space"))
	f.start(t)

	f.clock.Step(t, 30*time.Second, 1)
	f.clock.Step(t, time.Minute, 1)
	f.model.Await(t, "the error", func() bool { return f.model.Status("volume-0").Status == "error" })
	if timers := f.clock.Timers(); len(timers) > 0 {
		t.Errorf("timers %v are set after the last attempt", timers)
	}
	f.expectOutput(t, `create-volume volume-0: failure: out of space
create-volume volume-0: failure: out of space
create-volume volume-0: failure: out of space
`)
}
