package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// clusterServer is a server of a cluster.
type clusterServer struct {
	name string
	args []string
	host *networkHost
	*process
	paused bool
	// heal is when it goes on; the zero time: it runs.
	heal time.Time
}

// clusterMachine is a machine of a cluster: a mount namespace with a boot ID of its own.
type clusterMachine struct {
	name, number string
	args         []string
	host         *networkHost
	boot         string // path of its boot ID
	init         *exec.Cmd
	agent        *process
	paused       bool
	heal         time.Time
	off, fenced  bool
	// A machine that is fenced while it runs has no access to storage until it is switched off, which is
	// at the time reboot. lost are the loop devices that it has of files that it no longer shares.
	reboot time.Time
	lost   []string
}

// withoutStorage reports whether the machine was fenced while it ran.
func (m *clusterMachine) withoutStorage() bool { return !m.reboot.IsZero() }

// clusterDisk is the filesystem of a server's data directory, which can be full.
type clusterDisk struct {
	server string
	dir    string
	heal   time.Time // when there is space again; the zero time: there is
}

// skewVariable is by how many seconds the clock of a process differs.
const skewVariable = "STOWAGE_E2E_CLOCK_SKEW"

// buildSkewed builds a command that behaves like stowage, except that its wall clock differs by what an
// environment variable says.
func (c *cluster) buildSkewed() string {
	c.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		c.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		c.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(text), now, now+"\tsec += clockSkew\n", 1)
	changed = strings.Replace(changed, "\t_ \"unsafe\"", "\t\"syscall\"\n\t_ \"unsafe\"", 1)
	changed += `
var clockSkew = func() (seconds int64) {
	text, _ := syscall.Getenv("` + skewVariable + `")
	negative := text != "" && text[0] == '-'
	for _, digit := range []byte(text) {
		if digit != '-' {
			seconds = 10*seconds + int64(digit-'0')
		}
	}
	if negative {
		seconds = -seconds
	}
	return seconds
}()
`
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: filepath.Join(c.dir, "time.go")}})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "time.go"), []byte(changed), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.dir, "overlay.json"), overlay, 0o600)
	}
	if err != nil {
		c.Fatal(err)
	}
	binary := filepath.Join(c.dir, "skewed")
	build := exec.Command("go", "build", "-overlay", filepath.Join(c.dir, "overlay.json"), "-o", binary, "github.com/stowage-io/stowage/cmd/stowage")
	if out, err := build.CombinedOutput(); err != nil {
		c.Fatalf("building with a clock that differs: %v\n%s", err, out)
	}
	return binary
}

// in lets the processes that are begun next run in namespaces, with a clock that may differ.
func (c *cluster) in(name string, namespaces ...string) {
	c.Helper()
	skew := 0
	if c.chance(2) {
		// A certificate is valid from an hour before it is made.
		skew = c.rand.IntN(40*60) - 20*60
		c.happen("skew a clock", fmt.Sprintf("%s: %d s", name, skew))
	}
	path := filepath.Join(c.dir, name+"-enter")
	script := fmt.Sprintf("#!/bin/sh\nexport %s=%d\nexec nsenter %s %s \"$@\"\n", skewVariable, skew, strings.Join(namespaces, " "), c.skewed)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		c.Fatal(err)
	}
	c.binary = path
}

// startServerOf starts a server, without waiting for it.
func (c *cluster) startServerOf(s *clusterServer, args ...string) {
	c.Helper()
	c.in(s.name, "--net="+s.host.namespace)
	s.process = c.begin(s.name, "server", "listening on ", args...)
	c.binary = stowage
}

// powerOn boots a machine, and starts its agent.
func (c *cluster) powerOn(m *clusterMachine, more ...string) {
	c.Helper()
	if err := os.WriteFile(m.boot, []byte(uuid.NewString()+"\n"), 0o600); err != nil {
		c.Fatal(err)
	}
	m.init = exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount --bind "+m.boot+" /proc/sys/kernel/random/boot_id && echo up && exec sleep infinity")
	out, err := m.init.StdoutPipe()
	if err == nil {
		err = m.init.Start()
	}
	if err != nil {
		c.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		c.Fatalf("%s does not boot: %v", m.name, err)
	}
	m.off, m.fenced = false, false
	c.startAgentOf(m, more...)
}

