package trust

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"regexp"
	"time"

	"github.com/juju/errors"
)

// Credentials are a certificate with its key, and the certificate of the authority that has
// signed it, all in PEM.
type Credentials struct {
	Certificate, Key, CA []byte
}

// load parses the credentials.
func (c Credentials) load() (tls.Certificate, *x509.CertPool, error) {
	leaf, err := parseCertificate(c.Certificate)
	if err != nil {
		return tls.Certificate{}, nil, errors.Annotate(err, "certificate")
	}
	key, err := ParseKey(c.Key)
	if err != nil {
		return tls.Certificate{}, nil, errors.Annotate(err, "key")
	}
	ca, err := parseCertificate(c.CA)
	if err != nil {
		return tls.Certificate{}, nil, errors.Annotate(err, "certificate of the authority")
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	// Servers send the authority too, for clients that know only its hash.
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Raw}, PrivateKey: key, Leaf: leaf}, pool, nil
}

// Leaf returns the certificate.
func (c Credentials) Leaf() (*x509.Certificate, error) { return parseCertificate(c.Certificate) }

// ClientConfig returns the configuration with which the owner of credentials connects to a
// server. current returns the credentials for each new connection; their authority must stay the
// same. clock returns the time; nil: time.Now.
func ClientConfig(current func() Credentials, clock func() time.Time) (*tls.Config, error) {
	_, pool, err := current().load()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, _, err := current().load()
			return &certificate, err
		},
		RootCAs:    pool,
		ServerName: ServerName,
		Time:       clock,
	}, nil
}

// ServerConfig returns the configuration of a server with credentials. current returns the
// credentials for each new connection; their authority must stay the same. Clients need no
// certificate, since those that have only a token have none yet; if they have one, it must be
// of the authority. clock returns the time; nil: time.Now.
func ServerConfig(current func() Credentials, clock func() time.Time) (*tls.Config, error) {
	_, pool, err := current().load()
	if err != nil {
		return nil, errors.Trace(err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			certificate, _, err := current().load()
			return &certificate, err
		},
		ClientCAs:  pool,
		ClientAuth: tls.VerifyClientCertIfGiven,
		Time:       clock,
		NextProtos: []string{"h2", "http/1.1"},
	}, nil
}

// Token is what admits a new agent, server or user: the hash of the authority of the servers,
// and a secret, which is sent only to a server of that authority.
type Token struct {
	CAHash, Secret string
}

func (t Token) String() string { return t.CAHash + "." + t.Secret }

var tokenForm = regexp.MustCompile(`^([0-9a-f]{64})\.([0-9A-Za-z]+\.[0-9A-Za-z]+)$`)

// ParseToken parses the text of a token. The error does not contain the text.
func ParseToken(text string) (Token, error) {
	parts := tokenForm.FindStringSubmatch(text)
	if parts == nil {
		return Token{}, errors.NewNotValid(nil, `a token has three parts between dots, as "stowage token create" prints it: this one is incomplete, or something else`)
	}
	return Token{CAHash: parts[1], Secret: parts[2]}, nil
}

// ClientConfig returns the configuration with which the owner of the token connects to a server,
// without a certificate. The connection fails unless the server has a certificate of the
// token's authority.
func (t Token) ClientConfig(clock func() time.Time) *tls.Config {
	if clock == nil {
		clock = time.Now
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         ServerName,
		Time:               clock,
		InsecureSkipVerify: true, // VerifyConnection verifies it: the authority is not known yet, only its hash
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := t.verify(state.PeerCertificates, clock())
			return err
		},
	}
}

// CA returns the certificate of the token's authority, in PEM, from a connection that was made
// with the token.
func (t Token) CA(state tls.ConnectionState) ([]byte, error) {
	ca, err := t.verify(state.PeerCertificates, time.Time{})
	if err != nil {
		return nil, errors.Trace(err)
	}
	return encode(certificateBlock, ca.Raw), nil
}

// verify verifies the certificates of a server, and returns that of the authority. The zero time
// stands for that at which the server's certificate begins.
func (t Token) verify(chain []*x509.Certificate, now time.Time) (*x509.Certificate, error) {
	for _, ca := range chain[min(1, len(chain)):] {
		if hash(ca) != t.CAHash {
			continue
		}
		if now.IsZero() {
			now = chain[0].NotBefore
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		_, err := chain[0].Verify(x509.VerifyOptions{
			Roots: roots, DNSName: ServerName, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		return ca, ClockError(err, now)
	}
	return nil, errors.NewUnauthorized(nil, "the server is not one of those that the token is for: the token may be for another installation, or somebody is between this machine and the server")
}

// ClockError adds to an error about a certificate that is not valid at this time what the clocks
// have to do with it: the certificate says when it was made, by the server's clock.
func ClockError(err error, now time.Time) error {
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired || invalid.Cert == nil {
		return err
	}
	if made := invalid.Cert.NotBefore.Add(skew); now.Before(invalid.Cert.NotBefore) {
		return errors.Annotate(err, fmt.Sprintf("this machine's clock is at %s, and the certificate was made at %s by the server's clock: set the clocks",
			now.UTC().Format(time.RFC3339), made.UTC().Format(time.RFC3339)))
	}
	return errors.Annotate(err, fmt.Sprintf("the certificate has expired at %s, and this machine's clock is at %s: if the clock is right, a new token is needed",
		invalid.Cert.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
}
