package executor

import (
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/storage/provider"
)

// flushLimit is how long a flush may take. A disk that does not answer must not hold up the agent.
const flushLimit = 5 * time.Minute

// flush writes out what this machine has in memory of storage.
func (x *Executor) flush(f task.Flush) error {
	failed, err := patience.Ask(x.flushing, f.Path, func() error { return provider.Flush(f.Path) })
	if err == nil {
		err = failed
	}
	return errors.Annotatef(err, "writing out what is in memory of %s", f.Path)
}
