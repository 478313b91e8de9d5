package cli

import (
	"os"
	"path/filepath"

	"github.com/juju/errors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
)

// csiFlags are the flags of commands that serve CSI.
type csiFlags struct {
	flags *pflag.FlagSet
	// endpoint is a flag of each of these commands. The others are empty where a command lacks the flag.
	endpoint, pool, machine, expand string
}

// csiMachine is the flag of an agent with a state of its own: the others have the name that the server has.
const csiMachine = "csi-machine"

// The services that expand volumes.
const (
	expandAnywhere = "controller"
	expandOnNodes  = "node"
)

// addEndpoint adds the flag for the socket, on which a process serves what is named.
func (f *csiFlags) addEndpoint(cmd *cobra.Command, services, process string) {
	f.flags = cmd.Flags()
	cmd.Flags().StringVar(&f.endpoint, "csi-endpoint", "", "serve "+services+" on the socket `unix:///PATH`, to root and to the user that the "+process+" runs as")
}

// addPool adds the flag for the pool, which a controller needs.
func (f *csiFlags) addPool(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.pool, "csi-pool", csi.DefaultPool, "pool of CSI volumes whose parameters name none")
}

// addAll adds the flags of an agent with a state of its own.
func (f *csiFlags) addAll(cmd *cobra.Command) {
	f.addEndpoint(cmd, "CSI", "agent")
	f.addPool(cmd)
	cmd.Flags().StringVar(&f.machine, csiMachine, "", "name of the machine for CSI: its node ID and its place in topologies (default: the host name)")
	cmd.Flags().StringVar(&f.expand, "csi-expand", expandAnywhere, "CSI service that expands volumes: controller, or node for orchestrators with one controller for many agents")
}

// check returns how CSI is served; nil if it is not. socket is the control socket; empty if the process has
// none.
func (f *csiFlags) check(socket string) (*csi.Settings, error) {
	if f.endpoint == "" {
		for _, flag := range []string{"csi-pool", csiMachine, "csi-expand"} {
			if f.flags.Changed(flag) {
				return nil, errors.WithType(errors.Errorf("--%s without --csi-endpoint has no effect: add --csi-endpoint, or leave it out", flag), errUsage)
			}
		}
		return nil, nil
	}
	path, err := csi.ParseEndpoint(f.endpoint)
	if err == nil {
		err = control.CheckSocketPath(path)
	}
	if err == nil && socket != "" && path == filepath.Clean(socket) {
		err = errors.New("it is the control socket: choose another path")
	}
	if err != nil {
		return nil, errors.WithType(errors.Errorf("--csi-endpoint %q: %s", f.endpoint, err), errUsage)
	}
	settings := &csi.Settings{SocketPath: path, Pool: f.pool, ExpandOnNodes: f.expand == expandOnNodes, Version: process.Version()}
	if f.flags.Lookup(csiMachine) == nil {
		return settings, nil
	}
	if f.expand != expandAnywhere && f.expand != expandOnNodes {
		return nil, errors.WithType(errors.Errorf("--csi-expand %q: write %s or %s", f.expand, expandAnywhere, expandOnNodes), errUsage)
	}
	settings.Machine = f.machine
	if settings.Machine == "" {
		if settings.Machine, err = os.Hostname(); err != nil {
			return nil, errors.Annotate(err, "reading the name of the machine")
		}
	}
	if err := csi.CheckMachine(settings.Machine); err != nil {
		return nil, errors.WithType(errors.Errorf("--csi-machine %q: %s", settings.Machine, err), errUsage)
	}
	return settings, nil
}
