package plans_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/juju/clock"
	jujuerrors "github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/run"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
)

// patience is how long a test waits for an expected event.
const patience = time.Minute

var sdx = storage.BlockDevice{DeviceName: "sdx", WWN: "0x60014055a0000001", Size: 1024}

// withDisk returns a machine with one target, whose disk is sdx.
func withDisk(t *testing.T) *machine {
	m := newMachine(t)
	m.target(iqn, 1, address)
	m.disk(iqn, "sdx", "naa.60014055a0000001", 1024*2048)
	return m
}

// context returns a context for calls that a test waits for.
func (m *machine) context() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	m.t.Cleanup(cancel)
	return ctx
}

func (m *machine) attach(attributes map[string]string) storage.BlockDevice {
	m.t.Helper()
	device, err := m.plan().AttachVolume(m.context(), attributes)
	if err != nil {
		m.t.Fatal(err)
	}
	return device
}

func (m *machine) detach(attributes map[string]string) {
	m.t.Helper()
	if err := m.plan().DetachVolume(m.context(), attributes); err != nil {
		m.t.Fatal(err)
	}
}

// Behaviour 23.
func TestISCSIAttachAndDetach(t *testing.T) {
	m := withDisk(t)
	if got := m.attach(attributes()); !reflect.DeepEqual(got, sdx) {
		t.Errorf("device is %+v, want %+v", got, sdx)
	}
	m.wantCommands(
		node+"-o new",
		node+"-o update -n node.startup -v automatic",
		node+"--login",
	)
	m.detach(attributes())
	m.wantCommands(
		node+"--logout",
		node+"-o delete",
	)
	m.wantNothingLeft()
}

func TestISCSICHAP(t *testing.T) {
	m := withDisk(t)
	m.write("targets/"+iqn+"/secret", secret)
	if got := m.attach(withCHAP(attributes())); !reflect.DeepEqual(got, sdx) {
		t.Errorf("device is %+v, want %+v", got, sdx)
	}
	m.wantCommands(
		node+"-o new",
		node+"-o update -n node.startup -v automatic",
		node+"-o update -n node.session.auth.authmethod -v CHAP",
		node+"-o update -n node.session.auth.username -v "+user,
		node+"-o update -n node.session.auth.password -v "+secret,
		node+"--login",
	)
	m.detach(withCHAP(attributes()))
	m.wantNothingLeft()
}

// CHAP settings of an earlier record are not kept.
func TestISCSIAttachReplacesTheRecord(t *testing.T) {
	m := withDisk(t)
	m.write("targets/"+iqn+"/record", "node.startup = manual\nnode.session.auth.authmethod = CHAP\n")
	m.attach(attributes())
	record, err := os.ReadFile(m.glob("targets/*/record")[0])
	if err != nil || string(record) != "node.startup = automatic\n" {
		t.Errorf("record is %q, %v", record, err)
	}
}

func TestISCSIAttachTwice(t *testing.T) {
	m := withDisk(t)
	m.attach(attributes())
	m.commands()
	if got := m.attach(attributes()); !reflect.DeepEqual(got, sdx) {
		t.Errorf("device is %+v, want %+v", got, sdx)
	}
	m.wantCommands(
		node+"-o new",
		node+"-o update -n node.startup -v automatic",
		node+"--login",
	)
}

// A logical unit that was added after the login shows once the session is rescanned.
func TestISCSIAttachRescansExistingSession(t *testing.T) {
	m := newMachine(t)
	m.target(iqn, 1, address)
	m.write("targets/"+iqn+"/record", "")
	m.iscsiadm("--login")
	m.disk(iqn, "sdx", "naa.60014055a0000001", 1024*2048)
	m.commands()
	if got := m.attach(attributes()); !reflect.DeepEqual(got, sdx) {
		t.Errorf("device is %+v, want %+v", got, sdx)
	}
	m.wantCommands(
		node+"-o new",
		node+"-o update -n node.startup -v automatic",
		node+"--login",
		node+"--rescan",
	)
}

func TestISCSIDetachTwice(t *testing.T) {
	m := withDisk(t)
	m.attach(attributes())
	m.detach(attributes())
	m.detach(attributes())
	m.wantNothingLeft()
}

