package plugins_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/plugins"
	"github.com/stowage-io/stowage/storage"
)

// write writes a file of the directory, and returns its path.
func write(t *testing.T, dir, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

func newRegistry(t *testing.T) *plugins.Registry {
	t.Helper()
	r, err := plugins.New(storage.ProviderEnviron{Scope: storage.ScopeEnviron})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFilesOfADirectory(t *testing.T) {
	dir := t.TempDir()
	program := write(t, dir, "program", "#!/bin/sh\n", 0o700)
	write(t, dir, "jiva.yaml", "name: openebs.io/jiva\ntype: program\npath: "+program+"\ndelete: false\n", 0o600)
	write(t, dir, "disks.yaml", "{name: disks, type: program, path: "+program+"}", 0o644)
	write(t, dir, "csi.yaml", "{name: d.example.com, type: csi, driver: d.example.com, socket: /run/d/csi.sock, timeout: 90s, block-only: true}", 0o644)
	write(t, dir, "shared.yaml", "{name: e.example.com, type: csi, driver: e.example.com, socket: /run/e/csi.sock, scope: environment, block-only: true}", 0o644)
	write(t, dir, "disks.yaml~", "not for us", 0o600)
	r := newRegistry(t)
	if err := r.AddDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := r.AddProgram("more", program); err != nil {
		t.Fatal(err)
	}
	types, err := r.StorageProviderTypes()
	slices.Sort(types)
	if want := []storage.ProviderType{"d.example.com", "disks", "e.example.com", "loop", "more", "openebs.io/jiva", "rootfs", "tmpfs"}; err != nil || !slices.Equal(types, want) {
		t.Errorf("providers %q, %v; want %q", types, err, want)
	}
	driver, err := r.StorageProvider("d.example.com")
	if err != nil || driver.Scope() != storage.ScopeMachine || !driver.Supports(storage.StorageKindBlock) || driver.Supports(storage.StorageKindFilesystem) {
		t.Errorf("provider of a driver: %v, %v", driver, err)
	}
	shared, err := r.StorageProvider("e.example.com")
	if err != nil || shared.Scope() != storage.ScopeEnviron {
		t.Errorf("provider of a driver with the scope environment: %v, %v", shared, err)
	}
	for name, deletes := range map[storage.ProviderType]bool{"openebs.io/jiva": false, "disks": true, "more": true, "loop": true} {
		p, err := r.StorageProvider(name)
		if err != nil || storage.CanDelete(p, storage.StorageKindBlock) != deletes || !storage.CanCreate(p, storage.StorageKindBlock) {
			t.Errorf("provider %s: %v; it deletes volumes: %v", name, err, !deletes)
		}
	}
}

func TestFileErrors(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"empty":              {"", "the file is empty"},
		"only a comment":     {"# a", "the file is empty"},
		"no mapping":         {"- name: a", "line 1: not a mapping: write `name: NAME`"},
		"not YAML":           {"a: b: c", "yaml: mapping values are not allowed in this context"},
		"no name":            {"type: program", "name: missing: write the name of the provider"},
		"bad name":           {"{name: ../a, type: program}", `provider name "../a" is not valid: a letter, then letters, digits and hyphens, with single dots and slashes between them`},
		"built in":           {"{name: loop, type: program}", "there is a provider loop already: choose another name"},
		"same pool":          {"{name: a/b, type: program, path: PROGRAM}\n", `providers "a.b" and "a/b" would both have the default pool a-b`},
		"no type":            {"name: a", `type: "": the types are csi, program`},
		"unknown type":       {"{name: a, type: csi2}", `type: "csi2": the types are csi, program`},
		"unknown field":      {"name: a\ntype: program\npaht: /x\n", `opening provider "a" with FILE: line 3: unknown field "paht": the fields are name, type, path, delete`},
		"wrong value":        {"name: a\ntype: program\ndelete: maybe\n", `opening provider "a" with FILE: line 3: cannot unmarshal !!str ` + "`maybe` into bool"},
		"no program":         {"{name: a, type: program}", `opening provider "a" with FILE: provider a: program "": the path is not absolute`},
		"csi, unknown field": {"name: a\ntype: csi\nsokcet: /x\n", `opening provider "a" with FILE: line 3: unknown field "sokcet": the fields are name, type, driver, socket, node-socket, secrets, scope, block-only, timeout, at-once`},
		"csi, no driver":     {"name: a\ntype: csi\nsocket: /x\n", `opening provider "a" with FILE: driver: "": write the name that the driver gives itself, such as hostpath.csi.k8s.io`},
		"csi, bad socket":    {"name: a\ntype: csi\ndriver: d.example.com\nsocket: ../x\n", `opening provider "a" with FILE: line 4: socket: "../x": write an absolute path in its shortest form`},
		"csi, bad scope":     {"name: a\ntype: csi\nscope: all\n", `opening provider "a" with FILE: line 3: scope: "all": write machine or environment`},
		"csi, bad timeout":   {"name: a\ntype: csi\ntimeout: soon\n", `opening provider "a" with FILE: line 3: cannot unmarshal !!str ` + "`soon` into time.Duration"},
		"two documents":      {"name: a\n---\nname: b\n", "a second document: write a file for each provider"},
		"too large":          {"name: a\n#" + strings.Repeat("x", 1<<16), "the file is larger than 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := write(t, dir, "program", "#!/bin/sh\n", 0o700)
			file := write(t, dir, "p.yaml", strings.ReplaceAll(test.text, "PROGRAM", program), 0o600)
			r := newRegistry(t)
			if err := r.AddProgram("a.b", program); err != nil {
				t.Fatal(err)
			}
			err := r.AddDir(dir)
			want := file + ": " + strings.ReplaceAll(test.want, "FILE", file)
			if err == nil || err.Error() != want || !errors.Is(err, errors.NotValid) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// A file that others can write to is refused: it says what is run as root.
func TestFileOfOthers(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "p.yaml", "{name: a, type: program, path: /bin/true}", 0o666)
	want := file + ": others than root can write to " + file + ": chown it to root, and chmod go-w it"
	if err := newRegistry(t).AddDir(dir); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
