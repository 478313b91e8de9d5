//go:build linux

// Provider is a program that keeps volumes as files, and attaches them as loop devices. It
// shows the requests to a program of a storage provider and its responses;
// docs/reference/program-provider.md has the details. Put it where only root can write, and
// run
//
//	stowage run --manager --provider files=/opt/files/provider
//
// Its volumes are then in /opt/files/volumes, and their tags in /opt/files/tags.
package main

import "github.com/stowage-io/stowage/examples/internal/volumes"

func main() {
	volumes.Main(func(dir *volumes.Dir) (volumes.Operations, error) {
		dir.IsAttached = dir.HasLoop
		return volumes.Operations{
			// An attached volume stays as it is: this is called again after every start of the agent.
			"attach-volumes": func(arg volumes.Argument) (volumes.Result, error) {
				return dir.AttachLoop(arg.VolumeID, arg.ReadOnly)
			},
			"detach-volumes": func(arg volumes.Argument) (volumes.Result, error) { return dir.DetachLoop(arg.VolumeID) },
		}, nil
	})
}
