package api

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/internal/agentwire"
)

// Enrol makes an agent that of the machine with the name, by a token, and returns the certificate
// of the agent's key and that of the server's authority, both in PEM. It tries until the context
// ends or the server refuses. After a crash, enrolling again with the same token, name and key
// succeeds. config.TLS is not used: the token says which server to trust.
func Enrol(ctx context.Context, config Config, token trust.Token, name string, key crypto.PublicKey) (certificate, ca []byte, err error) {
	return enrol(ctx, config, token, "enrolling", agentwire.EnrolPath, name, key)
}

// LogIn is [Enrol] for a user with the name.
func LogIn(ctx context.Context, config Config, token trust.Token, name string, key crypto.PublicKey) (certificate, ca []byte, err error) {
	return enrol(ctx, config, token, "logging in", agentwire.LoginPath, name, key)
}

func enrol(ctx context.Context, config Config, token trust.Token, what, path, name string, key crypto.PublicKey) (certificate, ca []byte, err error) {
	if err := config.Validate(); err != nil {
		return nil, nil, errors.Trace(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, nil, errors.Annotate(err, "encoding the public key")
	}
	result, ca, err := admit[agentwire.CertificateResult](ctx, config, token, what, path,
		agentwire.EnrolRequest{Token: token.Secret, Name: name, Key: der})
	return []byte(result.Certificate), ca, errors.Trace(err)
}

// JoinArgs is what a new server says of itself to others. The token is used up even if the answer is
// lost.
type JoinArgs struct {
	Token trust.Token
	// Name and Address are for a server that is to keep the state together with the others: its name,
	// and the host and port at which they reach it.
	Name, Address string
}

// Joined is what a new server gets from others.
type Joined struct {
	// CA is the authority of the servers.
	CA *trust.CA
	// Cluster has the members that keep the state together, and MembersCA their authority.
	Cluster   string
	MembersCA *trust.CA
}

// Join makes a server that has a token one of those with the URLs. It tries until the context ends or
// the server refuses.
func Join(ctx context.Context, config Config, args JoinArgs) (joined Joined, err error) {
	if err := config.Validate(); err != nil {
		return Joined{}, errors.Trace(err)
	}
	what := "joining the servers"
	request := agentwire.JoinRequest{Token: args.Token.Secret, Name: args.Name, Address: args.Address}
	result, ca, err := admit[agentwire.JoinResult](ctx, config, args.Token, what, agentwire.JoinPath, request)
	if err != nil {
		return Joined{}, errors.Trace(err)
	}
	if joined.CA, err = trust.ParseCA(ca, []byte(result.Key)); err != nil {
		return Joined{}, errors.Annotate(err, what)
	}
	if args.Address == "" {
		return joined, nil
	}
	if result.Cluster == nil {
		return Joined{}, errors.Annotate(errors.New("the server has an older version, and cannot keep the state together with others"), what)
	}
	joined.Cluster = result.Cluster.Members
	joined.MembersCA, err = trust.ParseCA([]byte(result.Cluster.CA), []byte(result.Cluster.Key))
	return joined, errors.Annotate(err, what)
}

// admit makes a request with a token, until the context ends or the server refuses. It returns the
// result, and the certificate of the token's authority.
func admit[R any](ctx context.Context, config Config, token trust.Token, what, path string, args any) (result R, ca []byte, err error) {
	config = config.withDefaults()
	config.TLS = token.ClientConfig(config.Clock.Now)
	c := &Client{config: config, http: http.Client{Transport: config.newTransport(), CheckRedirect: refuseRedirect}}
	defer c.http.CloseIdleConnections()
	body, err := json.Marshal(args)
	if err != nil {
		return result, nil, errors.Trace(err)
	}
	logged := make(map[string]bool)
	for delays := c.newBackoff(); ; {
		result, ca, err := admitOnce[R](ctx, c, token, path, body)
		if !isLost(err) || ctx.Err() != nil {
			return result, ca, errors.Annotatef(err, "%s at %s", what, c.Server())
		}
		if reason := fmt.Sprintf("%s at %s: %s", what, c.Server(), err); !logged[reason] {
			config.Logger.Warningf("%s; trying again", reason)
			logged[reason] = true
		}
		c.useNextServer()
		timer := config.Clock.NewTimer(delays.next())
		select {
		case <-timer.Chan():
		case <-ctx.Done():
			timer.Stop()
			return result, nil, errors.Annotatef(err, "%s at %s", what, c.Server())
		}
	}
}

func admitOnce[R any](ctx context.Context, c *Client, token trust.Token, path string, body []byte) (result R, ca []byte, err error) {
	response, err := c.postTo(ctx, path, bytes.NewReader(body))
	if err != nil {
		if errors.Is(err, errors.Unauthorized) { // by the token, which does not know the server
			return result, nil, errors.WithType(errors.New(err.Error()), ErrRefused)
		}
		return result, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := readAnswer(response)
	if err != nil {
		return result, nil, err
	}
	if result, err = decode[R](data); err != nil {
		return result, nil, err
	}
	ca, err = token.CA(*response.TLS)
	return result, ca, errors.Trace(err)
}

// Renew returns a new certificate, in PEM, for the agent of a client with a certificate. It makes
// one attempt.
func (c *Client) Renew(ctx context.Context, key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, errors.Annotate(err, "encoding the public key")
	}
	result, err := request[agentwire.CertificateResult](ctx, c, agentwire.CertificatePath, agentwire.CertificateRequest{Key: der})
	return []byte(result.Certificate), errors.Annotate(err, "renewing the certificate")
}

// RenewUser returns a new certificate, in PEM, for the user whose current one config.TLS has. It
// makes one attempt.
func RenewUser(ctx context.Context, config Config, key crypto.PublicKey) ([]byte, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	config = config.withDefaults()
	c := &Client{config: config, http: http.Client{Transport: config.transport, CheckRedirect: refuseRedirect}}
	defer c.http.CloseIdleConnections()
	return c.Renew(ctx, key)
}
