//go:build linux

package record

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"
)

// FuzzParseHolder looks for a lock among arbitrary others.
func FuzzParseHolder(f *testing.F) {
	f.Add("1: POSIX  ADVISORY  WRITE 11 fe:00:5678 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 fe:01:5678 0 EOF\n", uint32(13), uint64(5678))
	f.Add("3: FLOCK  ADVISORY  WRITE 13 fe:00:5678 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 14 fe:00:9 0 EOF\n", uint32(7), uint64(5678))
	f.Add("4: FLOCK  ADVISORY  WRITE -1 fe:00:10 0 EOF\n5: OFDLCK ADVISORY  READ  -1 00:06:1 0 EOF\n6: LEASE  ACTIVE    READ 1 fe:00:2 0 EOF", uint32(1), uint64(10))
	f.Fuzz(func(t *testing.T, locks string, pid uint32, ino uint64) {
		dev := unix.Mkdev(0xfe, 0)
		got := parseHolder(strings.NewReader(locks), dev, ino)
		if got < 0 {
			t.Errorf("process %d", got)
		}
		if got != 0 && !strings.Contains(locks, fmt.Sprintf("fe:00:%d", ino)) {
			t.Errorf("process %d holds a file that is not in %q", got, locks)
		}
		line := fmt.Sprintf("9: FLOCK  ADVISORY  WRITE %d fe:00:%d 0 EOF\n", pid, ino)
		if got := parseHolder(strings.NewReader(line+locks), dev, ino); pid > 0 && uint32(got) != pid {
			t.Errorf("process %d, want %d of the first line", got, pid)
		}
	})
}

func FuzzValidateID(f *testing.F) {
	f.Add("volume-0-1")
	f.Add("../x")
	f.Fuzz(func(t *testing.T, id string) {
		if ValidateID(id) == nil && (id == "" || strings.ContainsAny(id, "/.\x00 \n") || len(id) > maxIDLength) {
			t.Errorf("%q is valid", id)
		}
	})
}

// FuzzLoad loads files with arbitrary contents. The record is loaded, or reported as not
// valid. A loaded record is equal after it is saved and loaded again.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("{\n  \"Phase\": \"ready\",\n  \"Size\": 4194304\n}\n"))
	f.Add([]byte("{\"Size\": -1}"))
	f.Add([]byte("{\"Phase\": \"ready\""))
	f.Add([]byte("null"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		store := openIn(t, filepath.Join(t.TempDir(), "records"))
		if err := os.WriteFile(filepath.Join(store.Dir(), "volume-0-1.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		var got testRecord
		err := store.Load("volume-0-1", &got)
		if err != nil {
			if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), store.Dir()) {
				t.Errorf("error %v: want one that is not valid and names the file", err)
			}
			return
		}
		if err := store.Save("volume-0-1", got); err != nil {
			t.Fatal(err)
		}
		var again testRecord
		if err := store.Load("volume-0-1", &again); err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("loaded %+v, saved and loaded again %+v, %v", got, again, err)
		}
	})
}
