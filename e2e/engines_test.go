//go:build engines

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// realEngine is Docker or Podman, with all that it has in the directory of a machine.
type realEngine struct {
	*machine
	name string
	// client is the client's command, with the flags that choose the directory.
	client []string
	env    []string
	daemon *exec.Cmd // nil for Podman
	ended  <-chan error
}

// run runs a command of the client.
func (e *realEngine) run(args ...string) (string, error) {
	e.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.client[0], append(e.client[1:], args...)...)
	cmd.Env = append(os.Environ(), e.env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (e *realEngine) must(args ...string) string {
	e.Helper()
	out, err := e.run(args...)
	if err != nil {
		e.Fatalf("%s %q: %v\n%s", e.name, args, err, out)
	}
	return out
}

func (e *realEngine) refused(want string, args ...string) {
	e.Helper()
	if out, err := e.run(args...); err == nil || !strings.Contains(out, want) {
		e.Errorf("%s %q: %v, want %q\n%s", e.name, args, err, want, out)
	}
}

// container returns the arguments that run a command in a container with a volume at /d.
func (e *realEngine) container(volume string, args ...string) []string {
	all := []string{"run", "--network", "none", "-v", volume + ":/d"}
	if e.daemon != nil {
		all = append(all, "--volume-driver", "stowage") // Podman lacks the flag
	}
	return append(all, args...)
}

const image = "busybox:e2e"

// importImage makes an image that has only busybox.
func (e *realEngine) importImage() {
	e.Helper()
	root := filepath.Join(e.dir, "image")
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		e.Fatal(err)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		e.Fatal(err)
	}
	for _, name := range []string{"sh", "cat", "dd", "sleep", "echo"} {
		if err := os.WriteFile(filepath.Join(root, "bin", name), busybox, 0o755); err != nil {
			e.Fatal(err)
		}
	}
	archive := filepath.Join(e.dir, "image.tar")
	e.runTool("tar", "-C", root, "-cf", archive, ".")
	e.must("import", archive, image)
}

// startDaemon starts Docker's daemon.
func (e *realEngine) startDaemon() {
	e.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, "dockerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.Fatal(err)
	}
	defer log.Close()
	in := func(name string) string { return filepath.Join(e.dir, name) }
	e.daemon = exec.Command("dockerd", "--bridge=none", "--iptables=false", "--storage-driver=vfs", "--live-restore=false",
		"--data-root", in("docker"), "--exec-root", in("docker-run"), "--pidfile", in("docker.pid"), "-H", "unix://"+in("docker.sock"))
	e.daemon.Stdout, e.daemon.Stderr = log, log
	if err := e.daemon.Start(); err != nil {
		e.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- e.daemon.Wait() }()
	e.ended = ended
	e.poll("Docker does not start", func() bool {
		select {
		case err := <-ended:
			text, _ := os.ReadFile(log.Name())
			e.Fatalf("Docker does not start: %v\n%s", err, text[max(0, len(text)-2000):])
		default:
		}
		_, err := e.run("version")
		return err == nil
	})
}

// stopDaemon ends Docker's daemon by a signal.
func (e *realEngine) stopDaemon(signal os.Signal) {
	e.Helper()
	if err := e.daemon.Process.Signal(signal); err != nil {
		e.Fatal(err)
	}
	if err := <-e.ended; err != nil && signal != os.Kill {
		e.Errorf("Docker ended with %v", err)
	}
	if signal == os.Kill {
		// The kernel has killed Docker's containerd, too, and Docker would take the next process with its
		// PID for it.
		if err := os.Remove(filepath.Join(e.dir, "docker-run", "containerd", "containerd.pid")); err != nil {
			e.Fatal(err)
		}
	}
}

// end ends Docker's daemon, which may leave a bind mount of its directory.
func (e *realEngine) end() {
	e.Helper()
	e.stopDaemon(os.Interrupt)
	if err := unix.Unmount(filepath.Join(e.dir, "docker"), 0); err != nil && err != unix.EINVAL { // it is not mounted
		e.Fatal(err)
	}
}

func newDocker(t *testing.T) *realEngine {
	t.Helper()
	m := newMachine(t) // without an agent
	e := &realEngine{machine: m, name: "docker", client: []string{"/usr/bin/docker", "-H", "unix://" + filepath.Join(m.dir, "docker.sock")}}
	if _, err := os.Stat(e.client[0]); err != nil {
		e.client[0] = "docker"
	}
	e.startDaemon()
	e.importImage()
	return e
}

func newPodman(t *testing.T) *realEngine {
	t.Helper()
	m := newMachine(t)
	e := &realEngine{machine: m, name: "podman"}
	config := filepath.Join(m.dir, "containers.conf")
	err := os.WriteFile(config, []byte(`[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[engine.volume_plugins]
stowage = "`+plugin+`"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
`), 0o600)
	if err != nil {
		m.Fatal(err)
	}
	e.env = []string{"CONTAINERS_CONF=" + config, "XDG_CONFIG_HOME=" + m.dir}
	e.client = []string{"podman", "--root", filepath.Join(m.dir, "podman"), "--runroot", filepath.Join(m.dir, "podman-run"),
		"--tmpdir", filepath.Join(m.dir, "podman-tmp"), "--storage-driver", "vfs"}
	e.importImage()
	return e
}

// plugin is where the engines look for the plugin.
const plugin = "/run/docker/plugins/stowage.sock"

// startPlugin starts an agent that is a plugin.
func (m *machine) startPlugin() {
	m.Helper()
	m.start("--docker-plugin", "--docker-size", "16M")
	e := engine{machine: m, socket: plugin}
	e.awaitPlugin()
}

