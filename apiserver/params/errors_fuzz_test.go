package params_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
)

// FuzzErrors sends errors over the wire and back. They keep their message and code, and the
// kinds that errors.Is finds.
func FuzzErrors(f *testing.F) {
	for _, code := range []string{
		params.CodeNotFound, params.CodeNotProvisioned, params.CodeUnauthorized, params.CodeNotImplemented, params.CodeNotSupported,
		params.CodeNotValid, params.CodeAlreadyExists, params.CodeTryAgain, params.CodeStorageAttached, params.CodeDead, "", "odd",
	} {
		f.Add("message", code, "while trying")
	}
	f.Fuzz(func(t *testing.T, message, code, doing string) {
		if !utf8.ValidString(message) || !utf8.ValidString(code) || !utf8.ValidString(doing) {
			t.Skip("not for JSON")
		}
		wire := &params.Error{Message: message, Code: code}
		for range 3 {
			err := params.TranslateWellKnownError(wire)
			if err.Error() != message || params.ErrCode(err) != code {
				t.Fatalf("%q with code %q is translated to %q with code %q", message, code, err, params.ErrCode(err))
			}
			for kind, own := range map[error]string{
				errors.NotFound: params.CodeNotFound, errors.NotProvisioned: params.CodeNotProvisioned, errors.Unauthorized: params.CodeUnauthorized,
				errors.NotImplemented: params.CodeNotImplemented, errors.NotSupported: params.CodeNotSupported, errors.NotValid: params.CodeNotValid,
				errors.AlreadyExists: params.CodeAlreadyExists, errors.NotYetAvailable: params.CodeTryAgain,
			} {
				if errors.Is(err, kind) != (code == own) {
					t.Fatalf("code %q is of kind %q: %t", code, kind, errors.Is(err, kind))
				}
			}
			annotated := errors.Annotate(err, doing)
			wire = params.ServerError(annotated)
			if wire.Message != annotated.Error() || wire.Code != code {
				t.Fatalf("%q with code %q goes over the wire as %+v", annotated, code, wire)
			}
			data, err := json.Marshal(wire)
			if err != nil {
				t.Fatal(err)
			}
			wire = new(params.Error)
			if err := json.Unmarshal(data, wire); err != nil {
				t.Fatal(err)
			}
			message = annotated.Error()
		}
	})
}
