package state

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"math"

	"github.com/fxamacker/cbor/v2"
	"github.com/juju/errors"
)

// Records are kept as CBOR (RFC 8949), their fields under numbers. A number is never
// given to another field: a new field takes the next one, and older records are read as
// if it were zero there. All else that changes is a change of [schemaVersion].
//
// Behind the CBOR stands a checksum of it and of its key. What a disk has changed is not
// read, nor what belongs to another key.

// checksums is CRC-32C.
var checksums = crc32.MakeTable(crc32.Castagnoli)

// seal returns a record at key with its checksum.
func seal(key string, record []byte) []byte {
	sealed := make([]byte, len(record), len(record)+crc32.Size)
	copy(sealed, record)
	return binary.BigEndian.AppendUint32(sealed, checksum(key, record))
}

// unseal returns a record without its checksum, and false if that is not the record's.
func unseal(key string, data []byte) (record []byte, ok bool) {
	end := len(data) - crc32.Size
	if end < 0 {
		return nil, false
	}
	return data[:end], binary.BigEndian.Uint32(data[end:]) == checksum(key, data[:end])
}

func checksum(key string, record []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(key), checksums), checksums, record)
}

// recordEncoding gives equal records equal bytes: whether a record has changed is seen
// by them.
var recordEncoding = must(cbor.EncOptions{
	Sort:        cbor.SortCoreDeterministic,
	Time:        cbor.TimeRFC3339NanoUTC,
	IndefLength: cbor.IndefLengthForbidden,
	TagsMd:      cbor.TagsForbidden,
}.EncMode())

// recordDecoding reads what recordEncoding writes, all of it, and little else. A field
// that is not known is refused, not ignored: the record would be written back without
// it. Names of devices and messages of programs need not be UTF-8, and come back as they
// are. Lists may be of any length: that all their elements are there is checked before
// the first is read.
var recordDecoding = must(cbor.DecOptions{
	DupMapKey:         cbor.DupMapKeyEnforcedAPF,
	ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
	IndefLength:       cbor.IndefLengthForbidden,
	TagsMd:            cbor.TagsForbidden,
	UTF8:              cbor.UTF8DecodeInvalid,
	MaxArrayElements:  math.MaxInt32,
	MaxMapPairs:       math.MaxInt32,
}.DecMode())

func must[M any](mode M, err error) M {
	if err != nil {
		panic(err) // the options above do not go together
	}
	return mode
}

// encode returns the form in which the record that a pointer leads to is kept.
func encode(record any) ([]byte, error) { return recordEncoding.Marshal(record) }

// decode reads all that there is, into a record that keeps nothing of data itself. A
// record with a method check is one only if that returns no error.
func decode[T any](data []byte) (record T, err error) {
	err = recordDecoding.Unmarshal(data, &record)
	if checked, ok := any(&record).(interface{ check() error }); ok && err == nil {
		err = checked.check()
	}
	return record, errors.Annotate(err, "the record is damaged")
}

// attributes are kept as JSON inside the record, so that their values come back as they
// do from JSON: all numbers as float64. Where there are none they come back as nil.
type attributes map[string]any

// IsZero has the encoding leave them out.
func (a attributes) IsZero() bool { return len(a) == 0 }

// MarshalBinary implements encoding.BinaryMarshaler. The error satisfies
// errors.IsNotValid.
func (a attributes) MarshalBinary() ([]byte, error) {
	data, err := json.Marshal(map[string]any(a))
	if err != nil {
		return nil, errors.NewNotValid(err, "attributes that cannot be kept as JSON")
	}
	return data, nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (a *attributes) UnmarshalBinary(data []byte) error {
	return json.Unmarshal(data, (*map[string]any)(a))
}

// counter is a record that is a number.
type counter uint64
