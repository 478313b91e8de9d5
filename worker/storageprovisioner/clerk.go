package storageprovisioner

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/internal/delay"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// job is what the clerk is asked to do: one or more accessor calls. It returns
// what the loop then does with the answers. It touches nothing of the loop's.
type job func() (reply, error)

// reply is run by the loop.
type reply func()

// answer is what has come of a job.
type answer struct {
	reply reply
	err   error
}

// clerk is the only goroutine that calls accessors. Its jobs come one at a time.
func clerk(shelter *shelter, jobs <-chan job, answers chan<- answer) {
	doing := func() string { return "reading or recording" }
	for {
		err := shelter.runInGoroutine(theState, doing, func() {
			for job := range jobs {
				delay.At(delay.ClerkJob)
				reply, err := job()
				delay.At(delay.ClerkAnswer)
				answers <- answer{reply, err}
			}
		})
		if err == nil {
			return
		}
		answers <- answer{err: err}
	}
}

// callAccessor makes one bulk call of an accessor. Without arguments it calls nothing.
func callAccessor[A, R any](shelter *shelter, doing string, accessor func([]A) ([]R, error), args []A) ([]R, error) {
	if len(args) == 0 {
		return nil, nil
	}
	var results []R
	err := shelter.runError(theState, func() string { return doing }, func() (err error) {
		results, err = accessor(args)
		return err
	})
	if err != nil {
		return nil, errors.Annotate(err, doing)
	}
	if len(results) != len(args) {
		return nil, errors.Errorf("%s: got %d results for %d arguments", doing, len(results), len(args))
	}
	return results, nil
}

// callWriter makes one bulk call of an accessor that writes, and returns an error for
// each argument.
func callWriter[A any](shelter *shelter, doing string, accessor func([]A) ([]params.ErrorResult, error), args []A) ([]error, error) {
	results, err := callAccessor(shelter, doing, func(args []A) ([]params.ErrorResult, error) {
		results, err := accessor(args)
		if results == nil {
			results = make([]params.ErrorResult, len(args))
		}
		return results, err
	}, args)
	errs := make([]error, len(results))
	for i, result := range results {
		errs[i] = wireError(result.Error)
	}
	return errs, err
}

// wireError returns the error of one result, of the kind that its code stands
// for; nil for none.
func wireError(err *params.Error) error {
	if err == nil {
		return nil
	}
	return sanitizeError(params.TranslateWellKnownError(err))
}

// attachmentIds returns how the accessors name attachments.
func attachmentIds(facts []*plan.Fact) []params.MachineStorageId {
	ids := make([]params.MachineStorageId, len(facts))
	for i, f := range facts {
		ids[i] = attachmentId(f.Subject)
	}
	return ids
}

func attachmentId(s plan.Subject) params.MachineStorageId {
	return params.MachineStorageId{
		MachineTag:    s.Key.Host,
		AttachmentTag: s.Tag.String(),
	}
}
