package api

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
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
	if err := config.Validate(); err != nil {
		return nil, nil, errors.Trace(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, nil, errors.Annotate(err, "encoding the public key")
	}
	config = config.withDefaults()
	config.TLS = token.ClientConfig(config.Clock.Now)
	c := &Client{config: config, http: http.Client{Transport: config.newTransport(), CheckRedirect: refuseRedirect}}
	defer c.http.CloseIdleConnections()
	body, err := json.Marshal(agentwire.EnrolRequest{Token: token.Secret, Name: name, Key: der})
	if err != nil {
		return nil, nil, errors.Trace(err)
	}
	logged := ""
	for delays := c.newBackoff(); ; {
		certificate, ca, err := c.enrolOnce(ctx, token, body)
		if !isLost(err) || ctx.Err() != nil {
			return certificate, ca, errors.Annotatef(err, "enrolling at %s", config.URL)
		}
		if reason := err.Error(); reason != logged {
			config.Logger.Warningf("enrolling at %s: %s; trying again", config.URL, reason)
			logged = reason
		}
		timer := config.Clock.NewTimer(delays.next())
		select {
		case <-timer.Chan():
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, errors.Annotatef(err, "enrolling at %s", config.URL)
		}
	}
}

func (c *Client) enrolOnce(ctx context.Context, token trust.Token, body []byte) (certificate, ca []byte, err error) {
	response, err := c.postTo(ctx, agentwire.EnrolPath, bytes.NewReader(body))
	if err != nil {
		if errors.Is(err, errors.Unauthorized) { // by the token, which does not know the server
			return nil, nil, errors.WithType(errors.New(err.Error()), ErrRefused)
		}
		return nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := readAnswer(response)
	if err != nil {
		return nil, nil, err
	}
	result, err := decode[agentwire.CertificateResult](data)
	if err != nil {
		return nil, nil, err
	}
	ca, err = token.CA(*response.TLS)
	return []byte(result.Certificate), ca, errors.Trace(err)
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