// testEngine does with an engine what users do.
func testEngine(t *testing.T, m *machine, e *realEngine) {
	mounts := func() int { return len(mountsBelow(t, m.data)) }
	if e.daemon == nil {
		e.must("volume", "create", "--driver", "stowage", "data")
	}
	e.must(e.container("data", "--rm", image, "sh", "-c", "echo kept >/d/kept")...)
	e.must("volume", "create", "--driver", "stowage", "-o", "filesystem=xfs", "-o", "size=320M", "sized")
	e.must("volume", "create", "--driver", "stowage", "-o", "size=24M", "limited")
	made := mounts()
	e.refused("No space left", e.container("limited", "--rm", image, "dd", "if=/dev/zero", "of=/d/all", "bs=1M", "count=30")...)
	info, err := os.Stat(filepath.Join(m.status()[m.storageOf("limited")].Location, "all"))
	if err != nil || info.Size() > 24<<20 || info.Size() < 16<<20 {
		t.Errorf("the volume of 24 MiB has a file of %v bytes, %v", info, err)
	}
	e.refused(`option "colour" is not known`, "volume", "create", "--driver", "stowage", "-o", "colour=red", "bad")
	if out := e.must("volume", "ls", "-q"); !strings.Contains(out, "data") || !strings.Contains(out, "limited") || strings.Contains(out, "bad") {
		t.Errorf("the volumes are %q", out)
	}

	// A container goes on while the agent is killed and starts again.
	id := e.must(e.container("data", "-d", image, "sleep", "1000")...)
	id = id[strings.LastIndex(id, "\n")+1:]
	m.kill()
	m.startPlugin()
	e.must("exec", id, "sh", "-c", "cat /d/kept && echo more >>/d/kept")
	if now := mounts(); now != made {
		t.Errorf("%d mounts, and before %d", now, made)
	}
	e.refused("use", "volume", "rm", "data")
	e.must("rm", "-f", id)
	if out := e.must(e.container("data", "--rm", image, "cat", "/d/kept")...); out != "kept\nmore" {
		t.Errorf("the data is %q", out)
	}

	if e.daemon != nil {
		for _, signal := range []os.Signal{os.Kill, os.Interrupt} {
			id = e.must(e.container("data", "-d", image, "sleep", "1000")...)
			e.stopDaemon(signal)
			e.startDaemon()
			_, _ = e.run("rm", "-f", id) // with the daemon, or since
			if out := e.must(e.container("data", "--rm", image, "cat", "/d/kept")...); out != "kept\nmore" {
				t.Errorf("after %v of the daemon the data is %q", signal, out)
			}
			if now := mounts(); now != made {
				t.Errorf("after %v of the daemon %d mounts, and before %d", signal, now, made)
			}
		}
	}
	for _, name := range []string{"data", "sized", "limited"} {
		e.must("volume", "rm", name)
	}
	m.wantNoStorage()
}

// storageOf returns the storage of a volume.
func (m *machine) storageOf(volume string) string {
	m.Helper()
	for name, s := range m.status() {
		if s.Asker != nil && s.Asker.Name == volume {
			return name
		}
	}
	m.Fatalf("there is no volume %s", volume)
	return ""
}

func TestEngineDocker(t *testing.T) {
	m := newMachine(t)
	m.startPlugin()
	docker := newDocker(t)
	testEngine(t, m, docker)
	docker.end()
	m.stop()
}

func TestEnginePodman(t *testing.T) {
	m := newMachine(t)
	m.startPlugin()
	podman := newPodman(t)
	testEngine(t, m, podman)
	m.stop()
	podman.endLeftProcesses()
}

// The page's image is the imported one.
func TestEnginesHowTo(t *testing.T) {
	m := newMachine(t)
	m.startPlugin()
	docker, podman := newDocker(t), newPodman(t)
	shell := func(e *realEngine) string {
		return e.name + "() { env " + strings.Join(e.env, " ") + " " + strings.Join(e.client, " ") + " \"$@\"; }\n"
	}
	page{
		name: "howto/docker.md", blocks: 4, prelude: shell(docker) + shell(podman),
		after: map[int]string{2: "docker volume inspect db | grep -q '\"SizeMiB\": 320'\n"},
	}.run(t, m, " busybox ", " "+image+" ")
	docker.end()
	m.wantNoStorage()
	m.stop()
	podman.endLeftProcesses()
}

// An engine does not remove what a container of the other one uses.
func TestEnginesTogether(t *testing.T) {
	m := newMachine(t)
	m.startPlugin()
	docker, podman := newDocker(t), newPodman(t)
	podman.must("volume", "create", "--driver", "stowage", "data")
	id := podman.must(podman.container("data", "-d", image, "sleep", "1000")...)
	docker.refused("held by process", "volume", "rm", "data")
	podman.must("exec", id, "sh", "-c", "echo kept >/d/kept")
	podman.must("rm", "-f", id)
	if out := docker.must(docker.container("data", "--rm", image, "cat", "/d/kept")...); out != "kept" {
		t.Errorf("the data is %q", out)
	}
	docker.must("volume", "rm", "data")
	m.wantNoStorage()
	docker.end()
	m.stop()
	podman.endLeftProcesses()
}

// endLeftProcesses ends the processes that watch containers, which outlive their containers for a moment.
func (m *machine) endLeftProcesses() {
	m.Helper()
	m.poll("processes of containers are left", func() bool {
		found, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			m.Fatal(err)
		}
		for _, path := range found {
			line, err := os.ReadFile(path)
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			if err == nil && strings.Contains(string(line), m.dir) && pid != os.Getpid() {
				return false
			}
		}
		return true
	})
}
