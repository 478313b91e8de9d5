package main

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/scale/world"
)

func TestEachWorkload(t *testing.T) {
	for _, wl := range workloads(time.Millisecond) {
		if wl.try != nil {
			continue // it has a test of its own
		}
		t.Run(wl.name, func(t *testing.T) {
			const n = 200
			r, err := measure(wl, n, 1, true)
			if err != nil {
				t.Fatal(err)
			}
			if r.n != n || r.workload != wl.name || r.events != n*wl.events {
				t.Errorf("the row has n %d, workload %s and %d events", r.n, r.workload, r.events)
			}
			if r.nanoseconds() <= 0 || r.floorNanoseconds() <= 0 {
				t.Errorf("an entity takes %v ns, and %v ns without the worker", r.nanoseconds(), r.floorNanoseconds())
			}
			if r.footprint.goroutines <= 0 {
				t.Errorf("the worker has %d goroutines", r.footprint.goroutines)
			}
			// The worker makes more calls where it sees less at once. On a busy machine it may
			// make fewer, where it sees two of the floor's phases at once.
			for what, calls := range map[string][2]int64{
				"accessors": {r.floor.used.accessorCalls, r.worker.used.accessorCalls},
				"sources":   {r.floor.used.providerCalls, r.worker.used.providerCalls},
			} {
				if floor, worker := calls[0], calls[1]; floor == 0 || floor/2 > worker {
					t.Errorf("the floor has %d calls of %s, the worker %d", floor, what, worker)
				}
			}
		})
	}
}

func TestBrokenWorldEndsMeasurement(t *testing.T) {
	c := &course{world: world.New(manyVolumes(1))}
	c.startIdle()
	s := c.world.Volumes
	s.Appear()
	c.until(s.Removed.Reach(1), "phase", func() error {
		s.NotifyAttachments() // none
		s.Notify("7")         // an unknown volume
		return nil
	})
	if want := `phase: "volume-7" is not the tag of a volume`; c.err == nil || c.err.Error() != want {
		t.Errorf("got %v, want %s", c.err, want)
	}
	first := c.err
	c.until(nil, "another", nil)
	c.rest()
	if atRest := c.stop(); c.err != first || atRest != (footprint{}) {
		t.Errorf("the measurement goes on: got %+v and %v", atRest, c.err)
	}
}

func TestWorkerEndEndsMeasurement(t *testing.T) {
	c := &course{world: world.New(manyVolumes(1))}
	c.startIdle()
	c.until(nil, "phase", func() error {
		c.worker.Kill()
		return nil
	})
	if want := "phase: the worker has ended"; c.err == nil || c.err.Error() != want {
		t.Errorf("got %v, want %s", c.err, want)
	}
	c.err = nil
	c.rest()
	if want := "the worker has ended"; c.err == nil || c.err.Error() != want {
		t.Errorf("at rest: got %v, want %s", c.err, want)
	}
	c.stop()
}

// measuredAs returns a row with the nanoseconds for an entity, with the worker and without.
func measuredAs(workload string, n int, worker, floor float64) row {
	took := func(each float64) measured {
		if each == 0 {
			return measured{}
		}
		return measured{phases: []phase{{"attach", time.Duration(each * float64(n))}}}
	}
	return row{workload: workload, n: n, events: 2 * n, worker: took(worker), floor: took(floor)}
}

func TestBounds(t *testing.T) {
	b := bounds{
		growth: 2, small: 10, large: 1000,
		floor: 3, floorAt: 100,
		live: 50, calls: 0.5, maxVersusBulk: 4,
	}
	withCalls := func(r row, calls int64) row {
		r.worker.used.accessorCalls = calls
		return r
	}
	keeping := func(r row, heap uint64) row {
		r.footprint.heap = heap
		return r
	}
	for _, test := range []struct {
		name string
		rows rows
		want []string
	}{
		{"nothing", nil, nil},
		{"one number alone", rows{measuredAs(trickle, 10, 50, 0)}, nil},
		{"growth", rows{measuredAs(trickle, 10, 50, 0), measuredAs(trickle, 1000, 100, 0)},
			[]string{"held:   trickle, an entity with 1000 beside one with 10: 2 (at most 2)"}},
		{"too much growth", rows{measuredAs(trickle, 10, 50, 0), measuredAs(trickle, 1000, 120, 0)},
			[]string{"MISSED: trickle, an entity with 1000 beside one with 10: 2.4 (at most 2)"}},
		{"floor", rows{measuredAs(bulk, 100, 300, 50)},
			[]string{"MISSED: bulk with 100 beside the same calls without the worker: 6 (at most 3)"}},
		{"no floor", rows{measuredAs(bulk, 100, 300, 0)}, nil},
		{"live", rows{keeping(measuredAs(bulk, 1000, 300, 0), 1_234_000)},
			[]string{"MISSED: bytes kept of a volume with its attachment, with 1000: 1234 (at most 50)"}},
		{"calls", rows{withCalls(measuredAs(slowTrickle, 10, 300, 0), 20), withCalls(measuredAs(slowTrickle, 20, 300, 0), 10)},
			[]string{"held:   trickle-slow, accessor calls for an event, with 40 events: 0.25 (at most 0.5)"}},
		{"beside bulk", rows{
			measuredAs(managed, 1000, 250, 0), keeping(measuredAs(bulk, 1000, 50, 0), 1000), measuredAs(machines, 1000, 100, 0),
		}, []string{
			"held:   bytes kept of a volume with its attachment, with 1000: 1 (at most 50)",
			"MISSED: managed, an entity beside one in bulk, with 1000: 5 (at most 4)",
			"held:   machines, an entity beside one in bulk, with 1000: 2 (at most 4)",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := convert(b.judge(test.rows), verdict.String)
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(test.want, "\n\t"))
			}
		})
	}
}

