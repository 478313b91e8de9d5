package agent

import (
	"github.com/juju/errors"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/docker"
)

func (a *Agent) startDocker() (worker.Worker, error) {
	handler, err := docker.NewHandler(docker.Config{
		Settings: *a.config.Docker, Volumes: a.Asked(docker.Way, docker.Machine), Clock: a.config.Clock, Logger: a.config.Logger,
	})
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := docker.MakeDir(a.config.Docker.SocketPath); err != nil {
		return nil, errors.Trace(err)
	}
	return control.NewServer(control.ServerConfig{SocketPath: a.config.Docker.SocketPath, Handler: handler, Logger: a.config.Logger})
}
