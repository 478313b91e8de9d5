package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunNamesInvalidFlags(t *testing.T) {
	m := newMachine(t, nil)
	program := filepath.Join(m.dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	data, socket := filepath.Join(m.dir, "data"), filepath.Join(m.dir, "stowage.sock")
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.dir, "disks.yaml")
	if err := os.WriteFile(file, []byte("name: disks\ntype: disk\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--provider", "disks"}, `--provider "disks": write NAME=PATH`},
		{[]string{"--provider", "loop=" + program}, `--provider "loop=` + program + `": there is a provider loop already: choose another name`},
		{[]string{"--provider", "d=" + program, "--provider", "d=" + program}, `--provider "d=` + program + `": there is a provider d already: choose another name`},
		{[]string{"--provider", "../d=" + program}, `--provider "../d=` + program + `": provider name "../d" is not valid: a letter, then letters, digits and hyphens, with single dots and slashes between them`},
		{[]string{"--provider", "d=program"}, `--provider "d=program": opening provider "d": provider d: program "program": the path is not absolute`},
		{[]string{"--provider", "d=" + data}, `--provider "d=` + data + `": opening provider "d": provider d: program "` + data + `": it is not executable: chmod 0755 it`},
		{[]string{"--plugins-dir", m.dir}, "--plugins-dir: " + file + `: type: "disk": the types are csi, program`},
		{[]string{"--plugins-dir", m.dir + "/none"}, "--plugins-dir: open " + m.dir + "/none: no such file or directory"},
		{[]string{"--csi-endpoint", "tcp://localhost:1"}, `--csi-endpoint "tcp://localhost:1": it is not the path of a socket: write unix:///run/stowage/csi.sock`},
		{[]string{"--csi-endpoint", "unix:" + socket}, `--csi-endpoint "unix:` + socket + `": it is the control socket: choose another path`},
		{[]string{"--csi-endpoint", "/" + strings.Repeat("a", 107)},
			`--csi-endpoint "/` + strings.Repeat("a", 107) + `": the socket's path "/` + strings.Repeat("a", 107) + `" is longer than 107 bytes: choose a shorter path`},
		{[]string{"--csi-endpoint", "/csi.sock", "--csi-expand", "both"}, `--csi-expand "both": write controller or node`},
		{[]string{"--csi-endpoint", "/csi.sock", "--csi-machine", "a/b"},
			`--csi-machine "a/b": it cannot be in a topology: write up to 63 letters, digits, dots, underscores and hyphens, with a letter or digit at both ends`},
		{[]string{"--csi-expand", "node"}, "--csi-expand without --csi-endpoint has no effect: add --csi-endpoint, or leave it out"},
		{[]string{"--csi-pool", "fast"}, "--csi-pool without --csi-endpoint has no effect: add --csi-endpoint, or leave it out"},
		{[]string{"--retry-min", "0s"}, "--retry-min 0s is not a time to wait: write 30s or 5m"},
		{[]string{"--time-limit", "make=1h"}, `--time-limit "make=1h": write an operation (create, attach, detach, destroy, resize) and a time, as in create=2h`},
		{[]string{"--time-limit", "create"}, `--time-limit "create": write an operation (create, attach, detach, destroy, resize) and a time, as in create=2h`},
		{[]string{"--time-limit", "create=-1s"}, `--time-limit "create=-1s": write an operation (create, attach, detach, destroy, resize) and a time, as in create=2h`},
		{[]string{"--metrics", "localhost"}, `--metrics "localhost" --metrics-path "/metrics": Address: address localhost: missing port in address`},
		{[]string{"--metrics", "localhost:9163", "--metrics-path", "m"}, `--metrics "localhost:9163" --metrics-path "m": Path "m" not valid`},
		{[]string{"--retry-max", "5s"}, "--retry-max 5s is less than --retry-min 30s"},
		{[]string{"--retry-min", "1h", "--retry-max", "30m"}, "--retry-max 30m0s is less than --retry-min 1h0m0s"},
		{[]string{"--retry-min", "1h", "--resync", "0s"}, "--resync 0s is not a time to wait: write 15m or 1h"}, // a long --retry-min alone is valid
		{[]string{"--create-threshold", "-1"}, "--create-threshold and --remove-threshold are numbers of failures, or 0"},
		{[]string{"--resync", "0s"}, "--resync 0s is not a time to wait: write 15m or 1h"},
		{[]string{"--max-calls", "loop=0"}, `--max-calls "loop=0": write a provider and a number of calls, as in loop=1`},
		{[]string{"--max-calls", "disks=2"}, `--max-calls "disks=2": storage provider "disks" not found`},
		{[]string{"--rate-limit", "loop=fast"}, `--rate-limit "loop=fast": write a provider and a number of calls per second, as in disks=0.5`},
		{[]string{"--rate-limit", "loop=-1"}, `--rate-limit "loop=-1": write a provider and a number of calls per second, as in disks=0.5`},
		{[]string{"--rate-limit", "loop"}, `--rate-limit "loop": write a provider and a number of calls per second, as in disks=0.5`},
		{[]string{"--retry-min", "-1s"}, "--retry-min -1s is not a time to wait: write 30s or 5m"},
	} {
		r := m.run(t.Context(), append([]string{"run"}, test.args...)...)
		if want := "stowage: " + test.want + "\n"; r.code != 2 || r.stderr != want {
			t.Errorf("%q: exit status %d, stderr\n%swant 2,\n%s", test.args, r.code, r.stderr, want)
		}
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"server", "--listen", "127.0.0.1:0", "--csi-pool", "fast"}, "--csi-pool without --csi-endpoint has no effect: add --csi-endpoint, or leave it out"},
		{[]string{"server", "--listen", "127.0.0.1:0", "--csi-endpoint", socket}, `--csi-endpoint "` + socket + `": it is the control socket: choose another path`},
	} {
		r := m.run(t.Context(), test.args...)
		if want := "stowage: " + test.want + "\n"; r.code != 2 || r.stderr != want {
			t.Errorf("%q: exit status %d, stderr\n%swant 2,\n%s", test.args, r.code, r.stderr, want)
		}
	}
	if _, err := os.Stat(filepath.Join(m.dir, "state.db")); !os.IsNotExist(err) {
		t.Errorf("state.db: got %v, want that no agent has started", err)
	}
}
