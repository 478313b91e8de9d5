package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// results holds everything that was measured.
type results struct {
	volumes   sample
	mounts    map[string]*sample
	few, many sample
}

// write writes the report in Markdown and returns the number of ratios that exceed their
// bounds.
func (r results) write(w io.Writer, s settings, p *place) int {
	fmt.Fprintf(w, "Measured on %s; medians of %d rounds, milliseconds for each volume or mount. ", p.describe(), s.rounds)
	fmt.Fprintf(w, "\"exec\" is the classic commands, \"floor\" the bare system calls and the same mkfs, "+
		"\"parallel\" %d at once, \"bulk\" all in one call.\n", cpus())

	fmt.Fprintf(w, "\n%d volumes of %d MiB on loop devices, ext4:\n\n", s.volumes, s.size)
	ways := []string{execSerial, floorSerial, oursSerial, execParallel, floorParallel, oursBulk}
	table(w, "step", ways)
	line := func(name string, steps ...step) {
		row(w, name, ways, func(way string) string { return milliseconds(r.volumes.median(way, steps...)) })
	}
	for _, s := range setup {
		line(string(s), s)
	}
	line("**setup**", setup...)
	for _, s := range teardown {
		line(string(s), s)
	}
	line("**teardown**", teardown...)

	fmt.Fprintf(w, "\n%d mounts:\n\n", s.volumes)
	ways = []string{execSerial, floorSerial, oursSerial, oursBulk}
	table(w, "mount", ways)
	for _, kind := range []string{"tmpfs", "bind"} {
		for _, s := range []step{mount, unmount} {
			row(w, kind+", "+string(s), ways, func(way string) string { return milliseconds(r.mounts[kind].median(way, s)) })
		}
	}

	fmt.Fprintf(w, "\nLoop devices, all in one call:\n\n")
	counts := []string{fmt.Sprint(s.loops / 10), fmt.Sprint(s.loops)}
	table(w, "step", counts)
	for _, step := range []step{attach, detach} {
		row(w, string(step), counts, func(count string) string {
			if count == counts[0] {
				return milliseconds(r.few.median(oursBulk, step))
			}
			return milliseconds(r.many.median(oursBulk, step))
		})
	}
	return r.writeTargets(w, s)
}

// writeTargets writes the targets beside the measured values, and returns the number of ratios
// that exceed their bounds. The bounds detect that something became slower; they are far from
// the values that were measured when they were set.
func (r results) writeTargets(w io.Writer, s settings) (worse int) {
	fmt.Fprintf(w, "\n| target | measured | holds |\n| --- | --- | --- |\n")
	atLeast := func(what string, got, want, bound float64) {
		fmt.Fprintf(w, "| %s: at least %.0f× faster | %.1f× | %s |\n", what, want, got, yes(got >= want))
		if got < bound {
			worse++
		}
	}
	atMost := func(what string, got, want, bound float64) {
		fmt.Fprintf(w, "| %s: at most %.1f× | %.2f× | %s |\n", what, want, got, yes(got <= want))
		if got > bound {
			worse++
		}
	}
	v, all := &r.volumes, slices.Concat(setup, teardown)
	atLeast("bulk than exec one after another, setup", v.ratio(execSerial, oursBulk, setup...), 4, 1.2)
	atLeast("bulk than exec one after another, setup and teardown", v.ratio(execSerial, oursBulk, all...), 4, 1.2)
	atLeast("one volume per call than exec, setup", v.ratio(execSerial, oursSerial, setup...), 4, 0.4)
	atLeast("one volume per call than exec, setup and teardown", v.ratio(execSerial, oursSerial, all...), 4, 0.2)
	atMost("bulk to the parallel floor, setup", v.ratio(oursBulk, floorParallel, setup...), 1.5, 6)
	atMost("bulk to the parallel floor, setup and teardown", v.ratio(oursBulk, floorParallel, all...), 1.5, 6)
	atMost("one volume per call to the floor, setup", v.ratio(oursSerial, floorSerial, setup...), 1.5, 9)
	atMost("one volume per call to the floor, setup and teardown", v.ratio(oursSerial, floorSerial, all...), 1.5, 9)
	for _, kind := range []string{"tmpfs", "bind"} {
		atLeast(kind+" attach in bulk than exec", r.mounts[kind].ratio(execSerial, oursBulk, mount), 20, 8)
	}
	var ratios []float64
	for i, c := range r.many.rounds[oursBulk] {
		ratios = append(ratios, float64(c[attach])/float64(r.few.rounds[oursBulk][i][attach]))
	}
	atMost(fmt.Sprintf("attaching each of %d loop devices to each of %d", s.loops, s.loops/10), middle(ratios), 2, 3)
	return worse
}

func table(w io.Writer, first string, columns []string) {
	fmt.Fprintf(w, "| %s | %s |\n|%s\n", first, strings.Join(columns, " | "), strings.Repeat(" --- |", 1+len(columns)))
}

func row(w io.Writer, name string, columns []string, cell func(string) string) {
	fmt.Fprintf(w, "| %s |", name)
	for _, column := range columns {
		fmt.Fprintf(w, " %s |", cell(column))
	}
	fmt.Fprintln(w)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.3f", d.Seconds()*1000)
}

func yes(holds bool) string {
	if holds {
		return "yes"
	}
	return "**no**"
}
