package asked_test

import (
	"encoding/json"
	"syscall"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
)

// What callers tell errors by survives the way to an agent.
func TestErrorsOnTheWire(t *testing.T) {
	for _, test := range []struct{ err, is error }{
		{errors.Annotate(errors.WithType(errors.New("full"), asked.ErrNoSpace), "growing"), asked.ErrNoSpace},
		{errors.Annotate(syscall.ENOSPC, "writing"), asked.ErrNoSpace},
		{errors.WithType(errors.New("there"), asked.ErrElsewhere), asked.ErrElsewhere},
		{errors.NotFoundf("it"), errors.NotFound},
		{errors.NotValidf("it"), errors.NotValid},
		{errors.NotYetAvailablef("it"), errors.NotYetAvailable},
		{errors.AlreadyExistsf("it"), errors.AlreadyExists},
	} {
		data, err := json.Marshal(asked.WireError(test.err))
		if err != nil {
			t.Fatal(err)
		}
		var wire params.Error
		if err := json.Unmarshal(data, &wire); err != nil {
			t.Fatal(err)
		}
		if got := asked.ParseError(&wire); !errors.Is(got, test.is) || got.Error() != test.err.Error() {
			t.Errorf("%v arrives as %v", test.err, got)
		}
	}
	if asked.WireError(nil) != nil || asked.ParseError(nil) != nil {
		t.Error("no error becomes one")
	}
}
