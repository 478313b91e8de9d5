package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/juju/errors"
)

// rows are all measurements.
type rows []row

// of returns the row of a workload with n entities.
func (rs rows) of(workload string, n int) (row, bool) {
	for _, r := range rs {
		if r.workload == workload && r.n == n {
			return r, true
		}
	}
	return row{}, false
}

// largest returns the row of a workload with the most entities.
func (rs rows) largest(workload string) (largest row, ok bool) {
	for _, r := range rs {
		if r.workload == workload && r.n > largest.n {
			largest, ok = r, true
		}
	}
	return largest, ok
}

// column is a column of the table and of the CSV file.
type column struct {
	head  string // in the table
	name  string // in the file
	width int
	value func(rows, row) string
}

// reference is the number of entities that other numbers are compared with.
const reference = 10_000

var columns = []column{
	{"workload", "workload", -12, func(_ rows, r row) string { return r.workload }},
	{"n", "n", 8, func(_ rows, r row) string { return strconv.Itoa(r.n) }},
	{"seconds", "seconds", 9, func(_ rows, r row) string { return decimals(3, r.worker.took().Seconds()) }},
	{"ns each", "ns_per_entity", 9, func(_ rows, r row) string { return decimals(0, r.nanoseconds()) }},
	{"floor", "floor_ns_per_entity", 7, floorOnly(func(r row) string { return decimals(0, r.floorNanoseconds()) })},
	{"×floor", "times_floor", 7, floorOnly(func(r row) string { return decimals(2, r.overFloor()) })},
	{"×10k", "times_10k", 6, func(rs rows, r row) string {
		small, ok := rs.of(r.workload, reference)
		if !ok {
			return ""
		}
		return decimals(2, r.nanoseconds()/small.nanoseconds())
	}},
	{"accessor calls", "accessor_calls", 14, func(_ rows, r row) string {
		return strconv.FormatInt(r.worker.used.accessorCalls, 10)
	}},
	{"provider calls", "provider_calls", 14, func(_ rows, r row) string {
		return strconv.FormatInt(r.worker.used.providerCalls, 10)
	}},
	{"allocs", "allocations_per_entity", 7, func(_ rows, r row) string { return each(r.worker.used.mallocs, r) }},
	{"floor's", "floor_allocations_per_entity", 7, floorOnly(func(r row) string { return each(r.floor.used.mallocs, r) })},
	{"bytes", "bytes_per_entity", 7, func(_ rows, r row) string { return each(r.worker.used.bytes, r) }},
	{"floor's", "floor_bytes_per_entity", 7, floorOnly(func(r row) string { return each(r.floor.used.bytes, r) })},
	{"live bytes", "live_bytes_per_entity", 10, func(_ rows, r row) string { return each(r.footprint.heap, r) }},
	{"goroutines", "goroutines_at_rest", 10, func(_ rows, r row) string { return strconv.Itoa(r.footprint.goroutines) }},
	{"ns of each phase", "phases_ns_per_entity", -1, phasesOf},
}

func decimals(n int, x float64) string { return strconv.FormatFloat(x, 'f', n, 64) }

// each returns the share of one entity.
func each(all uint64, r row) string { return decimals(0, float64(all)/float64(r.n)) }

// floorOnly returns the value function of a column that is empty without a floor.
func floorOnly(value func(row) string) func(rows, row) string {
	return func(_ rows, r row) string {
		if !r.hasFloor() {
			return ""
		}
		return value(r)
	}
}

func phasesOf(_ rows, r row) string {
	all := make([]string, len(r.worker.phases))
	for i, p := range r.worker.phases {
		all[i] = p.name + "=" + decimals(0, float64(p.took)/float64(r.n))
	}
	return strings.Join(all, " ")
}

// legend explains the table.
const legend = `An entity is a volume with its attachment; of filesystems, a filesystem with its attachment; of managed, a
filesystem on a volume and the attachments of both. The floor is the same bulk calls without the worker. Allocations
and bytes are those of the whole process, state and provider included; live bytes and goroutines those of the worker
at rest, when everything is attached. Calls are those of the measured time.
`

// writeHead writes the header line of the table.
func writeHead(out io.Writer) error {
	return writeLine(out, func(c column) string { return c.head })
}

// writeRow writes the line of a row; all holds the rows to compare it with.
func writeRow(out io.Writer, all rows, r row) error {
	return writeLine(out, func(c column) string { return c.value(all, r) })
}

func writeLine(out io.Writer, cell func(column) string) error {
	cells := make([]string, len(columns))
	for i, c := range columns {
		cells[i] = fmt.Sprintf("%*s", c.width, cell(c))
	}
	_, err := fmt.Fprintln(out, strings.TrimRight(strings.Join(cells, "  "), " "))
	return errors.Trace(err)
}

// writeCSV writes all rows, after a line with the column names.
func writeCSV(out io.Writer, all rows) error {
	w := csv.NewWriter(out)
	lines := [][]string{make([]string, len(columns))}
	for i, c := range columns {
		lines[0][i] = c.name
	}
	for _, r := range all {
		line := make([]string, len(columns))
		for i, c := range columns {
			line[i] = c.value(all, r)
		}
		lines = append(lines, line)
	}
	return errors.Trace(w.WriteAll(lines))
}
