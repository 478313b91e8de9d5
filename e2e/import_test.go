package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/internal/looptest"
)

// runTool runs a program that a test needs.
func (m *machine) runTool(name string, args ...string) string {
	m.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// makeImage makes a file with a filesystem that holds the data of name, and returns the
// file's path. mkfs is a program with its arguments.
func (m *machine) makeImage(name string, mib int64, mkfs ...string) string {
	m.Helper()
	path := filepath.Join(m.dir, "old-"+name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		m.Fatal(err)
	}
	if err := os.Truncate(path, mib<<20); err != nil {
		m.Fatal(err)
	}
	m.runTool(mkfs[0], append(mkfs[1:], path)...)
	if err := os.MkdirAll(m.mount(name), 0o700); err != nil {
		m.Fatal(err)
	}
	m.mountFile(path, m.mount(name), strings.TrimPrefix(mkfs[0], "mkfs."))
	m.writeFile(name)
	m.runTool("umount", m.mount(name))
	// The kernel detaches the device a moment later.
	m.poll(path+" is still attached", func() bool {
		return !slices.ContainsFunc(loopsBelow(m, m.dir), func(l kernel.Loop) bool { return l.File == path })
	})
	return path
}

// mountFile mounts the filesystem in a file.
func (m *machine) mountFile(path, dir, filesystem string) {
	m.Helper()
	if err := looptest.Mount(path, dir, filesystem, ""); err != nil {
		m.Fatal(err)
	}
}

// poll waits until done returns true, for a change that no event announces. It fails with the
// text failure after waitTimeout.
func (m *machine) poll(failure string, done func() bool) {
	m.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(waitTimeout); !done(); <-tick.C {
		if time.Now().After(deadline) {
			m.Fatal(failure)
		}
	}
}

// writeFile writes the file that wantData reads, on a mounted filesystem.
func (m *machine) writeFile(name string) {
	m.Helper()
	dir := filepath.Join(m.mount(name), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), dataOf(name), 0o600); err != nil {
		m.Fatal(err)
	}
}

// wantNoVolumes checks that no files of volumes and filesystems are left.
func (m *machine) wantNoVolumes() {
	m.Helper()
	for _, pattern := range []string{"loop/volumes/*", "rootfs/filesystems/*"} {
		left, err := filepath.Glob(filepath.Join(m.data, "storage", pattern))
		if err != nil || len(left) > 0 {
			m.Errorf("left on disk: %q, %v", left, err)
		}
	}
}

func TestImportKeepsData(t *testing.T) {
	m := newMachine(t)
	m.start()
	for name, mkfs := range map[string][]string{
		"data":  {"mkfs.ext4", "-q", "-F"},
		"large": {"mkfs.xfs", "-q"},
		"trees": {"mkfs.btrfs", "-q"},
	} {
		path := m.makeImage(name, 320, mkfs...)
		r := m.must("import", name, path, "--pool", "loop", "--mount", m.mount(name), "--wait")
		kind := strings.TrimPrefix(mkfs[0], "mkfs.")
		if !strings.Contains(r.Stdout, "+ "+name+"  import  filesystem, pool loop, 320M, "+kind) {
			t.Error(r.All())
		}
		if s := m.status()[name]; s.Kind != "filesystem" || s.SizeMiB != 320 || s.WantedMiB != 320 || s.Location != m.mount(name) {
			t.Errorf("%+v", s)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", path, err)
		}
		if r := m.run("import", name, path, "--pool", "loop"); r.Code != 1 || !strings.Contains(r.Stderr, "there is storage of that name") {
			t.Error(r.All())
		}
	}
	// Imported storage behaves like storage that the agent has made.
	m.kill()
	unmountAndDetach(t, m.dir)
	m.start()
	m.must("attach", "data", "large", "trees", "--wait")
	m.wantData("data", "large", "trees")
	m.must("resize", "trees", "+32M", "--wait")
	m.must("detach", "trees", "--wait")
	m.must("attach", "trees", "--wait")
	m.wantData("trees")

	m.must("remove", "data", "large", "trees", "--wait")
	m.wantNoStorage()
	m.wantNoVolumes()
	m.stop()
}

