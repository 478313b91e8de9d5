package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/core/role"
)

// The files of the authority, in PEM. The certificate is written last.
const (
	caKeyFile = "ca.key"
	caFile    = "ca.crt"
)

// openAuthority returns the authority in the directory, and makes it when the server is new.
func openAuthority(dir string, now time.Time) (*trust.CA, error) {
	certificate, err := os.ReadFile(filepath.Join(dir, caFile))
	if errors.Is(err, fs.ErrNotExist) {
		return makeAuthority(dir, now)
	}
	if err != nil {
		return nil, errors.Annotate(err, "reading the certificate authority")
	}
	key, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		return nil, errors.Annotate(err, "reading the certificate authority")
	}
	ca, err := trust.ParseCA(certificate, key)
	return ca, errors.Annotatef(err, "reading the certificate authority in %s", dir)
}

func makeAuthority(dir string, now time.Time) (*trust.CA, error) {
	ca, err := trust.NewCA(now)
	if err != nil {
		return nil, errors.Trace(err)
	}
	key, err := ca.Key()
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{caKeyFile, key}, {caFile, ca.Certificate()}} {
		if err := datadir.WriteFile(filepath.Join(dir, file.name), file.content); err != nil {
			return nil, errors.Annotate(err, "writing the certificate authority")
		}
	}
	return ca, nil
}

// certificates issues the server's own certificates. The key stays in memory: a new one costs
// nothing.
type certificates struct {
	ca    *trust.CA
	hosts []string
	clock clock.Clock

	mu      sync.Mutex
	current trust.Credentials
	renewAt time.Time
}

func newCertificates(ca *trust.CA, hosts []string, clock clock.Clock) (*certificates, error) {
	c := &certificates{ca: ca, hosts: hosts, clock: clock}
	return c, errors.Trace(c.renew(clock.Now()))
}

// get returns the credentials for a new connection.
func (c *certificates) get() trust.Credentials {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.clock.Now(); !now.Before(c.renewAt) {
		// If it fails, which nothing outside this process can cause, the former is still valid
		// for a while.
		_ = c.renew(now)
	}
	return c.current
}

func (c *certificates) renew(now time.Time) error {
	key, encoded, err := trust.NewKey()
	if err != nil {
		return errors.Trace(err)
	}
	certificate, err := c.ca.Issue(key.Public(), trust.Identity{Role: role.Server, ID: "server"}, now, c.hosts...)
	if err != nil {
		return errors.Trace(err)
	}
	next := trust.Credentials{Certificate: certificate, Key: encoded, CA: c.ca.Certificate()}
	leaf, err := next.Leaf()
	if err != nil {
		return errors.Trace(err)
	}
	c.current, c.renewAt = next, trust.RenewAt(leaf)
	return nil
}
