package user

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
)

// Problem is an error on the wire, as RFC 9457 defines it.
type Problem struct {
	// Status is that of the answer.
	Status int `json:"status"`
	// Title is the text of the status.
	Title string `json:"title"`
	// Detail is the text of the error.
	Detail string `json:"detail"`
	// Code is that of [params.Error], or the text of [ErrPrecondition] or [ErrGone]. It is empty for
	// errors that the server does not classify.
	Code string `json:"code,omitempty"`
	// Errors say which parts of a request are not valid, if Detail does not.
	Errors []InvalidField `json:"errors,omitempty"`
}

// InvalidField is a part of a request that is not valid.
type InvalidField struct {
	// Message says what is wrong with it.
	Message string `json:"message"`
	// Location is where it is, such as body.names[0].
	Location string `json:"location,omitempty"`
}

// NewProblem returns the form of an error on the wire.
func NewProblem(err error) *Problem {
	status := http.StatusInternalServerError
	wire := params.ServerError(err)
	for _, known := range []struct {
		kind   errors.ConstError
		status int
	}{
		{errors.NotValid, http.StatusBadRequest},
		{errors.NotFound, http.StatusNotFound},
		{errors.AlreadyExists, http.StatusConflict},
		{errors.NotSupported, http.StatusNotImplemented},
		{errors.NotYetAvailable, http.StatusServiceUnavailable},
		{errors.Unauthorized, http.StatusForbidden},
		{ErrPrecondition, http.StatusPreconditionFailed},
		{ErrGone, http.StatusGone},
	} {
		if errors.Is(err, known.kind) {
			status = known.status
			if wire.Code == "" {
				wire.Code = string(known.kind)
			}
			break
		}
	}
	return &Problem{Status: status, Title: http.StatusText(status), Detail: wire.Message, Code: wire.Code}
}

// Error implements error.
func (p *Problem) Error() string {
	details := make([]string, 0, len(p.Errors))
	for _, e := range p.Errors {
		details = append(details, strings.TrimPrefix(fmt.Sprintf("%s: %s", e.Location, e.Message), ": "))
	}
	if len(details) == 0 {
		return p.Detail
	}
	return fmt.Sprintf("%s: %s", p.Detail, strings.Join(details, "; "))
}

// GetStatus returns the status of the answer.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the type of the answer's body.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// err returns the error with its kind.
func (p *Problem) err() error {
	code := p.Code
	for _, own := range []errors.ConstError{ErrPrecondition, ErrGone} {
		if code == string(own) {
			return errors.WithType(errors.New(p.Error()), own)
		}
	}
	if code == "" && (p.Status == http.StatusBadRequest || p.Status == http.StatusUnprocessableEntity) {
		code = params.CodeNotValid
	}
	return params.TranslateWellKnownError(&params.Error{Message: p.Error(), Code: code})
}