// The agent is killed after it has moved the file. Whether or not the state has recorded the
// import, repeating the command finds it done, or finishes it.
func TestAgentKilledDuringImport(t *testing.T) {
	m := newMachine(t)
	m.start()
	var names []string
	for i := range 4 {
		name := fmt.Sprintf("data%d", i)
		names = append(names, name)
		path := m.makeImage(name, 16, "mkfs.ext4", "-q", "-F")
		args := []string{"import", name, path, "--pool", "loop", "--mount", m.mount(name)}
		done := make(chan command.Result, 1)
		go func() { done <- m.run(args...) }()
		m.poll(path+" is still there", func() bool {
			_, err := os.Lstat(path)
			return os.IsNotExist(err) || len(done) > 0
		})
		m.kill()
		if r := <-done; strings.Contains(r.Stderr, "importing") {
			t.Error(r.All())
		}
		m.start()
		r := m.run(args...)
		t.Logf("again: %d %s", r.Code, r.Stderr)
		if r.Code != 0 && !strings.Contains(r.Stderr, "there is storage of that name") {
			t.Error(r.All())
		}
	}
	m.must(append([]string{"attach", "--wait"}, names...)...)
	m.wantData(names...)
	m.wantNoDuplicates()
	m.must(append([]string{"remove", "--wait"}, names...)...)
	m.wantNoStorage()
	m.wantNoVolumes()
	m.stop()
}

func TestImportByUUID(t *testing.T) {
	m := newMachine(t)
	m.start()
	id := uuid.NewString()
	path := m.makeImage("data", 64, "mkfs.ext4", "-q", "-F", "-U", id)
	device, err := looptest.Attach(path)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"import", "data", "UUID=" + id, "--pool", "loop", "--mount", m.mount("data"), "--wait"}
	// The agent may not have seen the device yet.
	m.runTool("mount", device, m.mount("data"))
	m.poll("the error for a mounted device does not name its mount point", func() bool {
		r := m.run(args...)
		if r.Code == 0 {
			t.Fatalf("a mounted device was imported:\n%s", r.All())
		}
		return strings.Contains(r.Stderr, m.mount("data"))
	})
	m.runTool("umount", m.mount("data"))
	m.must(args...)
	m.wantData("data")
	m.wantNoDuplicates()
	m.must("remove", "data", "--wait")
	m.wantNoVolumes()
	m.stop()
}

// import --copy leaves the original file in place.
func TestImportCopyKeepsOriginal(t *testing.T) {
	m := newMachine(t)
	m.start()
	path := m.makeImage("data", 16, "mkfs.ext4", "-q", "-F")
	r := m.must("import", "data", path, "--copy", "--pool", "loop", "--mount", m.mount("data"), "--wait")
	if !strings.Contains(r.Stdout, "+ data  import  filesystem, pool loop, 16M, ext4") {
		t.Error(r.All())
	}
	m.wantData("data")
	if r := m.run("import", "dir", m.dir, "--copy", "--pool", "rootfs"); r.Code != 1 || !strings.Contains(r.Stderr, "leave out --copy") {
		t.Error(r.All())
	}
	m.must("remove", "data", "--wait")
	m.wantNoVolumes()
	if info, err := os.Stat(path); err != nil || info.Size() != 16<<20 {
		t.Errorf("the original: %v, %v", info, err)
	}
	m.stop()
}

func TestImportWithoutFilesystemNeedsBlock(t *testing.T) {
	m := newMachine(t)
	m.start()
	path := filepath.Join(m.dir, "old")
	content := append(make([]byte, 1<<20), []byte("precious")...)
	if err := os.WriteFile(path, append(content, make([]byte, 1<<20-8)...), 0o600); err != nil {
		t.Fatal(err)
	}
	r := m.run("import", "raw", path, "--pool", "loop")
	if r.Code != 1 || !strings.Contains(r.Stderr, "--block") {
		t.Error(r.All())
	}
	if _, err := os.Stat(path); err != nil || len(m.status()) != 0 {
		t.Errorf("a refused import changed something: %v, %+v", err, m.status())
	}
	m.must("import", "raw", path, "--pool", "loop", "--block", "--wait")
	device, err := os.Open(m.status()["raw"].Location)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	_, err = device.ReadAt(got, 1<<20)
	device.Close()
	if err != nil || string(got) != "precious" {
		t.Errorf("read %q, %v", got, err)
	}
	m.must("remove", "raw", "--wait")
	m.wantNoVolumes()
	m.stop()
}

func TestImportDirectory(t *testing.T) {
	m := newMachine(t)
	m.start()
	path := filepath.Join(m.dir, "old")
	if err := os.MkdirAll(filepath.Join(path, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "dir", "file"), dataOf("logs"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.must("import", "logs", path, "--pool", "rootfs", "--mount", m.mount("logs"), "--wait")
	m.wantData("logs")
	m.kill()
	m.start()
	m.must("attach", "logs", "--wait")
	m.wantData("logs")
	m.must("remove", "logs", "--wait")
	m.wantNoStorage()
	m.wantNoVolumes()
	m.stop()
}
