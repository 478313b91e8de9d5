package state

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"math"

	"github.com/fxamacker/cbor/v2"
	"github.com/juju/errors"
)

// Records are stored as CBOR (RFC 8949), with numbers as keys of their fields. A number is
// never reused for another field: a new field takes the next one, and is zero when an older
// record is read. Every other change of format is a change of [SchemaVersion].
//
// A checksum of the CBOR and of its key follows the CBOR. So a record that the disk has
// changed is not accepted, nor one that belongs to another key.

// checksums is the table of CRC-32C.
var checksums = crc32.MakeTable(crc32.Castagnoli)

// seal returns a record at key with its checksum.
func seal(key string, record []byte) []byte {
	sealed := make([]byte, len(record), len(record)+crc32.Size)
	copy(sealed, record)
	return binary.BigEndian.AppendUint32(sealed, checksum(key, record))
}

// unseal returns a record without its checksum; ok is false if the checksum does not match.
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

// recordEncoding encodes equal records to equal bytes, by which a change of a record is
// detected.
var recordEncoding = must(cbor.EncOptions{
	Sort:        cbor.SortCoreDeterministic,
	Time:        cbor.TimeRFC3339NanoUTC,
	IndefLength: cbor.IndefLengthForbidden,
	TagsMd:      cbor.TagsForbidden,
}.EncMode())

// recordDecoding accepts what recordEncoding writes and little else. It refuses an unknown
// field rather than ignore it: the record would be written back without the field. Device
// names and the messages of programs need not be UTF-8, and are read back unchanged. Lists may
// have any length: the decoder checks that all their elements are present before it reads the
// first.
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
		panic(err) // the options above are inconsistent
	}
	return mode
}

// encode returns the stored form of the record that the pointer refers to.
func encode(record any) ([]byte, error) { return recordEncoding.Marshal(record) }

// decode decodes all of data into a record that does not alias data. If the record has a check
// method, that must succeed.
func decode[T any](data []byte) (record T, err error) {
	err = recordDecoding.Unmarshal(data, &record)
	if checked, ok := any(&record).(interface{ check() error }); ok && err == nil {
		err = checked.check()
	}
	return record, errors.Annotate(err, "the record is damaged")
}

// attributes are stored as JSON inside the record, so that their values are read back as from
// JSON: all numbers as float64. Empty attributes are read back as nil.
type attributes map[string]any

// IsZero makes the encoding omit empty attributes.
func (a attributes) IsZero() bool { return len(a) == 0 }

// MarshalBinary implements encoding.BinaryMarshaler. The error satisfies
// errors.IsNotValid.
func (a attributes) MarshalBinary() ([]byte, error) {
	data, err := json.Marshal(map[string]any(a))
	if err != nil {
		return nil, errors.NewNotValid(err, "attributes cannot be stored as JSON")
	}
	return data, nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (a *attributes) UnmarshalBinary(data []byte) error {
	return json.Unmarshal(data, (*map[string]any)(a))
}

// counter is a record that is a number.
type counter uint64
