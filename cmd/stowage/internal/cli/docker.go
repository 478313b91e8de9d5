package cli

import (
	"path/filepath"

	"github.com/juju/errors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/docker"
	"github.com/stowage-io/stowage/storage"
)

// defaultPlugin is where Docker looks for a plugin called stowage.
const defaultPlugin = "/run/docker/plugins/stowage.sock"

// dockerFlags are the flags of an agent that is a volume plugin.
type dockerFlags struct {
	flags                *pflag.FlagSet
	plugin, pool, volume string
}

func (f *dockerFlags) addTo(cmd *cobra.Command) {
	f.flags = cmd.Flags()
	f.flags.StringVar(&f.plugin, "docker-plugin", "", "be a volume plugin of Docker and Podman, on the socket "+defaultPlugin+" or, with --docker-plugin=PATH, on another one")
	f.flags.Lookup("docker-plugin").NoOptDefVal = defaultPlugin
	f.flags.StringVar(&f.pool, "docker-pool", "loop", "pool of Docker's volumes whose options name none")
	f.flags.StringVar(&f.volume, "docker-size", "1G", "size of Docker's volumes whose options have none")
}

// check returns how the plugin is served; nil if it is not. Others are the sockets that are used already.
func (f *dockerFlags) check(others ...string) (*docker.Settings, error) {
	if f.plugin == "" {
		for _, flag := range []string{"docker-pool", "docker-size"} {
			if f.flags.Changed(flag) {
				return nil, errors.WithType(errors.Errorf("--%s without --docker-plugin has no effect: add --docker-plugin, or leave it out", flag), errUsage)
			}
		}
		return nil, nil
	}
	path, err := filepath.Abs(f.plugin)
	if err == nil {
		err = control.CheckSocketPath(path)
	}
	for _, other := range others {
		if err == nil && path == filepath.Clean(other) {
			err = errors.New("it is another socket of the agent: choose another path")
		}
	}
	if err != nil {
		return nil, errors.WithType(errors.Errorf("--docker-plugin %q: %s", f.plugin, err), errUsage)
	}
	size, err := storage.ParseSize(f.volume)
	if err != nil {
		return nil, errors.WithType(errors.Annotate(err, "--docker-size"), errUsage)
	}
	if f.pool == "" {
		return nil, errors.WithType(errors.New("--docker-pool is empty"), errUsage)
	}
	return &docker.Settings{SocketPath: path, Pool: f.pool, SizeMiB: size}, nil
}
