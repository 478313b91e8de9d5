package stowage_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The figures of the worker in README are those that `make bench-scale` wrote last.
func TestFiguresAreThoseMeasured(t *testing.T) {
	file, err := os.Open("docs/explanation/performance.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	records, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := figureLines(t, records)
	if len(lines) < 7 {
		t.Errorf("there are figures of %d workloads", len(lines))
	}
	for _, line := range lines {
		if !strings.Contains(string(readme), line+"\n") {
			t.Errorf("README.md lacks the line\n%s", line)
		}
	}
}

// figureLines returns the lines of README's table: of each workload with a million
// entities, how many microseconds one takes among how many, and how many times those of
// the floor 100,000 take.
func figureLines(t *testing.T, records [][]string) []string {
	column := make(map[string]int)
	for i, name := range records[0] {
		column[name] = i
	}
	var workloads []string
	figures := make(map[string]string)
	floors := make(map[string]string)
	for _, record := range records[1:] {
		name, n := record[column["workload"]], record[column["n"]]
		if n == "1000" {
			workloads = append(workloads, name)
		}
		figures[name] += fmt.Sprintf(" %.1f |", parseFigure(t, record[column["ns_per_entity"]])/1000)
		if n == "100000" {
			floors[name] = fmt.Sprintf(" %.1f |", parseFigure(t, record[column["times_floor"]]))
		}
	}
	var lines []string
	for _, name := range workloads {
		if floors[name] != "" {
			lines = append(lines, fmt.Sprintf("| %s |%s%s", name, figures[name], floors[name]))
		}
	}
	return lines
}

func parseFigure(t *testing.T, s string) float64 {
	figure, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return figure
}
