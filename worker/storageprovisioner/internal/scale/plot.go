package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"

	"github.com/juju/errors"
)

// The dimensions of the plot, in pixels: the frame of the curves, and the position of the
// legend beside it.
const (
	plotWidth, plotHeight    = 860, 480
	frameLeft, frameRight    = 70, 640
	frameTop, frameBottom    = 50, 420
	legendLeft, legendHeight = 664, 26
)

// plotStyle holds the colours for light and dark surroundings: of the surface, the text, the
// grid, and the curves.
const plotStyle = `
svg { font: 13px system-ui, sans-serif }
.surface { fill: #fff } text { fill: #333 } .title { font-size: 15px; font-weight: 600 }
.grid { stroke: #ddd } .line { fill: none; stroke-width: 2; stroke: currentColor } .dot { fill: currentColor }
.floor { color: #777 } .floor .line { stroke-dasharray: 5 4 }
.c0 { color: #2a78d6 } .c1 { color: #1baf7a } .c2 { color: #c98500 } .c3 { color: #008300 }
.c4 { color: #4a3aa7 } .c5 { color: #e34948 } .c6 { color: #d55181 } .c7 { color: #b3541e }
@media (prefers-color-scheme: dark) {
.surface { fill: #0d1117 } text { fill: #ccc } .grid { stroke: #333 } .floor { color: #999 }
.c0 { color: #58a0f5 } .c1 { color: #2cc995 } .c2 { color: #eda100 } .c3 { color: #4cb34c }
.c4 { color: #9085e9 } .c5 { color: #ff7b72 } .c6 { color: #f092b8 } .c7 { color: #f0884f }
}
`

// curve is one line of the plot: the time of an entity, in nanoseconds, by the number of
// entities.
type curve struct {
	name, class string
	points      []point
}

type point struct{ n, nanoseconds float64 }

// curves returns a curve for each workload, and one for the floor of bulk.
func curves(all rows) []curve {
	var drawn []curve
	floor := curve{name: "floor of " + bulk, class: "floor"}
	for i, name := range all.workloads() {
		c := curve{name: name, class: fmt.Sprintf("c%d", i%8)}
		for _, r := range all {
			if r.workload != name {
				continue
			}
			c.points = append(c.points, point{float64(r.n), r.nanoseconds()})
			if name == bulk && r.hasFloor() {
				floor.points = append(floor.points, point{float64(r.n), r.floorNanoseconds()})
			}
		}
		drawn = append(drawn, c)
	}
	if len(floor.points) > 0 {
		drawn = append(drawn, floor)
	}
	return drawn
}

// axis is a logarithmic axis over whole decades.
type axis struct {
	low, high int // powers of ten
	from, to  float64
}

// newAxis returns an axis that covers all values, between two pixels.
func newAxis(values []float64, from, to float64) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		low, high = min(low, math.Log10(v)), max(high, math.Log10(v))
	}
	a := axis{int(math.Floor(low)), int(math.Ceil(high)), from, to}
	if a.low == a.high {
		a.high++
	}
	return a
}

func (a axis) at(value float64) float64 {
	return a.from + (math.Log10(value)-float64(a.low))/float64(a.high-a.low)*(a.to-a.from)
}

// marks returns the marked values of the axis: the given multiples of each decade.
func (a axis) marks(multiples ...float64) []float64 {
	var marks []float64
	for decade := a.low; decade < a.high; decade++ {
		for _, m := range multiples {
			marks = append(marks, m*math.Pow10(decade))
		}
	}
	return append(marks, math.Pow10(a.high))
}

// writePlot draws the cost of an entity by the number of entities, for each workload.
func writePlot(out io.Writer, all rows) error {
	drawn := curves(all)
	if len(drawn) == 0 {
		return errors.NotValidf("plot of nothing")
	}
	var ns, costs []float64
	for _, c := range drawn {
		for _, p := range c.points {
			ns, costs = append(ns, p.n), append(costs, p.nanoseconds)
		}
	}
	x, y := newAxis(ns, frameLeft, frameRight), newAxis(costs, frameBottom, frameTop)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Time for an entity against their number">`,
		plotWidth, plotHeight)
	fmt.Fprintf(&b, "<style>%s</style>\n", plotStyle)
	fmt.Fprintf(&b, `<rect class="surface" width="%d" height="%d"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="28">What a volume with its attachment costs the worker</text>`+"\n", frameLeft)
	for _, n := range x.marks(1) {
		drawGrid(&b, x.at(n), frameTop, x.at(n), frameBottom)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x.at(n), frameBottom+20, thousands(n))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">entities</text>`+"\n", (frameLeft+frameRight)/2, frameBottom+44)
	for _, cost := range y.marks(1, 2, 5) {
		drawGrid(&b, frameLeft, y.at(cost), frameRight, y.at(cost))
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", frameLeft-8, y.at(cost)+4, time.Duration(math.Round(cost)))
	}
	for i, c := range drawn {
		drawCurve(&b, c, x, y, frameTop+14+i*legendHeight)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return errors.Trace(err)
}

func drawGrid(b *strings.Builder, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<path class="grid" d="M%.1f %.1fL%.1f %.1f"/>`+"\n", x1, y1, x2, y2)
}

// drawCurve draws a line with a dot for each point, and its entry in the legend.
func drawCurve(b *strings.Builder, c curve, x, y axis, legendTop int) {
	fmt.Fprintf(b, `<g class="%s">`, c.class)
	path := make([]string, len(c.points))
	for i, p := range c.points {
		path[i] = fmt.Sprintf("%.1f %.1f", x.at(p.n), y.at(p.nanoseconds))
		fmt.Fprintf(b, `<circle class="dot" r="3.5" cx="%.1f" cy="%.1f"/>`, x.at(p.n), y.at(p.nanoseconds))
	}
	fmt.Fprintf(b, `<path class="line" d="M%s"/>`, strings.Join(path, "L"))
	fmt.Fprintf(b, `<path class="line" d="M%d %dh24"/></g>`, legendLeft, legendTop)
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", legendLeft+32, legendTop+4, html.EscapeString(c.name))
}

// thousands formats a power of ten with a suffix.
func thousands(n float64) string {
	switch {
	case n >= 1e6:
		return decimals(0, n/1e6) + " M"
	case n >= 1e3:
		return decimals(0, n/1e3) + " k"
	}
	return decimals(0, n)
}
