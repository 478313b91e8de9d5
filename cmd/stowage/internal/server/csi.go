package server

import (
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/apiserver/agentapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/state"
)

// startCSI starts the controller of a CSI driver. Each of several servers may have one: the state is the
// same.
func (s *Server) startCSI() (worker.Worker, error) {
	return csi.NewServer(csi.Config{
		Settings: *s.config.CSI, Controller: s.backend.Asked(csi.Way, ""), Ready: s.ready, Clock: s.config.Clock, Logger: s.config.Logger,
	})
}

// asked returns the storage that agents serve through CSI on their machines. They are served later than the
// backend is made.
func (s *Server) asked(session state.Session) agentapi.AskedAccessor {
	return s.backend.AskedOn(session, csi.Way)
}
