package plans

import (
	"context"
	"fmt"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/run"
)

// admin runs iscsiadm for one target.
type admin struct {
	path   string
	target target
}

func (p *iscsi) admin(t target) (admin, error) {
	if p.config.Program != "" {
		return admin{p.config.Program, t}, nil
	}
	path, err := run.Program{Name: "iscsiadm", Package: "open-iscsi"}.Find()
	return admin{path, t}, errors.Trace(err)
}

// setting is an entry of the target's record.
type setting struct {
	name, value string
	secret      bool
}

// settings returns the entries of the record that differ from the machine's defaults.
func settings(c chap) []setting {
	s := []setting{{name: "node.startup", value: "automatic"}}
	if c == (chap{}) {
		return s
	}
	return append(s,
		setting{name: "node.session.auth.authmethod", value: "CHAP"},
		setting{name: "node.session.auth.username", value: c.user},
		setting{name: "node.session.auth.password", value: c.secret, secret: true},
	)
}

// newRecord creates the target's record from the machine's defaults. It replaces an existing
// record.
func (a admin) newRecord(ctx context.Context) error {
	return a.run(ctx, "creating the record", "-o", "new")
}

func (a admin) set(ctx context.Context, s setting) error {
	err := a.run(ctx, "setting "+s.name, "-o", "update", "-n", s.name, "-v", s.value)
	var failed *adminError
	if s.secret && errors.As(err, &failed) {
		// The output may quote the secret.
		failed.stderr = ""
	}
	return err
}

func (a admin) login(ctx context.Context) error {
	return a.run(ctx, "logging in", "--login")
}

// rescan makes the kernel look for logical units that were added after the session began.
func (a admin) rescan(ctx context.Context) error {
	return a.run(ctx, "scanning the session", "--rescan")
}

func (a admin) logout(ctx context.Context) error {
	return a.run(ctx, "logging out", "--logout")
}

func (a admin) deleteRecord(ctx context.Context) error {
	return a.run(ctx, "deleting the record", "-o", "delete")
}

// run runs iscsiadm on the target's record. Its error never contains the arguments.
func (a admin) run(ctx context.Context, doing string, args ...string) error {
	args = append([]string{"-m", "node", "-T", a.target.iqn, "-p", a.target.portal()}, args...)
	_, err := run.Command{Path: a.path, Args: args}.Run(ctx)
	var failed *run.Error
	if !errors.As(err, &failed) {
		return errors.Annotate(err, doing)
	}
	err = &adminError{doing: doing, status: failed.ExitCode, state: failed.State, stderr: failed.Stderr}
	switch failed.ExitCode {
	case statusNoTransport, statusNoAccess, statusNotSupported:
		return errors.WithType(err, errors.NotSupported)
	}
	return errors.Trace(err)
}

// These are the exit statuses of iscsiadm that matter here, from iscsiadm(8).
const (
	statusSessionNotFound = 2  // ISCSI_ERR_SESS_NOT_FOUND
	statusNoTransport     = 12 // ISCSI_ERR_TRANS_NOT_FOUND
	statusNoAccess        = 13 // ISCSI_ERR_ACCESS
	statusSessionExists   = 15 // ISCSI_ERR_SESS_EXISTS
	statusNoDaemon        = 20 // ISCSI_ERR_ISCSID_NOTCONN
	statusNothingFound    = 21 // ISCSI_ERR_NO_OBJS_FOUND: no record, or no session
	statusNotAuthorized   = 24 // ISCSI_ERR_LOGIN_AUTH_FAILED
	statusNotSupported    = 27 // ISCSI_ERR_OP_NOT_SUPP
)

// adminError reports that iscsiadm failed.
type adminError struct {
	doing  string
	status int    // the exit status, or -1 when a signal ended it
	state  string // the status in words
	stderr string
}

// Error implements error.
func (e *adminError) Error() string {
	text := fmt.Sprintf("%s: iscsiadm: %s", e.doing, e.state)
	if e.stderr != "" {
		text += ": " + e.stderr
	}
	switch e.status {
	case statusNoTransport:
		text += ": load the kernel module iscsi_tcp"
	case statusNoAccess:
		text += ": run as root"
	case statusNoDaemon:
		text += ": start iscsid"
	case statusNotAuthorized:
		text += ": see that the target lets this machine in and has the same CHAP user and secret"
	}
	return text
}

func hasStatus(err error, statuses ...int) bool {
	var failed *adminError
	return errors.As(err, &failed) && slices.Contains(statuses, failed.status)
}
