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
	Scope      string        `yaml:"scope"`
	BlockOnly  bool          `yaml:"block-only"`
	Timeout    time.Duration `yaml:"timeout"`
	AtOnce     int           `yaml:"at-once"`
}

// The scopes of a file with the type csi.
const (
	scopeMachine     = "machine"
	scopeEnvironment = "environment"
)

// csiFields maps the fields of a configuration to those of a file.
var csiFields = map[string]string{
	"Name": "name", "Driver": "driver", "Socket": "socket", "NodeSocket": "node-socket",
	"SecretsFile": "secrets", "BlockOnly": "block-only", "Timeout": "timeout", "AtOnce": "at-once",
}

func openCSI(config io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
	var f csiFile
	lines, err := decode(config, &f, []string{"name", "type", "driver", "socket", "node-socket", "secrets", "scope", "block-only", "timeout", "at-once"})
	if err != nil {
		return nil, err
	}
	switch f.Scope {
	case "", scopeMachine, scopeEnvironment:
	default:
		return nil, errors.NewNotValid(nil, fmt.Sprintf("line %d: scope: %q: write %s or %s", lines["scope"], f.Scope, scopeMachine, scopeEnvironment))
	}
	p, err := csi.New(csi.Config{
		Name: storage.ProviderType(f.Name), Driver: f.Driver, Socket: f.Socket, NodeSocket: f.NodeSocket,
		SecretsFile: f.Secrets, Environ: f.Scope == scopeEnvironment, Orchestrator: environ.Orchestrator,
		BlockOnly: f.BlockOnly, Timeout: f.Timeout, AtOnce: f.AtOnce,
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