// A detach that was interrupted is completed: without a record nothing is deleted,
// and without a session there is no logout.
func TestISCSIDetachAfterPartialDetach(t *testing.T) {
	for _, half := range []string{"session", "record"} {
		t.Run(half, func(t *testing.T) {
			m := withDisk(t)
			m.attach(attributes())
			if half == "record" {
				m.iscsiadm("--logout")
			} else if err := os.Remove(m.glob("targets/*/record")[0]); err != nil {
				t.Fatal(err)
			}
			m.detach(attributes())
			m.wantNothingLeft()
		})
	}
}

func TestISCSIDetachLogoutFailureKeepsRecord(t *testing.T) {
	m := withDisk(t)
	m.attach(attributes())
	m.write("fail-logout", "28")
	m.commands()
	err := m.plan().DetachVolume(m.context(), attributes())
	wantError(t, err, "detaching iSCSI target "+iqn+" at 192.0.2.7:3260: logging out: iscsiadm: exit status 28")
	if storage.IsPermanent(err) {
		t.Errorf("%v is permanent", err)
	}
	m.wantCommands(node + "--logout")
}

func TestISCSIDetachReportsRecordDeleteFailure(t *testing.T) {
	m := withDisk(t)
	m.attach(attributes())
	m.write("fail-delete", "6")
	err := m.plan().DetachVolume(m.context(), attributes())
	wantError(t, err, "deleting the record: iscsiadm: exit status 6")
}

// A volume can be detached without a known secret, or after attaching was refused because
// of it.
func TestISCSIDetachNeedsNoCHAP(t *testing.T) {
	m := withDisk(t)
	m.attach(withCHAP(attributes()))
	bad := attributes()
	bad["chap-user"] = user
	m.detach(bad)
	m.wantNothingLeft()
}

// Different spellings of one address lead to the same record and session.
func TestISCSIAddresses(t *testing.T) {
	for _, test := range []struct{ address, portal, sysfs string }{
		{"2001:db8:0:0::7", "[2001:db8::7]:3260", "2001:0db8:0000:0000:0000:0000:0000:0007"},
		{"::ffff:192.0.2.7", "192.0.2.7:3260", "192.0.2.7"},
		{"san-1.example.com", "san-1.example.com:3260", "192.0.2.7"},
	} {
		m := newMachine(t)
		m.target(iqn, 1, test.sysfs)
		m.disk(iqn, "sdx", "naa.60014055a0000001", 1024*2048)
		a := attributes()
		a["address"] = test.address
		a["port"] = "03260"
		if got := m.attach(a); !reflect.DeepEqual(got, sdx) {
			t.Errorf("%s: device is %+v, want %+v", test.address, got, sdx)
		}
		if got, want := m.commands()[0], "-m node -T "+iqn+" -p "+test.portal+" -o new"; got != want {
			t.Errorf("%s: first command %q, want %q", test.address, got, want)
		}
	}
}

func TestISCSIWWN(t *testing.T) {
	for wwid, want := range map[string]string{
		"naa.60014055a0000001":  "0x60014055a0000001",
		"eui.0025388b710116a1":  "eui.0025388b710116a1",
		"t10.LIO-ORG disk 0001": "",
		"":                      "",
	} {
		m := newMachine(t)
		m.target(iqn, 1, address)
		m.disk(iqn, "sdx", wwid, 2048)
		if got := m.attach(attributes()); got.WWN != want {
			t.Errorf("wwid %q: WWN is %q, want %q", wwid, got.WWN, want)
		}
	}
}

func TestISCSIIgnoresOtherSessions(t *testing.T) {
	m := withDisk(t)
	const other = "iqn.2001-04.com.example:volume-2"
	m.target(other, 2, address)
	m.disk(other, "sdy", "naa.60014055a0000002", 2048)
	m.attach(map[string]string{"iqn": other, "address": address, "port": "3260"})

	// The same target through other portals.
	for host, portal := range map[int][2]string{3: {address, "3261"}, 4: {"192.0.2.8", "3260"}} {
		session := fmt.Sprintf("sys/class/iscsi_session/session%d", host)
		m.write(session+"/targetname", iqn+"\n")
		m.write(session+"/device/connection1:0/iscsi_connection/connection1:0/persistent_address", portal[0]+"\n")
		m.write(session+"/device/connection1:0/iscsi_connection/connection1:0/persistent_port", portal[1]+"\n")
		m.diskIn(session+"/device", "sdz", "", 2048)
	}

	if got := m.attach(attributes()); !reflect.DeepEqual(got, sdx) {
		t.Errorf("device is %+v, want %+v", got, sdx)
	}
	m.detach(attributes())
	if got := m.glob("sys/class/iscsi_session/session2/device/target*/*/block/sdy"); len(got) != 1 {
		t.Error("the other target's session is gone too")
	}
}

