package config_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
)

// FuzzNew reads arbitrary settings. An accepted config returns the settings unchanged, with
// complete keys and values of tags. An error names the key that is not valid.
func FuzzNew(f *testing.F) {
	const uuid = "deadbeef-0bad-400d-8000-4b1d0d06f00d"
	f.Add("name", "type", uuid, "a=b c=d=e f=")
	f.Add("name", "type", uuid, "a=b\na=c")
	f.Add("name", "type", uuid, "=b")
	f.Add("name", "", uuid, "")
	f.Add("", "type", strings.ToUpper(uuid), " \t")
	f.Fuzz(func(t *testing.T, name, kind, uuid, tags string) {
		attrs := map[string]any{"name": name, "type": kind, "uuid": uuid, "resource-tags": tags}
		cfg, err := config.New(attrs)
		if err != nil {
			names := func(key string) bool { return strings.Contains(err.Error(), key) }
			if !errors.Is(err, errors.NotValid) || !names("name") && !names("type") && !names("uuid") && !names("resource-tags") {
				t.Errorf("error %q", err)
			}
			return
		}
		if cfg.Name() != name || cfg.Type() != kind || cfg.UUID() != uuid || name == "" || kind == "" {
			t.Errorf("%v is read as %v", attrs, cfg.AllAttrs())
		}
		read, ok := cfg.ResourceTags()
		if !ok {
			t.Error("the resource tags count as unset")
		}
		var written []string
		for key, value := range read {
			if key == "" || strings.Contains(key, "=") || !slices.Contains(strings.Fields(tags), key+"="+value) {
				t.Errorf("tag %q=%q", key, value)
			}
			written = append(written, key+"="+value)
		}
		attrs["resource-tags"] = strings.Join(written, " ")
		again, err := config.New(attrs)
		if err != nil {
			t.Fatal(err)
		}
		if tags, _ := again.ResourceTags(); !maps.Equal(tags, read) {
			t.Errorf("tags %v are read back as %v", read, tags)
		}
	})
}
