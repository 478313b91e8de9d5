package plan

import (
	"testing"
	"unsafe"
)

// There may be millions at rest: one byte more, and each takes the next larger room that
// the allocator has.
func TestEntityFitsItsRoom(t *testing.T) {
	if size := unsafe.Sizeof(entity{}); size > 192 {
		t.Errorf("an entity has %d bytes", size)
	}
}
