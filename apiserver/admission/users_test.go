package admission_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state"
)

func (w *world) userToken(as role.Value) trust.Token {
	w.t.Helper()
	_, secret, err := w.CreateToken(state.TokenParams{Role: as, Lifetime: time.Hour, Uses: 1})
	w.must(err)
	return trust.Token{CAHash: w.ca.Hash(), Secret: secret}
}

// A user logs in with a token, and renews the certificate until the user is removed.
// Promise S29.
func TestUserLogsIn(t *testing.T) {
	w := newWorld(t)
	key, keyPEM, err := trust.NewKey()
	w.must(err)
	certificate, ca, err := api.LogIn(t.Context(), w.config(), w.userToken(role.Viewer), "ann", key.Public())
	w.must(err)
	own := trust.Credentials{Certificate: certificate, Key: keyPEM, CA: ca}

	config := w.config()
	config.TLS, err = trust.ClientConfig(func() trust.Credentials { return own }, w.clock.Now)
	w.must(err)
	w.clock.Advance(trust.Lifetime * 2 / 3)
	renewed, err := api.RenewUser(t.Context(), config, key.Public())
	w.must(err)
	own.Certificate = renewed
	leaf, err := own.Leaf()
	w.must(err)
	if want := w.clock.Now().Add(trust.Lifetime); leaf.NotAfter.Sub(want).Abs() > time.Minute {
		t.Errorf("valid until %v, want %v", leaf.NotAfter, want)
	}
	if identity, err := trust.IdentityOf(leaf); err != nil || identity.Role != role.Viewer || identity.ID != "ann" {
		t.Errorf("renewed for %+v, %v", identity, err)
	}
	w.must(w.RemoveUsers("ann"))
	if _, err := api.RenewUser(t.Context(), config, key.Public()); !errors.Is(err, api.ErrRefused) {
		t.Errorf("a user who was removed renews: %v", err)
	}
}

func TestUserIsRefused(t *testing.T) {
	w := newWorld(t)
	key, _, err := trust.NewKey()
	w.must(err)
	for what, token := range map[string]trust.Token{"a machine's token": w.token(""), "no token": {CAHash: w.ca.Hash(), Secret: "a.b"}} {
		if _, _, err := api.LogIn(t.Context(), w.config(), token, "ann", key.Public()); !errors.Is(err, api.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := api.Enrol(t.Context(), w.config(), w.userToken(role.Admin), "web", key.Public()); !errors.Is(err, api.ErrRefused) {
		t.Errorf("a machine with a user's token: %v", err)
	}
	web := w.enrol("web")
	for what, r := range map[string]*http.Request{
		"no certificate": {}, "a machine": w.requestOf(web.credentials),
		"a user who was never enrolled": w.requestOf(w.credentials(trust.Identity{Role: role.Admin, ID: "ann", Enrolment: 1})),
		"a server":                      w.requestOf(w.credentials(trust.Identity{Role: role.Server, ID: "s1"})),
	} {
		if user, err := w.handler.User(r); !errors.Is(err, errors.Unauthorized) {
			t.Errorf("%s is user %+v, %v", what, user, err)
		}
	}
}

// requestOf returns a request as the server gets it from the owner of the credentials.
func (w *world) requestOf(c trust.Credentials) *http.Request {
	w.t.Helper()
	serverConfig, err := trust.ServerConfig(func() trust.Credentials { return w.credentials(trust.Identity{Role: role.Server, ID: "s1"}) }, w.clock.Now)
	w.must(err)
	var got *http.Request
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	server.TLS = serverConfig
	server.StartTLS()
	defer server.Close()
	config, err := trust.ClientConfig(func() trust.Credentials { return c }, w.clock.Now)
	w.must(err)
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get(server.URL)
	w.must(err)
	w.must(response.Body.Close())
	return got
}
