package member

import (
	"github.com/juju/errors"
	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/core/role"
)

// tls returns how the members know each other: by the authority, whatever their addresses are.
func (m *Member) tls() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile:            m.config.CertificateFile, // etcd reads it for each connection
		KeyFile:             m.config.CertificateFile,
		TrustedCAFile:       m.config.CAFile,
		ClientCertAuth:      true,
		ServerName:          trust.ServerName,
		SkipClientSANVerify: true,
	}
}

// writeCredentials writes a new certificate.
func (m *Member) writeCredentials() error {
	now := m.config.Clock.Now()
	key, encoded, err := trust.NewKey()
	if err != nil {
		return errors.Trace(err)
	}
	certificate, err := m.config.CA.Issue(key.Public(), trust.Identity{Role: role.Server, ID: m.config.Name}, now)
	if err != nil {
		return errors.Trace(err)
	}
	leaf, err := trust.Credentials{Certificate: certificate}.Leaf()
	if err != nil {
		return errors.Trace(err)
	}
	if err := datadir.WriteFile(m.config.CertificateFile, append(certificate, encoded...)); err != nil {
		return errors.Annotate(err, "writing the certificate for other servers")
	}
	m.renewAt = trust.RenewAt(leaf)
	return nil
}
