package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// report holds the least value of each figure, by the number of instances.
type report struct {
	counts []int
	order  []figure
	values map[string]map[int]float64
}

// key identifies a figure.
func (f figure) key() string { return f.name + ", " + f.unit }

func newReport(counts []int) *report {
	return &report{counts: counts, values: map[string]map[int]float64{}}
}

func (r *report) add(n int, all []figure) {
	for _, f := range all {
		key := f.key()
		if r.values[key] == nil {
			r.values[key] = map[int]float64{}
			r.order = append(r.order, f)
		}
		if least, ok := r.values[key][n]; !ok || f.value < least {
			r.values[key][n] = f.value
		}
	}
}

// growth returns a figure with counts[i] instances, as a multiple of the figure with the
// previous count.
func (r *report) growth(f figure, i int) float64 {
	return r.values[f.key()][r.counts[i]] / r.values[f.key()][r.counts[i-1]]
}

// write writes a table in Markdown.
func (r *report) write(w io.Writer) {
	fmt.Fprint(w, "| | unit |")
	for i, n := range r.counts {
		fmt.Fprintf(w, " %d |", n)
		if i > 0 {
			fmt.Fprint(w, " growth |")
		}
	}
	fmt.Fprintf(w, "\n| --- | --- |%s\n", strings.Repeat(" --- |", 2*len(r.counts)-1))
	for _, f := range r.order {
		fmt.Fprintf(w, "| %s | %s |", f.name, f.unit)
		for i, n := range r.counts {
			fmt.Fprintf(w, " %s |", round(r.values[f.key()][n]))
			if i > 0 {
				fmt.Fprintf(w, " %.2f |", r.growth(f, i))
			}
		}
		fmt.Fprintln(w)
	}
}

// round formats a value with three significant digits.
func round(value float64) string {
	switch {
	case value >= 100 || value == math.Trunc(value):
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	}
	return fmt.Sprintf("%.2f", value)
}

// writeCSV writes a line for each figure and number of instances.
func (r *report) writeCSV(w io.Writer) {
	fmt.Fprintln(w, "figure,unit,instances,value")
	for _, f := range r.order {
		for _, n := range r.counts {
			fmt.Fprintf(w, "%q,%s,%d,%g\n", f.name, f.unit, n, r.values[f.key()][n])
		}
	}
}

// violations returns a line for each figure that grows by more than its bound.
func (r *report) violations() (lines []string) {
	for _, f := range r.order {
		for i, n := range r.counts[1:] {
			if grown := r.growth(f, i+1); f.maxGrowth != unbounded && grown > float64(f.maxGrowth) {
				lines = append(lines, fmt.Sprintf("%s (%s) is %.1f times with %d instances what it is with %d: %.0f at most",
					f.name, f.unit, grown, n, r.counts[i], float64(f.maxGrowth)))
			}
		}
	}
	return lines
}
