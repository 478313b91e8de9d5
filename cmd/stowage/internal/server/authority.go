package server

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state/kv"
)

// authorityFiles are the names of the files of an authority, in PEM. The certificate is written last.
type authorityFiles struct{ key, certificate string }

// serversAuthority is the authority of servers, agents and users.
var serversAuthority = authorityFiles{key: "ca.key", certificate: "ca.crt"}

// openAuthority returns the authority of the state's servers: that in the directory, that of the
// servers to join, or a new one.
func (s *Server) openAuthority(ctx context.Context) (*trust.CA, error) {
	dir := s.dir.Server()
	ca, err := readAuthority(dir, serversAuthority)
	isNew := errors.Is(err, fs.ErrNotExist)
	if place, ok := s.place.(*inEtcd); isNew && ok && place.cluster != nil {
		// It got the certificate when it joined, or has just begun the cluster.
		begun, err := s.state.HasAuthority()
		if err != nil {
			return nil, errors.Trace(err)
		}
		if begun {
			return nil, errMissing(filepath.Join(dir, serversAuthority.certificate))
		}
	}
	switch {
	case isNew && len(s.config.Join) > 0:
		var joined api.Joined
		joined, err = s.config.join(ctx, s.dir, "", "")
		ca = joined.CA
	case isNew:
		ca, err = trust.NewCA(s.config.Clock.Now())
	}
	// It is written before the state has its hash: otherwise nobody might have the key.
	if err == nil && isNew {
		err = writeAuthority(dir, serversAuthority, ca)
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	if _, shared := s.place.(kv.Leaser); !shared {
		return ca, nil // a server whose directory was lost may make a new one
	}
	err = s.state.EnsureAuthority(ca.Hash())
	if errors.Is(err, errors.NotValid) {
		if isNew {
			_ = os.Remove(filepath.Join(dir, serversAuthority.certificate)) // what is left is replaced
		}
		err = errors.Errorf("%v: join them with --join URL and --token, which `stowage token create --role server` prints on one of them", err)
	}
	return ca, errors.Trace(err)
}

// errMissing is the error of a server that keeps the state with others and lacks a certificate.
func errMissing(path string) error {
	return errors.Errorf("%s is missing: put it back, or remove the server with `stowage server remove` on another one and join again with an empty --data-dir", path)
}

// readAuthority returns the authority in the directory. The error satisfies errors.Is(err,
// fs.ErrNotExist) if the directory has no authority.
func readAuthority(dir string, files authorityFiles) (*trust.CA, error) {
	certificate, err := os.ReadFile(filepath.Join(dir, files.certificate))
	if err != nil {
		return nil, errors.Annotate(err, "reading the certificate authority")
	}
	key, err := os.ReadFile(filepath.Join(dir, files.key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Errorf("%s has the certificate of the authority, %s, and not its key, %s: put that back", dir, files.certificate, files.key)
	} else if err != nil {
		return nil, errors.Annotate(err, "reading the certificate authority")
	}
	ca, err := trust.ParseCA(certificate, key)
	return ca, errors.Annotatef(err, "reading the certificate authority in %s", dir)
}

func writeAuthority(dir string, files authorityFiles, ca *trust.CA) error {
	key, err := ca.Key()
	if err != nil {
		return errors.Trace(err)
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{files.key, key}, {files.certificate, ca.Certificate()}} {
		if err := datadir.WriteFile(filepath.Join(dir, file.name), file.content); err != nil {
			return errors.Annotate(err, "writing the certificate authority")
		}
	}
	return nil
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
