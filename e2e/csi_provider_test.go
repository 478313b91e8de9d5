package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// driven is a machine with two agents: one is a CSI driver, and the other one uses it.
type driven struct {
	*machine
	driver  *machine
	plugins string
}

// newDriven starts both agents. more are further lines of the file that describes the driver.
func newDriven(t *testing.T, more ...string) *driven {
	t.Helper()
	d := &driven{driver: newMachine(t), machine: newMachine(t)}
	d.plugins = d.writePlugin(d.driver, more...)
	d.driver.startCSI()
	d.startUser()
	return d
}

// writePlugin returns a directory with a file that describes the agent of another machine as a CSI driver.
func (m *machine) writePlugin(driver *machine, more ...string) string {
	m.Helper()
	dir := filepath.Join(m.dir, "plugins")
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.Fatal(err)
	}
	file := fmt.Sprintf("name: csi.stowage.io\ntype: csi\ndriver: csi.stowage.io\nsocket: %s\n%s\n", driver.csiSocket(), strings.Join(more, "\n"))
	if err := os.WriteFile(filepath.Join(dir, "driver.yaml"), []byte(file), 0o600); err != nil {
		m.Fatal(err)
	}
	return dir
}

func (d *driven) startUser() {
	d.Helper()
	d.start("--plugins-dir", d.plugins, "--retry-min", "100ms")
}

// crash kills one of the agents, or both, and starts them again.
func (d *driven) crash(who string) {
	d.Helper()
	if who != "driver" {
		d.kill()
	}
	if who != "user" {
		d.driver.kill()
		d.driver.startCSI()
	}
	if who != "driver" {
		d.startUser()
	}
}

// recoverState loses the state, and recovers it from the records.
func (d *driven) recoverState() {
	d.Helper()
	d.kill()
	files, err := filepath.Glob(filepath.Join(d.data, "state.*"))
	if err != nil || len(files) == 0 {
		d.Fatal(files, err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			d.Fatal(err)
		}
	}
	if r := d.run("recover", "--yes"); r.Code != 1 || !strings.Contains(r.Stderr, "of a provider that is not known, and would be lost: name the directory of its file with --plugins-dir") {
		d.Errorf("recovering without the file of the provider:\n%s", r.All())
	}
	d.must("recover", "--yes", "--plugins-dir", d.plugins)
	d.startUser()
}

