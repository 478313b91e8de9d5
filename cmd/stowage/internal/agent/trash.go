package agent

import (
	"context"
	"time"

	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"
)

// trashRetention is how long the data of a deleted orphan is kept.
const trashRetention = 7 * 24 * time.Hour

// trashInterval is how often the trash is checked.
const trashInterval = time.Hour

// trashPurger destroys data that has been in the trash for trashRetention.
type trashPurger struct {
	agent *Agent
	tomb  tomb.Tomb
}

func (a *Agent) startTrashPurger() (worker.Worker, error) {
	t := &trashPurger{agent: a}
	t.tomb.Go(t.loop)
	return t, nil
}

// Kill implements worker.Worker.
func (t *trashPurger) Kill() { t.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (t *trashPurger) Wait() error { return t.tomb.Wait() }

func (t *trashPurger) loop() error {
	ctx := t.tomb.Context(context.Background())
	clock := t.agent.config.Clock
	for {
		for _, directory := range t.agent.dir.StorageDirectories() {
			err := directory.PurgeTrash(ctx, clock.Now().Add(-trashRetention))
			if err != nil && ctx.Err() == nil {
				t.agent.config.Logger.Warningf("%v", err)
			}
		}
		select {
		case <-t.tomb.Dying():
			return tomb.ErrDying
		case <-clock.After(trashInterval):
		}
	}
}
