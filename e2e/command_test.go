package e2e

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestExitStatus(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: a, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/a}]")
	want := func(code int, text string, args ...string) {
		t.Helper()
		if r := m.run(args...); r.Code != code || !strings.Contains(r.Stderr, text) {
			t.Errorf("want exit status %d and %q:\n%s", code, text, r.All())
		}
	}
	want(0, "", "version")
	want(0, "", "--help")
	want(1, "stowage.sock", "status") // no agent: the error names the socket
	want(1, "no-such-file", "apply", "-f", filepath.Join(m.dir, "no-such-file"))
	want(2, "--colour", "status", "--colour")
	want(2, "sing", "sing")
	want(2, "file", "apply")
	want(2, "arg", "remove")
	want(2, "xml", "status", "-o", "xml")
	want(2, "timeout", "apply", "-f", m.spec, "--timeout", "soon")

	m.start()
	want(1, "nowhere", "remove", "nowhere")
	want(1, "nowhere", "status", "nowhere")
	want(1, "nowhere", "detach", "nowhere", "--wait")
	m.apply()
	m.must("remove", "a", "--wait")
	m.stop()
}

func TestSecondAgentIsRefused(t *testing.T) {
	m := newMachine(t)
	m.start()
	r := m.run("run")
	if r.Code != 1 || !strings.Contains(r.Stderr, m.data) {
		t.Errorf("want exit status 1 and an error that names %s:\n%s", m.data, r.All())
	}
	m.status() // the first agent still answers
	m.stop()
}

func TestAgentRequiresRoot(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "stowage-e2e")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "stowage")
	if err := os.Link(stowage, binary); err != nil {
		t.Fatal(err)
	}
	run := exec.Command(binary, "run", "--data-dir", filepath.Join(dir, "data"))
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := run.CombinedOutput()
	if run.ProcessState == nil {
		t.Fatal(err)
	}
	if code := run.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "root") {
		t.Errorf("exit status %d, want 1 and an error that says that root is needed:\n%s", code, out)
	}
}

// The status of a detach that waits names the process that keeps the mount busy.
func TestBusyDetachTimesOut(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: a, directive: 'loop,16M', kind: filesystem, mount: MNT/a}]")
	m.start()
	m.apply()
	// A separate process, so that the message can name it.
	holder := exec.Command("cat")
	holder.Dir = m.mount("a")
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	release := func() {
		stdin.Close()
		_ = holder.Wait()
	}
	defer release()

	m.must("detach", "a")
	m.poll("the status does not name the process that keeps a busy", func() bool {
		s := m.status()["a"]
		return s.Status == "detaching" && strings.Contains(s.Message, "cat")
	})
	r := m.run("detach", "a", "--wait", "--timeout", "1s")
	if r.Code != 3 || !strings.Contains(r.Stderr, "a detaching") {
		t.Errorf("want exit status 3:\n%s", r.All())
	}
	if n := len(loopsBelow(t, m.dir)); n != 1 {
		t.Errorf("%d loop devices, want the one that backs the busy mount", n)
	}

	// The agent retries later; this test does not wait for that.
	release()
	m.stop()
	unmountAndDetach(t, m.dir)
}

// A process with a copy of the mount namespace keeps an unmounted filesystem in use until the
// process ends. Detaching continues soon after that, long before the next retry.
func TestDetachResumesAfterMountNamespaceCopyEnds(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: a, directive: 'loop,16M', kind: filesystem, mount: MNT/a}]")
	m.start("--retry-min", "10m")
	m.apply()
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; read line")
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	release := sync.OnceFunc(func() {
		stdin.Close()
		_ = holder.Wait()
	})
	defer release()
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	m.must("detach", "a")
	m.poll("the status does not name the process that holds the mount", func() bool {
		s := m.status()["a"]
		return s.Status == "detaching" && strings.Contains(s.Message, "in use: held by process")
	})
	if n := len(loopsBelow(t, m.dir)); n != 1 {
		t.Errorf("%d loop devices, want the one that is in use", n)
	}
	release()
	m.must("detach", "a", "--wait", "--timeout", "1m")
	m.must("remove", "a", "--wait")
	m.wantNoStorage()
	m.stop()
}

