package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nomadClient runs plugins as Nomad's client does: with an operation as the only argument, and an
// environment that has nothing but the variables of the protocol.
type nomadClient struct {
	*machine
	plugin, volumes string
}

// newNomadClient returns a client whose plugin is a script that sets the data directory.
func newNomadClient(m *machine) *nomadClient {
	m.Helper()
	n := &nomadClient{machine: m, plugin: filepath.Join(m.dir, "plugins", "stowage"), volumes: filepath.Join(m.dir, "mnt")}
	script := fmt.Sprintf("#!/bin/sh\nexec %s nomad-plugin --data-dir %s \"$@\"\n", stowage, m.data)
	if err := os.MkdirAll(filepath.Dir(n.plugin), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(n.plugin, []byte(script), 0o755); err != nil {
		m.Fatal(err)
	}
	return n
}

// nomadAnswer is the answer of a plugin, with what it wrote for people.
type nomadAnswer struct {
	Version, Path, Error string
	Bytes                uint64
	messages             string
	failed               bool
}

func (n *nomadClient) command(operation string, variables ...string) *exec.Cmd {
	cmd := exec.Command(n.plugin, operation)
	cmd.Env = append([]string{"DHV_OPERATION=" + operation, "DHV_VOLUMES_DIR=" + n.volumes, "DHV_PLUGIN_DIR=" + filepath.Dir(n.plugin)}, variables...)
	return cmd
}

func (n *nomadClient) call(operation string, variables ...string) (answer nomadAnswer) {
	n.Helper()
	cmd := n.command(operation, variables...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		n.Fatal(err)
	}
	if stdout.Len() > 0 {
		if jerr := json.Unmarshal(stdout.Bytes(), &answer); jerr != nil {
			n.Fatalf("%s answers %s: %v", operation, stdout.String(), jerr)
		}
	}
	answer.failed, answer.messages = err != nil, stderr.String()
	return answer
}

// volume returns the variables of a volume.
func volume(id, least, most, parameters string) []string {
	return []string{
		"DHV_VOLUME_ID=" + id, "DHV_VOLUME_NAME=db", "DHV_NAMESPACE=default", "DHV_NODE_ID=n", "DHV_NODE_POOL=default",
		"DHV_CAPACITY_MIN_BYTES=" + least, "DHV_CAPACITY_MAX_BYTES=" + most, "DHV_PARAMETERS=" + parameters,
	}
}

const (
	nomadID    = "26ac2ef1-4a2c-4a3e-9d3a-0c9a3a1f7b11"
	nomadOther = "26ac2ef1-4a2c-4a3e-9d3a-0c9a3a1f7b12"
)

func TestNomadVolume(t *testing.T) {
	m := newMachine(t)
	n := newNomadClient(m)
	if a := n.call("fingerprint"); a.failed || a.Version == "" || a.Version[0] < '0' || a.Version[0] > '9' {
		t.Errorf("the fingerprint without an agent: %+v", a)
	}
	// The client may start before the agent, and asks for all its volumes at once.
	one, other := volume(nomadID, "16000000", "0", `{"filesystem":"xfs"}`), volume(nomadOther, "0", "12000000", `{"pool":"rootfs"}`)
	one[5] = "DHV_CAPACITY_MIN_BYTES=320000000"
	first := make(chan nomadAnswer, 1)
	go func() { first <- n.call("create", one...) }()
	m.start()
	a := <-first
	path := filepath.Join(n.volumes, nomadID)
	if a.failed || a.Path != path || a.Bytes != 306<<20 {
		t.Fatalf("created: %+v", a)
	}
	if a := n.call("create", other...); a.failed || a.Bytes < 11<<20 {
		t.Errorf("created: %+v", a)
	}
	if err := os.WriteFile(filepath.Join(path, "kept"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Type != unix.XFS_SUPER_MAGIC {
		t.Errorf("the filesystem is of type %x, %v", fs.Type, err)
	}
	s := m.status()["nomad-"+nomadID]
	if s.Location != path || s.Labels["nomad-volume"] != "db" || s.Labels["nomad-namespace"] != "default" || s.Asker == nil || s.Asker.Name != nomadID {
		t.Errorf("the storage is %+v", s)
	}

	// The same call again changes nothing, also after a restart and when a user has resized the volume.
	again := func(when string, bytes uint64) {
		t.Helper()
		if a := n.call("create", one...); a.failed || a.Path != path || a.Bytes != bytes {
			t.Errorf("%s: %+v", when, a)
		}
		if kept, err := os.ReadFile(filepath.Join(path, "kept")); err != nil || string(kept) != "kept" {
			t.Errorf("%s: %q, %v", when, kept, err)
		}
	}
	again("again", 306<<20)
	m.kill()
	m.start()
	again("after a restart", 306<<20)
	m.must("resize", "nomad-"+nomadID, "310M", "--wait")
	again("resized", 310<<20)
	if a := n.call("create", volume(nomadOther, "13000000", "0", `{"pool":"rootfs"}`)...); a.failed || a.Bytes < 13<<20 {
		t.Errorf("with more capacity: %+v", a)
	}

	// What is in use is not deleted, and the message says who uses it.
	file, err := os.Open(filepath.Join(path, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	deletion := n.command("delete", append(one, "DHV_CREATED_PATH="+path)...)
	if err := deletion.Start(); err != nil {
		t.Fatal(err)
	}
	m.poll("the holder is not named", func() bool {
		return strings.Contains(m.status()["nomad-"+nomadID].Message, "held by process")
	})
	if err := deletion.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = deletion.Wait() // it was killed
	file.Close()
	for range 2 {
		if a := n.call("delete", one...); a.failed || a.Error != "" {
			t.Errorf("deleted: %+v", a)
		}
	}
	if a := n.call("delete", other...); a.failed {
		t.Errorf("deleted: %+v", a)
	}
	m.wantNoStorage()
	m.stop()
}

// Bad requests are refused with the reason, and leave nothing.
func TestNomadRefuses(t *testing.T) {
	m := newMachine(t)
	n := newNomadClient(m)
	m.start()
	m.must("create", "nomad-"+nomadOther, "--size", "16M", "--wait")
	if err := os.Mkdir(n.volumes, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.volumes, nomadID), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		want      string
		variables []string
	}{
		{"DHV_VOLUME_ID", volume("../../etc", "0", "0", "")},
		{"DHV_VOLUME_ID", volume("", "0", "0", "")},
		{"DHV_CAPACITY_MIN_BYTES", volume(nomadID, "much", "0", "")},
		{"set capacity_max to 16 MiB or more", volume(nomadID, "16000000", "16000001", "")},
		{`parameter "size" is not known`, volume(nomadID, "0", "0", `{"size":"1G"}`)},
		{"DHV_PARAMETERS", volume(nomadID, "0", "0", `["x"]`)},
		{"`stowage pools` lists them", volume(nomadID, "0", "0", `{"pool":"loop,1G,9"}`)},
		{`"none"`, volume(nomadID, "0", "0", `{"pool":"none"}`)},
		{"is not Nomad's", volume(nomadOther, "0", "0", "")},
		{"DHV_VOLUMES_DIR", append(volume(nomadID, "0", "0", ""), "DHV_VOLUMES_DIR=relative")},
		{`"no-such-option"`, volume(nomadID, "32000000", "0", `{"mount-options":"no-such-option"}`)},
		// This one is refused when it is made already.
		{"not a directory", volume(nomadID, "32000000", "0", "")},
	} {
		a := n.call("create", test.variables...)
		if !a.failed || !strings.Contains(a.Error, test.want) || !strings.Contains(a.messages, a.Error) {
			t.Errorf("want %s: %+v", test.want, a)
		}
	}
	m.must("remove", "nomad-"+nomadOther, "--wait")
	m.poll("a volume is left", func() bool { return len(m.status()) == 0 })
	m.wantNoStorage()
	m.stop()
}

// A plugin that is killed is called again.
func TestNomadPluginKilled(t *testing.T) {
	m := newMachine(t)
	n := newNomadClient(m)
	m.start()
	v := volume(nomadID, "16777216", "0", "")
	create := n.command("create", v...)
	if err := create.Start(); err != nil {
		t.Fatal(err)
	}
	m.poll("nothing is created", func() bool { return len(m.status()) > 0 })
	if err := create.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = create.Wait()
	if a := n.call("create", v...); a.failed || a.Bytes != 16<<20 {
		t.Errorf("created: %+v", a)
	}
	if a := n.call("delete", v...); a.failed {
		t.Errorf("deleted: %+v", a)
	}
	m.wantNoStorage()
	m.stop()
}
