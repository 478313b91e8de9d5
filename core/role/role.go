// Package role has the roles of those who use a server.
package role

import (
	"slices"

	"github.com/juju/errors"
)

// Value is what the owner of a token or a certificate may do.
type Value string

const (
	// Machine is the role of a machine's agent: it manages the storage of one machine.
	Machine Value = "machine"
	// Server is the role of a server that joins others.
	Server Value = "server"
	// Admin is the role of a user who may do everything.
	Admin Value = "admin"
	// Viewer is the role of a user who may only read.
	Viewer Value = "viewer"
)

// Validate returns an error that satisfies errors.IsNotValid unless the role is one of those
// above.
func (v Value) Validate() error {
	if !slices.Contains([]Value{Machine, Server, Admin, Viewer}, v) {
		return errors.NewNotValid(nil, `role "`+string(v)+`": the roles are machine, server, admin and viewer`)
	}
	return nil
}
