package trust

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strconv"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/role"
)

// Identity is the owner of a certificate.
type Identity struct {
	Role role.Value
	// ID is the number of a machine, or the name of a server or a user.
	ID string
	// Enrolment is the number of the machine's or the user's enrolment, or 0 for a server.
	Enrolment uint64
}

func (i Identity) String() string { return fmt.Sprintf("%s %s", i.Role, i.ID) }

// organization marks the certificates of this package.
const organization = "stowage:"

// subject returns the subject of the identity's certificates.
func (i Identity) subject() (pkix.Name, error) {
	if err := i.Role.Validate(); err != nil {
		return pkix.Name{}, errors.Trace(err)
	}
	if i.ID == "" || (i.Role == role.Server) != (i.Enrolment == 0) {
		return pkix.Name{}, errors.NotValidf("identity %+v", i)
	}
	subject := pkix.Name{Organization: []string{organization + string(i.Role)}, CommonName: i.ID}
	if i.Enrolment > 0 {
		subject.SerialNumber = strconv.FormatUint(i.Enrolment, 10)
	}
	return subject, nil
}

// IdentityOf returns the identity in a certificate, which the caller has verified. The error
// satisfies errors.IsNotValid.
func IdentityOf(certificate *x509.Certificate) (Identity, error) {
	subject := certificate.Subject
	malformed := errors.NewNotValid(nil, fmt.Sprintf("the subject %q of a certificate", subject))
	if len(subject.Organization) != 1 {
		return Identity{}, malformed
	}
	name, ok := strings.CutPrefix(subject.Organization[0], organization)
	if !ok {
		return Identity{}, malformed
	}
	identity := Identity{Role: role.Value(name), ID: subject.CommonName}
	if subject.SerialNumber != "" {
		var err error
		if identity.Enrolment, err = strconv.ParseUint(subject.SerialNumber, 10, 64); err != nil {
			return Identity{}, malformed
		}
	}
	if _, err := identity.subject(); err != nil {
		return Identity{}, malformed
	}
	return identity, nil
}
