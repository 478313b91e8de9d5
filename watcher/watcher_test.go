package watcher_test

import (
	"testing"

	"github.com/juju/errors"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/watcher"
)

// fakeWatcher ends with err when it is killed, unless its tomb has an error already.
type fakeWatcher struct {
	tomb tomb.Tomb
	err  error
}

func start(err error) *fakeWatcher {
	w := &fakeWatcher{err: err}
	w.tomb.Go(func() error {
		<-w.tomb.Dying()
		return w.err
	})
	return w
}

func (w *fakeWatcher) Kill()       { w.tomb.Kill(nil) }
func (w *fakeWatcher) Wait() error { return w.tomb.Wait() }

// waitOnly returns err from Wait.
type waitOnly struct{ err error }

func (waitOnly) Kill()         {}
func (w waitOnly) Wait() error { return w.err }

func TestStopWaitsForWatcher(t *testing.T) {
	w := start(nil)
	var owner tomb.Tomb
	watcher.Stop(w, &owner)
	select {
	case <-w.tomb.Dead():
	default:
		t.Errorf("watcher is not dead")
	}
	if !owner.Alive() {
		t.Errorf("owner dies of %v", owner.Err())
	}
}

func TestStopKillsTombWithError(t *testing.T) {
	w := start(errors.New("connection lost"))
	var owner tomb.Tomb
	watcher.Stop(w, &owner)
	if err := owner.Err(); err == nil || err.Error() != "connection lost" {
		t.Errorf("owner's error is %v", err)
	}
}

func TestStopKeepsFirstError(t *testing.T) {
	var owner tomb.Tomb
	owner.Kill(errors.New("first"))
	watcher.Stop(start(errors.New("second")), &owner)
	if err := owner.Err(); err == nil || err.Error() != "first" {
		t.Errorf("owner's error is %v", err)
	}
}

func TestStopIgnoresTombStates(t *testing.T) {
	for _, err := range []error{tomb.ErrStillAlive, tomb.ErrDying} {
		var owner tomb.Tomb
		watcher.Stop(waitOnly{err}, &owner)
		if !owner.Alive() {
			t.Errorf("%v: owner dies of %v", err, owner.Err())
		}
	}
}

func TestEnsureErrReturnsWatcherError(t *testing.T) {
	cause := errors.New("connection lost")
	w := start(nil)
	w.tomb.Kill(cause)
	if err := watcher.EnsureErr(w); !errors.Is(err, cause) || err.Error() != "connection lost" {
		t.Errorf("got %v", err)
	}
}

func TestEnsureErrIsNeverNil(t *testing.T) {
	// The watcher is still alive, as if it had closed its channel too early.
	err := watcher.EnsureErr(start(nil))
	if err == nil || err.Error() != "watcher closed its channel without an error" {
		t.Errorf("got %v", err)
	}
}
