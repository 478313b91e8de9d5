package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// wantPrivate checks that only root has access to the files in the data directory.
func (m *machine) wantPrivate() {
	m.Helper()
	seen := 0
	err := filepath.WalkDir(m.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		seen++
		if info.Mode().Perm()&0o077 != 0 {
			m.Errorf("%s: mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || seen < 10 {
		m.Errorf("found %d files in %s, want at least 10; error %v", seen, m.data, err)
	}
}

// The modes of what the agent makes do not depend on the umask: its files are private, and
// mount points are open to users of the storage.
// Promise S7.
func TestFileModesIgnoreUmask(t *testing.T) {
	for _, umask := range []int{0, 0o077} {
		t.Run(fmt.Sprintf("%03o", umask), func(t *testing.T) {
			m := newMachine(t)
			m.writeSpec(fourKinds)
			before := unix.Umask(umask)
			m.start()
			unix.Umask(before)
			m.apply()
			m.wantPrivate()
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.agent.PID()))
			if err != nil || !strings.Contains(string(status), "\nUmask:\t0077\n") {
				t.Errorf("the agent's umask, which programs inherit, is not 0077: %v\n%s", err, status)
			}
			m.wantMode(m.mount(""), 0o755)
			for name, mode := range map[string]fs.FileMode{"data": 0o755, "scratch": 0o755, "logs": 0o700} {
				m.wantMode(m.mount(name), mode)
			}
			for _, mounted := range mountsBelow(t, m.dir) {
				for _, option := range []string{"nosuid", "nodev"} {
					if !slices.Contains(strings.Split(mounted.Options, ","), option) {
						t.Errorf("%s is mounted without %s: %s", mounted.Mountpoint, option, mounted.Options)
					}
				}
			}
			m.must("detach", "data", "raw", "scratch", "logs", "--wait")
			m.wantPrivate()
			m.must("remove", "data", "raw", "scratch", "logs", "--wait")
			m.wantPrivate()
			m.stop()
			m.wantPrivate()
		})
	}
}

func (m *machine) wantMode(path string, want fs.FileMode) {
	m.Helper()
	info, err := os.Stat(path)
	if err != nil {
		m.Error(err)
	} else if info.Mode()&(fs.ModePerm|fs.ModeSticky) != want {
		m.Errorf("%s: mode %v, want %v", path, info.Mode(), want)
	}
}

// A secret in a volume's plan appears in no output of a command, and not in the log, which
// shows the failed login.
// Promise S20.
func TestPlanSecretsAreNotShownOrLogged(t *testing.T) {
	const secret, iqn = "Sesame.open-0815", "iqn.2001-04.com.example:volume-1"
	p := newProgram(newMachine(t))
	p.writeSpec(`
storage:
  - name: raw
    directive: disks,32M
    kind: block
`)
	p.setAnswers("create-volumes", `{"results":[{"volume-id":"v","size-mib":32,"attachment":{"plan":{"device-type":"iscsi","attributes":{`+
		`"iqn":"`+iqn+`","address":"192.0.2.7","port":"3260","chap-user":"machine 0","chap-secret":"`+secret+`"}}}}]}`)
	p.startManager("--log-level", "trace")
	p.must("apply", "-f", p.spec)
	log := func() string {
		text, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	p.poll("the log does not show the login", func() bool { return strings.Contains(log(), "attaching iSCSI target "+iqn) })
	for _, args := range [][]string{
		{"status"}, {"status", "-o", "yaml"}, {"status", "-o", "json"}, {"report"}, {"pools", "-o", "yaml"},
		{"apply", "-f", p.spec, "--dry-run"}, {"attach", "raw", "--wait", "--timeout", "10ms"},
	} {
		if r := p.run(args...); strings.Contains(r.All(), secret) {
			t.Error(r.All())
		}
	}
	p.stop()
	if strings.Contains(log(), secret) {
		t.Error("the secret is in the log")
	}
}