func TestTableMatchesCSV(t *testing.T) {
	all := rows{measuredAs(bulk, 10_000, 5000, 1000), measuredAs(bulk, 100_000, 6000, 0)}
	all[0].worker.used = usage{mallocs: 70_000, bytes: 1_000_000, accessorCalls: 20, providerCalls: 4}
	all[0].footprint = footprint{goroutines: 8, heap: 7_000_000}

	var file bytes.Buffer
	if err := writeCSV(&file, all); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		convert(columns, func(c column) string { return c.name }),
		{"bulk", "10000", "0.050", "5000", "1000", "5.00", "1.00", "20", "4", "7", "0", "100", "0", "700", "8", "attach=5000"},
		{"bulk", "100000", "0.600", "6000", "", "", "1.20", "0", "0", "0", "", "0", "", "0", "0", "attach=6000"},
	}
	if !slices.EqualFunc(lines, want, slices.Equal) {
		t.Errorf("the file has\n%q\nwant\n%q", lines, want)
	}

	var table bytes.Buffer
	if err := errors.Join(writeHead(&table), writeRow(&table, all, all[0])); err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(table.String(), "\n")
	if got := strings.Fields(line); !slices.Equal(got, want[1]) {
		t.Errorf("the table has %q, want %q", got, want[1])
	}
}

func TestPlotHasLineForEachWorkload(t *testing.T) {
	for _, test := range []struct {
		name string
		rows rows
		want []string
	}{
		{"one point", rows{measuredAs(bulk, 1000, 1000, 0)}, []string{"bulk"}},
		{"several", rows{
			measuredAs(bulk, 1000, 5000, 900), measuredAs(bulk, 1_000_000, 6000, 1100),
			measuredAs(trickle, 1000, 8000, 900), measuredAs("<odd>", 100, 100, 0),
		}, []string{"bulk", "trickle", "<odd>", "floor of bulk"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var file bytes.Buffer
			if err := writePlot(&file, test.rows); err != nil {
				t.Fatal(err)
			}
			lines, texts := readPlot(t, &file)
			// Each has a line, and another one in the legend.
			if want := 2 * len(test.want); lines != want {
				t.Errorf("there are %d lines, want %d", lines, want)
			}
			for _, name := range test.want {
				if !slices.Contains(texts, name) {
					t.Errorf("the legend has no %q: %q", name, texts)
				}
			}
		})
	}
	if err := writePlot(io.Discard, nil); err == nil {
		t.Error("a plot of no rows is written without an error")
	}
}

// readPlot returns how many lines a plot has, and its texts.
func readPlot(t *testing.T, in io.Reader) (lines int, texts []string) {
	t.Helper()
	for decoder := xml.NewDecoder(in); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return lines, texts
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if slices.Contains(token.Attr, xml.Attr{Name: xml.Name{Local: "class"}, Value: "line"}) {
				lines++
			}
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
}

func TestArguments(t *testing.T) {
	s, check, err := parse([]string{"-n", "5,70", "-workload", "managed,bulk", "-runs", "2"})
	if err != nil {
		t.Fatal(err)
	}
	if check || !slices.Equal(s.numbers, []int{5, 70}) || s.runs != 2 || s.bounds != targets {
		t.Errorf("got %+v", s)
	}
	if got := convert(s.workloads, workload.String); !slices.Equal(got, []string{"managed", "bulk"}) {
		t.Errorf("got workloads %q", got)
	}

	s, check, err = parse([]string{"-check"})
	if err != nil {
		t.Fatal(err)
	}
	if !check || !slices.Equal(s.numbers, []int{alarms.small, alarms.large}) || s.bounds != alarms ||
		len(s.workloads) != len(workloads(0)) {
		t.Errorf("got %+v", s)
	}

	for _, test := range []struct{ args, want string }{
		{"-n 0", `-n: number of entities "0" not valid`},
		{"-n 1,,2", `-n: number of entities "" not valid`},
		{"-workload bulk,lift", `-workload: workload "lift" (there are: ` + strings.Join(convert(workloads(0), workload.String), ", ") + `) not found`},
	} {
		if _, _, err := parse(strings.Fields(test.args)); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", test.args, err, test.want)
		}
	}
}

func TestRunWritesTableFilesAndVerdicts(t *testing.T) {
	dir := t.TempDir()
	names := []string{"table.csv", "plot.svg", "allocs.pprof"}
	s, _, err := parse([]string{
		"-n", "20,40", "-workload", "bulk,trickle-slow", "-accessor-delay", "0", "-runs", "1",
		"-csv", filepath.Join(dir, names[0]), "-plot", filepath.Join(dir, names[1]), "-memprofile", filepath.Join(dir, names[2]),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.workloads[1].most = 20
	s.bounds.growth, s.bounds.small, s.bounds.large, s.bounds.live, s.bounds.calls = 0, 20, 40, 1e9, 1e9
	var out bytes.Buffer
	missed, err := s.run(&out)
	if err != nil {
		t.Fatal(err)
	}
	if missed != 1 || strings.Count(out.String(), "MISSED: bulk") != 1 {
		t.Errorf("%d bounds are missed:\n%s", missed, &out)
	}
	if strings.Count(out.String(), "\ntrickle-slow ") != 1 {
		t.Errorf("the workload is not capped:\n%s", &out)
	}
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
