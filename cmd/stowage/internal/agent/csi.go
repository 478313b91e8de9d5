package agent

import (
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

// csiWay is the way in of storage that is asked for through CSI.
const csiWay = "csi"

func (a *Agent) startCSI() (worker.Worker, error) {
	machine := a.config.CSI.Machine
	volumes := a.Asked(csiWay, machine)
	return csi.NewServer(csi.Config{
		Path: a.config.CSI.SocketPath, Controller: volumes, Node: volumes, NodeID: machine, Machine: machine,
		Pool: a.config.CSI.Pool, ExpandOnNodes: a.config.CSI.ExpandOnNodes, Version: a.config.CSI.Version, Ready: a.Ready, Clock: a.config.Clock, Logger: a.config.Logger,
	})
}
