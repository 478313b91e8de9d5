package agent

import (
	"os"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

// csiWay is the way in of storage that is asked for through CSI.
const csiWay = "csi"

// startCSI serves CSI. The machine of an agent has the same tag in each state, so its host's name
// identifies it among the nodes of an orchestrator.
func (a *Agent) startCSI() (worker.Worker, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, errors.Annotate(err, "reading the name of the machine")
	}
	volumes := a.Asked(csiWay, host)
	return csi.NewServer(csi.Config{
		Path: a.config.CSI.SocketPath, Controller: volumes, Node: volumes, NodeID: host, Machine: host,
		Pool: a.config.CSI.Pool, Version: a.config.CSI.Version, Ready: a.Ready, Clock: a.config.Clock, Logger: a.config.Logger,
	})
}
