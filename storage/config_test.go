package storage_test

import (
	"reflect"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func TestNewConfig(t *testing.T) {
	attrs := storage.Attrs{"sync": "always", "replicas": 3}
	c, err := storage.NewConfig("fast", "loop", attrs)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name() != "fast" || c.Provider() != "loop" {
		t.Errorf("got pool %q of %q", c.Name(), c.Provider())
	}
	if value, ok := c.ValueString("sync"); value != "always" || !ok {
		t.Errorf("sync: got %q, %t", value, ok)
	}
	for _, name := range []string{"replicas", "absent"} {
		if value, ok := c.ValueString(name); value != "" || ok {
			t.Errorf("%s: got %q, %t", name, value, ok)
		}
	}
}

func TestConfigIsImmutable(t *testing.T) {
	attrs := storage.Attrs{"a": "1"}
	c, err := storage.NewConfig("fast", "loop", attrs)
	if err != nil {
		t.Fatal(err)
	}
	attrs["a"] = "2"
	c.Attrs()["a"] = "3"
	if got, want := c.Attrs(), (storage.Attrs{"a": "1"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNewConfigWithoutNameOrProvider(t *testing.T) {
	for _, test := range []struct {
		name     string
		provider storage.ProviderType
		want     string
	}{
		{"", "loop", `storage pool with an empty name not valid`},
		{"fast", "", `storage pool "fast" with an empty provider not valid`},
	} {
		_, err := storage.NewConfig(test.name, test.provider, nil)
		if err == nil || err.Error() != test.want || !errors.Is(err, errors.NotValid) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}

func TestStorageKindString(t *testing.T) {
	for kind, want := range map[storage.StorageKind]string{
		storage.StorageKindUnknown:    "unknown",
		storage.StorageKindBlock:      "block",
		storage.StorageKindFilesystem: "filesystem",
		storage.StorageKind(99):       "unknown",
		storage.StorageKind(-1):       "unknown",
	} {
		if got := kind.String(); got != want {
			t.Errorf("StorageKind(%d): got %q, want %q", int(kind), got, want)
		}
	}
}
