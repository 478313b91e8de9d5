// Package connection connects to stowage: to servers, with a context that "stowage login" has
// written, or to the agent or server of this host, by its socket. Programs that have a client's
// configuration of their own use package api/user directly.
package connection

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/trust"
	coremachine "github.com/stowage-io/stowage/core/machine"
)

const (
	dialTimeout  = 5 * time.Second
	renewTimeout = 20 * time.Second
	renewEvery   = time.Hour
)

// access is the file of a context. Others has the fields that this version does not know, so that they
// are kept when the file is written.
type access struct {
	Servers     []string `yaml:"servers"`
	User        string   `yaml:"user"`
	Role        string   `yaml:"role"`
	CA          string   `yaml:"ca"`
	Certificate string   `yaml:"certificate"`
	Key         string   `yaml:"key"`

	Others map[string]any `yaml:",inline"`
}

// Path returns the file of a context in the user's configuration, as the environment says. No name
// stands for the current context.
func Path(getenv func(string) string, name string) (string, error) {
	dir := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return "", errors.New("there is no directory for contexts: set HOME or XDG_CONFIG_HOME, or use --socket")
		}
		dir = filepath.Join(home, ".config")
	}
	dir = filepath.Join(dir, "stowage")
	if name == "" {
		current, err := os.ReadFile(filepath.Join(dir, "current-context"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", errors.Annotate(err, "reading the current context")
		}
		if name = strings.TrimSpace(string(current)); name == "" {
			return "", errors.New("no context is chosen: name one with --context, or use --socket")
		}
	}
	if !coremachine.IsName(name) {
		return "", errors.NewNotValid(nil, "the name of the context: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends")
	}
	return filepath.Join(dir, "contexts", name+".yaml"), nil
}

// Remote is a connection to servers.
type Remote struct {
	// Client makes the requests. It uses the certificate that is the latest at the time.
	Client *user.Client

	path   string
	logger api.Logger
	mu     sync.Mutex
	access access
}

// Open returns a connection with the context in a file. It connects on the first request. Close the
// Client after use.
func Open(path string, logger api.Logger) (*Remote, error) {
	r := &Remote{path: path, logger: logger}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.Annotate(err, "reading the context: `stowage login` makes one")
	}
	if err := yaml.NewDecoder(bytes.NewReader(content)).Decode(&r.access); err != nil {
		return nil, errors.Annotatef(err, "context %s", path)
	}
	var addresses []string
	for _, text := range r.access.Servers {
		server, err := url.Parse(text)
		if err != nil || server.Scheme != "https" || server.Hostname() == "" {
			return nil, errors.Errorf("context %s: server %q is not of the form https://HOST[:PORT]", path, text)
		}
		addresses = append(addresses, net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), "443")))
	}
	if len(addresses) == 0 {
		return nil, errors.Errorf("context %s names no servers: make it with `stowage login`", path)
	}
	config, err := trust.ClientConfig(r.credentials, time.Now)
	if err != nil {
		return nil, errors.Annotatef(err, "context %s", path)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	r.Client, err = user.NewClient(user.Config{
		URL:  "https://" + trust.ServerName,
		Name: strings.Join(r.access.Servers, ", "),
		Transport: &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			TLSClientConfig:   config,
			ForceAttemptHTTP2: true,
			DialContext: func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
				for _, address := range addresses {
					if conn, err = dialer.DialContext(ctx, network, address); err == nil {
						return conn, nil
					}
				}
				return nil, err
			},
		},
	})
	return r, errors.Annotatef(err, "context %s", path)
}

func (r *Remote) credentials() trust.Credentials {
	r.mu.Lock()
	defer r.mu.Unlock()
	return trust.Credentials{Certificate: []byte(r.access.Certificate), Key: []byte(r.access.Key), CA: []byte(r.access.CA)}
}

// KeepRenewed renews the certificate when it is time, until the context ends. A failure is logged,
// and tried again an hour later.
func (r *Remote) KeepRenewed(ctx context.Context) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		if err := r.renew(ctx, time.Now()); err != nil && ctx.Err() == nil {
			r.logger.Warningf("the certificate of context %s was not renewed: %v", r.path, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// renew renews the certificate, if it is time at now.
func (r *Remote) renew(ctx context.Context, now time.Time) error {
	leaf, err := r.credentials().Leaf()
	if err != nil || now.Before(trust.RenewAt(leaf)) {
		return errors.Trace(err)
	}
	key, err := trust.ParseKey(r.credentials().Key)
	if err != nil {
		return errors.Trace(err)
	}
	certificate, err := r.requestCertificate(ctx, key.Public())
	if err != nil {
		return errors.Trace(err)
	}
	r.mu.Lock()
	r.access.Certificate = string(certificate)
	content, err := yaml.Marshal(r.access)
	r.mu.Unlock()
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Annotate(replaceFile(r.path, content), "the new certificate is used, but not kept")
}

func (r *Remote) requestCertificate(ctx context.Context, key crypto.PublicKey) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	config, err := trust.ClientConfig(r.credentials, time.Now)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return api.RenewUser(ctx, api.Config{URLs: r.access.Servers, TLS: config, Logger: r.logger}, key)
}

// replaceFile replaces the file at a path, or leaves it as it is.
func replaceFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".context-*") // only its owner can read it
	if err != nil {
		return errors.Trace(err)
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return errors.Trace(err)
}

// OpenSocket returns a client of the agent or server that listens on a socket. It sends nothing to a
// socket of a user other than root and that of this process. Close it after use.
func OpenSocket(path string) (*user.Client, error) {
	var dialer net.Dialer
	return user.NewClient(user.Config{
		URL:  "http://stowage",
		Name: path,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "unix", path)
			if err != nil {
				return nil, err
			}
			if err := checkPeer(conn.(*net.UnixConn)); err != nil {
				_ = conn.Close()
				return nil, errors.Annotatef(err, "socket %s", path)
			}
			return conn, nil
		}},
	})
}

// checkPeer returns an error unless the user who listens is root or that of this process.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.Trace(err)
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return errors.Trace(err)
	}
	if failed != nil {
		return errors.Trace(failed)
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		return errors.Errorf("user %d, who is neither root nor that of this process, listens there", peer.Uid)
	}
	return nil
}
