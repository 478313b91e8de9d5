package admission

import (
	"fmt"
	"net/http"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/state"
)

// User returns the user whose certificate came with a request. The error satisfies
// errors.IsUnauthorized unless the user is admitted.
func (h *Handler) User(r *http.Request) (state.User, error) {
	identity, err := identityOf(r)
	switch {
	case err != nil:
		return state.User{}, errors.Trace(err)
	case identity.Role != role.Admin && identity.Role != role.Viewer:
		return state.User{}, errors.NewUnauthorized(nil, fmt.Sprintf("the certificate is that of %s, not of a user", identity))
	}
	found, err := h.config.State.User(identity.ID, identity.Enrolment)
	return found, errors.Trace(err)
}

// identityOf returns the identity in the certificate that came with a request. The error satisfies
// errors.IsUnauthorized.
func identityOf(r *http.Request) (trust.Identity, error) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return trust.Identity{}, errors.NewUnauthorized(nil, "a certificate is needed")
	}
	identity, err := trust.IdentityOf(r.TLS.VerifiedChains[0][0])
	if err != nil {
		return trust.Identity{}, errors.NewUnauthorized(err, "the certificate")
	}
	return identity, nil
}

// logIn admits a user.
func (h *Handler) logIn(r *http.Request, args agentwire.EnrolRequest) (agentwire.CertificateResult, error) {
	key, err := parseKey(args.Key)
	if err != nil {
		return agentwire.CertificateResult{}, errors.Trace(err)
	}
	enrolled, err := h.config.State.EnrolUser(args.Token, args.Name, args.Key)
	if err != nil {
		h.config.Logger.Warningf("a user at %s: %v", r.RemoteAddr, err)
		return agentwire.CertificateResult{}, errors.Trace(err)
	}
	h.config.Logger.Infof("user %s, with role %s, has logged in from %s", enrolled.Name, enrolled.Role, r.RemoteAddr)
	return h.issue(userIdentity(enrolled), key)
}

func userIdentity(u state.User) trust.Identity {
	return trust.Identity{Role: u.Role, ID: u.Name, Enrolment: u.Number}
}

func machineIdentity(e state.Enrolment) trust.Identity {
	return trust.Identity{Role: role.Machine, ID: e.Machine.Id(), Enrolment: e.Number}
}

// admitted returns the identity of the machine or the user whose certificate came with a request.
// The error satisfies errors.IsUnauthorized unless it is admitted.
func (h *Handler) admitted(r *http.Request) (trust.Identity, error) {
	identity, err := identityOf(r)
	if err != nil {
		return trust.Identity{}, errors.Trace(err)
	}
	if identity.Role == role.Machine {
		_, err = h.enrolment(r)
	} else {
		_, err = h.User(r)
	}
	return identity, errors.Trace(err)
}