// An agent uses storage of another one through CSI alone. The agent, the driver or both are killed
// between the steps, and nothing is lost, done twice, or left.
func TestCSIProvider(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		who, file string
	}{
		{"user", ""}, {"driver", ""}, {"both", ""},
		{"both", "block-only: true"}, // the user makes the filesystem
	} {
		t.Run(test.who+test.file, func(t *testing.T) {
			who := test.who
			d := newDriven(t, test.file)
			d.writeSpec(`
pools:
  - name: trees
    provider: csi.stowage.io
    attributes: {fs: xfs}
storage:
  - name: data
    directive: trees,300M
    kind: filesystem
    mount: MNT/data
  - name: raw
    directive: csi-stowage-io,16M
    kind: block
`)
			d.apply()
			d.writeData("data", "raw")
			want := func(when string) {
				t.Helper()
				d.must("attach", "data", "raw", "--wait")
				d.wantData("data", "raw")
				d.wantNoDuplicates()
				d.driver.wantNoDuplicates()
				if n := len(d.driver.status()); n != 2 {
					t.Errorf("%s, the driver has %d volumes, want 2", when, n)
				}
			}
			d.crash(who)
			want("after a crash")

			d.must("resize", "data", "384M", "--wait")
			d.must("resize", "raw", "32M", "--wait")
			d.crash(who)
			want("after growing")
			var fs unix.Statfs_t
			if err := unix.Statfs(d.mount("data"), &fs); err != nil || fs.Type != unix.XFS_SUPER_MAGIC {
				t.Errorf("the filesystem is of type %#x, %v", fs.Type, err)
			}
			if size := fs.Blocks * uint64(fs.Bsize) >> 20; size < 310 {
				t.Errorf("the filesystem has %d MiB after growing to 384", size)
			}
			if size := d.realSize("raw"); size != 32 {
				t.Errorf("the device has %d MiB after growing to 32", size)
			}

			d.must("snapshot", "create", "monday", "data", "--wait")
			d.must("detach", "raw", "--wait") // the driver refuses while it is attached, since nothing holds up writing
			d.must("snapshot", "create", "tuesday", "raw", "--wait")
			d.crash(who)
			d.writeSpec(`
storage:
  - {name: restored, directive: "trees,384M", kind: filesystem, mount: MNT/restored, from: monday}
  - {name: copy, directive: "csi-stowage-io,32M", kind: block, from: tuesday}
`)
			d.apply()
			d.wantDataIn(filepath.Join(d.mount("restored"), "dir", "file"), "data")
			d.wantDataIn(d.status()["copy"].Location, "raw")
			d.must("snapshot", "delete", "monday", "tuesday", "--wait")
			d.must("remove", "restored", "copy", "--wait")
			want("after copying")
			if left := strings.TrimSpace(d.driver.must("snapshot", "list", "-o", "json").Stdout); strings.Contains(left, "name") {
				t.Errorf("the driver has snapshots: %s", left)
			}

			// Something uses the filesystem.
			busy, err := os.Open(d.dataFile("data"))
			if err != nil {
				t.Fatal(err)
			}
			d.must("detach", "data")
			d.poll("no word of what holds the filesystem", func() bool { return strings.Contains(d.status()["data"].Message, "has open") })
			busy.Close()
			d.must("detach", "data", "raw", "--wait")
			d.crash(who)
			for _, m := range mountsBelow(d, d.dir) {
				t.Errorf("detached, and mounted at %s", m.Mountpoint)
			}
			if loops := loopsBelow(d, d.driver.dir); len(loops) != 0 {
				t.Errorf("detached, and the driver has %+v", loops)
			}
			d.must("attach", "data", "raw", "--wait")
			d.crash(who)
			want("after attaching again")

			d.recoverState()
			want("after the state was lost")

			d.must("remove", "data", "raw")
			d.crash(who)
			d.poll("the storage is not removed", func() bool { return len(d.status()) == 0 })
			d.wantNoStorage()
			d.driver.wantNoStorage()
			d.stop()
			d.driver.stop()
		})
	}
}

// What is at the driver already is imported, and released again, with its data.
func TestImportFromCSIDriver(t *testing.T) {
	t.Parallel()
	d := newDriven(t)
	d.writeSpec("storage: []")
	o := d.driver.orchestrator(t)
	theirs, device := o.create("theirs", "ext4", 32<<20), o.create("device", "", 16<<20)
	crashed := func(args ...string) {
		t.Helper()
		d.must(args...)
		d.crash("user")
	}
	for want, args := range map[string][]string{
		"storage of provider csi.stowage.io is imported by its ID there: write ID=…": {"/srv/data"},
		`volume "none" does not exist`: {"ID=none"},
	} {
		if r := d.run(append([]string{"import", "data", "--pool", "csi-stowage-io"}, args...)...); r.Code == 0 || !strings.Contains(r.All(), want) {
			t.Errorf("import %v: %s", args, r.All())
		}
	}
	crashed("import", "data", "ID="+theirs.id, "--pool", "csi-stowage-io", "--mount", d.mount("data"), "--wait")
	crashed("import", "raw", "ID="+device.id, "--pool", "csi-stowage-io", "--block", "--wait")
	if r := d.run("import", "again", "ID="+device.id, "--pool", "csi-stowage-io", "--block"); r.Code == 0 || !strings.Contains(r.All(), "it is here already") {
		t.Errorf("imported twice: %s", r.All())
	}
	for name, size := range map[string]uint64{"data": 32, "raw": 16} {
		if s := d.status()[name]; s.Status != "attached" || s.SizeMiB != size {
			t.Errorf("imported: %+v", s)
		}
	}
	d.writeData("data", "raw")
	crashed("release", "data", "raw", "--wait", "--timeout", "60s")
	if left := d.driver.status(); len(left) != 2 {
		t.Errorf("released, the driver has %v", left)
	}
	if r := d.must("orphans", "--released"); strings.Count(r.Stdout, "released") != 2 {
		t.Errorf("the released storage:\n%s", r.Stdout)
	}
	crashed("import", "data", "ID="+theirs.id, "--pool", "csi-stowage-io", "--mount", d.mount("data"), "--wait")
	d.must("import", "raw", "ID="+device.id, "--pool", "csi-stowage-io", "--block", "--wait")
	d.wantData("data", "raw")
	crashed("remove", "data", "raw")
	d.poll("the storage is not removed", func() bool { return len(d.status()) == 0 })
	d.wantNoStorage()
	d.driver.wantNoStorage()
	d.stop()
	d.driver.stop()
}

