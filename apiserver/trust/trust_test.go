package trust_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newCA(t *testing.T) *trust.CA {
	t.Helper()
	ca, err := trust.NewCA(now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// issue returns credentials of the identity.
func issue(t *testing.T, ca *trust.CA, identity trust.Identity) trust.Credentials {
	t.Helper()
	key, encoded, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := ca.Issue(key.Public(), identity, now, "server.example", "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	return trust.Credentials{Certificate: certificate, Key: encoded, CA: ca.Certificate()}
}

func at(moment time.Time) func() time.Time { return func() time.Time { return moment } }

// connect lets a client connect to a server, and returns what each knows of the other.
func connect(t *testing.T, server, client *tls.Config) (here, there tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	answer := tls.Server(far, server)
	done := make(chan error)
	go func() {
		err := answer.Handshake()
		if err != nil {
			far.Close()
		} else if _, err = answer.Write([]byte("x")); err == nil {
			there = answer.ConnectionState()
		}
		done <- err
	}()
	conn := tls.Client(near, client)
	clientErr = conn.Handshake()
	if clientErr == nil { // only reading shows whether the server accepts the client's certificate
		_, clientErr = conn.Read(make([]byte, 1))
	}
	here = conn.ConnectionState()
	near.Close()
	return here, there, clientErr, <-done
}

func serverConfig(t *testing.T, c trust.Credentials, clock func() time.Time) *tls.Config {
	t.Helper()
	config, err := trust.ServerConfig(func() trust.Credentials { return c }, clock)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func clientConfig(t *testing.T, c trust.Credentials, clock func() time.Time) *tls.Config {
	t.Helper()
	config, err := trust.ClientConfig(func() trust.Credentials { return c }, clock)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

var (
	aServer  = trust.Identity{Role: role.Server, ID: "s1"}
	aMachine = trust.Identity{Role: role.Machine, ID: "7", Enrolment: 2}
)

// A server and a machine of one authority know each other's identity.
func TestConnection(t *testing.T) {
	ca := newCA(t)
	for _, identity := range []trust.Identity{aMachine, {Role: role.Admin, ID: "u1", Enrolment: 3}, {Role: role.Viewer, ID: "u2", Enrolment: 1<<64 - 1}} {
		here, there, err, serverErr := connect(t, serverConfig(t, issue(t, ca, aServer), at(now)), clientConfig(t, issue(t, ca, identity), at(now)))
		if err != nil || serverErr != nil {
			t.Fatal(err, serverErr)
		}
		if got, err := trust.IdentityOf(there.VerifiedChains[0][0]); err != nil || got != identity {
			t.Errorf("the server sees %+v, %v; want %+v", got, err, identity)
		}
		if got, err := trust.IdentityOf(here.VerifiedChains[0][0]); err != nil || got != aServer {
			t.Errorf("the client sees %+v, %v", got, err)
		}
	}
}

// With a token, a client without a certificate verifies the server, and learns the authority.
func TestConnectionWithToken(t *testing.T) {
	ca := newCA(t)
	token := trust.Token{CAHash: ca.Hash(), Secret: "id.secret"}
	here, there, err, serverErr := connect(t, serverConfig(t, issue(t, ca, aServer), at(now)), token.ClientConfig(at(now)))
	if err != nil || serverErr != nil {
		t.Fatal(err, serverErr)
	}
	if len(there.PeerCertificates) > 0 {
		t.Error("the server sees a certificate")
	}
	if got, err := token.CA(here); err != nil || !bytes.Equal(got, ca.Certificate()) {
		t.Errorf("the authority is %s, %v", got, err)
	}
}

// What is refused, and by whom.
// Promise S23.
func TestRefusedConnections(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	server := serverConfig(t, issue(t, ca, aServer), at(now))
	token := trust.Token{CAHash: ca.Hash(), Secret: "id.secret"}
	foreignToken := trust.Token{CAHash: other.Hash(), Secret: "id.secret"}
	// A machine's certificate, presented as that of a server, with the true authority.
	impostor := serverConfig(t, issue(t, ca, aMachine), at(now))
	later := at(now.Add(trust.Lifetime + time.Minute))
	earlier := at(now.Add(-2 * time.Hour))
	for what, test := range map[string]struct {
		server, client *tls.Config
		want           string // in the error of one of them
	}{
		"a server of another authority":  {serverConfig(t, issue(t, other, aServer), at(now)), clientConfig(t, issue(t, ca, aMachine), at(now)), "unknown authority"},
		"a machine of another authority": {server, clientConfig(t, withCA(issue(t, other, aMachine), ca), at(now)), "unknown authority"},
		"a token of another authority":   {server, foreignToken.ClientConfig(at(now)), "not one of those that the token is for"},
		"a machine as a server":          {impostor, clientConfig(t, issue(t, ca, aMachine), at(now)), "wanted to match stowage"},
		"a machine as a token's server":  {impostor, token.ClientConfig(at(now)), "wanted to match stowage"},
		"an expired server":              {server, clientConfig(t, issue(t, ca, aMachine), later), "expired"},
		"an expired token's server":      {server, token.ClientConfig(later), "this machine's clock is at 2026-04-02T03:05:05Z"},
		"a clock that is late":           {server, token.ClientConfig(earlier), "was made at 2026-01-02T03:04:05Z by the server's clock"},
		"an expired machine":             {serverConfig(t, issue(t, ca, aServer), later), clientConfig(t, issue(t, ca, aMachine), at(now)), "expired"},
	} {
		_, _, err, serverErr := connect(t, test.server, test.client)
		if err == nil {
			t.Errorf("%s is accepted", what)
			continue
		}
		if all := err.Error() + "; " + errorText(serverErr); !strings.Contains(all, test.want) {
			t.Errorf("%s: %s; want %q", what, all, test.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// withCA returns the credentials with another authority to verify servers by.
func withCA(c trust.Credentials, ca *trust.CA) trust.Credentials {
	c.CA = ca.Certificate()
	return c
}

func TestParseCA(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	key, err := ca.Key()
	if err != nil {
		t.Fatal(err)
	}
	again, err := trust.ParseCA(ca.Certificate(), key)
	if err != nil || again.Hash() != ca.Hash() {
		t.Fatalf("parsed: %v", err)
	}
	_, _, connErr, serverErr := connect(t, serverConfig(t, issue(t, again, aServer), at(now)), clientConfig(t, issue(t, ca, aMachine), at(now)))
	if connErr != nil || serverErr != nil {
		t.Error(connErr, serverErr)
	}
	leaf := issue(t, ca, aServer)
	for what, parts := range map[string][2][]byte{
		"another key":        {other.Certificate(), key},
		"a leaf certificate": {leaf.Certificate, leaf.Key},
		"no certificate":     {nil, key},
		"no key":             {ca.Certificate(), nil},
		"a mixed-up key":     {key, ca.Certificate()},
		"two certificates":   {append(ca.Certificate(), ca.Certificate()...), key},
	} {
		if _, err := trust.ParseCA(parts[0], parts[1]); !errors.Is(err, errors.NotValid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestIdentityForm(t *testing.T) {
	ca := newCA(t)
	key, _, err := trust.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, identity := range []trust.Identity{
		{}, {Role: "root", ID: "0"}, {Role: role.Machine, ID: "7"}, {Role: role.Admin, ID: "u"}, {Role: role.Server}, {Role: role.Server, ID: "s", Enrolment: 1},
	} {
		if _, err := ca.Issue(key.Public(), identity, now); !errors.Is(err, errors.NotValid) {
			t.Errorf("a certificate for %+v: %v", identity, err)
		}
	}
	block, _ := pem.Decode(ca.Certificate())
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.IdentityOf(parsed); !errors.Is(err, errors.NotValid) {
		t.Errorf("the identity of an authority: %v", err)
	}
}

func TestRenewAt(t *testing.T) {
	leaf, err := issue(t, newCA(t), aMachine).Leaf()
	if err != nil {
		t.Fatal(err)
	}
	if got := trust.RenewAt(leaf).Sub(now); got < 59*24*time.Hour || got > 61*24*time.Hour {
		t.Errorf("renewed after %v", got)
	}
}

func TestParseToken(t *testing.T) {
	token := trust.Token{CAHash: strings.Repeat("0a", 32), Secret: "abc.DEF234"}
	if got, err := trust.ParseToken(token.String()); err != nil || got != token {
		t.Errorf("parsed %+v, %v", got, err)
	}
	for _, text := range []string{"", "secret", token.CAHash, token.CAHash + ".abc", token.CAHash + ".abc.", token.String() + ".x", token.String() + "\n", strings.ToUpper(token.String())} {
		if _, err := trust.ParseToken(text); !errors.Is(err, errors.NotValid) || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("parsing %q: %v", text, err)
		}
	}
}
