package e2e

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// engine calls a volume plugin as Docker does.
type engine struct {
	*machine
	socket string
	http   http.Client
}

func newEngine(m *machine) *engine {
	e := &engine{machine: m, socket: filepath.Join(m.dir, "plugins", "stowage.sock")}
	transport := &http.Transport{Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", e.socket) }}
	m.Cleanup(transport.CloseIdleConnections)
	e.http.Transport = transport
	return e
}

func (e *engine) start(args ...string) {
	e.Helper()
	e.machine.start(append([]string{"--docker-plugin=" + e.socket}, args...)...)
	e.awaitPlugin()
}

func (e *engine) awaitPlugin() {
	e.Helper()
	e.poll("the plugin does not listen", func() bool {
		conn, err := net.Dial("unix", e.socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// pluginAnswer is an answer of the plugin.
type pluginAnswer struct {
	Implements   []string
	Capabilities struct{ Scope string }
	Mountpoint   string
	Volume       struct {
		Name, Mountpoint string
		Status           map[string]any
	}
	Volumes []struct{ Name string }
	Err     string
	status  int
}

func (e *engine) call(name, body string) (answer pluginAnswer) {
	e.Helper()
	response, err := e.http.Post("http://plugin/"+name, "application/json", strings.NewReader(body))
	if err != nil {
		e.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		e.Fatalf("%s %s: %s, %v", name, body, response.Status, err)
	}
	answer.status = response.StatusCode
	if (answer.Err == "") != (answer.status == http.StatusOK) {
		e.Errorf("%s %s: %s, error %q", name, body, response.Status, answer.Err)
	}
	return answer
}

// do makes a call that has to succeed.
func (e *engine) do(name, body string) pluginAnswer {
	e.Helper()
	answer := e.call("VolumeDriver."+name, body)
	if answer.Err != "" {
		e.Fatalf("%s %s: %s", name, body, answer.Err)
	}
	return answer
}

// refused makes a call that has to fail.
func (e *engine) refused(name, body, want string) {
	e.Helper()
	if answer := e.call("VolumeDriver."+name, body); !strings.Contains(answer.Err, want) {
		e.Errorf("%s %s: error %q, want %q", name, body, answer.Err, want)
	}
}

func TestDockerPlugin(t *testing.T) {
	m := newMachine(t)
	e := newEngine(m)
	e.start("--docker-size", "16M")
	if a := e.call("Plugin.Activate", ""); !slices.Equal(a.Implements, []string{"VolumeDriver"}) {
		t.Errorf("activated: %+v", a)
	}
	if a := e.do("Capabilities", "{}"); a.Capabilities.Scope != "local" {
		t.Errorf("capabilities: %+v", a)
	}
	if a := e.do("List", "{}"); a.Volumes == nil || len(a.Volumes) != 0 {
		t.Errorf("the list is %+v, want an empty one", a)
	}
	e.do("Create", `{"Name": "data"}`)
	e.do("Create", `{"Name": "data", "Opts": {}}`)
	e.do("Create", `{"Name": "Other_1.x", "Opts": {"size": "24M", "pool": "rootfs"}}`)
	e.do("Create", `{"Name": "Other_1.x", "Opts": {"pool": "rootfs"}}`)
	for body, want := range map[string]string{
		`{"Name": "data", "Opts": {"size": "17M"}}`:        "its size is 16 MiB",
		`{"Name": "data", "Opts": {"pool": "rootfs"}}`:     `its pool is "loop"`,
		`{"Name": "data", "Opts": {"filesystem": "xfs"}}`:  `its filesystem is "ext4"`,
		`{"Name": "new", "Opts": {"o": "uid=0"}}`:          `option "o" is not known: these are: pool, size`,
		`{"Name": "new", "Opts": {"size": "17"}}`:          `"17" is not a size`,
		`{"Name": "new", "Opts": {"pool": "none"}}`:        `pool "none" is not known`,
		`{"Name": "new", "Opts": {"mkfs-options": "-%s"}}`: "mkfs-options",
		`{"Name": "", "Opts": {}}`:                         "1 to 128 bytes",
		`{"Name": 1}`:                                      "cannot unmarshal",
	} {
		e.refused("Create", body, want)
	}
	var listed []string
	for _, v := range e.do("List", "{}").Volumes {
		listed = append(listed, v.Name)
	}
	slices.Sort(listed)
	if !slices.Equal(listed, []string{"Other_1.x", "data"}) {
		t.Errorf("the list is %q", listed)
	}
	path := e.do("Mount", `{"Name": "data", "ID": "1"}`).Mountpoint
	got := e.do("Get", `{"Name": "data"}`).Volume
	if path == "" || got.Mountpoint != path || got.Name != "data" || got.Status["SizeMiB"] != 16.0 || e.do("Path", `{"Name": "data"}`).Mountpoint != path {
		t.Errorf("mounted at %s, %+v", path, got)
	}
	for _, call := range []string{"Get", "Mount", "Path"} {
		e.refused(call, `{"Name": "none", "ID": "1"}`, "volume none not found")
	}

	// The data outlives the agent, and a volume is mounted once, however often it is used.
	if err := os.WriteFile(filepath.Join(path, "kept"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts := len(mountsBelow(t, m.dir))
	m.kill()
	e.start("--docker-size", "32M")
	for range 2 {
		if again := e.do("Mount", `{"Name": "data", "ID": "2"}`).Mountpoint; again != path {
			t.Errorf("mounted at %s, and before at %s", again, path)
		}
	}
	if now := len(mountsBelow(t, m.dir)); now != mounts {
		t.Errorf("%d mounts, and before %d", now, mounts)
	}
	e.do("Unmount", `{"Name": "data", "ID": "1"}`)
	if kept, err := os.ReadFile(filepath.Join(path, "kept")); err != nil || string(kept) != "kept" {
		t.Errorf("the file has %q, %v", kept, err)
	}
	e.do("Create", `{"Name": "data"}`) // its size is another one than that of the flag now
	e.do("Remove", `{"Name": "data"}`)
	e.do("Remove", `{"Name": "data"}`)
	e.do("Remove", `{"Name": "Other_1.x"}`)
	m.wantNoStorage()
	m.stop()
	if _, err := os.Stat(e.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// A volume is not removed while a process in any mount namespace uses it, as in a container.
func TestDockerVolumeInUse(t *testing.T) {
	m := newMachine(t)
	e := newEngine(m)
	e.start()
	for _, pool := range []string{"loop", "rootfs"} {
		e.do("Create", `{"Name": "data", "Opts": {"size": "16M", "pool": "`+pool+`"}}`)
		path := e.do("Mount", `{"Name": "data", "ID": "1"}`).Mountpoint
		file := filepath.Join(path, "kept")
		container := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `echo kept >"$0"; echo ready; read end; cat "$0"`, file)
		stdin, err := container.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := container.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := container.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		e.refused("Remove", `{"Name": "data"}`, "held by process")
		stdin.Close()
		var rest bytes.Buffer
		if _, err := rest.ReadFrom(stdout); err != nil || rest.String() != "kept\n" {
			t.Errorf("%s: the container reads %q, %v", pool, &rest, err)
		}
		if err := container.Wait(); err != nil {
			t.Errorf("%s: %v", pool, err)
		}
		path = e.do("Mount", `{"Name": "data", "ID": "2"}`).Mountpoint
		if kept, err := os.ReadFile(filepath.Join(path, "kept")); err != nil || string(kept) != "kept\n" {
			t.Errorf("%s: after the refusal the file has %q, %v", pool, kept, err)
		}
		e.do("Remove", `{"Name": "data"}`)
		m.wantNoStorage()
	}
	m.stop()
}
