package cli

import (
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
	endpoint string
	pool     string
}

func (f *csiFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.endpoint, "csi-endpoint", "", "serve CSI on the socket `unix:///PATH`, to root and to the user that the agent runs as")
	cmd.Flags().StringVar(&f.pool, "csi-pool", csi.DefaultPool, "pool of CSI volumes whose parameters name none")
}

// check returns how CSI is served; nil if it is not. socket is the control socket.
func (f *csiFlags) check(socket string) (*agent.CSI, error) {
	if f.endpoint == "" {
		if f.pool != csi.DefaultPool {
			return nil, errors.WithType(errors.New("--csi-pool without --csi-endpoint has no effect: add --csi-endpoint, or leave it out"), errUsage)
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
	return &agent.CSI{SocketPath: path, Pool: f.pool, Version: version()}, nil
}

// version returns the version of the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return orElse(info.Main.Version, "(devel)")
}
