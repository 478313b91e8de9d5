package stowage_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The worker's figures in documents are those of the last `make bench-scale`.
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
	column := make(map[string]int)
	for i, name := range records[0] {
		column[name] = i
	}
	var workloads []string
	micros := make(map[string]string) // by workload: the cells of its table row
	bulk := make(map[string][]string) // the records of bulk, by number of entities
	for _, record := range records[1:] {
		workload, n := record[column["workload"]], record[column["n"]]
		if micros[workload] == "" {
			workloads = append(workloads, workload)
		}
		micros[workload] += fmt.Sprintf(" %.1f |", parseFigure(t, record[column["ns_per_entity"]])/1000)
		if workload == "bulk" {
			bulk[n] = record
		}
	}
	if len(workloads) < 7 || bulk["100000"] == nil || bulk["1000000"] == nil {
		t.Fatalf("performance.csv has the workloads %q, and bulk for %d numbers of entities; want at least 7 workloads, and bulk for 100000 and 1000000", workloads, len(bulk))
	}
	for _, workload := range workloads {
		wantText(t, "docs/explanation/performance.md", "\n| "+workload+" |"+micros[workload])
	}
	for _, figure := range []string{
		fmt.Sprintf("%.1f µs", parseFigure(t, bulk["100000"][column["ns_per_entity"]])/1000),
		fmt.Sprintf("%.1f times", parseFigure(t, bulk["100000"][column["times_floor"]])),
		bulk["1000000"][column["live_bytes_per_entity"]] + " bytes",
	} {
		wantText(t, "README.md", figure)
	}
}

// wantText checks that a document contains a text.
func wantText(t *testing.T, name, text string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), text) {
		t.Errorf("%s does not contain %q", name, text)
	}
}

func parseFigure(t *testing.T, s string) float64 {
	figure, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return figure
}