// startAgentOf starts the agent of a machine, without waiting for it.
func (c *cluster) startAgentOf(m *clusterMachine, more ...string) {
	c.Helper()
	c.in(m.name, "--mount="+m.proc("ns/mnt"), "--net="+m.host.namespace)
	m.agent = c.begin(m.name, "agent", "connected to ", append(slices.Clone(m.args), more...)...)
	c.binary = stowage
}

// proc returns the path of a file in /proc of the machine's first process.
func (m *clusterMachine) proc(file string) string {
	return fmt.Sprintf("/proc/%d/%s", m.init.Process.Pid, file)
}

// powerOff ends everything on a machine at once, with what it has of the volumes.
func (c *cluster) powerOff(m *clusterMachine) {
	c.Helper()
	ns, err := os.Readlink(m.proc("ns/mnt"))
	if err != nil {
		c.Fatal(err)
	}
	c.poll(m.name+" does not go off", func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
		if err != nil {
			c.Fatal(err)
		}
		found := false
		for _, path := range all {
			if own, err := os.Readlink(path); err != nil || own != ns {
				continue
			}
			found = true
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		return !found
	})
	_ = m.init.Wait() // it was killed
	<-m.agent.Ended
	err = c.referee.locked(func() error {
		connected, err := c.referee.connections(m.number)
		for _, v := range connected {
			if err := kernel.Clear(c.referee.volume(v.volume)); err != nil {
				return err
			}
			if err := c.referee.disconnected(v); err != nil {
				return err
			}
		}
		return err
	})
	if err == nil {
		err = c.detachLost(m)
	}
	if err == nil {
		err = os.RemoveAll(c.referee.path("isolated", m.number))
	}
	if err != nil {
		c.Fatal(err)
	}
	m.off, m.paused, m.reboot = true, false, time.Time{}
}

// detachLost detaches the loop devices of files that a machine did not share any more.
func (c *cluster) detachLost(m *clusterMachine) error {
	loops, err := kernel.Loops(c.referee.path("shared", "volumes"))
	for _, l := range loops {
		// Another machine may have a device of this number now.
		if strings.HasSuffix(l.File, " (deleted)") && slices.Contains(m.lost, l.Path) {
			if err := kernel.Detach(l.Path); err != nil {
				return err
			}
		}
	}
	m.lost = nil
	return err
}

// isolate takes its access to storage from a machine that runs, as a storage system does with one that
// is fenced: what the machine still writes goes to files that nobody else sees.
func (c *cluster) isolate(m *clusterMachine) {
	c.Helper()
	err := c.referee.locked(func() error {
		connected, err := c.referee.connections(m.number)
		for _, v := range connected {
			if err := c.isolateVolume(m, v); err != nil {
				return err
			}
			if err := c.referee.disconnected(v); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		return os.WriteFile(c.referee.path("isolated", m.number), nil, 0o600)
	})
	if err != nil {
		c.Fatalf("isolating %s: %v", m.name, err)
	}
}

// Numbers of ioctl requests, from linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// isolateVolume replaces the file of a volume with a copy of it.
func (c *cluster) isolateVolume(m *clusterMachine, v connection) error {
	// The copy is that of a moment.
	mount, err := m.mountOf(v.device)
	if err != nil {
		return err
	}
	if mount != "" {
		dir, err := os.Open(m.proc("root" + mount))
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0); err != nil {
			return fmt.Errorf("freezing %s: %w", mount, err)
		}
		defer func() { _ = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0) }()
	}
	loops, err := kernel.Loops(c.referee.volume(v.volume))
	if err != nil {
		return err
	}
	for _, l := range loops {
		m.lost = append(m.lost, l.Path)
	}
	path := c.referee.volume(v.volume)
	if out, err := exec.Command("cp", "--sparse=always", path, path+".copy").CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return os.Rename(path+".copy", path)
}

// mountOf returns where the machine has mounted a device, or "".
func (m *clusterMachine) mountOf(device string) (string, error) {
	mounts, err := os.ReadFile(m.proc("mounts"))
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[0] == device {
			return fields[1], err
		}
	}
	return "", err
}

// fill takes all space of a disk.
func (d *clusterDisk) fill() error {
	f, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer f.Close()
	zeros := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(zeros)
	}
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// free undoes fill.
func (d *clusterDisk) free() error { return os.RemoveAll(d.ballast()) }

func (d *clusterDisk) ballast() string { return filepath.Join(d.dir, "ballast") }

// switchOff ends the machines that a failed test leaves.
func (c *cluster) switchOff() {
	for _, m := range c.machines {
		if !m.off {
			_ = m.init.Process.Kill()
			_ = m.init.Wait() // it was killed
		}
	}
}
