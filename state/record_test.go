package state

import (
	"bytes"
	"maps"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// TestRecordsRoundTrip fills every field of each record, at any depth: a field that is not
// encoded comes back empty.
func TestRecordsRoundTrip(t *testing.T) {
	checkRoundTrip[instance](t)
	checkRoundTrip[indexEntry](t)
	checkRoundTrip[machineRecord](t)
	checkRoundTrip[spaceRecord](t)
	checkRoundTrip[poolRecord](t)
	checkRoundTrip[environRecord](t)
	checkRoundTrip[devicesRecord](t)
	checkRoundTrip[eventsRecord](t)
	checkRoundTrip[counter](t)
	checkRoundTrip[identity](t)
	checkRoundTrip[Fingerprint](t)
	checkRoundTrip[copyRecord](t)
	checkRoundTrip[importNote](t)
	checkRoundTrip[claimRecord](t)
}

func checkRoundTrip[T any](t *testing.T) {
	t.Helper()
	var record T
	fill(t, reflect.ValueOf(&record).Elem())
	data, err := encode(&record)
	if err != nil {
		t.Fatal(err)
	}
	switch got, err := decode[T](data); {
	case err != nil:
		t.Errorf("%T: %v", record, err)
	case !reflect.DeepEqual(got, record):
		t.Errorf("%T comes back as\n\t%+v\nwas\n\t%+v", record, got, record)
	}
	if _, err := decode[T](append(data, 0)); err == nil {
		t.Errorf("%T is decoded with an extra byte", record)
	}
	for n := range data {
		if _, err := decode[T](data[:n]); err == nil {
			t.Errorf("the first %d of %d bytes of %T are decoded", n, len(data), record)
		}
	}
}

// fill sets v to a value without zero fields; some strings are not UTF-8.
func fill(t *testing.T, v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(1969, 2, 3, 4, 5, 6, 7, time.UTC)))
		return
	case entityTag:
		v.SetString("volume-0-lxd-1-2")
		return
	case machineTag:
		v.SetString("machine-0-lxd-1")
		return
	case attributes:
		v.Set(reflect.ValueOf(attributes{
			"text": "text", "flag": true, "none": nil, "number": 1.0, "fraction": 0.1,
			"list": []any{"one", 2.0}, "map": map[string]any{"three": 3.0},
		}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("text\xff", 50))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8:
		v.SetUint(math.MaxUint8)
	case reflect.Uint64:
		v.SetUint(math.MaxUint64)
	case reflect.Int64:
		v.SetInt(math.MinInt64)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0))
		fill(t, v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key)
		fill(t, value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	default:
		t.Fatalf("no value is known for %s", v.Type())
	}
}

// TestAttributesRoundTripAsJSON encodes values that JSON has no type for, and one that it
// cannot encode.
func TestAttributesRoundTripAsJSON(t *testing.T) {
	for _, test := range []struct{ attributes, want attributes }{
		{nil, nil},
		{attributes{}, nil},
		{attributes{"int": 1, "list": []string{"a"}}, attributes{"int": 1.0, "list": []any{"a"}}},
	} {
		data, err := encode(&environRecord{test.attributes})
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode[environRecord](data)
		if err != nil || !reflect.DeepEqual(got.Attributes, test.want) {
			t.Errorf("%#v comes back as %#v, %v", test.attributes, got.Attributes, err)
		}
	}
	if _, err := encode(&environRecord{attributes{"channel": make(chan int)}}); err == nil {
		t.Error("a value that JSON cannot encode is encoded")
	}
}

// TestManyDevicesDecode exceeds the default limit of the CBOR library of 131,072 elements in
// a list.
func TestManyDevicesDecode(t *testing.T) {
	devices := make(devicesRecord, 1<<18)
	data, err := encode(&devices)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decode[devicesRecord](data); err != nil || len(got) != len(devices) {
		t.Errorf("%d devices come back as %d, %v", len(devices), len(got), err)
	}
}

