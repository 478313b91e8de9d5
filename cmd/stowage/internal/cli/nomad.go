package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/core/label"
)

const (
	// nomadWay is how Nomad asks for storage.
	nomadWay = "nomad"

	// nomadPatience is how long a call may take. Nomad ends it after 60 seconds.
	nomadPatience = 50 * time.Second

	// agentPatience is how long a call waits for the agent: Nomad's client, which asks for all its volumes
	// when it starts, may start before the agent.
	agentPatience = 30 * time.Second
	agentInterval = 200 * time.Millisecond

	// nomadOperation is the variable with the operation, which Nomad also passes as the argument.
	nomadOperation = "DHV_OPERATION"
)

// isNomad reports whether Nomad runs the program, as a plugin with any name.
func isNomad(args []string, getenv func(string) string) bool {
	return len(args) == 1 && args[0] == getenv(nomadOperation)
}

// nomadAnswer is what the plugin writes on its standard output.
type nomadAnswer struct {
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"`
	Error   string `json:"error,omitempty"`
}

func (c *common) nomadPluginCommand() *cobra.Command {
	var machine string
	cmd := &cobra.Command{
		Use:   "nomad-plugin fingerprint|create|delete",
		Short: "Be a plugin of Nomad for dynamic host volumes",
		Long: `Serves one call of Nomad's client, which runs plugins for dynamic host volumes. A link to stowage in the
directory of its plugins (host_volume_plugin_dir) is such a plugin: without this command's name, stowage
notices the call by the variable DHV_OPERATION. A script in that directory can set flags:

    #!/bin/sh
    exec /usr/bin/stowage nomad-plugin --data-dir /srv/stowage "$@"

A volume is a filesystem that is mounted below Nomad's directory of volumes until the volume is deleted, and
again after a restart of the machine. Its size is the least capacity, or 1 GiB, or the largest capacity if that is
less. The parameters of a volume are: pool (default: loop), filesystem, mkfs-options, mount-options. Its
storage is called nomad- and the ID of the volume.

A call waits up to 30 seconds for the agent. If a new volume cannot be mounted within 50 seconds, it is
removed again.`,
		Example:   "  stowage nomad-plugin fingerprint",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"fingerprint", "create", "delete"},
		RunE: runE(func(cmd *cobra.Command, args []string) error {
			answer, err := c.serveNomad(cmd, args[0], machine)
			if err != nil {
				answer = nomadAnswer{Error: err.Error()}
			}
			if answer == (nomadAnswer{}) {
				return nil
			}
			if werr := json.NewEncoder(c.Stdout).Encode(answer); err == nil {
				err = werr
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&machine, "machine", "", "name of this machine, if a server has its storage (default: that of the agent)")
	return cmd
}

func (c *common) serveNomad(cmd *cobra.Command, operation, machine string) (nomadAnswer, error) {
	if operation == "fingerprint" {
		return nomadAnswer{Version: nomadVersion()}, nil
	}
	id := c.Getenv("DHV_VOLUME_ID")
	if parsed, err := uuid.Parse(id); err != nil || parsed.String() != id {
		return nomadAnswer{}, errors.Errorf("DHV_VOLUME_ID: %q is not a UUID, as Nomad's IDs of volumes are", id)
	}
	wait := waitFlags{wait: true, timeout: nomadPatience}
	ctx, cancel, err := wait.withTimeout(cmd.Context(), c.Clock)
	if err != nil {
		return nomadAnswer{}, err
	}
	defer cancel()
	client, err := c.newClient(ctx, cmd)
	if err != nil {
		return nomadAnswer{}, err
	}
	defer client.Close()
	v := &nomadVolume{common: c, client: client, name: "nomad-" + id}
	if err := v.find(ctx); err != nil {
		return nomadAnswer{}, err
	}
	if operation == "delete" {
		return nomadAnswer{}, v.delete(ctx, wait)
	}
	return v.create(ctx, id, machine, wait)
}

// nomadVersion returns the version in the form that Nomad requires.
func nomadVersion() string {
	if v := process.Version(); v != "" && v[0] == 'v' {
		return v[1:]
	}
	return "0.0.0"
}

// nomadVolume is a volume during a call.
type nomadVolume struct {
	*common
	client *user.Client
	name   string
	// is is the storage as it was before the call, nil if there was none.
	is *user.Storage
}

// find looks for the volume, as soon as there is an agent.
func (v *nomadVolume) find(ctx context.Context) error {
	for tries := agentPatience / agentInterval; ; tries-- {
		found, err := v.client.Storage(ctx, []string{v.name})
		switch {
		case errors.Is(err, control.ErrNoAgent) && tries > 0:
			select {
			case <-v.Clock.After(agentInterval):
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case errors.Is(err, errors.NotFound):
			return nil
		case err != nil:
			return err
		}
		v.is = &found[0]
		if v.is.Asker == nil || v.is.Asker.Way != nomadWay {
			return errors.Errorf("storage %s is not Nomad's: rename it, with `stowage rename`, or remove it", v.name)
		}
		return nil
	}
}

func (v *nomadVolume) delete(ctx context.Context, wait waitFlags) error {
	if v.is == nil {
		return nil
	}
	if err := v.remove(ctx); err != nil {
		return err
	}
	return wait.waitFor(ctx, v.client, []string{v.name}, removed, v.Stderr)
}

func (v *nomadVolume) remove(ctx context.Context) error {
	err := v.client.RemoveStorage(ctx, user.RemoveArgs{Names: []string{v.name}, Way: nomadWay})
	if errors.Is(err, errors.NotFound) {
		return nil
	}
	return err
}

func (v *nomadVolume) create(ctx context.Context, id, machine string, wait waitFlags) (nomadAnswer, error) {
	wanted, err := v.wanted(id, machine)
	if err != nil {
		return nomadAnswer{}, err
	}
	if _, err := v.client.Declare(ctx, v.name, wanted); err != nil {
		return nomadAnswer{}, err
	}
	err = wait.waitFor(ctx, v.client, []string{v.name}, grown, v.Stderr)
	if err != nil && v.is == nil {
		// Nomad forgets a volume whose creation has failed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if rerr := v.remove(ctx); rerr != nil {
			err = errors.Errorf("%v; removing it again: %v", err, rerr)
		}
	}
	if err != nil {
		return nomadAnswer{}, err
	}
	made, err := v.client.Storage(ctx, []string{v.name})
	if err != nil {
		return nomadAnswer{}, err
	}
	return nomadAnswer{Path: wanted.Mount, Bytes: made[0].SizeMiB << 20}, nil
}

// wanted returns the volume that Nomad asks for.
func (v *nomadVolume) wanted(id, machine string) (user.Declaration, error) {
	fail := func(err error) (user.Declaration, error) { return user.Declaration{}, err }
	dir := v.Getenv("DHV_VOLUMES_DIR")
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fail(errors.Errorf("DHV_VOLUMES_DIR: %q is not an absolute path: set host_volumes_dir in the configuration of Nomad's client", dir))
	}
	sizeMiB, err := v.size()
	if err != nil {
		return fail(err)
	}
	parameters := map[string]string{}
	if text := v.Getenv("DHV_PARAMETERS"); text != "" && text != "null" {
		if err := json.Unmarshal([]byte(text), &parameters); err != nil {
			return fail(errors.Annotate(err, "DHV_PARAMETERS"))
		}
	}
	wanted := user.Declaration{
		Kind: "filesystem", Mount: filepath.Join(dir, id), Machine: machine, Asker: nomadWay + "/" + id, Labels: v.labels(),
	}
	pool := "loop"
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		switch key {
		case "pool":
			pool = value
		case "filesystem":
			wanted.Filesystem = value
		case "mkfs-options":
			wanted.MkfsOptions = value
		case "mount-options":
			wanted.MountOptions = value
		default:
			return fail(errors.Errorf("parameter %q is not known: pool, filesystem, mkfs-options and mount-options are", key))
		}
	}
	if pool == "" || strings.Contains(pool, ",") {
		return fail(errors.Errorf("parameter pool: %q is not the name of a pool: `stowage pools` lists them", pool))
	}
	wanted.Directive = fmt.Sprintf("%s,%dM", pool, sizeMiB)
	return wanted, nil
}

