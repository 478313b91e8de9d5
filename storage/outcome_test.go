package storage_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// Behaviour O2.
func TestOutcomesKeepCauseAndText(t *testing.T) {
	for _, test := range []struct {
		mark     func(error) error
		sentinel error
	}{
		{storage.InProgress, storage.ErrInProgress},
		{storage.Ignored, storage.ErrIgnored},
		{storage.Permanent, storage.ErrPermanent},
		{storage.Transient, storage.ErrTransient},
		{storage.NothingMade, storage.ErrNothingMade},
		{storage.Incomplete, storage.ErrIncomplete},
		{storage.Refused, storage.ErrRefused},
	} {
		t.Run(test.sentinel.Error(), func(t *testing.T) {
			if err := test.mark(nil); err != nil {
				t.Errorf("marking nil gives %v", err)
			}
			cause := errors.NotFoundf("volume vol-1")
			marked := test.mark(cause)
			for _, err := range []error{
				marked,
				errors.Trace(marked),
				errors.Annotatef(marked, "creating volume %d", 1),
				fmt.Errorf("creating: %w", marked),
				test.mark(test.mark(cause)),
			} {
				if !errors.Is(err, test.sentinel) {
					t.Errorf("%q has lost its mark", err)
				}
				if !errors.Is(err, cause) || !errors.Is(err, errors.NotFound) {
					t.Errorf("%q has lost its cause", err)
				}
				for _, other := range []error{storage.ErrInProgress, storage.ErrIgnored, storage.ErrPermanent, storage.ErrTransient, storage.ErrNothingMade, storage.ErrIncomplete, storage.ErrRefused} {
					if other != test.sentinel && errors.Is(err, other) {
						t.Errorf("%q is also %q", err, other)
					}
				}
			}
			if marked.Error() != cause.Error() {
				t.Errorf("got text %q, want %q", marked, cause)
			}
			if got, want := errors.Annotate(marked, "creating").Error(), "creating: volume vol-1 not found"; got != want {
				t.Errorf("got text %q, want %q", got, want)
			}
			// A bare sentinel works as well.
			if !errors.Is(errors.Annotate(test.sentinel, "creating"), test.sentinel) {
				t.Errorf("annotated sentinel is not found")
			}
		})
	}
}

func TestIsPermanent(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("disk full"), false},
		{errors.NotFoundf("pool"), false},
		{storage.ErrPermanent, true},
		{storage.Permanent(errors.New("quota")), true},
		{errors.Annotate(storage.Permanent(errors.New("quota")), "creating"), true},
		{errors.NotValidf("size"), true},
		{errors.Annotate(errors.NotValidf("size"), "creating"), true},
		{errors.NotSupportedf("volumes"), true},
		{fmt.Errorf("creating: %w", errors.NotSupportedf("volumes")), true},
		{storage.Transient(errors.New("mounted elsewhere")), false},
		{storage.ErrInProgress, false},
		{storage.InProgress(errors.NotValidf("size")), false},
		{storage.Ignored(errors.NotSupportedf("volumes")), false},
		{storage.Incomplete(errors.NotValidf("empty host")), false},
	} {
		if got := storage.IsPermanent(test.err); got != test.want {
			t.Errorf("IsPermanent(%v) = %t, want %t", test.err, got, test.want)
		}
	}
}

func TestIsNothingMade(t *testing.T) {
	cause := errors.New("no room")
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{cause, false},
		{storage.Permanent(cause), false},
		{storage.NothingMade(cause), true},
		{storage.Permanent(storage.NothingMade(cause)), true},
		{storage.NothingMade(context.Canceled), true},
		{storage.InProgress(storage.NothingMade(cause)), false},
		{storage.Incomplete(cause), true},
		{storage.InProgress(storage.Incomplete(cause)), false},
	} {
		if got := storage.IsNothingMade(errors.Annotate(test.err, "creating")); got != test.want {
			t.Errorf("IsNothingMade(%v) = %t, want %t", test.err, got, test.want)
		}
	}
}

func TestIsRefused(t *testing.T) {
	cause := errors.New("no room")
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{storage.Permanent(cause), false},
		{storage.NothingMade(cause), false},
		{storage.Refused(cause), true},
		{storage.Refused(storage.Permanent(cause)), true},
		{storage.Refused(storage.InProgress(cause)), false},
	} {
		if got := storage.IsRefused(errors.Annotate(test.err, "creating")); got != test.want {
			t.Errorf("IsRefused(%v) = %t, want %t", test.err, got, test.want)
		}
	}
}
