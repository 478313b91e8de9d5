package plan

import (
	"testing"
	"unsafe"
)

// There may be millions of entities at rest: one byte more, and each takes the next larger
// size class of the allocator.
func TestEntitySize(t *testing.T) {
	if size := unsafe.Sizeof(entity{}); size > 192 {
		t.Errorf("an entity has %d bytes", size)
	}
}
