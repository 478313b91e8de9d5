package config_test

import (
	"fmt"
	"maps"
	"reflect"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
)

const uuid = "deadbeef-0bad-400d-8000-4b1d0d06f00d"

func valid() map[string]any {
	return map[string]any{"name": "site", "type": "bare", "uuid": uuid}
}

func TestNew(t *testing.T) {
	attrs := valid()
	attrs["resource-tags"] = "  owner=ops\tcost=a=b empty= "
	attrs["flavour"] = 42
	c, err := config.New(attrs)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name() != "site" || c.Type() != "bare" || c.UUID() != uuid {
		t.Errorf("got name %q, type %q, uuid %q", c.Name(), c.Type(), c.UUID())
	}
	tags, ok := c.ResourceTags()
	want := map[string]string{"owner": "ops", "cost": "a=b", "empty": ""}
	if !ok || !maps.Equal(tags, want) {
		t.Errorf("got tags %v, %t; want %v", tags, ok, want)
	}
	if !reflect.DeepEqual(c.AllAttrs(), attrs) {
		t.Errorf("got attrs %v, want %v", c.AllAttrs(), attrs)
	}
}

func TestResourceTagsUnsetAndEmpty(t *testing.T) {
	c, err := config.New(valid())
	if err != nil {
		t.Fatal(err)
	}
	if tags, ok := c.ResourceTags(); ok || len(tags) != 0 {
		t.Errorf("unset: got %v, %t", tags, ok)
	}
	attrs := valid()
	attrs["resource-tags"] = ""
	c, err = config.New(attrs)
	if err != nil {
		t.Fatal(err)
	}
	if tags, ok := c.ResourceTags(); !ok || len(tags) != 0 {
		t.Errorf("empty: got %v, %t", tags, ok)
	}
}

func TestConfigIsImmutable(t *testing.T) {
	attrs := valid()
	attrs["resource-tags"] = "a=1"
	c, err := config.New(attrs)
	if err != nil {
		t.Fatal(err)
	}
	attrs["name"] = "changed"
	c.AllAttrs()["name"] = "changed"
	tags, _ := c.ResourceTags()
	tags["a"] = "changed"
	if c.Name() != "site" {
		t.Errorf("got name %q", c.Name())
	}
	if tags, _ := c.ResourceTags(); tags["a"] != "1" {
		t.Errorf("got tags %v", tags)
	}
}

func TestNewErrors(t *testing.T) {
	for _, test := range []struct {
		key   string
		value any // absent if nil
		want  string
	}{
		{"name", nil, `environment config without "name" not valid`},
		{"type", nil, `environment config without "type" not valid`},
		{"uuid", nil, `environment config without "uuid" not valid`},
		{"name", "", `environment config: name "" (want a non-empty string) not valid`},
		{"type", 7, `environment config: type 7 (want a non-empty string) not valid`},
		{"uuid", "x" + uuid, `environment config: uuid "x` + uuid + `" (want a UUID in lower case) not valid`},
		{"uuid", uuid + "\n", `environment config: uuid "` + uuid + `\n" (want a UUID in lower case) not valid`},
		{"uuid", "DEADBEEF-0BAD-400D-8000-4B1D0D06F00D", `environment config: uuid "DEADBEEF-0BAD-400D-8000-4B1D0D06F00D" (want a UUID in lower case) not valid`},
		{"resource-tags", "a=1 b", `environment config: resource-tags: "b" (want key=value) not valid`},
		{"resource-tags", "=1", `environment config: resource-tags: "=1" (want key=value) not valid`},
		{"resource-tags", "a=1 a=2", `environment config: resource-tags: tag "a" given more than once not valid`},
		{"resource-tags", true, `environment config: resource-tags: true (want a string) not valid`},
	} {
		attrs := valid()
		attrs[test.key] = test.value
		if test.value == nil {
			delete(attrs, test.key)
		}
		_, err := config.New(attrs)
		if err == nil || err.Error() != test.want {
			t.Errorf("got error %v\nwant      %s", err, test.want)
		}
		if !errors.Is(err, errors.NotValid) {
			t.Errorf("%v does not satisfy errors.IsNotValid", err)
		}
	}
}

func ExampleNew() {
	c, err := config.New(map[string]any{
		"name":          "site",
		"type":          "bare",
		"uuid":          "deadbeef-0bad-400d-8000-4b1d0d06f00d",
		"resource-tags": "owner=ops",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	tags, _ := c.ResourceTags()
	fmt.Println(c.Name(), tags["owner"])
	// Output: site ops
}
