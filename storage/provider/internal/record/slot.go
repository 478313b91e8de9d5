package record

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// slotSize is the size of a page: other processes see a write of a page as a whole, and it is
// complete even if the writer is killed.
const slotSize = 4096

// version is one version of a record.
type version struct {
	// seq increases with each version.
	seq uint64
	// lasting: a power cut does not undo the version.
	lasting bool
	text    []byte
}

// The last line of a slot identifies its version and proves that the slot is complete.
const (
	trailer     = "# version %016x %s crc32 %08x\n"
	trailerSize = len("# version 0123456789abcdef lasting crc32 01234567\n")
	capacity    = slotSize - trailerSize
)

func (v version) trailer(sum uint32) string {
	lasts := "passing"
	if v.lasting {
		lasts = "lasting"
	}
	return fmt.Sprintf(trailer, v.seq, lasts, sum)
}

// encode returns the slot for the version, or nil if the version is too large.
func (v version) encode() []byte {
	if len(v.text) >= capacity {
		return nil
	}
	slot := bytes.Repeat([]byte{' '}, slotSize)
	copy(slot, v.text)
	slot[len(v.text)], slot[capacity-1] = '\n', '\n'
	copy(slot[capacity:], v.trailer(v.sum()))
	return slot
}

// sum returns the checksum of the version.
func (v version) sum() uint32 {
	return crc32.ChecksumIEEE(append([]byte(v.trailer(0)), v.text...))
}

// decodeSlot returns the version in a slot, or false if the slot was never written, or written
// only in part.
func decodeSlot(slot []byte) (version, bool) {
	end := string(slot[capacity:])
	if !strings.HasPrefix(end, "# version ") {
		return version{}, false
	}
	fields := strings.Fields(end)
	length := bytes.IndexByte(slot[:capacity], '\n') // JSON contains no newline
	if len(fields) != 6 || length < 0 {
		return version{}, false
	}
	seq, err := strconv.ParseUint(fields[2], 16, 64)
	v := version{seq: seq, lasting: fields[3] == "lasting", text: slot[:length]}
	return v, err == nil && v.trailer(v.sum()) == end
}

// slots are the two versions in a file. A missing one is nil.
type slots [2]*version

// decodeSlots returns the versions in a file. Both are missing if the file has no slots.
func decodeSlots(file []byte) slots {
	var s slots
	if len(file) != len(s)*slotSize {
		return s
	}
	for i := range s {
		if v, ok := decodeSlot(file[i*slotSize:][:slotSize]); ok {
			s[i] = &v
		}
	}
	return s
}

// newest returns the index of the newest version, or -1 if both are missing.
func (s slots) newest() int {
	switch {
	case s[0] == nil && s[1] == nil:
		return -1
	case s[1] == nil, s[0] != nil && s[0].seq > s[1].seq:
		return 0
	}
	return 1
}

// next returns the index of the slot for the next version. It is never that of the newest
// lasting version, which must stay until the next one lasts.
func (s slots) next() int {
	newest := s.newest()
	other := 1 - newest
	if !s[newest].lasting && s[other] != nil && s[other].lasting {
		return newest
	}
	return other
}
