package storageprovisioner

import (
	"github.com/stowage-io/stowage/internal/delay"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
)

// job is a task for the clerk: one or more accessor calls. It returns a reply that handles the
// results. It must not touch what the loop owns.
type job func() (reply, error)

// reply handles the results of a job. The loop runs it.
type reply func()

// answer is the outcome of a job.
type answer struct {
	reply reply
	err   error
}

// clerk carries out jobs, one at a time. It is the only goroutine that calls accessors.
func clerk(g *guard.Guard, jobs <-chan job, answers chan<- answer) {
	doing := func() string { return "reading or recording" }
	for {
		err := g.CallInGoroutine(guard.Accessor, doing, func() {
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