// A user who has fixed the cause of a failure need not wait for the next retry: retry, attach
// and apply try again at once.
func TestRetry(t *testing.T) {
	m := newMachine(t)
	obstacle := m.mount("way")
	if err := os.Mkdir(m.mount(""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.writeSpec(`storage: [{name: a, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/way/a}, {name: b, directive: 'loop,16M', kind: filesystem, mount: MNT/way/b}, {name: c, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/way/c}, {name: d, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/way/d}]`)
	m.start("--retry-min", "10m")
	m.must("apply", "-f", m.spec)
	stuck := func(name string) bool {
		s := m.status()[name]
		return s.Status != "attached" && strings.Contains(s.Message, "way")
	}
	m.poll("the status does not name the file that blocks the mount points", func() bool { return stuck("a") && stuck("b") && stuck("c") && stuck("d") })
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	m.must("retry", "a")
	attached := func(name string) {
		m.poll(name+" is not retried", func() bool { return m.status()[name].Status == "attached" })
	}
	attached("a")
	m.must("attach", "c")
	attached("c")
	if !stuck("b") || !stuck("d") {
		t.Errorf("b or d was retried: %+v", m.status())
	}
	if r := m.run("retry", "nowhere"); r.Code != 1 || !strings.Contains(r.Stderr, "storage \"nowhere\" not found") {
		t.Errorf("retry of unknown storage:\n%s", r.All())
	}
	m.must("retry", "b")
	attached("b")
	m.must("apply", "-f", m.spec)
	attached("d")
	m.must("retry", "--all")
	m.must("remove", "a", "b", "c", "d", "--wait")
	m.wantNoStorage()
	m.stop()
}

func TestStatusFields(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(fourKinds)
	m.start()
	if r := m.must("status", "-o", "json"); strings.TrimSpace(r.Stdout) != "[]" {
		t.Errorf("without storage: %s", r.Stdout)
	}
	m.apply()

	var list []map[string]any
	if err := json.Unmarshal([]byte(m.must("status", "-o", "json").Stdout), &list); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"attachments", "filesystem", "kind", "life", "location", "message", "name",
		"pool", "provider", "revision", "since", "size-mib", "status", "volume", "wanted-mib",
	}
	for _, s := range list {
		if got := slices.Sorted(maps.Keys(s)); !reflect.DeepEqual(got, want) {
			t.Errorf("fields %q, want %q", got, want)
		}
	}

	table := m.must("status", "data").Stdout
	for _, text := range []string{"data", "filesystem", "loop", "64M", "attached", m.mount("data")} {
		if !strings.Contains(table, text) {
			t.Errorf("%q is not in the table\n%s", text, table)
		}
	}
	if strings.Contains(table, "scratch") {
		t.Errorf("the table of data alone shows scratch:\n%s", table)
	}
	if yaml := m.must("status", "-o", "yaml").Stdout; !strings.Contains(yaml, "name: scratch") || !strings.Contains(yaml, "size-mib: 16") {
		t.Errorf("yaml:\n%s", yaml)
	}
	m.must("remove", "raw", "data", "scratch", "logs", "--wait")
	m.stop()
}

func TestWatchPrintsALinePerChange(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: a, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/a}]")
	m.start()
	watch := exec.Command(stowage, "status", "--watch", "--data-dir", m.data)
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	waitFor := func(parts ...string) {
		t.Helper()
		timeout := time.After(waitTimeout)
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("the watch ended before a line with %q", parts)
				}
				if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
					return
				}
			case <-timeout:
				t.Fatalf("no line with %q", parts)
			}
		}
	}
	m.apply()
	waitFor("a", "attached", m.mount("a"))
	m.must("remove", "a", "--wait")
	waitFor("a", "removed")

	if err := watch.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for range lines {
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("an interrupted watch ended with %v", err)
	}
	m.stop()
}
