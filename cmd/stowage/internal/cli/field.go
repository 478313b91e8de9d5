package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/juju/errors"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

func addField(cmd *cobra.Command, field *string) {
	cmd.Flags().StringVar(field, "field", "", "write only this field of the JSON, such as size-mib, labels.tier or attachments.0.machine: a line for each storage instance")
	cmd.MarkFlagsMutuallyExclusive("field", "output")
}

// fieldWriter returns the function that writes one field of each value on a line: text as it is, and everything
// else as JSON. path has the names of fields in JSON, the keys of maps and the positions in lists, separated by
// dots. A text, list or object that JSON omits is an empty line.
func fieldWriter[T any](path string) (func(io.Writer, []T) error, error) {
	var none T
	if _, err := fieldOf(reflect.TypeOf(none), reflect.Value{}, path); err != nil {
		return nil, errors.WithType(errors.Annotatef(err, "--field %s", path), errUsage)
	}
	return func(out io.Writer, rows []T) error {
		for _, row := range rows {
			text, err := fieldOf(reflect.TypeOf(row), reflect.ValueOf(row), path)
			if err != nil {
				return errors.Trace(err)
			}
			if _, err := fmt.Fprintln(out, table.Escape(text)); err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	}, nil
}

// fieldOf returns the text of a field of a value, or "" if the value is not valid or does not have it. It returns
// an error if no value of the type can have it.
func fieldOf(t reflect.Type, v reflect.Value, path string) (string, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
		if v.IsValid() {
			v = v.Elem()
		}
	}
	if path == "" {
		return fieldText(v)
	}
	name, rest, _ := strings.Cut(path, ".")
	switch t.Kind() {
	case reflect.Struct:
		var known []string
		for i := range t.NumField() {
			key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if key == name && key != "" {
				if v.IsValid() {
					v = v.Field(i)
				}
				return fieldOf(t.Field(i).Type, v, rest)
			}
			if key != "" {
				known = append(known, key)
			}
		}
		if len(known) > 0 {
			return "", errors.Errorf("there is no %q: choose from %s", name, strings.Join(known, ", "))
		}
	case reflect.Map: // the key may have dots
		if v.IsValid() {
			v = v.MapIndex(reflect.ValueOf(path))
		}
		return fieldOf(t.Elem(), v, "")
	case reflect.Slice:
		n, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			return "", errors.Errorf("%q is not a position in a list: write a number from 0", name)
		}
		if v.IsValid() && int(n) < v.Len() {
			v = v.Index(int(n))
		} else {
			v = reflect.Value{}
		}
		return fieldOf(t.Elem(), v, rest)
	}
	return "", errors.Errorf("there is no %q in a value without fields", name)
}

func fieldText(v reflect.Value) (string, error) {
	switch {
	case !v.IsValid(), v.Kind() != reflect.Bool && v.Kind() != reflect.Int && v.Kind() != reflect.Uint64 && v.IsZero():
		return "", nil
	case v.Kind() == reflect.String:
		return v.String(), nil
	}
	text, err := json.Marshal(v.Interface())
	if err != nil {
		return "", errors.Trace(err)
	}
	var quoted string // such as a time
	if json.Unmarshal(text, &quoted) == nil {
		return quoted, nil
	}
	return string(text), nil
}
