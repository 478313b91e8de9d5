package plans_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/clock/testclock"

	"github.com/stowage-io/stowage/storage/plans"
)

// iscsiadm behaves like the one of open-iscsi 2.1, as far as the plan uses it. Files
// beside it make it fail or hang. Each target has a directory with:
//
//	record     the record in iscsiadm's database, once it exists
//	host       the number of the SCSI host that a session gets
//	portal     the addresses of the portal, as sysfs shows them
//	secret     the CHAP secret that the target requires, if any
//	target...  the logical units that a scan finds
const iscsiadm = `#!/bin/sh
dir=${0%/*}
echo "$*" >>"$dir/log"
target=$dir/targets/$4
record=$target/record
host=$dir/sys/devices/platform/host$(cat "$target/host")
class=$dir/sys/class/iscsi_session/session$(cat "$target/host")
session=$host/session$(cat "$target/host")
case "$*" in
*" --login") op=login ;;
*" --logout") op=logout ;;
*" --rescan") op=rescan ;;
*) op=$8 ;;
esac
if [ "$op" = update ]; then op=${10}; fi
if [ -e "$dir/hang-$op" ]; then
	exec 3>"$dir/hang-$op"
	echo "$$" >&3
	sleep 1000 & wait
fi
if [ -e "$dir/fail-$op" ]; then
	echo "iscsiadm: cannot do $*" >&2
	exit "$(cat "$dir/fail-$op")"
fi
scan() {
	for found in "$target"/target*; do
		if [ -d "$found" ]; then cp -R "$found" "$session/"; fi
	done
}
case $op in
new)
	echo "node.startup = manual" >"$record"
	;;
node.*)
	[ -f "$record" ] || exit 21
	sed -i "/^${10} /d" "$record"
	echo "${10} = ${12}" >>"$record"
	;;
delete)
	[ -f "$record" ] || exit 21
	[ ! -d "$session" ] || exit 15
	rm "$record"
	;;
login)
	[ -f "$record" ] || exit 21
	[ ! -d "$session" ] || exit 15
	if [ -f "$target/secret" ]; then
		grep -qxF "node.session.auth.authmethod = CHAP" "$record" || exit 24
		grep -qxF "node.session.auth.password = $(cat "$target/secret")" "$record" || exit 24
	fi
	mkdir -p "$session/iscsi_session/x" "$session/connection1:0/iscsi_connection"
	cp -R "$target/portal" "$session/connection1:0/iscsi_connection/connection1:0"
	echo "$4" >"$session/iscsi_session/x/targetname"
	ln -s ../.. "$session/iscsi_session/x/device"
	scan
	ln -s "$session/iscsi_session/x" "$class"
	;;
logout)
	[ -d "$session" ] || exit 21
	rm -r "$host" "$class"
	;;
rescan)
	[ -d "$session" ] || exit 21
	scan
	;;
esac
`

const (
	iqn     = "iqn.2001-04.com.example:volume-1"
	address = "192.0.2.7"
	node    = "-m node -T " + iqn + " -p " + address + ":3260 "

	user   = "machine 0"
	secret = "Sesame, $(open)!"
)

func attributes() map[string]string {
	return map[string]string{"iqn": iqn, "address": address, "port": "3260"}
}

func withCHAP(attributes map[string]string) map[string]string {
	attributes["chap-user"] = user
	attributes["chap-secret"] = secret
	return attributes
}

// machine is a directory that stands for a machine: sysfs, iscsiadm, targets.
type machine struct {
	t     *testing.T
	dir   string
	clock *testclock.Clock
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, dir: t.TempDir(), clock: testclock.NewClock(time.Now())}
	m.write("iscsiadm", iscsiadm)
	if err := os.Chmod(filepath.Join(m.dir, "iscsiadm"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"sys/class/iscsi_session", "sys/devices/platform"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if left := m.glob("run/*"); len(left) != 0 {
			t.Errorf("locks are left: %q", left)
		}
	})
	return m
}

// plan returns a plan that uses the machine's clock.
func (m *machine) plan() plans.Plan {
	return m.planOn(m.clock)
}

func (m *machine) planOn(clock clock.Clock) plans.Plan {
	m.t.Helper()
	plan, err := plans.NewISCSI(plans.ISCSIConfig{
		Program:       filepath.Join(m.dir, "iscsiadm"),
		SysfsDir:      filepath.Join(m.dir, "sys"),
		LockDir:       filepath.Join(m.dir, "run"),
		DeviceTimeout: 10 * time.Second,
		Clock:         clock,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return plan
}

// target adds a target whose session will be on the SCSI host.
func (m *machine) target(iqn string, host int, address string) {
	dir := "targets/" + iqn
	m.write(dir+"/host", fmt.Sprint(host))
	m.write(dir+"/portal/persistent_address", address+"\n")
	m.write(dir+"/portal/persistent_port", "3260\n")
}

// disk gives a target a logical unit, which a scan finds.
func (m *machine) disk(iqn, name, wwid string, sectors int) {
	m.diskIn("targets/"+iqn, name, wwid, sectors)
}

func (m *machine) diskIn(dir, name, wwid string, sectors int) {
	lun := len(m.glob(dir + "/target1:0:0/*"))
	dir = fmt.Sprintf("%s/target1:0:0/1:0:0:%d", dir, lun)
	m.write(dir+"/wwid", wwid+"\n")
	m.write(dir+"/block/"+name+"/size", fmt.Sprintf("%d\n", sectors))
}

func (m *machine) write(name, contents string) {
	m.t.Helper()
	name = filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(contents), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) glob(pattern string) []string {
	m.t.Helper()
	names, err := filepath.Glob(filepath.Join(m.dir, pattern))
	if err != nil {
		m.t.Fatal(err)
	}
	return names
}

// commands returns the arguments of each iscsiadm run since the last call.
func (m *machine) commands() []string {
	m.t.Helper()
	name := filepath.Join(m.dir, "log")
	data, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func (m *machine) wantCommands(want ...string) {
	m.t.Helper()
	if got, want := strings.Join(m.commands(), "\n"), strings.Join(want, "\n"); got != want {
		m.t.Errorf("commands:\n%s\nwant:\n%s", got, want)
	}
}

// wantNothingLeft checks that no session and no record is left.
func (m *machine) wantNothingLeft() {
	m.t.Helper()
	left := append(m.glob("sys/class/iscsi_session/*"), m.glob("targets/*/record")...)
	if len(left) != 0 {
		m.t.Errorf("left behind: %q", left)
	}
}
