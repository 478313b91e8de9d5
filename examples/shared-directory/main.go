//go:build linux

// Shared-directory is a program whose volumes are files in a directory that all machines see, such
// as a network filesystem. It is in that directory itself. The server runs it, and so do the agents
// of the machines:
//
//	stowage server --provider shared=/srv/shared/provider …
//	stowage agent --provider shared=/srv/shared/provider …
//
// The server makes volumes, and decides which machine may use one: a file in /srv/shared/holders
// says so. Then the machine's agent attaches the volume as a loop device.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/stowage-io/stowage/examples/internal/volumes"
)

func main() { volumes.Main(prepare) }

func prepare(dir *volumes.Dir) (volumes.Operations, error) {
	if err := os.MkdirAll(dir.Path("holders"), 0o700); err != nil {
		return nil, err
	}
	p := provider{dir}
	dir.IsAttached = func(id string) (bool, error) {
		holder, err := p.holder(id)
		return holder != "", err
	}
	// A server that takes over from another one wants to know who has which volume.
	dir.Machine = func(id string) (string, error) {
		holder, err := p.holder(id)
		machine, _, _ := strings.Cut(holder, " ")
		return machine, err
	}
	return volumes.Operations{
		// The server runs these, and then the agent of the machine those below, or the other way
		// round to detach a volume.
		"attach-volumes":     p.attach,
		"detach-volumes":     p.detach,
		"connect-volumes":    p.connect,
		"disconnect-volumes": p.disconnect,
	}, nil
}

type provider struct{ dir *volumes.Dir }

// holder returns the machine that holds a volume, or "".
func (p provider) holder(id string) (string, error) {
	if _, err := p.dir.File(id); err != nil {
		return "", err
	}
	holder, err := os.ReadFile(p.dir.Path("holders", id))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(holder), err
}

// holderOf returns the name of the machine in an argument. An instance ID is not used again.
func holderOf(arg volumes.Argument) string { return arg.Machine + " " + arg.InstanceID }

// attach gives a volume to a machine, unless another one has it.
func (p provider) attach(arg volumes.Argument) (volumes.Result, error) {
	if _, err := p.dir.Describe(arg); err != nil {
		return volumes.Result{}, err
	}
	holder, err := p.holder(arg.VolumeID)
	own := holderOf(arg)
	switch {
	case err != nil:
		return volumes.Result{}, err
	case holder == "":
		// Nobody else writes this file now: Main excludes other runs.
		err = volumes.Write(p.dir.Path("holders", arg.VolumeID), []byte(own))
	case holder != own:
		err = fmt.Errorf("the volume is attached to %s", holder)
	}
	if err != nil {
		return volumes.Result{}, err
	}
	return volumes.Result{Attachment: &volumes.Attachment{
		ReadOnly: arg.ReadOnly,
		Plan: &volumes.Plan{DeviceType: "program", Attributes: map[string]string{
			"volume-id": arg.VolumeID, "holder": own, "read-only": fmt.Sprint(arg.ReadOnly),
		}},
	}}, nil
}

// detach takes a volume from a machine. The machine has disconnected it, or is off.
func (p provider) detach(arg volumes.Argument) (volumes.Result, error) {
	holder, err := p.holder(arg.VolumeID)
	if err != nil || holder != holderOf(arg) {
		return volumes.Result{}, err
	}
	return volumes.Result{}, volumes.Remove(p.dir.Path("holders", arg.VolumeID))
}

// connect attaches a volume as a loop device on this machine, if the machine holds the volume.
func (p provider) connect(arg volumes.Argument) (volumes.Result, error) {
	id, _ := arg.Attributes["volume-id"].(string)
	holder, err := p.holder(id)
	if err == nil && holder != arg.Attributes["holder"] {
		err = fmt.Errorf("%v does not hold the volume: %q does", arg.Attributes["holder"], holder)
	}
	if err != nil {
		return volumes.Result{}, err
	}
	return p.dir.AttachLoop(id, arg.Attributes["read-only"] == "true")
}

// disconnect undoes connect.
func (p provider) disconnect(arg volumes.Argument) (volumes.Result, error) {
	id, _ := arg.Attributes["volume-id"].(string)
	return p.dir.DetachLoop(id)
}
