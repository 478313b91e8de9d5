package plans

import (
	"net"
	"strings"
	"testing"
	"unicode"

	"github.com/juju/errors"
)

// The error once quoted the whole name of an unknown attribute, however long it was.
// Finding N15.
func TestISCSIUnknownAttributeErrorIsShort(t *testing.T) {
	_, err := parseCHAP(map[string]string{strings.Repeat("x", 5000): ""})
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("got %v", err)
	}
}

// FuzzISCSIAttributes parses attributes that any provider may have made. Accepted
// attributes are fit for the arguments of a command. Others are refused by an error that
// names the attribute, fits on one line and does not have the secret.
func FuzzISCSIAttributes(f *testing.F) {
	f.Add("iqn.2001-04.com.example:volume-1", "192.0.2.1", "3260", "user", "secret-secret", "", "")
	f.Add("eui.0123456789abcdef", "2001:db8::1", "1", "", "", "", "")
	f.Add("naa.0123456789abcdef", "::ffff:192.0.2.1", "065535", "user", "", "", "")
	f.Add("iqn.2001-04.com.example", "host.example", "0", " ", "\x00", "other", "secret")
	f.Add("iqn.2001-04.com.example", "fe80::1%eth0", "3260", "", "", "", "")
	f.Add("--op=delete", "-host", "+1", "user", "new\nline-secret", "\x1b[2J", "")
	f.Add("", "", "", "", "", strings.Repeat("x", 2000), "y")
	f.Fuzz(func(t *testing.T, iqn, address, port, user, secret, other, value string) {
		attributes := map[string]string{}
		for name, value := range map[string]string{
			other: value, AttributeIQN: iqn, AttributeAddress: address, AttributePort: port, AttributeCHAPUser: user, AttributeCHAPSecret: secret,
		} {
			if name != "" && value != "" {
				attributes[name] = value
			}
		}
		refused := func(err error) {
			text := err.Error()
			if !errors.Is(err, errors.NotValid) || !strings.Contains(text, "iSCSI attribute ") {
				t.Errorf("error %q names no attribute, or is not about one", text)
			}
			if len(text) > 1024 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("error %q does not fit on a line", text)
			}
			public := iqn + address + port + user + other + value
			if len(secret) >= 8 && !strings.Contains(public, secret) && strings.Contains(text, secret) {
				t.Errorf("error %q reveals the secret %q", text, secret)
			}
		}
		if c, err := parseCHAP(attributes); err != nil {
			refused(err)
		} else if c != (chap{}) && (c != chap{user, secret} || c.user == "" || c.secret == "") {
			t.Errorf("user %q with secret %q is parsed as %q with %q", user, secret, c.user, c.secret)
		}
		read, err := parseTarget(attributes)
		if err != nil {
			refused(err)
			return
		}
		host, port, err := net.SplitHostPort(read.portal())
		if err != nil || host != read.host || port != read.port || strings.Contains(host, "%") {
			t.Errorf("portal %q splits into %q and %q, %v", read.portal(), host, port, err)
		}
		if text := read.iqn + read.portal(); strings.HasPrefix(read.iqn, "-") || strings.HasPrefix(read.portal(), "-") ||
			strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q is not fit for the arguments of a command", text)
		}
		again, err := parseTarget(map[string]string{AttributeIQN: read.iqn, AttributeAddress: read.host, AttributePort: read.port})
		if err != nil || again != read {
			t.Errorf("%s is parsed again as %s, %v", read, again, err)
		}
	})
}
