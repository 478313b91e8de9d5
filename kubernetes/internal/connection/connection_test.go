package connection_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/kubernetes/internal/connection"
)

func environment(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func TestPath(t *testing.T) {
	dir := t.TempDir()
	getenv := environment(map[string]string{"XDG_CONFIG_HOME": dir})
	if path, err := connection.Path(getenv, "prod"); err != nil || path != filepath.Join(dir, "stowage/contexts/prod.yaml") {
		t.Error(path, err)
	}
	if _, err := connection.Path(getenv, ""); err == nil {
		t.Error("a current context was found without a file that names it")
	}
	if err := os.MkdirAll(filepath.Join(dir, "stowage"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "stowage/current-context"), []byte("lab\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if path, err := connection.Path(getenv, ""); err != nil || filepath.Base(path) != "lab.yaml" {
		t.Error(path, err)
	}
	for _, name := range []string{"../x", "a/b", ".", "UPPER"} {
		if path, err := connection.Path(getenv, name); err == nil {
			t.Errorf("name %q is accepted: %s", name, path)
		}
	}
	if _, err := connection.Path(environment(nil), "prod"); err == nil {
		t.Error("no environment")
	}
	if path, err := connection.Path(environment(map[string]string{"HOME": "/home/ann"}), "prod"); err != nil || path != "/home/ann/.config/stowage/contexts/prod.yaml" {
		t.Error(path, err)
	}
}

// A context that cannot be used is an error that says what is wrong with it.
func TestOpenInvalid(t *testing.T) {
	for content, reason := range map[string]string{
		"servers: [":            "did not find",
		"user: ann":             "names no servers",
		"servers: [http://a:1]": "https://HOST",
		"servers: [https://a]":  "context",
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := connection.Open(path, nil); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: error %v", content, err)
		}
	}
	if _, err := connection.Open(filepath.Join(t.TempDir(), "none.yaml"), nil); err == nil {
		t.Error("a missing file is accepted")
	}
}

// The file of a context keeps what a later version of stowage has written in it.
func TestUnknownFieldsAreKept(t *testing.T) {
	const content = "servers:\n    - https://a:1\nuser: ann\nrole: admin\nca: C\ncertificate: X\nkey: K\nlater:\n    field: x\n"
	got, err := connection.Rewritten([]byte(content))
	if err != nil || string(got) != content {
		t.Errorf("got %v\n%swant\n%s", err, got, content)
	}
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/pools" {
			t.Errorf("path %s", r.URL.Path)
		}
		_, _ = w.Write([]byte(`{"pools": [{"name": "loop"}]}`))
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	defer func() {
		_ = server.Close()
		<-served
	}()
	client, err := connection.OpenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	pools, err := client.Pools(t.Context())
	if err != nil || len(pools) != 1 || pools[0].Name != "loop" {
		t.Error(pools, err)
	}
}