// TestDecodeErrors decodes instances that are valid CBOR, or nearly.
func TestDecodeErrors(t *testing.T) {
	type object = map[any]any
	entity := func(with object) object {
		e := object{1: "volume-0", 3: object{}, 8: "uuid"}
		maps.Copy(e, with)
		return object{10: e}
	}
	for _, test := range []struct {
		name   string
		record any
		error  string // empty if the record is valid
	}{
		{"whole", entity(nil), ""},
		{"nothing", nil, "neither volume nor filesystem"},
		{"no entity", object{1: "block"}, "neither volume nor filesystem"},
		{"a list", []any{"block"}, "cannot unmarshal array"},
		{"another type", object{1: 1}, "field state.instance.1"},
		{"a number that is not a size", object{4: -1}, "field state.instance.4"},
		{"a field of newer code", object{99: 1}, "unknown field"},
		{"no tag", entity(object{1: ""}), `"" is not a valid tag`},
		{"a tag of no volume", entity(object{1: "machine-0"}), "machine 0 is neither a volume nor a filesystem"},
		{"no UUID", entity(object{8: ""}), "volume 0 has no UUID"},
		{"imported without info", entity(object{5: true}), "volume 0 is imported and not provisioned"},
		{"attached to no machine", entity(object{6: object{}}), `"" is not a valid tag`},
		{"attributes that are not JSON", object{5: []byte("{")}, "unexpected end of JSON input"},
		{"an invalid time", entity(object{3: object{3: "now"}}), "time.Time"},
		{"a tag of CBOR", object{1: cbor.Tag{Number: 1, Content: 1}}, "tag"},
		{"a field twice", cbor.RawMessage("\xa2\x01\x61a\x01\x61b"), "duplicate map key"},
		{"a length beyond the end", cbor.RawMessage("\x9b\x00\x00\x00\x00\x7f\xff\xff\xff"), "EOF"},
		{"indefinite length", cbor.RawMessage("\xbf\xff"), "indefinite-length"},
	} {
		t.Run(test.name, func(t *testing.T) {
			data, isRaw := test.record.(cbor.RawMessage)
			if !isRaw {
				var err error
				if data, err = cbor.Marshal(test.record); err != nil {
					t.Fatal(err)
				}
			}
			_, err := decodeAt[instance]("storage/it", seal("storage/it", data))
			switch {
			case test.error == "" && err != nil:
				t.Error(err)
			case test.error != "" && (err == nil ||
				!strings.HasPrefix(err.Error(), `decoding "storage/it" (`) || !strings.Contains(err.Error(), "the record is damaged: ") || !strings.Contains(err.Error(), test.error)):
				t.Errorf("got %v, want %q", err, test.error)
			}
		})
	}
}

// TestDecodeDetectsChangedRecord changes every bit of a record, truncates it, and reads it
// under another key.
func TestDecodeDetectsChangedRecord(t *testing.T) {
	data, err := encode(&indexEntry{Storage: "it", Size: 7})
	if err != nil {
		t.Fatal(err)
	}
	data = seal("scope/environ/volume/volume-0", data)
	refused := func(what, key string, data []byte) {
		t.Helper()
		switch _, err := decodeAt[indexEntry](key, data); {
		case err == nil:
			t.Errorf("%s is decoded", what)
		case !strings.Contains(err.Error(), strconv.Quote(key)) || !strings.Contains(err.Error(), "stowage restore") || !strings.Contains(err.Error(), "stowage recover"):
			t.Errorf("%s: the error does not name the key and the remedies: %v", what, err)
		}
	}
	refused("a record of another key", "scope/environ/volume/volume-1", data)
	for n := range data {
		refused("a shorter record", "scope/environ/volume/volume-0", data[:n])
		for bit := range 8 {
			changed := bytes.Clone(data)
			changed[n] ^= 1 << bit
			refused("a changed record", "scope/environ/volume/volume-0", changed)
		}
	}
	if _, err := decodeAt[indexEntry]("scope/environ/volume/volume-0", data); err != nil {
		t.Error(err)
	}
}

// FuzzDecode decodes arbitrary data. A decoded record can be used, and encoded.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte("\x9b\x7f\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("\xa1\x0a\xa4\x01\x68volume-0\x03\xa0\x06\xa1\x01\x69machine-0\x08\x64uuid"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if i, ok := checkDecode[instance](t, data); ok {
			i.index(nil, "it")
			for _, e := range i.entities() {
				_, _ = e.Tag.tag(), e.Tag.scope()
			}
			i.settle(time.Time{})
		}
		checkDecode[indexEntry](t, data)
		checkDecode[devicesRecord](t, data)
		checkDecode[eventsRecord](t, data)
		checkDecode[poolRecord](t, data)
	})
}

// checkDecode returns the decoded record, if the data is valid.
func checkDecode[T any](t *testing.T, data []byte) (record T, ok bool) {
	record, err := decode[T](data)
	if err != nil {
		return record, false
	}
	if _, err := encode(&record); err != nil {
		t.Errorf("%+v is decoded, and cannot be encoded: %v", record, err)
	}
	return record, true
}