func TestISCSISeveralLogicalUnits(t *testing.T) {
	m := withDisk(t)
	m.disk(iqn, "sdy", "", 2048)
	_, err := m.plan().AttachVolume(m.context(), attributes())
	wantError(t, err, "several block devices, sdx and sdy: want one logical unit")
}

func TestISCSIDeviceAppearsLate(t *testing.T) {
	m := newMachine(t)
	m.target(iqn, 1, address)
	done := m.attachInBackground(t.Context(), m.plan())
	m.advance(100 * time.Millisecond)
	// While the disk is not ready, it has no size.
	m.waitForWaiter()
	found := "sys/devices/platform/host1/session1"
	m.diskIn(found, "sdx", "naa.60014055a0000001", 0)
	m.advance(100 * time.Millisecond)
	m.waitForWaiter()
	m.write(found+"/target1:0:0/1:0:0:0/block/sdx/size", "2097152\n")
	m.advance(100 * time.Millisecond)
	r := receive(t, done)
	if r.err != nil || !reflect.DeepEqual(r.device, sdx) {
		t.Errorf("device is %+v, %v, want %+v", r.device, r.err, sdx)
	}
}

func TestISCSIDeviceNeverAppears(t *testing.T) {
	m := newMachine(t)
	m.target(iqn, 1, address)
	done := m.attachInBackground(t.Context(), m.plan())
	m.advance(9 * time.Second)
	m.advance(time.Second)
	err := receive(t, done).err
	wantError(t, err, "attaching iSCSI target "+iqn+" at 192.0.2.7:3260: no block device 10s after the login (sessions there: 1)")
	if !jujuerrors.Is(err, jujuerrors.Timeout) || storage.IsPermanent(err) {
		t.Errorf("%v: want a transient timeout", err)
	}
}

func TestISCSICancelledWhileWaitingForTheDevice(t *testing.T) {
	m := newMachine(t)
	m.target(iqn, 1, address)
	ctx, cancel := context.WithCancel(t.Context())
	done := m.attachInBackground(ctx, m.plan())
	m.waitForWaiter()
	cancel()
	wantCancelled(t, receive(t, done).err)
}

func TestISCSICancelledDuringLogin(t *testing.T) {
	m := withDisk(t)
	hung := m.hang("login")
	ctx, cancel := context.WithCancel(t.Context())
	done := m.attachInBackground(ctx, m.plan())
	pid := hung.started()
	cancel()
	wantCancelled(t, receive(t, done).err)
	hung.wantGone()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d is still there: %v", pid, err)
	}
}

func TestISCSICancelledBeforeCall(t *testing.T) {
	m := withDisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.plan().AttachVolume(ctx, attributes())
	wantCancelled(t, err)
	wantCancelled(t, m.plan().DetachVolume(ctx, attributes()))
	m.wantCommands()
}

// Between one call's creation of the record and its login no other call for the target
// changes the record, whichever plan makes it. Calls for other targets do not wait.
func TestISCSICallsForOneTargetAreSerialized(t *testing.T) {
	m := withDisk(t)
	const other = "iqn.2001-04.com.example:volume-2"
	m.target(other, 2, address)
	m.disk(other, "sdy", "", 2048)

	hung := m.hang("login")
	ctx, cancel := context.WithCancel(t.Context())
	first := m.attachInBackground(ctx, m.planOn(clock.WallClock))
	hung.started()
	m.unhang("login")
	m.commands()

	second := m.attachInBackground(t.Context(), m.plan())
	m.waitForWaiter()
	m.wantCommands()

	thirdCtx, cancelThird := context.WithCancel(t.Context())
	third := make(chan error, 1)
	go func() { third <- m.plan().DetachVolume(thirdCtx, attributes()) }()
	m.waitForWaiters(2)
	cancelThird()
	if err := receive(t, third); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting for "+m.dir+"/run/"+iqn) {
		t.Errorf("got %v", err)
	}
	m.wantCommands()

	if got := m.attach(map[string]string{"iqn": other, "address": address, "port": "3260"}); got.DeviceName != "sdy" {
		t.Errorf("device is %+v, want sdy", got)
	}
	m.commands()

	cancel()
	wantCancelled(t, receive(t, first).err)
	m.clock.Advance(50 * time.Millisecond)
	if r := receive(t, second); r.err != nil || !reflect.DeepEqual(r.device, sdx) {
		t.Errorf("device is %+v, %v, want %+v", r.device, r.err, sdx)
	}
	m.wantCommands(
		node+"-o new",
		node+"-o update -n node.startup -v automatic",
		node+"--login",
	)
}