// labels returns the name and the namespace of the volume as labels, as far as they can be.
func (v *nomadVolume) labels() map[string]string {
	labels := map[string]string{}
	for key, variable := range map[string]string{"nomad-volume": "DHV_VOLUME_NAME", "nomad-namespace": "DHV_NAMESPACE"} {
		if one := (map[string]string{key: v.Getenv(variable)}); label.Check(one) == nil {
			maps.Copy(labels, one)
		}
	}
	return labels
}

// size returns the size to ask for, in MiB. A volume that is large enough keeps its size, which a user may
// have raised.
func (v *nomadVolume) size() (uint64, error) {
	least, err := v.capacity("DHV_CAPACITY_MIN_BYTES")
	if err != nil {
		return 0, err
	}
	most, err := v.capacity("DHV_CAPACITY_MAX_BYTES")
	if err != nil {
		return 0, err
	}
	size := (least + 1<<20 - 1) >> 20
	switch {
	case v.is != nil && v.is.WantedMiB >= size:
		return v.is.WantedMiB, nil
	case size == 0 && most == 0:
		return asked.DefaultSizeMiB, nil
	case size == 0:
		size = min(asked.DefaultSizeMiB, max(most>>20, 1))
	}
	if most > 0 && size<<20 > most {
		return 0, errors.Errorf("volumes have whole MiB: set capacity_max to %d MiB or more", size)
	}
	return size, nil
}

// capacity reads a number of bytes, 0 for none.
func (v *nomadVolume) capacity(variable string) (uint64, error) {
	text := v.Getenv(variable)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, errors.Errorf("%s: %q is not a number of bytes", variable, text)
	}
	return n, nil
}