// A server checks the attributes of pools, and the agent of a machine calls the driver there. Storage in
// use outlives each of them.
func TestCSIProviderWithServer(t *testing.T) {
	driver, s := newMachine(t), newSite(t)
	driver.startCSI()
	plugins := []string{"--plugins-dir", s.writePlugin(driver)}
	server := s.startServer(plugins...)
	web := s.startAgent("web", s.token(), plugins...)
	s.writeSpec(`
pools: [{name: bad, provider: csi.stowage.io, attributes: {mkfs-options: x}}]
storage: [{name: data, directive: "bad,300M", kind: filesystem, mount: MNT/data, machine: web}]
`)
	if r := s.run("apply", "-f", s.spec); r.Code != 1 || !strings.Contains(r.Stderr, `attribute "mkfs-options": the driver makes the filesystem: leave it out`) {
		t.Errorf("a pool with an attribute that is not allowed:\n%s", r.All())
	}
	s.writeSpec(`
storage:
- {name: data, directive: "csi-stowage-io,300M", kind: filesystem, mount: MNT/data, machine: web}
- {name: disk, directive: "csi-stowage-io,16M", kind: block, machine: web}
`)
	s.apply()
	s.write("data", "precious")
	web.kill()
	server.kill()
	if got := s.read("data"); got != "precious" {
		t.Errorf("after the server and the agent were killed, the storage has %q", got)
	}
	server, web = s.startServer(plugins...), s.startAgent("web", "", plugins...)
	s.must("detach", "data", "disk", "--wait")
	if loops := loopsBelow(s, driver.dir); len(loops) != 0 {
		t.Errorf("detached, and the driver has %+v", loops)
	}
	s.must("attach", "data", "disk", "--wait")
	if got := s.read("data"); got != "precious" {
		t.Errorf("after it was attached again, the storage has %q", got)
	}
	s.must("remove", "data", "disk", "--wait")
	web.stop()
	server.stop()
	s.wantNoStorageIn("web")
	driver.wantNoStorage()
	driver.stop()
}

// A copy of the data directory does not get the volumes of the driver: they are the original's.
func TestCopiedDirectoryHasNoVolumesOfDrivers(t *testing.T) {
	d := newDriven(t)
	d.writeSpec(`storage: [{name: data, directive: "csi-stowage-io,300M", kind: filesystem, mount: MNT/data}]`)
	d.apply()
	d.must("detach", "data", "--wait")
	d.stop()
	copied := &machine{TB: t, dir: d.dir, data: filepath.Join(d.dir, "copy"), spec: d.spec, log: filepath.Join(d.dir, "copy.log")}
	copied.runTool("cp", "-a", d.data, copied.data)
	if r := copied.run("adopt-dir", "--copy"); r.Code != 1 || !strings.Contains(r.Stderr, "is of a volume of a CSI driver, which the original has") {
		t.Fatalf("a copy was adopted:\n%s", r.All())
	}
	if err := os.RemoveAll(filepath.Join(copied.data, "storage", "csi.stowage.io")); err != nil {
		t.Fatal(err)
	}
	copied.must("adopt-dir", "--copy")
	copied.start("--plugins-dir", d.plugins)
	copied.must("remove", "data", "--wait")
	copied.stop()
	if n := len(d.driver.status()); n != 1 {
		t.Errorf("the driver has %d volumes, want that of the original", n)
	}
	d.startUser()
	d.must("attach", "data", "--wait")
	d.must("remove", "data", "--wait")
	d.stop()
	d.driver.wantNoStorage()
	d.driver.stop()
}

