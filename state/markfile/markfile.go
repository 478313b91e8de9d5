// Package markfile keeps the mark of a state in a small file beside the state file.
//
// The file has two slots. A mark overwrites the older slot in place, with one sync, and each
// slot has a checksum: so a write that a crash interrupts leaves the former mark intact, and
// no write needs more disk space than the file has.
package markfile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state"
)

const (
	fileMode fs.FileMode = 0o600

	// slotSize is a multiple of the sizes that disks write atomically.
	slotSize = 4096
	slots    = 2

	// newSuffix is the suffix of a new file, which gets the mark file's name when it is
	// complete.
	newSuffix = ".new"
)

// ErrDamaged is the error for a file without an intact mark.
const ErrDamaged = errors.ConstError("the mark file is damaged")

// File implements [state.Marks]. Its methods are safe for concurrent use, in one process.
type File struct {
	path string
	mu   sync.Mutex
}

var _ state.Marks = (*File)(nil)

// New returns the mark file at path. The file is created when the first mark is written.
func New(path string) *File { return &File{path: path} }

// record is the JSON in a slot.
type record struct {
	// Sequence numbers the writes, from 1. The slot with the highest is current.
	Sequence   uint64  `json:"sequence"`
	UUID       string  `json:"uuid"`
	Generation uint64  `json:"generation"`
	Before     numbers `json:"before"`
	After      numbers `json:"after"`
}

type numbers struct {
	Volume     uint64 `json:"volume"`
	Filesystem uint64 `json:"filesystem"`
	Machine    uint64 `json:"machine,omitempty"`
}

func newRecord(sequence uint64, mark state.Mark) record {
	return record{sequence, mark.UUID, mark.Generation, numbers(mark.Before), numbers(mark.After)}
}

func (r record) mark() state.Mark {
	return state.Mark{
		UUID: r.UUID, Generation: r.Generation,
		Before: state.Numbers(r.Before), After: state.Numbers(r.After),
	}
}

// Read implements [state.Marks]. If the file has no intact mark, the error satisfies
// errors.Is(err, [ErrDamaged]).
func (f *File) Read() (state.Mark, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.open(os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return state.Mark{}, false, nil
	}
	if err != nil {
		return state.Mark{}, false, err
	}
	defer file.Close()
	newest, _, err := f.newest(file)
	if err != nil {
		return state.Mark{}, false, err
	}
	return newest.mark(), true, nil
}

// Write implements [state.Marks].
func (f *File) Write(mark state.Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.open(os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return f.replace(mark)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	newest, slot, err := f.newest(file)
	if err != nil {
		return err
	}
	data, err := encode(newRecord(newest.Sequence+1, mark))
	if err == nil {
		_, err = file.WriteAt(data, int64(1-slot)*slotSize)
	}
	if err == nil {
		err = fsync.Data(file)
	}
	return errors.Annotatef(err, "writing %s", f.path)
}

// Replace writes the mark to a new file and replaces the existing one, even if that is
// damaged.
func (f *File) Replace(mark state.Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replace(mark)
}

func (f *File) replace(mark state.Mark) error {
	newPath := f.path + newSuffix
	data, err := encode(newRecord(1, mark))
	if err == nil {
		err = writeNew(newPath, append(data, make([]byte, slotSize)...))
	}
	if err == nil {
		err = os.Rename(newPath, f.path)
	}
	if err == nil {
		err = fsync.Dir(filepath.Dir(f.path))
	}
	return errors.Annotatef(err, "writing %s", f.path)
}

func (f *File) open(flag int) (*os.File, error) {
	file, err := os.OpenFile(f.path, flag|noFollow, 0)
	return file, errors.Annotate(err, "opening the mark file")
}

// newest returns the intact record with the highest sequence number, and its slot.
func (f *File) newest(file *os.File) (newest record, slot int, err error) {
	data := make([]byte, slots*slotSize)
	n, err := file.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return record{}, 0, errors.Annotatef(err, "reading %s", f.path)
	}
	if n == len(data) {
		for i := range slots {
			if r, ok := decode(data[i*slotSize:][:slotSize]); ok && r.Sequence > newest.Sequence {
				newest, slot = r, i
			}
		}
	}
	if newest.Sequence == 0 {
		return record{}, 0, errors.WithType(errors.Errorf(
			"%s is damaged: it has no intact mark; run \"stowage recover\", or \"stowage restore FILE\" with a backup", f.path), ErrDamaged)
	}
	return newest, slot, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A slot has two lines, padded with zeros: the record, and the checksum of its line.

func encode(r record) ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, errors.Trace(err)
	}
	data = append(data, '\n')
	data = append(data, checksum(data)...)
	data = append(data, '\n')
	if len(data) > slotSize {
		return nil, errors.NotValidf("mark of %d bytes", len(data))
	}
	return append(data, make([]byte, slotSize-len(data))...), nil
}

func decode(slot []byte) (r record, ok bool) {
	end := bytes.IndexByte(slot, '\n') + 1
	line, rest := slot[:end], slot[end:]
	sum := checksum(line)
	if end == 0 || len(rest) <= len(sum) || !bytes.Equal(rest[:len(sum)], sum) {
		return record{}, false
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return record{}, false
	}
	return r, true
}

func checksum(line []byte) []byte {
	return hex.AppendEncode(nil, binary.BigEndian.AppendUint32(nil, crc32.Checksum(line, castagnoli)))
}

// writeNew writes a file. It overwrites a leftover of an earlier attempt.
func writeNew(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|noFollow, fileMode)
	if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	if _, err := file.Write(data); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(fsync.File(file))
}
