package stowage_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The file of the last `make bench-scale`, and the document with a table of its figures.
const (
	figuresFile = "docs/explanation/performance.txt"
	figuresPage = "docs/explanation/performance.md"
)

// figures holds the least value of each benchmark and unit.
type figures map[string]map[string]float64

var benchmarkName = regexp.MustCompile(`^Benchmark(\S+)-\d+$`)

// readFigures reads the output of benchmarks. It also returns their names, in order.
func readFigures(t *testing.T, name string) (all figures, order []string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	all = make(figures)
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !benchmarkName.MatchString(fields[0]) {
			continue
		}
		benchmark := benchmarkName.FindStringSubmatch(fields[0])[1]
		if all[benchmark] == nil {
			all[benchmark] = make(map[string]float64)
			order = append(order, benchmark)
		}
		for pair := range slices.Chunk(fields[2:], 2) {
			value, err := strconv.ParseFloat(pair[0], 64)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, benchmark, err)
			}
			if least, ok := all[benchmark][pair[1]]; !ok || value < least {
				all[benchmark][pair[1]] = value
			}
		}
	}
	return all, order
}

// workerTable returns the table of the worker's figures.
func workerTable(all figures, order []string) string {
	sizes := []int{1_000, 10_000, 100_000, 1_000_000}
	var table strings.Builder
	table.WriteString("| |")
	for _, n := range sizes {
		fmt.Fprintf(&table, " n = %d |", n)
	}
	fmt.Fprintf(&table, " wall time | calls of accessors, of providers | allocated | kept |\n|%s\n", strings.Repeat(" --- |", len(sizes)+5))
	for _, benchmark := range order {
		workload, ok := strings.CutPrefix(benchmark, "Worker/")
		workload, first := strings.CutSuffix(workload, fmt.Sprintf("/n=%d", sizes[0]))
		if !ok || !first {
			continue
		}
		fmt.Fprintf(&table, "| %s |", workload)
		var largest map[string]float64
		for _, n := range sizes {
			worker, floor := all[fmt.Sprintf("Worker/%s/n=%d", workload, n)], all[fmt.Sprintf("Floor/%s/n=%d", workload, n)]
			if worker == nil {
				table.WriteString(" |")
				continue
			}
			largest = worker
			fmt.Fprintf(&table, " %.1f (%.1f×) |", worker["cpu-ns/entity"]/1000, worker["cpu-ns/entity"]/floor["cpu-ns/entity"])
		}
		fmt.Fprintf(&table, " %.1f | %.0f, %.0f | %.1f kB | %.0f B |\n", largest["ns/entity"]/1000,
			largest["accessor-calls"], largest["provider-calls"], largest["B/entity"]/1000, largest["kept-B/entity"])
	}
	return table.String()
}

var workerTableMark = regexp.MustCompile(`(?s)(<!-- The worker: generated.*?-->\n\n).*?(\n\n|$)`)

// The worker's figures in documents are those of the last `make bench-scale`.
func TestFiguresAreThoseMeasured(t *testing.T) {
	all, order := readFigures(t, figuresFile)
	data, err := os.ReadFile(figuresPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	if !workerTableMark.MatchString(page) {
		t.Fatalf("%s does not say where the table of the worker is", figuresPage)
	}
	want := workerTableMark.ReplaceAllString(page, "${1}"+strings.TrimSuffix(workerTable(all, order), "\n")+"${2}")
	if want != page {
		if !*update {
			t.Errorf("%s has other figures than %s: run %s", figuresPage, figuresFile, updateCommand)
		} else if err := os.WriteFile(figuresPage, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	many := "/bulk/n=100000"
	worker, floor := all["Worker"+many], all["Floor"+many]
	text, err := os.ReadFile("docs/figures.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, figure := range []string{
		fmt.Sprintf("%.1f µs", worker["cpu-ns/entity"]/1000),
		fmt.Sprintf("%.1f times", worker["cpu-ns/entity"]/floor["cpu-ns/entity"]),
		fmt.Sprintf("%.0f bytes", all["Worker/bulk/n=1000000"]["kept-B/entity"]),
	} {
		if !strings.Contains(string(text), figure) {
			t.Errorf("docs/figures.md does not say %q, as %s does", figure, figuresFile)
		}
	}
}
