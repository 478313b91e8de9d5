package plugins

import (
	"fmt"
	"io"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/csi"
)

// csiFile is a file with the type csi.
type csiFile struct {
	header     `yaml:",inline"`
	Driver     string        `yaml:"driver"`
	Socket     string        `yaml:"socket"`
	NodeSocket string        `yaml:"node-socket"`
	Secrets    string        `yaml:"secrets"`
	BlockOnly  bool          `yaml:"block-only"`
	Timeout    time.Duration `yaml:"timeout"`
	AtOnce     int           `yaml:"at-once"`
}

// csiFields maps the fields of a configuration to those of a file.
var csiFields = map[string]string{
	"Name": "name", "Driver": "driver", "Socket": "socket", "NodeSocket": "node-socket",
	"SecretsFile": "secrets", "Timeout": "timeout", "AtOnce": "at-once",
}

func openCSI(config io.Reader, _ storage.ProviderEnviron) (storage.Provider, error) {
	var f csiFile
	lines, err := decode(config, &f, []string{"name", "type", "driver", "socket", "node-socket", "secrets", "block-only", "timeout", "at-once"})
	if err != nil {
		return nil, err
	}
	p, err := csi.New(csi.Config{
		Name: storage.ProviderType(f.Name), Driver: f.Driver, Socket: f.Socket, NodeSocket: f.NodeSocket,
		SecretsFile: f.Secrets, BlockOnly: f.BlockOnly, Timeout: f.Timeout, AtOnce: f.AtOnce,
	})
	var invalid *csi.FieldError
	if errors.As(err, &invalid) {
		field := csiFields[invalid.Field]
		where := field
		if line := lines[field]; line != 0 {
			where = fmt.Sprintf("line %d: %s", line, field)
		}
		return nil, errors.NewNotValid(nil, fmt.Sprintf("%s: %s", where, invalid.Problem))
	}
	return p, errors.Trace(err)
}
