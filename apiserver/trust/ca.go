// Package trust has the certificates by which servers, agents and users know each other, and
// what a token tells a new agent about its server.
//
// A certificate authority, which the servers have, signs a certificate for each of them. The
// subject of a certificate is an [Identity]: only this package reads and writes it. Whether an
// identity is still admitted is for the server to decide, at each request.
//
// Every certificate of a server has the name [ServerName], so that clients can verify a server
// whatever its address is.
package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/role"
)

const (
	// ServerName is the name that every certificate of a server has.
	ServerName = "stowage"

	// Lifetime is how long a certificate is valid. Its owner renews it after two thirds of that.
	Lifetime = 90 * 24 * time.Hour

	// skew is how far the clocks of two machines may differ.
	skew = time.Hour

	caLifetime = 20 * 365 * 24 * time.Hour
)

// The types of PEM blocks.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// CA is a certificate authority.
type CA struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// NewCA makes a certificate authority.
func NewCA(now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, errors.Annotate(err, "making a certificate authority")
	}
	template := &x509.Certificate{
		SerialNumber:          serialNumber(),
		Subject:               pkix.Name{CommonName: "stowage"},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, errors.Annotate(err, "making a certificate authority")
	}
	certificate, err := x509.ParseCertificate(der)
	return &CA{certificate, key}, errors.Trace(err)
}

// ParseCA returns the certificate authority that [CA.Certificate] and [CA.Key] have encoded.
func ParseCA(certificate, key []byte) (*CA, error) {
	parsed, err := parseCertificate(certificate)
	if err != nil {
		return nil, errors.Annotate(err, "certificate authority")
	}
	signer, err := ParseKey(key)
	if err != nil {
		return nil, errors.Annotate(err, "certificate authority")
	}
	if !parsed.IsCA || !signer.Public().(*ecdsa.PublicKey).Equal(parsed.PublicKey) {
		return nil, errors.NewNotValid(nil, "certificate authority: the key is not that of the certificate")
	}
	return &CA{parsed, signer}, nil
}

// Certificate returns the certificate of the authority in PEM.
func (ca *CA) Certificate() []byte { return encode(certificateBlock, ca.certificate.Raw) }

// Key returns the private key of the authority in PEM. It is a secret.
func (ca *CA) Key() ([]byte, error) { return encodeKey(ca.key) }

// Hash identifies the authority: it is the SHA-256 of its certificate, in hexadecimal.
func (ca *CA) Hash() string { return hash(ca.certificate) }

func hash(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// Issue signs a certificate for the owner of the public key, and returns it in PEM. hosts are
// the addresses of a server, names or IP addresses, for clients that verify them.
func (ca *CA) Issue(key crypto.PublicKey, identity Identity, now time.Time, hosts ...string) ([]byte, error) {
	subject, err := identity.subject()
	if err != nil {
		return nil, errors.Trace(err)
	}
	template := &x509.Certificate{
		SerialNumber: serialNumber(),
		Subject:      subject,
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(Lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if identity.Role == role.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{ServerName}
		for _, host := range hosts {
			if ip := net.ParseIP(host); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else {
				template.DNSNames = append(template.DNSNames, host)
			}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key, ca.key)
	if err != nil {
		return nil, errors.Annotatef(err, "signing a certificate for %s", identity)
	}
	return encode(certificateBlock, der), nil
}

// RenewAt returns when the owner of a certificate renews it.
func RenewAt(certificate *x509.Certificate) time.Time {
	valid := certificate.NotAfter.Sub(certificate.NotBefore)
	return certificate.NotBefore.Add(valid * 2 / 3)
}

// serialNumber returns a random number of 127 bits.
func serialNumber() *big.Int {
	var data [16]byte
	_, _ = rand.Read(data[:]) // it never fails
	data[0] &= 0x7f
	return new(big.Int).SetBytes(data[:])
}

func encode(block string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: block, Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.Annotate(err, "encoding a key")
	}
	return encode(keyBlock, der), nil
}

// NewKey makes a private key, and returns it also in PEM.
func NewKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, errors.Annotate(err, "making a key")
	}
	data, err := encodeKey(key)
	return key, data, errors.Trace(err)
}

// only returns the content of the only PEM block of data.
func only(block string, data []byte) ([]byte, error) {
	found, rest := pem.Decode(data)
	if found == nil || found.Type != block || len(rest) > 0 {
		return nil, errors.NewNotValid(nil, "there is not exactly one PEM block, of type "+block)
	}
	return found.Bytes, nil
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	der, err := only(certificateBlock, data)
	if err != nil {
		return nil, errors.Trace(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.NewNotValid(err, "parsing a certificate")
	}
	return certificate, nil
}

// ParseKey returns the private key that [NewKey] has encoded.
func ParseKey(data []byte) (crypto.Signer, error) {
	der, err := only(keyBlock, data)
	if err != nil {
		return nil, errors.Trace(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.NewNotValid(err, "parsing a key")
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.NewNotValid(nil, "the key is not an ECDSA key")
	}
	return signer, nil
}
