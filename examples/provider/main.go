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

import (
	"fmt"
	"os"

	"github.com/stowage-io/stowage/examples/internal/volumes"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	dir, unlock, err := volumes.Open()
	if err != nil {
		return err
	}
	defer unlock()
	p := provider{dir}
	dir.IsAttached = p.isAttached
	return dir.Serve(map[string]func(volumes.Argument) (volumes.Result, error){
		"create-volumes":   dir.Create,
		"attach-volumes":   p.attach,
		"detach-volumes":   p.detach,
		"destroy-volumes":  dir.Destroy,
		"release-volumes":  dir.Release,
		"describe-volumes": dir.Describe,
	})
}

type provider struct{ dir *volumes.Dir }

// attach leaves an attached volume as it is: it is called again after every start of the
// agent.
func (p provider) attach(arg volumes.Argument) (volumes.Result, error) {
	file, err := p.dir.File(arg.VolumeID)
	if err != nil {
		return volumes.Result{}, err
	}
	attached, err := volumes.AttachLoop(file, arg.ReadOnly)
	return volumes.Result{Attachment: attached}, err
}

func (p provider) detach(arg volumes.Argument) (volumes.Result, error) {
	file, err := p.dir.File(arg.VolumeID)
	if err != nil {
		return volumes.Result{}, err
	}
	return volumes.Result{}, volumes.DetachLoop(file)
}

func (p provider) isAttached(id string) (bool, error) {
	file, err := p.dir.File(id)
	if err != nil {
		return false, err
	}
	device, err := volumes.LoopOf(file)
	return device != "", err
}
