package state

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestRecordsComeBackWhole fills every field that a record has, at any depth: one that
// a record's description leaves out comes back empty.
func TestRecordsComeBackWhole(t *testing.T) {
	comesBack[instance](t)
	comesBack[indexEntry](t)
	comesBack[machineRecord](t)
	comesBack[poolRecord](t)
	comesBack[environRecord](t)
	comesBack[devicesRecord](t)
	comesBack[history](t)
	comesBack[counter](t)
}

func comesBack[T any, P coded[T]](t *testing.T) {
	t.Helper()
	for _, filled := range []bool{false, true} {
		var record T
		if filled {
			fill(t, reflect.ValueOf(&record).Elem())
		}
		data, err := encode[T, P](&record)
		if err != nil {
			t.Fatal(err)
		}
		switch got, err := decode[T, P](string(data)); {
		case err != nil && filled:
			t.Errorf("%T: %v", record, err)
		case filled && !reflect.DeepEqual(got, record):
			t.Errorf("%T comes back as\n\t%+v\nwas\n\t%+v", record, got, record)
		}
		if _, err := decode[T, P](string(data) + "x"); err == nil {
			t.Errorf("%T with something more is read", record)
		}
		for n := range data {
			if _, err := decode[T, P](string(data[:n])); err == nil {
				t.Errorf("the first %d of %d bytes of %T are read", n, len(data), record)
			}
		}
	}
}

// fill sets what v has to values that are not zero.
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
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("text", 50))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint64:
		v.SetUint(1<<64 - 1)
	case reflect.Interface:
		v.Set(reflect.ValueOf("any"))
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

// FuzzDecode reads records that no store of ours has.
func FuzzDecode(f *testing.F) {
	f.Add("")
	f.Add("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
	f.Fuzz(func(t *testing.T, data string) {
		if i, err := decode[instance](data); err == nil {
			i.index(nil, "it")
			i.settle(time.Time{})
		}
		_, _ = decode[devicesRecord](data)
		_, _ = decode[history](data)
		_, _ = decode[poolRecord](data)
	})
}

// TestTagsAreReadAsNamesReadsThem compares with the package that tags come from.
func TestTagsAreReadAsNamesReadsThem(t *testing.T) {
	for _, test := range []struct{ text, scope, id string }{
		{"volume-0", environScope, "0"},
		{"volume-12-34", "machine-12", "12/34"},
		{"filesystem-0-lxd-1-2", "machine-0-lxd-1", "0/lxd/1/2"},
		{"filesystem-gitlab-0-3", environScope, "gitlab/0/3"},
		{"volume-00", "", ""},
		{"volume-1-2-3", "", ""},
		{"volume-1-", "", ""},
		{"volume-1-02", "", ""},
		{"volume-", "", ""},
		{"volume", "", ""},
		{"machine-0", "", ""},
		{"unit-gitlab-0", "", ""},
	} {
		tag, err := parseEntityTag(test.text)
		if (err == nil) != (test.id != "") {
			t.Errorf("%q: error is %v", test.text, err)
		}
		if err != nil {
			continue
		}
		if tag.scope() != test.scope || tag.id() != test.id || tag.tag().Id() != test.id || tag.tag().String() != test.text {
			t.Errorf("%q is %s of %s, and %s to package names", test.text, tag.id(), tag.scope(), tag.tag().Id())
		}
	}
}
