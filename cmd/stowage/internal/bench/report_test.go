package main

import (
	"strings"
	"testing"
)

// TestBenchMeasures runs every step with a few instances.
func TestBenchMeasures(t *testing.T) {
	var out strings.Builder
	s := settings{rounds: 1, parent: t.TempDir()}
	if _, err := run(s, "2,20", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| | unit | 2 | 20 | growth |", "| apply: declare | µs each |", "| remove: record | µs each |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing from\n%s", want, &out)
		}
	}
}

func TestReportNamesExcessiveGrowth(t *testing.T) {
	r := newReport([]int{10, 100})
	r.add(10, []figure{{"list", "µs each", 2, linear}, {"one, p99", "µs", 1, unbounded}, {"watch", "events", 4, constant}})
	r.add(100, []figure{{"list", "µs each", 90, linear}, {"one, p99", "µs", 900, unbounded}, {"watch", "events", 4, constant}})
	r.add(100, []figure{{"list", "µs each", 10, linear}}) // the least counts
	lines := r.violations()
	if len(lines) != 1 || lines[0] != "list (µs each) is 5.0 times with 100 instances what it is with 10: 4 at most" {
		t.Errorf("%q", lines)
	}
	var csv strings.Builder
	r.writeCSV(&csv)
	if !strings.Contains(csv.String(), "\"list\",µs each,100,10\n") {
		t.Error(csv.String())
	}
}

func TestInvalidCountsAreRefused(t *testing.T) {
	if _, err := run(settings{}, "10,many", &strings.Builder{}); err == nil {
		t.Error("a count that is no number was accepted")
	}
}
