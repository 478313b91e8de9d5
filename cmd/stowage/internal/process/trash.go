package process

import (
	"context"
	"time"

	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
)

// TrashRetention is how long the data of a deleted orphan is kept.
const TrashRetention = 7 * 24 * time.Hour

// trashInterval is how often the trash is checked.
const trashInterval = time.Hour

// trashPurger destroys data that has been in the trash for TrashRetention.
type trashPurger struct {
	config Config
	dir    datadir.Dir
	tomb   tomb.Tomb
}

// StartTrashPurger starts a worker that empties the trash of the providers of a directory.
func (p *Process) StartTrashPurger(dir datadir.Dir) (worker.Worker, error) {
	t := &trashPurger{config: p.Config, dir: dir}
	t.tomb.Go(t.loop)
	return t, nil
}

// Kill implements worker.Worker.
func (t *trashPurger) Kill() { t.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (t *trashPurger) Wait() error { return t.tomb.Wait() }

func (t *trashPurger) loop() error {
	ctx := t.tomb.Context(context.Background())
	clock := t.config.Clock
	for {
		for _, directory := range t.dir.StorageDirectories() {
			err := directory.PurgeTrash(ctx, clock.Now().Add(-TrashRetention))
			if err != nil && ctx.Err() == nil {
				t.config.Logger.Warningf("%v", err)
			}
		}
		select {
		case <-t.tomb.Dying():
			return tomb.ErrDying
		case <-clock.After(trashInterval):
		}
	}
}
