package agent

import (
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

func (a *Agent) startCSI() (worker.Worker, error) {
	volumes := a.Asked(csi.Way, a.config.CSI.Machine)
	return csi.NewServer(csi.Config{
		Settings: *a.config.CSI, Controller: volumes, Node: volumes, Ready: a.Ready, Clock: a.config.Clock, Logger: a.config.Logger,
	})
}
