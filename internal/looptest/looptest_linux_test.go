package looptest_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stowage-io/stowage/internal/looptest"
)

// Concurrent calls of Attach each get a device of their own.
func TestConcurrentAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("loop devices need root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("loop devices need root")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const several, times = 4, 50
	var mu sync.Mutex
	attached := make(map[string]bool)
	use := func() {
		device, err := looptest.Attach(file)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		if attached[device] {
			t.Errorf("%s was given twice", device)
		}
		attached[device] = true
		mu.Unlock()

		mu.Lock()
		defer mu.Unlock()
		delete(attached, device)
		if err := looptest.Detach(device); err != nil {
			t.Error(err)
		}
	}
	var users sync.WaitGroup
	for range several {
		users.Go(func() {
			for range times {
				use()
			}
		})
	}
	users.Wait()
}
