package contexts_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/contexts"
)

func TestContexts(t *testing.T) {
	home := t.TempDir()
	dir := contexts.DirOf(func(name string) string { return map[string]string{"HOME": home}[name] })
	if all, err := dir.List(); err != nil || len(all) > 0 {
		t.Errorf("at first: %q, %v", all, err)
	}
	want := contexts.Context{Name: "prod", Servers: []string{"https://a"}, User: "ann", Role: "viewer", CA: "ca\n", Certificate: "c\n", Key: "k\n"}
	if err := dir.Save(&want); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, ".config/stowage/contexts/prod.yaml")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", path, info, err)
	}
	if got, err := dir.Load("prod"); err != nil || got.Key != want.Key || got.User != want.User || got.Servers[0] != want.Servers[0] {
		t.Errorf("loaded %+v, %v", got, err)
	}
	if err := dir.Use("prod"); err != nil {
		t.Fatal(err)
	}
	if current, err := dir.Current(); err != nil || current != "prod" {
		t.Errorf("the current context is %q, %v", current, err)
	}
	for _, name := range []string{"none", "../prod", "", "prod.yaml/"} {
		if _, err := dir.Load(name); !errors.Is(err, errors.NotFound) && !errors.Is(err, errors.NotValid) {
			t.Errorf("context %q: %v", name, err)
		}
	}
	if err := dir.Use("none"); !errors.Is(err, errors.NotFound) {
		t.Errorf("using none: %v", err)
	}
	if all, err := dir.List(); err != nil || !slices.Equal(all, []string{"prod"}) {
		t.Errorf("listed %q, %v", all, err)
	}
	if err := os.WriteFile(path, []byte("servers: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Load("prod"); err == nil {
		t.Error("a damaged file is read")
	}
	if err := dir.Remove("prod"); err != nil {
		t.Error(err)
	}
	if current, err := dir.Current(); err != nil || current != "" {
		t.Errorf("the current context was removed, and is %q, %v", current, err)
	}
	if err := dir.Remove("prod"); !errors.Is(err, errors.NotFound) {
		t.Errorf("removing it again: %v", err)
	}
}

func TestNoHome(t *testing.T) {
	dir := contexts.DirOf(func(string) string { return "" })
	if current, err := dir.Current(); err != nil || current != "" {
		t.Errorf("current %q, %v", current, err)
	}
	if err := dir.Save(&contexts.Context{Name: "prod"}); err == nil {
		t.Error("a context was saved nowhere")
	}
}

func TestConfigHome(t *testing.T) {
	environment := map[string]string{"HOME": "/home/ann", "XDG_CONFIG_HOME": "/conf"}
	if dir := contexts.DirOf(func(name string) string { return environment[name] }); dir != "/conf/stowage" {
		t.Errorf("directory %s", dir)
	}
	environment["XDG_CONFIG_HOME"] = "relative" // to be ignored, as its specification says
	if dir := contexts.DirOf(func(name string) string { return environment[name] }); dir != "/home/ann/.config/stowage" {
		t.Errorf("directory %s", dir)
	}
}
