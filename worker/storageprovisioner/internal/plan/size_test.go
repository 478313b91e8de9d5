package plan

import (
	"testing"
	"unsafe"
)

// There may be millions of entities at rest: one byte more, and each takes the next larger
// size class of the allocator.
func TestEntitySize(t *testing.T) {
	if size := unsafe.Sizeof(entity{}); size > 128 {
		t.Errorf("an entity has %d bytes", size)
	}
	if size := unsafe.Sizeof(common{}); size > 96 {
		t.Errorf("what a volume shares with its attachments has %d bytes", size)
	}
	if size := unsafe.Sizeof(work{}); size > 112 {
		t.Errorf("what there is to do about an entity has %d bytes", size)
	}
}