// Each call needs the secret in the record when it logs in, and its session until it has
// seen the disk.
func TestISCSIConcurrentCalls(t *testing.T) {
	m := withDisk(t)
	m.write("targets/"+iqn+"/secret", secret)
	var all []chan result
	for range 4 {
		done := make(chan result, 1)
		all = append(all, done)
		plan := m.planOn(clock.WallClock)
		go func() {
			device, err := plan.AttachVolume(t.Context(), withCHAP(attributes()))
			if err == nil {
				err = plan.DetachVolume(t.Context(), attributes())
			}
			done <- result{device, err}
		}()
	}
	for _, done := range all {
		r := receive(t, done)
		if r.err != nil || !reflect.DeepEqual(r.device, sdx) {
			t.Errorf("device is %+v, %v, want %+v", r.device, r.err, sdx)
		}
	}
	m.wantNothingLeft()
}

func TestISCSIIscsiadmErrors(t *testing.T) {
	for _, test := range []struct {
		op        string
		status    int
		permanent bool
		want      string
	}{
		{"new", 6, false, "creating the record: iscsiadm: exit status 6: iscsiadm: cannot do " + node + "-o new"},
		{"new", 13, true, "exit status 13: iscsiadm: cannot do " + node + "-o new: run as root"},
		{"node.startup", 21, false, "setting node.startup: iscsiadm: exit status 21"},
		{"login", 4, false, "logging in: iscsiadm: exit status 4"},
		{"login", 8, false, "logging in: iscsiadm: exit status 8"},
		{"login", 12, true, "load the kernel module iscsi_tcp"},
		{"login", 19, false, "logging in: iscsiadm: exit status 19"},
		{"login", 20, false, "start iscsid"},
		{"login", 24, false, "see that the target lets this machine in and has the same CHAP user and secret"},
		{"login", 27, true, "logging in: iscsiadm: exit status 27"},
		{"login", 29, false, "logging in: iscsiadm: exit status 29"},
	} {
		m := withDisk(t)
		m.write("fail-"+test.op, strconv.Itoa(test.status))
		_, err := m.plan().AttachVolume(m.context(), attributes())
		wantError(t, err, "attaching iSCSI target "+iqn+" at 192.0.2.7:3260: ", test.want)
		if got := storage.IsPermanent(err); got != test.permanent {
			t.Errorf("%v: permanent %v, want %v", err, got, test.permanent)
		}
		m.commands()
	}
}

// After a refused login, attaching succeeds once the secret is right.
func TestISCSIAttachAfterRefusedLogin(t *testing.T) {
	m := withDisk(t)
	m.write("targets/"+iqn+"/secret", "another")
	_, err := m.plan().AttachVolume(m.context(), withCHAP(attributes()))
	wantError(t, err, "exit status 24")
	m.write("targets/"+iqn+"/secret", secret)
	if got := m.attach(withCHAP(attributes())); !reflect.DeepEqual(got, sdx) {
		t.Errorf("device is %+v, want %+v", got, sdx)
	}
}

// Promise S20.
func TestISCSIErrorsOmitSecret(t *testing.T) {
	for _, op := range []string{
		"new", "node.startup", "node.session.auth.authmethod", "node.session.auth.username",
		"node.session.auth.password", "login",
	} {
		for _, status := range []int{1, 7, 13, 24} {
			m := withDisk(t)
			// The program prints its arguments on standard error.
			m.write("fail-"+op, strconv.Itoa(status))
			_, err := m.plan().AttachVolume(m.context(), withCHAP(attributes()))
			wantError(t, err, fmt.Sprintf("exit status %d", status))
			wantNoSecret(t, err)
		}
	}
}

