package agent

import (
	"context"
	"time"

	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"
)

// trashTime is how long the data of an orphan that was deleted is kept.
const trashTime = 7 * 24 * time.Hour

// trashInterval is how often the trash is looked through.
const trashInterval = time.Hour

// trash removes for good what has been in the trash for its time.
type trash struct {
	agent *Agent
	tomb  tomb.Tomb
}

func (a *Agent) startTrash() (worker.Worker, error) {
	t := &trash{agent: a}
	t.tomb.Go(t.loop)
	return t, nil
}

// Kill is part of worker.Worker.
func (t *trash) Kill() { t.tomb.Kill(nil) }

// Wait is part of worker.Worker.
func (t *trash) Wait() error { return t.tomb.Wait() }

func (t *trash) loop() error {
	ctx := t.tomb.Context(context.Background())
	clock := t.agent.config.Clock
	for {
		for _, keeper := range t.agent.dir.Keepers() {
			err := keeper.PurgeTrash(ctx, clock.Now().Add(-trashTime))
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
