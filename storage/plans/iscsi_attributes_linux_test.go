package plans_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// The error names the malformed attribute, and no command is run.
// Promise S16.
func TestISCSIMalformedAttributes(t *testing.T) {
	m := withDisk(t)
	label := strings.Repeat("a", 63)
	for name, values := range map[string][]string{
		"iqn": {
			"", "volume-1", "iqn.", "iqn.2001-04", "iqn.2001-04.", "iqn.2001-13.com.example", "iqn.2001-4.com.example",
			"iqn.2001-04.com.example:", "iqn.2001-04.com.example:a b", "iqn.2001-04.com.example:a/../b",
			"iqn.2001-04.com.example:a\n", "iqn.2001-04.com.example:ä", "IQN.2001-04.com.example:a", "-iqn.2001-04.com.example",
			"iqn.2001-04.com.example:" + strings.Repeat("x", 200),
			"eui.02004567A425678", "eui.02004567A425678DD", "eui.02004567A425678X",
			"naa.52004567BA64678", "naa.62004567BA64678D0123456789ABCDE", "naa.",
		},
		"address": {
			"", "-h", "--login", "192.0.2.7:3260", "192.0.2", "192.0.2.256", "192.0.2.07", "3232235777", "[2001:db8::7]",
			"2001:db8::7::", "fe80::1%eth0", "san_1", "san-", "-san", "san..example.com", "san.example.com.", "san 1",
			"san\n1", "san;reboot", label + "a.example.com", strings.Repeat(label+".", 4) + "com",
		},
		"port":      {"", "0", "65536", "-1", "+3260", "3260 ", "0x0cbc", "iscsi", "3260,1", "99999999999999999999"},
		"chap-user": {"", " admin", "admin ", "a\tb", "a\nnode.startup = manual", "a\x00b", "\xff", strings.Repeat("u", 256)},
		"lun":       {"", "0"},
		"chap-pass": {"x"},
	} {
		for _, value := range values {
			bad := withCHAP(attributes())
			bad[name] = value
			_, err := m.plan().AttachVolume(m.context(), bad)
			wantNotValid(t, err, name, value)
			wantNoSecret(t, err)
			switch name {
			case "iqn", "address", "port":
				wantNotValid(t, m.plan().DetachVolume(m.context(), bad), name, value)
			}
		}
		if values[0] == "" && name != "lun" {
			missing := withCHAP(attributes())
			delete(missing, name)
			_, err := m.plan().AttachVolume(m.context(), missing)
			wantNotValid(t, err, name, "nothing")
		}
	}
	m.wantCommands()
}

// The error reveals neither a malformed secret nor one that was given as the user name.
// Promise S16.
func TestISCSIMalformedSecret(t *testing.T) {
	m := withDisk(t)
	for _, value := range []string{
		" sesame", "sesame ", "sesame\n", "ses\tame", "sesame\nnode.startup = manual", "sesame\xff", "sesame" + strings.Repeat("s", 250),
	} {
		for _, name := range []string{"chap-secret", "chap-user"} {
			bad := withCHAP(attributes())
			bad[name] = value
			_, err := m.plan().AttachVolume(m.context(), bad)
			wantNotValid(t, err, name, value)
			if strings.Contains(fmt.Sprintf("%+v", err), "sesame") {
				t.Errorf("%v reveals the value", err)
			}
		}
	}
	alone := attributes()
	alone["chap-user"] = user
	_, err := m.plan().AttachVolume(m.context(), alone)
	wantNotValid(t, err, "chap-secret", "nothing")
	m.wantCommands()
}

func TestISCSIValidAttributes(t *testing.T) {
	for name, values := range map[string][]string{
		"iqn": {
			"iqn.2001-04.com.example", "iqn.2001-04.com.example:storage:disk2.sys1.xyz", "iqn.2000-01.com.synology:NAS.Target-1.0a1b",
			"iqn.2001-04.com.example:" + strings.Repeat("x", 199), "eui.02004567A425678D",
			"naa.52004567BA64678D", "naa.62004567BA64678D0123456789ABCDEF",
		},
		"port":        {"1", "65535"},
		"address":     {"192.0.2.8", "2001:db8::8", "localhost", "san-1.example.com", "1password.com", strings.Repeat("a", 63)},
		"chap-user":   {"u", "# not a comment", `quote " and ' and \`, "-n", "a = b", "Jürgen", strings.Repeat("u", 255)},
		"chap-secret": {"s", "# not a comment", `quote " and ' and \`, "-n", "a = b", "Jürgen", strings.Repeat("s", 255)},
	} {
		for _, value := range values {
			m := newMachine(t)
			good := withCHAP(attributes())
			good[name] = value
			m.target(good["iqn"], 1, address)
			m.write("fail-new", "6")
			// Valid attributes get as far as the first command, which fails.
			_, err := m.plan().AttachVolume(m.context(), good)
			wantError(t, err, "creating the record: iscsiadm: exit status 6")
		}
	}
}

func wantNotValid(t *testing.T, err error, name, value string) {
	t.Helper()
	if !errors.Is(err, errors.NotValid) || !storage.IsPermanent(err) ||
		!strings.HasPrefix(err.Error(), "iSCSI attribute "+strconv.Quote(name)) {
		t.Errorf("%s %q: got %v, want not valid", name, value, err)
	}
}
