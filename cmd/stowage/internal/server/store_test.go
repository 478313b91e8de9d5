package server

import (
	"strings"
	"testing"
)

// A state that several servers have is not migrated while one of them may be too old for that.
func TestMigrationNeedsAllOtherServersToBeStopped(t *testing.T) {
	for _, alone := range [][]string{nil, {"own-1"}} {
		if err := checkAlone(5, "own-1", alone); err != nil {
			t.Errorf("with %q: %v", alone, err)
		}
	}
	err := checkAlone(5, "own-1", []string{"a-2", "own-1", "b-3"})
	if err == nil || !strings.Contains(err.Error(), "it has schema 5") || !strings.Contains(err.Error(), "older: a-2, b-3: stop all servers of the older version") {
		t.Errorf("with others: %v", err)
	}
}
