package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHangingSourceDelaysNoOther(t *testing.T) {
	const rounds, volumes = 3, 20
	seen, err := isolation{known: 100, rounds: rounds, volumes: volumes}.run()
	if err != nil {
		t.Fatal(err)
	}
	for what, half := range map[string]latencies{"without the hanging source": seen.free, "with it": seen.hung} {
		if len(half) != rounds*volumes {
			t.Errorf("%d volumes were created %s, want %d", len(half), what, rounds*volumes)
		}
		if slices.Min(half) <= 0 {
			t.Errorf("volumes have taken %v %s", half, what)
		}
	}
	if seen.end <= 0 || seen.end > time.Minute {
		t.Errorf("the worker ended %v after its last call", seen.end)
	}
}

func TestPercentile(t *testing.T) {
	for _, test := range []struct {
		of      latencies
		p, want int
	}{
		{latencies{7}, 50, 7},
		{latencies{7}, 99, 7},
		{latencies{3, 1, 2}, 50, 2},
		{latencies{3, 1, 2}, 99, 3},
		{latencies{4, 3, 2, 1}, 50, 2},
		{latencies{4, 3, 2, 1}, 75, 3},
	} {
		if got := test.of.percentile(test.p); got != time.Duration(test.want) {
			t.Errorf("p%d of %v: got %d, want %d", test.p, test.of, got, test.want)
		}
	}
}

func TestIsolationAndIdleVerdictsBelowTable(t *testing.T) {
	s, _, err := parse([]string{"-n", "20", "-workload", "isolation,idle"})
	if err != nil {
		t.Fatal(err)
	}
	s.workloads[0].try = func(out io.Writer, n int, b bounds) ([]verdict, error) {
		return isolation{known: n, rounds: 2, volumes: 5}.try(out, b)
	}
	s.bounds.maxSlowdown, s.bounds.end = 0, 1e9
	var out strings.Builder
	missed, err := s.run(&out)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "MISSED: isolation, p"); missed != 2 || got != 2 {
		t.Errorf("%d bounds are missed, %d of them of isolation:\n%s", missed, got, &out)
	}
	if strings.Count(out.String(), "held:   isolation, ms") != 1 || strings.Count(out.String(), "held:   idle for a minute with 20, ") != 4 {
		t.Errorf("verdicts are missing:\n%s", &out)
	}
}
