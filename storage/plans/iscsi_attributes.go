package plans

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/juju/errors"
)

// These are the attributes of plans of type [storage.DeviceTypeISCSI].
const (
	// AttributeIQN is the name of the target, in one of the three forms of RFC 7143:
	// "iqn.2001-04.com.example:volume-1", "eui." and 16 hexadecimal digits, or "naa." and 16
	// or 32 hexadecimal digits.
	AttributeIQN = "iqn"

	// AttributeAddress is the target's address: an IP address without brackets or zone, or a
	// host name.
	AttributeAddress = "address"

	// AttributePort is the target's TCP port, 1 to 65535. IANA has assigned 3260.
	AttributePort = "port"

	// AttributeCHAPUser and AttributeCHAPSecret authenticate this machine to the target.
	// Either both are set or neither. Each has 1 to 255 printable bytes without a space at
	// either end: open-iscsi silently truncates the rest.
	AttributeCHAPUser   = "chap-user"
	AttributeCHAPSecret = "chap-secret"
)

// target says where a volume is.
type target struct {
	iqn  string
	host string // an IP address in its canonical form, or a host name
	port string
}

// portal returns the target's address in the form that iscsiadm accepts.
func (t target) portal() string {
	if strings.Contains(t.host, ":") {
		return "[" + t.host + "]:" + t.port
	}
	return t.host + ":" + t.port
}

func (t target) String() string {
	return t.iqn + " at " + t.portal()
}

// chap holds the credentials of a login. The zero value means no authentication.
type chap struct {
	user, secret string
}

var (
	iqnForm      = regexp.MustCompile(`^iqn\.[0-9]{4}-(0[1-9]|1[0-2])\.[A-Za-z0-9][A-Za-z0-9.-]*(:[A-Za-z0-9.:-]+)?$`)
	euiForm      = regexp.MustCompile(`^eui\.[0-9A-Fa-f]{16}$`)
	naaForm      = regexp.MustCompile(`^naa\.([0-9A-Fa-f]{16}|[0-9A-Fa-f]{32})$`)
	hostNameForm = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	// numericForm matches a host name that could be mistaken for an address.
	numericForm = regexp.MustCompile(`(^|\.)[0-9]+$`)
)

const (
	maxIQN      = 223 // bytes, RFC 7143
	maxHostName = 253
	maxCHAP     = 255 // bytes, open-iscsi's record
)

// parseTarget parses the attributes that identify the target.
func parseTarget(attributes map[string]string) (target, error) {
	t := target{iqn: attributes[AttributeIQN]}
	if len(t.iqn) > maxIQN || !iqnForm.MatchString(t.iqn) && !euiForm.MatchString(t.iqn) && !naaForm.MatchString(t.iqn) {
		return target{}, badAttribute(AttributeIQN, t.iqn, `the name of a target, such as "iqn.2001-04.com.example:volume-1"`)
	}
	var ok bool
	if t.host, ok = parseHost(attributes[AttributeAddress]); !ok {
		return target{}, badAttribute(AttributeAddress, attributes[AttributeAddress], "an IP address or a host name")
	}
	port, err := strconv.ParseUint(attributes[AttributePort], 10, 16)
	if err != nil || port == 0 {
		return target{}, badAttribute(AttributePort, attributes[AttributePort], "a number from 1 to 65535")
	}
	t.port = strconv.FormatUint(port, 10)
	return t, nil
}

// parseHost returns the canonical form of an address, because iscsiadm looks up records by it.
func parseHost(s string) (string, bool) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Unmap().String(), addr.Zone() == ""
	}
	return s, len(s) <= maxHostName && hostNameForm.MatchString(s) && !numericForm.MatchString(s)
}

// parseCHAP parses the remaining attributes of a login. It refuses unknown attributes:
// ignoring one that a newer version defines could lead to another result than the attribute
// asks for.
func parseCHAP(attributes map[string]string) (chap, error) {
	known := []string{AttributeIQN, AttributeAddress, AttributePort, AttributeCHAPUser, AttributeCHAPSecret}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if !slices.Contains(known, name) {
			return chap{}, errors.NewNotValid(nil, fmt.Sprintf(
				"iSCSI attribute %.100q is not known: want %s", name, strings.Join(known, ", ")))
		}
	}
	c := chap{user: attributes[AttributeCHAPUser], secret: attributes[AttributeCHAPSecret]}
	switch {
	case c == chap{}:
		return c, nil
	case c.user == "":
		return chap{}, missingAttribute(AttributeCHAPUser, AttributeCHAPSecret)
	case c.secret == "":
		return chap{}, missingAttribute(AttributeCHAPSecret, AttributeCHAPUser)
	}
	for _, name := range []string{AttributeCHAPUser, AttributeCHAPSecret} {
		if !isRecordable(attributes[name]) {
			// Quote neither value: people confuse the user with the secret.
			return chap{}, errors.NewNotValid(nil, fmt.Sprintf(
				"iSCSI attribute %q: want 1 to %d bytes, printable, without a space at either end", name, maxCHAP))
		}
	}
	return c, nil
}

// isRecordable reports whether open-iscsi's record keeps s unchanged.
func isRecordable(s string) bool {
	return len(s) <= maxCHAP && utf8.ValidString(s) && s == strings.TrimSpace(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func badAttribute(name, value, want string) error {
	if value == "" {
		return errors.NewNotValid(nil, fmt.Sprintf("iSCSI attribute %q is missing: want %s", name, want))
	}
	return errors.NewNotValid(nil, fmt.Sprintf("iSCSI attribute %q is %.100q: want %s", name, value, want))
}

func missingAttribute(name, other string) error {
	return errors.NewNotValid(nil, fmt.Sprintf("iSCSI attribute %q is missing: %q is given, want both or none", name, other))
}