// The example of an embedder makes, mounts and removes a filesystem.
func TestCSIExample(t *testing.T) {
	m := newMachine(t)
	m.startCSI()
	program := filepath.Join(m.dir, "example")
	if out, err := exec.Command("go", "build", "-o", program, "../examples/csi").CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	cmd := exec.Command(program, "csi.stowage.io", m.csiSocket(), filepath.Join(m.dir, "example-data"), m.mount("data"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if want := "mounted at " + m.mount("data") + "\n"; line != want {
		t.Errorf("the example says %q, %v; want %q", line, err, want)
	}
	if err := os.WriteFile(filepath.Join(m.mount("data"), "file"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	m.wantNoStorage()
	m.stop()
}

// environDriver is a driver whose volumes any machine can have: a server with the controller of CSI, and two
// agents with its nodes. Its users are the machines of another server.
type environDriver struct {
	*csiSite
	shared string
	flags  []string
}

func newEnvironDriver(t *testing.T) *environDriver {
	t.Helper()
	d := &environDriver{csiSite: &csiSite{site: newSite(t), agents: map[string]*process{}}}
	d.shared = filepath.Join(d.dir, "shared")
	program := filepath.Join(d.shared, "provider")
	if out, err := exec.Command("go", "build", "-o", program, "../examples/shared-directory").CombinedOutput(); err != nil {
		t.Fatalf("building the example: %v\n%s", err, out)
	}
	d.flags = []string{"--provider=shared=" + program, "--retry-min", "300ms"}
	d.serve("server")
	d.serve("one")
	d.serve("two")
	return d
}

// serve starts the server, or the agent of a machine.
func (d *environDriver) serve(name string) {
	d.Helper()
	endpoint := append([]string{"--csi-endpoint", "unix://" + d.csiSocketOf(name)}, d.flags...)
	if name == "server" {
		d.server = d.startServer(append(endpoint, "--csi-pool", "shared")...)
		return
	}
	token := ""
	if d.agents[name] == nil {
		token = d.token()
	}
	d.agents[name] = d.startAgent(name, token, endpoint...)
}

func (d *environDriver) crash() {
	d.Helper()
	for _, p := range []*process{d.agents["one"], d.agents["two"], d.server} {
		p.kill()
	}
	for _, name := range []string{"server", "one", "two"} {
		d.serve(name)
	}
}

// plugins returns the flags of a user, whose driver has the socket of the server or of a machine.
func (d *environDriver) plugins(user *site, name string) []string {
	d.Helper()
	dir := filepath.Join(user.dir, "plugins-"+name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		d.Fatal(err)
	}
	file := fmt.Sprintf("name: disks\ntype: csi\ndriver: csi.stowage.io\nscope: environment\nsocket: %s\n", d.csiSocketOf(name))
	if err := os.WriteFile(filepath.Join(dir, "disks.yaml"), []byte(file), 0o600); err != nil {
		d.Fatal(err)
	}
	return []string{"--plugins-dir", dir, "--retry-min", "300ms"}
}

// A server has snapshots made of storage that a machine uses, and storage from them. The machine writes out
// what it has in memory first. Whatever is killed in between, nothing is lost or left. The storage grows while
// it is attached.
func TestSnapshotsOfEnvironmentDriver(t *testing.T) {
	t.Parallel()
	driver, s := newMachine(t), newSite(t)
	driver.startCSI()
	flags := []string{"--plugins-dir", s.writePlugin(driver, "scope: environment"), "--retry-min", "100ms"}
	server, web := s.startServer(flags...), s.startAgent("web", s.token(), flags...)
	crash := func() {
		t.Helper()
		server.kill()
		web.kill()
		driver.kill()
		driver.startCSI()
		server, web = s.startServer(flags...), s.startAgent("web", "", flags...)
	}
	s.writeSpec(`
pools:
- {name: files, provider: csi.stowage.io, attributes: {fs: xfs}}
- {name: raw, provider: csi.stowage.io, attributes: {volume-mode: block}}
- {name: trees, provider: csi.stowage.io, attributes: {volume-mode: block, fs: xfs}}
storage:
- {name: data, directive: "files,320M", kind: filesystem, mount: MNT/data, machine: web}
- {name: own, directive: "trees,320M", kind: filesystem, mount: MNT/own, machine: web}
- {name: disk, directive: "raw,16M", kind: block, machine: web}
`)
	s.apply()
	s.write("data", "precious")
	s.write("own", "precious")
	s.must("detach", "disk", "--wait") // attached, this driver cannot copy it
	for name, of := range map[string]string{"monday": "data", "tuesday": "own", "sunday": "disk"} {
		s.must("snapshot", "create", name, of)
	}
	crash()
	ready := func() bool { return strings.Count(s.must("snapshot", "list").Stdout, " ready ") == 3 }
	s.poll("the snapshots are not made", ready)
	s.must("attach", "disk", "--machine", "web", "--wait")
	s.write("data", "changed!")
	s.write("own", "changed!")
	s.writeSpec(`
storage:
- {name: data-2, directive: "files,352M", kind: filesystem, mount: MNT/data-2, machine: web, from: monday}
- {name: own-2, directive: "trees,352M", kind: filesystem, mount: MNT/own-2, machine: web, from: tuesday}
- {name: disk-2, directive: "raw,16M", kind: block, machine: web, from: sunday}
`)
	s.must("apply", "-f", s.spec)
	crash()
	s.apply()
	for _, name := range []string{"data-2", "own-2"} {
		if got := s.read(name); got != "precious" {
			t.Errorf("%s has %q", name, got)
		}
	}
	for name, size := range map[string]string{"data": "384M", "own": "384M", "disk": "32M"} {
		s.must("resize", name, size, "--wait")
	}
	if size := deviceMiB(s, s.status()["disk"].Location); size != 32 {
		t.Errorf("the device has %d MiB after growing to 32", size)
	}

	// One is deleted that nobody knows to be made.
	web.kill()
	s.must("snapshot", "create", "friday", "data")
	s.must("snapshot", "delete", "monday", "tuesday", "sunday", "friday")
	web = s.startAgent("web", "", flags...)
	crash()
	s.poll("the snapshots are not deleted", func() bool { return !strings.Contains(s.must("snapshot", "list").Stdout, "day") })
	s.must("remove", "data", "own", "disk", "data-2", "own-2", "disk-2")
	crash()
	s.poll("the storage is not removed", func() bool { return len(s.status()) == 0 })
	if left := strings.TrimSpace(driver.must("snapshot", "list", "-o", "json").Stdout); strings.Contains(left, "name") {
		t.Errorf("the driver has snapshots: %s", left)
	}
	driver.wantNoStorage()
	web.stop()
	server.stop()
	driver.stop()
	s.wantNoStorageIn("web")
}

// A server makes volumes with a driver, and the machines to which they are attached stage and publish them.
// Server, agents and driver are killed at each step; the data move between the machines with their volumes, and
// nothing is staged twice, or left. The machines of the driver move filesystems of their own server, too.
// Finding N47: a filesystem that had been on one machine did not exist for the other's node service.
func TestCSIProviderOfEnvironment(t *testing.T) {
	t.Parallel()
	d, s := newEnvironDriver(t), newSite(t)
	flags := map[string][]string{"server": d.plugins(s, "server"), "web": d.plugins(s, "one"), "db": d.plugins(s, "two")}
	server := s.startServer(flags["server"]...)
	agents := map[string]*process{}
	for _, name := range []string{"web", "db"} {
		agents[name] = s.startAgent(name, s.token(), flags[name]...)
	}
	bare := s.startAgent("bare", s.token())
	crash := func() {
		t.Helper()
		for _, p := range []*process{agents["web"], agents["db"], server} {
			p.kill()
		}
		server = s.startServer(flags["server"]...)
		for name := range agents {
			agents[name] = s.startAgent(name, "", flags[name]...)
		}
	}
	wantAll := func(when string) {
		t.Helper()
		s.poll("the storage is not attached "+when, func() bool {
			status := s.status()
			return status["data"].Status == "attached" && status["own"].Status == "attached" && status["disk"].Status == "attached"
		})
		s.poll("the storage is not attached at the driver "+when, func() bool {
			for _, disk := range d.status() {
				if disk.Status != "attached" {
					return false
				}
			}
			return true
		})
		if n := len(d.status()); n != 3 {
			t.Errorf("%s, the driver has %d volumes, want 3", when, n)
		}
		records, err := filepath.Glob(filepath.Join(s.dir, "*", "storage", "disks", "attached", "records", "*.json"))
		if err != nil || len(records) != 3 {
			t.Errorf("%s, the machines have staged %q, %v", when, records, err)
		}
		for _, path := range records {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
			}
		}
		for _, name := range []string{"data", "own"} {
			if got := s.read(name); got != "precious" {
				t.Errorf("%s, %s has %q", when, name, got)
			}
		}
	}
	s.writeSpec(`
pools:
- {name: raw, provider: disks, attributes: {volume-mode: block}}
- {name: trees, provider: disks, attributes: {fs: ext4, mount-options: noatime}}
storage:
- {name: data, directive: "trees,16M", kind: filesystem, mount: MNT/data, machine: web}
- {name: own, directive: "raw,16M", kind: filesystem, mount: MNT/own, machine: web}
- {name: disk, directive: "raw,16M", kind: block, machine: db}
`)
	s.apply()
	s.write("data", "precious")
	s.write("own", "precious")
	wantAll("made")
	if r := s.run("create", "block", "--pool", "disks", "--size", "16M", "--machine", "db"); r.Code == 0 ||
		!strings.Contains(r.All(), `the volumes of pool disks are filesystems: write filesystem, or choose a pool of block devices`) {
		t.Errorf("block storage of a pool of filesystems:\n%s", r.All())
	}
	// The machine without the driver has the least storage, and is not chosen.
	s.writeSpec(`storage: [{name: any, directive: "raw,16M", kind: block, machine: any}]`)
	s.apply()
	if at := s.status()["any"].Attachments; len(at) != 1 || at[0].Machine != "db" {
		t.Errorf("the machine that was chosen is that of %+v, want db", at)
	}
	s.must("remove", "any", "--wait")
	crash()
	d.crash()
	wantAll("after all were killed")

	s.must("move", "data", "--to", "db", "--wait", "--timeout", "60s")
	s.must("move", "own", "--to", "db", "--wait", "--timeout", "60s")
	wantAll("after the move")
	s.must("move", "data", "--to", "web")
	crash()
	d.crash()
	s.poll("the storage is not moved", func() bool {
		data := s.status()["data"]
		return data.Status == "attached" && len(data.Attachments) == 1 && data.Attachments[0].Machine == "web"
	})
	wantAll("after all were killed during a move")

	// A machine without the driver says so, and the storage can leave it again.
	s.must("move", "disk", "--to", "bare")
	s.poll("the status does not say what is missing", func() bool {
		return strings.Contains(s.status()["disk"].Message, "node_id of machine bare is not known: run CSI driver csi.stowage.io there, and start the agent with a file that describes provider disks")
	})
	s.must("move", "disk", "--to", "db", "--wait", "--timeout", "60s")
	if r := s.run("resize", "data", "32M", "--wait"); r.Code == 0 || !strings.Contains(r.All(), "ControllerExpandVolume: the driver says") {
		t.Errorf("growing:\n%s", r.All())
	}

	// What the driver has already is imported, and released again.
	conn := d.connectCSI("server")
	theirs := repeat(t, csi.NewControllerClient(conn).CreateVolume, &csi.CreateVolumeRequest{
		Name: "theirs", VolumeCapabilities: []*csi.VolumeCapability{capability("")}, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20},
	}).GetVolume().GetVolumeId()
	if r := s.run("import", "theirs", "ID=none", "--pool", "raw", "--block", "--machine", "web"); r.Code == 0 || !strings.Contains(r.All(), `volume "none" does not exist`) {
		t.Errorf("importing what does not exist:\n%s", r.All())
	}
	for _, machine := range []string{"web", "db"} {
		s.must("import", "theirs", "ID="+theirs, "--pool", "raw", "--block", "--machine", machine, "--wait")
		if at := s.status()["theirs"]; at.SizeMiB != 16 || len(at.Attachments) != 1 || at.Attachments[0].Machine != machine {
			t.Errorf("imported: %+v", at)
		}
		crash()
		s.must("release", "theirs", "--wait", "--timeout", "60s")
		if n := len(d.status()); n != 4 {
			t.Errorf("released, the driver has %d volumes, want 4", n)
		}
	}
	s.must("import", "theirs", "ID="+theirs, "--pool", "raw", "--block", "--machine", "web", "--wait")

	s.must("remove", "data", "own", "disk", "theirs")
	crash()
	d.crash()
	s.poll("the storage is not removed", func() bool { return len(s.status()) == 0 })
	if left := d.status(); len(left) != 0 {
		t.Errorf("the driver has %v", left)
	}
	for _, p := range []*process{agents["web"], agents["db"], bare, server, d.agents["one"], d.agents["two"], d.server} {
		p.stop()
	}
	s.wantNoStorageIn("web", "db", "bare")
	d.wantNoStorageIn("one", "two")
}
