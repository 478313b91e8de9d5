//go:build linux

package signature_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/signature"
)

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	devicetest.RequireProgram(t, name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestProveBlank(t *testing.T) {
	const size = 16 << 20
	loop := devicetest.NewLoop(t, size)
	if err := signature.ProveBlank(t.Context(), open(t, loop.Path), size); err != nil {
		t.Error(err)
	}
}

func TestProveBlankReportsSignature(t *testing.T) {
	const size = 16 << 20
	for _, test := range []struct {
		name string
		want signature.Signature
		put  func(t *testing.T, path string)
	}{{
		name: "ext4",
		want: signature.Signature{Type: "ext4", UUID: "11111111-2222-3333-4444-555555555555", Label: "precious"},
		put: func(t *testing.T, path string) {
			command(t, "mkfs.ext4", "-q", "-L", "precious", "-U", "11111111-2222-3333-4444-555555555555", path)
		},
	}, {
		name: "swap",
		want: signature.Signature{Type: "swap", UUID: "11111111-2222-3333-4444-555555555555"},
		put: func(t *testing.T, path string) {
			command(t, "mkswap", "-U", "11111111-2222-3333-4444-555555555555", path)
		},
	}, {
		name: "text",
		put: func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("dear diary"), 0); err != nil {
				t.Fatal(err)
			}
		},
	}, {
		// The second header of a LUKS device whose first header is gone.
		name: "beyond the edges",
		want: signature.Signature{Type: "crypto_LUKS", UUID: "11111111-2222-3333-4444-555555555555"},
		put: func(t *testing.T, path string) {
			const at = 4 << 20
			header := make([]byte, 4096)
			copy(header, "SKUL\xba\xbe\x00\x02")
			copy(header[168:], "11111111-2222-3333-4444-555555555555")
			binary.BigEndian.PutUint64(header[256:], at)
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(header, at); err != nil {
				t.Fatal(err)
			}
		},
	}} {
		t.Run(test.name, func(t *testing.T) {
			loop := devicetest.NewLoop(t, size)
			test.put(t, loop.Path)
			err := signature.ProveBlank(t.Context(), open(t, loop.Path), size)
			var found *signature.NotBlankError
			if !errors.As(err, &found) {
				t.Fatalf("got %v", err)
			}
			if found.Found != test.want {
				t.Errorf("got %+v, want %+v", found.Found, test.want)
			}
		})
	}
}

// blkid has the same exit status for an unreadable device and for a blank one.
func TestProbeUnreadableDevice(t *testing.T) {
	loop := devicetest.NewLoop(t, 16<<20)
	if err := os.Truncate(loop.File, 0); err != nil {
		t.Fatal(err)
	}
	found, err := signature.Probe(t.Context(), open(t, loop.Path))
	if err == nil {
		t.Errorf("an unreadable device is accepted as %+v", found)
	}
	if err := signature.ProveBlank(t.Context(), open(t, loop.Path), 16<<20); err == nil {
		t.Error("an unreadable device is accepted as blank")
	}
}
