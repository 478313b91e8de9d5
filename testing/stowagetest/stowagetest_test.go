package stowagetest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/testing/stowagetest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

func TestFailureIsRetried(t *testing.T) {
	f := stowagetest.New(t)
	f.AddVolume("volume-0")
	f.Provider.FailItem("CreateVolumes", "volume-0", errors.New("out of space"))
	f.Start(storageprovisioner.New)
	f.AwaitStatus("volume-0", status.Pending)
	f.Clock.Step(t, 30*time.Second, 1)
	f.AwaitAttached("volume-0")
	f.Stop()
	if n := f.Provider.Count("CreateVolumes"); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

func TestMachineMountsFilesystem(t *testing.T) {
	f := stowagetest.NewMachine(t)
	f.AddFilesystem("filesystem-0")
	f.Start(storageprovisioner.New)
	f.AwaitAttached("filesystem-0")
}

func TestFailureOfUnknownEntityPanics(t *testing.T) {
	f := stowagetest.New(t)
	f.AddVolume("volume-0")
	for call, fail := range map[string]func(name, subject string, errs ...error){
		"AttachmentLife": f.Model.FailItem,
		"AttachVolumes":  f.Provider.FailItem,
	} {
		fail(call, "volume-0 machine-0", nil)
		func() {
			defer func() {
				const want = "the model has no volume-1; it has machine-0, volume-0"
				if got := fmt.Sprint(recover()); !strings.HasSuffix(got, want) {
					t.Errorf("%s: the panic is %s, want %s", call, got, want)
				}
			}()
			fail(call, "volume-1 machine-0", errors.New("never"))
		}()
	}
}

// recorder is a test that notes its failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper()        {}
func (r *recorder) Cleanup(func()) {}
func (r *recorder) Error(a ...any) { r.failures = append(r.failures, fmt.Sprint(a...)) }
func (r *recorder) Errorf(f string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(f, a...))
}

// careless is a worker that leaves everything as it is.
type careless struct{}

func (careless) Kill()       {}
func (careless) Wait() error { return errors.New("tired") }

func TestStopFindsWhatIsLeft(t *testing.T) {
	r := &recorder{TB: t}
	f := stowagetest.New(r)
	var left watcher.StringsWatcher
	f.Start(func(config storageprovisioner.Config) (worker.Worker, error) {
		config.Clock.NewTimer(time.Second)
		var err error
		left, err = config.Volumes.WatchVolumes()
		return careless{}, err
	})
	f.Stop()
	want := []string{"the worker: tired", "the worker has left watchers: [WatchVolumes]", "the worker has left timers: "}
	if len(r.failures) != len(want) {
		t.Fatalf("the failures are %q, want %q", r.failures, want)
	}
	for i, failure := range r.failures {
		if !strings.HasPrefix(failure, want[i]) {
			t.Errorf("the failure is %q, want %q", failure, want[i])
		}
	}
	if err := left.Wait(); err != nil {
		t.Error(err)
	}
}
