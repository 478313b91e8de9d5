package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/juju/errors"
	"github.com/theory/jsonpath"

	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// jsonPathPrefix begins the value of -o that selects parts of the JSON.
const jsonPathPrefix = "jsonpath="

// jsonPathWriter returns the function that writes what a JSONPath (RFC 9535) selects in the list that -o json
// writes: a line for each, text as it is, and everything else as JSON.
func jsonPathWriter[T any](query string) (func(io.Writer, []T) error, error) {
	path, err := jsonpath.Parse(query)
	if err != nil {
		return nil, errors.WithType(errors.Errorf(
			"-o %s%s: %s: write a path as in RFC 9535 into the list that -o json writes, such as '$[*].name'", jsonPathPrefix, query, err), errUsage)
	}
	return func(out io.Writer, rows []T) error {
		text, err := encodeJSON(orEmpty(rows))
		if err != nil {
			return errors.Trace(err)
		}
		var list any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber() // large numbers stay as they are
		if err := decoder.Decode(&list); err != nil {
			return errors.Trace(err)
		}
		for node := range path.Select(list).All() {
			line, ok := node.(string)
			if !ok {
				encoded, err := json.Marshal(node)
				if err != nil {
					return errors.Trace(err)
				}
				line = string(encoded)
			}
			if _, err := fmt.Fprintln(out, table.Escape(line)); err != nil {
				return errors.Trace(err)
			}
		}
		return nil
	}, nil
}
