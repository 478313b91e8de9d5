package server

import (
	"strings"
	"testing"
)

// A state that several servers have is not migrated while one of them may be too old for that.
func TestMigrationNeedsAllOtherServersToBeStopped(t *testing.T) {
	own := running{"x", 7, "own-1"}
	for _, alone := range [][]running{nil, {own}} {
		if err := checkAlone(5, "own-1", alone); err != nil {
			t.Errorf("with %v: %v", alone, err)
		}
	}
	err := checkAlone(5, "own-1", []running{{"y", 7, "a-2"}, own, {id: "b3"}})
	if err == nil || !strings.Contains(err.Error(), "it has schema 5") || !strings.Contains(err.Error(), "older: a-2, b3: stop all servers of the older version") {
		t.Errorf("with others: %v", err)
	}
}