func TestISCSIWithoutIscsiadm(t *testing.T) {
	if path, err := (run.Program{Name: "iscsiadm"}).Find(); err == nil {
		t.Skip("this machine has " + path)
	}
	m := newMachine(t)
	plan, err := plans.NewISCSI(plans.ISCSIConfig{LockDir: filepath.Join(m.dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = plan.AttachVolume(t.Context(), attributes())
	for _, err := range []error{err, plan.DetachVolume(t.Context(), attributes())} {
		wantError(t, err, "iscsiadm", "install the Debian package open-iscsi")
		if !jujuerrors.Is(err, jujuerrors.NotSupported) {
			t.Errorf("%v: want not supported", err)
		}
	}
}

func TestISCSILockDirectoryError(t *testing.T) {
	m := withDisk(t)
	m.write("run", "a file")
	_, err := m.plan().AttachVolume(m.context(), attributes())
	wantError(t, err, "making the directory for locks", m.dir+"/run")
	m.wantCommands()
}

// A symbolic link at the path of the lock file is not followed.
func TestISCSILockDoesNotFollowSymlink(t *testing.T) {
	m := withDisk(t)
	m.write("precious", "")
	if err := os.Mkdir(filepath.Join(m.dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(m.dir, "run", iqn)
	if err := os.Symlink(filepath.Join(m.dir, "precious"), link); err != nil {
		t.Fatal(err)
	}
	_, err := m.plan().AttachVolume(m.context(), attributes())
	wantError(t, err, "locking "+link)
	m.wantCommands()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
}

type result struct {
	device storage.BlockDevice
	err    error
}

func (m *machine) attachInBackground(ctx context.Context, plan plans.Plan) <-chan result {
	done := make(chan result, 1)
	go func() {
		device, err := plan.AttachVolume(ctx, attributes())
		done <- result{device, err}
	}()
	return done
}

// receive waits for the result of a goroutine.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("timed out waiting for the goroutine's result")
		panic("unreachable")
	}
}

// advance advances the clock once a plan waits for it.
func (m *machine) advance(d time.Duration) {
	m.t.Helper()
	if err := m.clock.WaitAdvance(d, patience, 1); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) waitForWaiter() {
	m.t.Helper()
	m.waitForWaiters(1)
}

func (m *machine) waitForWaiters(n int) {
	m.t.Helper()
	if err := m.clock.WaitAdvance(0, patience, n); err != nil {
		m.t.Fatal(err)
	}
}

// iscsiadm runs a command as an operator would.
func (m *machine) iscsiadm(arg string) {
	m.t.Helper()
	cmd := exec.Command(filepath.Join(m.dir, "iscsiadm"), append(strings.Fields(node), arg)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}

// hung is an iscsiadm process that does not end.
type hung struct {
	t    *testing.T
	pipe *os.File
}

// hang makes iscsiadm hang in an operation.
func (m *machine) hang(op string) hung {
	m.t.Helper()
	name := filepath.Join(m.dir, "hang-"+op)
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		m.t.Fatal(err)
	}
	// Opened for writing too, the open does not wait for a writer.
	pipe, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { pipe.Close() })
	return hung{m.t, pipe}
}

func (m *machine) unhang(op string) {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.dir, "hang-"+op)); err != nil {
		m.t.Fatal(err)
	}
}

// started waits until the process hangs, and returns its process ID.
func (h hung) started() int {
	h.t.Helper()
	if err := h.pipe.SetReadDeadline(time.Now().Add(patience)); err != nil {
		h.t.Fatal(err)
	}
	buf := make([]byte, 32)
	n, err := h.pipe.Read(buf)
	if err != nil {
		h.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// wantGone checks that the process and its children are gone: none of them holds the
// pipe.
func (h hung) wantGone() {
	h.t.Helper()
	reader, err := os.Open(h.pipe.Name())
	if err != nil {
		h.t.Fatal(err)
	}
	defer reader.Close()
	h.pipe.Close()
	if err := reader.SetReadDeadline(time.Now().Add(patience)); err != nil {
		h.t.Fatal(err)
	}
	if rest, err := io.ReadAll(reader); err != nil {
		h.t.Errorf("a process is left: %q, %v", rest, err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func wantCancelled(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// wantNoSecret checks that neither the error nor any error that it wraps contains the
// secret.
func wantNoSecret(t *testing.T, err error) {
	t.Helper()
	var command *run.Error
	if errors.As(err, &command) {
		t.Errorf("%v wraps a command error with the arguments %q", err, command.Args)
	}
	for ; err != nil; err = errors.Unwrap(err) {
		for _, format := range []string{"%v", "%+v", "%#v"} {
			if text := fmt.Sprintf(format, err); strings.Contains(text, secret) {
				t.Errorf("%s of %T reveals the secret: %s", format, err, text)
			}
		}
	}
}
