package boltkv_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/kv/kvtest"
)

// ownerEnv makes this binary run as a process that owns the store at the variable's value.
const ownerEnv = "BOLTKV_TEST_OWN"

func TestMain(m *testing.M) {
	if path := os.Getenv(ownerEnv); path != "" {
		own(path)
		return
	}
	leaktest.VerifyTestMain(m)
}

// own puts a key, reports it, and holds the store until it is killed or its input ends.
func own(path string) {
	store, err := boltkv.Open(path)
	if err != nil {
		panic(err)
	}
	err = store.Update(context.Background(), func(tx kv.Tx) error { return tx.Put("owner", []byte("x")) })
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString("ready\n")
	os.Stdin.Read(make([]byte, 1))
}

func TestConformance(t *testing.T) {
	kvtest.Suite{
		Open: func(dir string) (kv.Store, error) {
			return boltkv.Open(filepath.Join(dir, "store"))
		},
		Unconfirmed: unconfirmed,
	}.Run(t)
}

func TestKilledProcessLosesNoCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerEnv+"="+path)
	stdin, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}

	_, err = boltkv.Open(path)
	if !errors.Is(err, errors.Timeout) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "another process") {
		t.Errorf("opening a store of another process: %v", err)
	}

	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	store, err := boltkv.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	err = store.View(context.Background(), func(snapshot kv.Snapshot) error {
		value, err := snapshot.Get("owner")
		if string(value) != "x" {
			t.Errorf("the value committed before the kill is %q", value)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLockAllowsOnlyReading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	fill(t, path, 10)
	lock, err := boltkv.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	store, err := boltkv.OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	store.Close()
	opened := make(chan error)
	go func() {
		_, err := boltkv.Open(path)
		opened <- err
	}()
	if _, err := boltkv.Lock(path); !errors.Is(err, errors.Timeout) {
		t.Errorf("locking a locked store: %v", err)
	}
	if err := <-opened; !errors.Is(err, errors.Timeout) {
		t.Errorf("opening a locked store: %v", err)
	}
	lock.Close()
	if store, err = boltkv.Open(path); err != nil {
		t.Fatal(err)
	}
	store.Close()
}

// Promise S8.
func TestFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	for _, before := range []string{"made", "opened"} {
		store, err := boltkv.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		store.Close()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s: the file's mode is %v", before, info.Mode())
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenLeavesForeignFileUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes")
	content := strings.Repeat("not a store\n", 2000)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := boltkv.Open(path)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("opening a file that is not a store: %v", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != content {
		t.Errorf("the file was changed (%v)", err)
	}
}
