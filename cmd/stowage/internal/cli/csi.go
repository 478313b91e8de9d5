package cli

import (
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
)

// csiFlags are the flags of commands that serve CSI.
type csiFlags struct {
	endpoint, pool, machine, expand string
}

// The services that expand volumes.
const (
	expandAnywhere = "controller"
	expandOnNodes  = "node"
)

func (f *csiFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.endpoint, "csi-endpoint", "", "serve CSI on the socket `unix:///PATH`, to root and to the user that the agent runs as")
	cmd.Flags().StringVar(&f.pool, "csi-pool", csi.DefaultPool, "pool of CSI volumes whose parameters name none")
	cmd.Flags().StringVar(&f.machine, "csi-machine", "", "name of the machine for CSI: its node ID and its place in topologies (default: the host name)")
	cmd.Flags().StringVar(&f.expand, "csi-expand", expandAnywhere, "CSI service that expands volumes: controller, or node for orchestrators with one controller for many agents")
}

// check returns how CSI is served; nil if it is not. socket is the control socket.
func (f *csiFlags) check(socket string) (*agent.CSI, error) {
	if f.endpoint == "" {
		for _, flag := range []struct {
			name string
			set  bool
		}{{"pool", f.pool != csi.DefaultPool}, {"machine", f.machine != ""}, {"expand", f.expand != expandAnywhere}} {
			if flag.set {
				return nil, errors.WithType(errors.Errorf("--csi-%s without --csi-endpoint has no effect: add --csi-endpoint, or leave it out", flag.name), errUsage)
			}
		}
		return nil, nil
	}
	path, err := csi.ParseEndpoint(f.endpoint)
	if err == nil {
		err = control.CheckSocketPath(path)
	}
	if err == nil && path == filepath.Clean(socket) {
		err = errors.New("it is the control socket: choose another path")
	}
	if err != nil {
		return nil, errors.WithType(errors.Errorf("--csi-endpoint %q: %s", f.endpoint, err), errUsage)
	}
	if f.expand != expandAnywhere && f.expand != expandOnNodes {
		return nil, errors.WithType(errors.Errorf("--csi-expand %q: write %s or %s", f.expand, expandAnywhere, expandOnNodes), errUsage)
	}
	machine := f.machine
	if machine == "" {
		if machine, err = os.Hostname(); err != nil {
			return nil, errors.Annotate(err, "reading the name of the machine")
		}
	}
	if err := csi.CheckMachine(machine); err != nil {
		return nil, errors.WithType(errors.Errorf("--csi-machine %q: %s", machine, err), errUsage)
	}
	return &agent.CSI{
		SocketPath: path, Pool: f.pool, Machine: machine, ExpandOnNodes: f.expand == expandOnNodes, Version: version(),
	}, nil
}

// version returns the version of the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return orElse(info.Main.Version, "(devel)")
}
