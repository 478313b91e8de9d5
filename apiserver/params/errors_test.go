//lint:file-ignore SA1019 These are the functions that callers of the contract use.

package params_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
)

// codedError is an error of another package that carries a code.
type codedError struct{ code string }

func (e codedError) Error() string     { return "coded" }
func (e codedError) ErrorCode() string { return e.code }

func TestErrCodeSeesThroughWrapping(t *testing.T) {
	for _, coded := range []error{
		&params.Error{Message: "m", Code: "c"},
		params.Error{Message: "m", Code: "c"},
		codedError{"c"},
	} {
		for _, err := range []error{
			coded,
			errors.Trace(coded),
			errors.Annotate(errors.Annotate(coded, "one"), "two"),
			fmt.Errorf("one: %w", coded),
			errors.Annotate(fmt.Errorf("one: %w", errors.Trace(coded)), "two"),
			errors.Wrap(errors.New("hidden"), coded),
		} {
			if got := params.ErrCode(err); got != "c" {
				t.Errorf("%v: got code %q", err, got)
			}
		}
	}
	for _, err := range []error{nil, errors.New("plain"), errors.NotFoundf("volume")} {
		if got := params.ErrCode(err); got != "" {
			t.Errorf("%v: got code %q", err, got)
		}
	}
}

func TestIsCode(t *testing.T) {
	predicates := map[string]func(error) bool{
		"not found":           params.IsCodeNotFound,
		"not provisioned":     params.IsCodeNotProvisioned,
		"unauthorized access": params.IsCodeUnauthorized,
		"not implemented":     params.IsCodeNotImplemented,
		"not supported":       params.IsCodeNotSupported,
		"not valid":           params.IsCodeNotValid,
		"already exists":      params.IsCodeAlreadyExists,
		"try again":           params.IsCodeTryAgain,
		"storage is attached": params.IsCodeStorageAttached,
		"dead":                params.IsCodeDead,
		"stopped":             params.IsCodeStopped,
	}
	for code, is := range predicates {
		for other := range predicates {
			err := errors.Trace(&params.Error{Message: "m", Code: other})
			if got, want := is(err), other == code; got != want {
				t.Errorf("IsCode for %q on %q: got %t", code, other, got)
			}
		}
		if is(nil) {
			t.Errorf("IsCode for %q holds for nil", code)
		}
	}
}

// kinds lists the errors that have a code, and the predicates by which a receiver recognizes
// them.
var kinds = []struct {
	err  error
	code string
	is   func(error) bool
}{
	{errors.NotFoundf("volume 1"), params.CodeNotFound, errors.IsNotFound},
	{errors.NotProvisionedf("machine 1"), params.CodeNotProvisioned, errors.IsNotProvisioned},
	{errors.Unauthorizedf("you"), params.CodeUnauthorized, errors.IsUnauthorized},
	{errors.NotImplementedf("import"), params.CodeNotImplemented, errors.IsNotImplemented},
	{errors.NotSupportedf("release"), params.CodeNotSupported, errors.IsNotSupported},
	{errors.NotValidf("size"), params.CodeNotValid, errors.IsNotValid},
	{errors.AlreadyExistsf("pool"), params.CodeAlreadyExists, errors.IsAlreadyExists},
	{errors.NewNotYetAvailable(nil, "device"), params.CodeTryAgain, errors.IsNotYetAvailable},
}

func TestErrorKindsRoundTrip(t *testing.T) {
	for _, kind := range kinds {
		for _, err := range []error{kind.err, errors.Trace(kind.err), errors.Annotate(kind.err, "reading")} {
			wire := params.ServerError(err)
			if wire.Code != kind.code || wire.Message != err.Error() {
				t.Errorf("%v: got %+v, want code %q", err, wire, kind.code)
			}
			back := params.TranslateWellKnownError(wire)
			if !kind.is(back) || !kind.is(errors.Annotate(back, "asking")) {
				t.Errorf("%v: %v is not of the same kind", err, back)
			}
			if back.Error() != err.Error() {
				t.Errorf("got text %q, want %q", back, err)
			}
			if params.ErrCode(back) != kind.code {
				t.Errorf("%v: code is %q after translation", back, params.ErrCode(back))
			}
			for _, other := range kinds {
				if other.code != kind.code && other.is(back) {
					t.Errorf("%v is also %q", back, other.code)
				}
			}
		}
	}
}

func TestServerErrorOfNilAndOfUnknown(t *testing.T) {
	if got := params.ServerError(nil); got != nil {
		t.Errorf("nil: got %+v", got)
	}
	got := params.ServerError(errors.New("disk full"))
	if want := (&params.Error{Message: "disk full"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	got = params.ServerError(errors.Trace(codedError{"odd"}))
	if want := (&params.Error{Message: "coded", Code: "odd"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestServerErrorKeepsAWireError(t *testing.T) {
	wire := &params.Error{Message: "gone", Code: params.CodeDead, Info: map[string]any{"since": "monday"}}
	if got := params.ServerError(wire); got != wire {
		t.Errorf("got %+v", got)
	}
	if got := params.ServerError(errors.Trace(wire)); got != wire {
		t.Errorf("traced: got %+v", got)
	}
	// A wire error that a hop has translated goes over the next wire unchanged.
	notFound := &params.Error{Message: "no volume", Code: params.CodeNotFound}
	if got := params.ServerError(params.TranslateWellKnownError(notFound)); got != notFound {
		t.Errorf("translated: got %+v", got)
	}
	got := params.ServerError(errors.Annotate(wire, "reading"))
	want := &params.Error{Message: "reading: gone", Code: params.CodeDead, Info: wire.Info}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("annotated: got %+v, want %+v", got, want)
	}
}

func TestTranslateLeavesOtherErrors(t *testing.T) {
	if got := params.TranslateWellKnownError(nil); got != nil {
		t.Errorf("nil: got %v", got)
	}
	for _, err := range []error{
		errors.New("disk full"),
		&params.Error{Message: "gone", Code: params.CodeDead},
		&params.Error{Message: "no code"},
	} {
		if got := params.TranslateWellKnownError(err); got != err {
			t.Errorf("%v: got %#v", err, got)
		}
	}
}

func ExampleTranslateWellKnownError() {
	// The state answers over the wire …
	wire := params.ServerError(errors.NotFoundf("volume 7"))
	fmt.Println(wire.Code)

	// … and the caller has its error kinds back.
	err := params.TranslateWellKnownError(wire)
	fmt.Println(err, errors.Is(err, errors.NotFound))
	// Output:
	// not found
	// volume 7 not found true
}
