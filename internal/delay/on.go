//go:build delays

package delay

import (
	"os"
	"slices"
	"strings"
	"time"
)

// long is the length of a delay.
const long = 500 * time.Microsecond

// slow are the points that are delayed.
var slow = chosen(os.Getenv("STOWAGE_DELAY"))

func chosen(names string) map[Point]bool {
	points := make(map[Point]bool)
	for name := range strings.SplitSeq(names, ",") {
		switch point := Point(name); {
		case name == "all":
			for _, p := range Points {
				points[p] = true
			}
		case slices.Contains(Points, point):
			points[point] = true
		case name != "":
			panic("STOWAGE_DELAY: no point " + name)
		}
	}
	return points
}

// At sleeps for half a millisecond if the point is slow, so that other goroutines run.
func At(p Point) {
	if slow[p] {
		time.Sleep(long)
	}
}
