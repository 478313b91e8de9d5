//go:build linux

package csi

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/storage"
)

// What each code means to the caller of a source.
func TestOutcomesOfCodes(t *testing.T) {
	meanings := map[string][]codes.Code{
		"in progress": {codes.Aborted, codes.Canceled, codes.DeadlineExceeded},
		"transient":   {codes.Unavailable},
		"permanent":   {codes.AlreadyExists, codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented},
		"plain": {
			codes.ResourceExhausted, codes.NotFound, codes.Unknown, codes.PermissionDenied, codes.FailedPrecondition,
			codes.Internal, codes.DataLoss, codes.Unauthenticated,
		},
	}
	for want, all := range meanings {
		for _, code := range all {
			err := mark(&callError{"CreateVolume", code, "reason"})
			got := "plain"
			switch {
			case errors.Is(err, storage.ErrInProgress):
				got = "in progress"
			case storage.IsPermanent(err):
				got = "permanent"
			case errors.Is(err, storage.ErrTransient):
				got = "transient"
			}
			if got != want {
				t.Errorf("%s: %s, want %s", code, got, want)
			}
			if gone := ignoreGone(err) == nil; gone != (code == codes.NotFound) {
				t.Errorf("%s: a success when undoing: %v", code, gone)
			}
		}
	}
}

// The page for operators has the codes of the table, each in the row of its outcome.
func TestPageListsOutcomes(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/csi-provider.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(page)) {
		var row []string
		for i, part := range strings.Split(line, "`") {
			if i%2 == 1 && strings.ToUpper(part) == part {
				row = append(row, part)
			}
		}
		rows = append(rows, row)
	}
	names := map[codes.Code]string{
		codes.Aborted: "ABORTED", codes.Canceled: "CANCELLED", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
		codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Unavailable: "UNAVAILABLE",
		codes.AlreadyExists: "ALREADY_EXISTS", codes.InvalidArgument: "INVALID_ARGUMENT", codes.OutOfRange: "OUT_OF_RANGE",
		codes.Unimplemented: "UNIMPLEMENTED", codes.NotFound: "NOT_FOUND",
	}
	byOutcome := make(map[outcome][]string)
	for code, outcome := range outcomes {
		byOutcome[outcome] = append(byOutcome[outcome], names[code])
	}
	for outcome, want := range byOutcome {
		slices.Sort(want)
		if !slices.ContainsFunc(rows, func(row []string) bool { return slices.Equal(slices.Sorted(slices.Values(row)), want) }) {
			t.Errorf("outcome %d: the page has no row with %q", outcome, want)
		}
	}
}
