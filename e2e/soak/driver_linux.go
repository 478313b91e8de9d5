package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// driverName is the name of the CSI driver, and of the provider that uses it.
const driverName = "csi.stowage.io"

// driverKinds are the kinds of storage that the CSI driver has.
var driverKinds = []*kind{
	{name: "driver-raw", pool: "csi-stowage-io", provider: driverName, least: 8, most: 32, grow: 8, many: 3},
	{name: "driver-ext4", pool: "driver-ext4", provider: driverName, filesystem: "ext4", least: 16, most: 64, grow: 16, many: 3},
	{name: "driver-xfs", pool: "driver-xfs", provider: driverName, filesystem: "xfs", least: 300, most: 320, grow: 32, many: 1},
}

// driverPools declares the pools of these kinds in a file.
const driverPools = `pools:
- {name: driver-ext4, provider: csi.stowage.io, attributes: {fs: ext4}}
- {name: driver-xfs, provider: csi.stowage.io, attributes: {fs: xfs}}
`

// csiDriver is another agent on the machine, which serves its storage as a CSI driver. It has a disk
// that does not fail.
type csiDriver struct {
	stowage command.Stowage
	agent   *command.Agent
	socket  string
	plugins string // the directory of the file that describes it
	log     string
}

// newDriver describes a driver to the agents. It does not start it.
func newDriver(dir, binary string) (*csiDriver, error) {
	d := &csiDriver{
		stowage: command.Stowage{Binary: binary, DataDir: filepath.Join(dir, "driver")},
		socket:  filepath.Join(dir, "csi.sock"), plugins: filepath.Join(dir, "plugins"), log: filepath.Join(dir, "driver.log"),
	}
	if err := os.Mkdir(d.plugins, 0o700); err != nil {
		return nil, err
	}
	text := fmt.Sprintf("name: %s\ntype: csi\ndriver: %s\nsocket: %s\n", driverName, driverName, d.socket)
	return d, os.WriteFile(filepath.Join(d.plugins, "driver.yaml"), []byte(text), 0o600)
}

// start starts the driver, and does not wait for it.
func (d *csiDriver) start() (err error) {
	d.agent, err = d.stowage.Start(d.log, "--csi-endpoint", "unix://"+d.socket)
	return err
}

// kill kills the driver, if it runs.
func (d *csiDriver) kill() error {
	if d.agent == nil {
		return nil
	}
	_ = d.agent.Signal(unix.SIGKILL)
	select {
	case <-d.agent.Ended:
		d.agent = nil
		return nil
	case <-time.After(liveness):
		return fmt.Errorf("the driver survives kill -9 for %s", liveness)
	}
}

// is reports whether a process is that of the driver.
func (d *csiDriver) is(pid int) bool { return d != nil && d.agent != nil && d.agent.PID() == pid }

// clear ends the driver, and removes what it has in the kernel.
func (d *csiDriver) clear() error {
	return errors.Join(d.kill(), clearBelow(d.stowage.DataDir))
}

// checkEmpty checks that the driver has no storage.
func (d *csiDriver) checkEmpty() error {
	ctx, cancel := limited()
	defer cancel()
	return eventually(liveness, func() error {
		status, err := d.stowage.Status(ctx)
		if err == nil && len(status) > 0 {
			err = fmt.Errorf("left at the driver: %+v", status)
		}
		return err
	})
}

// printLog prints the end of the driver's log.
func (d *csiDriver) printLog() string {
	log, err := os.ReadFile(d.log)
	lines := strings.SplitAfter(string(log), "\n")
	return fmt.Sprintf("log of the driver (%v):\n%s", err, strings.Join(lines[max(0, len(lines)-mostHistory):], ""))
}

// crashDriver kills the driver in every third crash, while the agent uses it.
func (s *soak) crashDriver() error {
	if s.driver == nil || s.rand.IntN(3) > 0 {
		return nil
	}
	s.note("kill -9 of the driver")
	s.figures.driverKills++
	return errors.Join(s.driver.kill(), s.driver.start())
}

// rebootDriver simulates that the machine starts again, with the driver.
func (s *soak) rebootDriver() error {
	if s.driver == nil {
		return nil
	}
	running := s.driver.agent != nil
	published, err := s.publishedMounts()
	if err != nil {
		return err
	}
	for _, path := range published {
		if err := unmount(path); err != nil {
			return err
		}
	}
	if err := s.driver.clear(); err != nil || !running {
		return err
	}
	return s.driver.start()
}

// publishedMounts returns where the driver's storage is mounted in the data directory.
func (s *soak) publishedMounts() (paths []string, err error) {
	mounts, err := kernel.Mounts(filepath.Join(s.boundStorage(), driverName))
	for _, m := range mounts {
		paths = append(paths, m.Mountpoint)
	}
	return paths, err
}

// driverDevices checks that the driver has a loop device for each of its volumes that is attached, and
// nothing else.
func (p *problems) driverDevices() error {
	if p.driver == nil {
		return nil
	}
	loops, err := kernel.Loops(p.driver.stowage.DataDir)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, l := range loops {
		found[l.Path] = true
	}
	published, err := p.publishedMounts()
	if err != nil {
		return err
	}
	want := 0
	for name, i := range p.soak.all {
		if i.provider != driverName || i.want == nil || !i.want.attached {
			continue
		}
		want++
		if location := p.status[name].Location; i.block() && !found[location] {
			p.add("%s is at %s, and the driver has %v", name, location, loops)
		}
	}
	if len(loops) != want || len(published) != want {
		p.add("%d volumes of the driver are attached, it has %v, and published %q", want, loops, published)
	}
	return nil
}

// driverVolumes checks that the driver has no other volumes than those of the storage.
func (p *problems) driverVolumes() error {
	if p.driver == nil {
		return nil
	}
	ctx, cancel := limited()
	defer cancel()
	status, err := p.driver.stowage.Poll(ctx)
	if err != nil {
		p.add("the driver does not answer: %v", err)
		return nil
	}
	most, least := 0, 0
	for _, i := range p.soak.all {
		if i.provider != driverName || i.want == nil {
			continue
		}
		most++
		if i.made || i.want.attached {
			least++
		}
	}
	if len(status) < least || len(status) > most {
		p.add("the driver has %d volumes, and should have %d to %d: %+v", len(status), least, most, status)
	}
	return nil
}

// dropFromCopy removes the driver's part of a copied data directory: a copy does not get the volumes.
func (s *soak) dropFromCopy(dataDir string) error {
	if s.driver == nil {
		return nil
	}
	return os.RemoveAll(filepath.Join(dataDir, storageDir, driverName))
}
