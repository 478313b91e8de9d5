package record

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// slotSize is a page: a write of it is seen by other processes as a whole, and is
// there as a whole when the writer is killed.
const slotSize = 4096

// version is a record at a time.
type version struct {
	// seq is larger the younger the version is.
	seq uint64
	// lasting: a power cut does not take it back.
	lasting bool
	text    []byte
}

// The last line of a slot tells which version it holds, and that it holds all of
// it.
const (
	trailer     = "# version %016x %s crc32 %08x\n"
	trailerSize = len("# version 0123456789abcdef lasting crc32 01234567\n")
	room        = slotSize - trailerSize
)

func (v version) trailer(sum uint32) string {
	lasts := "passing"
	if v.lasting {
		lasts = "lasting"
	}
	return fmt.Sprintf(trailer, v.seq, lasts, sum)
}

// encode returns the slot that holds the version, nil where it is too large.
func (v version) encode() []byte {
	if len(v.text) >= room {
		return nil
	}
	slot := bytes.Repeat([]byte{' '}, slotSize)
	copy(slot, v.text)
	slot[len(v.text)], slot[room-1] = '\n', '\n'
	copy(slot[room:], v.trailer(v.sum()))
	return slot
}

// sum returns the checksum of the version.
func (v version) sum() uint32 {
	return crc32.ChecksumIEEE(append([]byte(v.trailer(0)), v.text...))
}

// decodeSlot returns the version that a slot holds, or false if the slot was never
// written, or written only in part.
func decodeSlot(slot []byte) (version, bool) {
	end := string(slot[room:])
	if !strings.HasPrefix(end, "# version ") {
		return version{}, false
	}
	fields := strings.Fields(end)
	length := bytes.IndexByte(slot[:room], '\n') // JSON has none
	if len(fields) != 6 || length < 0 {
		return version{}, false
	}
	seq, err := strconv.ParseUint(fields[2], 16, 64)
	v := version{seq: seq, lasting: fields[3] == "lasting", text: slot[:length]}
	return v, err == nil && v.trailer(v.sum()) == end
}

// slots are the two versions that a file holds. A missing one is nil.
type slots [2]*version

// decodeSlots returns the versions in a file; none in one that has no slots.
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

// newest returns the slot of the youngest version, or -1 if both are missing.
func (s slots) newest() int {
	switch {
	case s[0] == nil && s[1] == nil:
		return -1
	case s[1] == nil, s[0] != nil && s[0].seq > s[1].seq:
		return 0
	}
	return 1
}

// next returns the slot that the next version goes to: not that of the youngest
// lasting one, which must stay until the next one lasts.
func (s slots) next() int {
	newest := s.newest()
	other := 1 - newest
	if !s[newest].lasting && s[other] != nil && s[other].lasting {
		return newest
	}
	return other
}
