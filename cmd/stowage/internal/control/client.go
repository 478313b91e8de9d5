package control

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api/user"
)

// NewClient returns a client for the agent that listens on a socket. It connects on the first
// request. It sends nothing to a socket of a user other than root and the user of this
// process: the error then satisfies errors.Is(err, errors.Unauthorized). Close it after use.
func NewClient(socketPath string) *user.Client {
	var dialer net.Dialer
	client, err := user.NewClient(user.Config{
		URL:  "http://stowage",
		Name: socketPath,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, "unix", socketPath)
				if err != nil {
					return nil, err
				}
				if err := checkServer(conn, socketPath); err != nil {
					_ = conn.Close()
					return nil, err
				}
				return conn, nil
			},
		},
		ConnectError: func(err error) error { return connectError(err, socketPath) },
	})
	if err != nil {
		panic(err) // the configuration is valid
	}
	return client
}

// ErrNoAgent is the error of a request to a socket at which no agent listens.
const ErrNoAgent = errors.ConstError("no agent")

// connectError describes an error that was met while connecting to a socket, or returns nil.
func connectError(err error, path string) error {
	var untrusted *untrustedServerError
	switch {
	case errors.As(err, &untrusted):
		return errors.NewUnauthorized(nil, untrusted.Error())
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return errors.WithType(errors.Errorf("cannot reach the agent at %s: is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?", path), ErrNoAgent)
	case errors.Is(err, unix.EACCES):
		return errors.Errorf("you may not use the agent at %s: run the command as root", path)
	}
	return nil
}

// untrustedServerError is the error for a socket on which a user who cannot be the agent's
// listens.
type untrustedServerError struct {
	path string
	uid  uint32
}

// Error implements error.
func (i *untrustedServerError) Error() string {
	return fmt.Sprintf("user %d, who is neither root nor you, listens on %s: the request was not sent", i.uid, i.path)
}

// checkServer returns an error if the listening user is not one that an agent may run as: in a
// directory that others can write to, they can replace the agent's socket with their own.
func checkServer(conn net.Conn, path string) error {
	uid, err := peerUID(conn)
	if err != nil {
		return errors.Annotatef(err, "finding the user who listens on %s", path)
	}
	if !isRootOrSelf(uid) {
		return &untrustedServerError{path, uid}
	}
	return nil
}
