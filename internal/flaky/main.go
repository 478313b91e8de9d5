// Command flaky judges failed tests that pass when they are run again. It reads the events of
// go test -json, those of the reruns after those of the first run:
//
//	go run ./internal/flaky EVENTS
//
// It prints each test that failed and then passed, with the output of its first failure:
//
//	FLAKY storage/provider.TestLoopCrowd
//	    loop_crowd_device_test.go:67: /dev/loop7 is still attached
//
// Some failures count although a rerun passed, and make it exit with status 1: those that left
// something behind, and those of a package outside of its tests, as in TestMain, which no
// rerun of a test repeats.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	module = "github.com/stowage-io/stowage/"
	// maxLines bounds the printed output of a failure. The run itself has printed all of it.
	maxLines = 60
)

// leftover matches messages of tests, the sandbox and goleak about leftovers of a test.
var leftover = regexp.MustCompile(`left behind|found unexpected goroutines`)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: flaky EVENTS")
		os.Exit(2)
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(2)
	}
	defer f.Close()
	r, err := read(f)
	if err != nil {
		fmt.Fprintf(os.Stderr, "flaky: %s: %v\n", os.Args[1], err)
		os.Exit(2)
	}
	r.print(os.Stdout)
	if len(r.final) > 0 {
		os.Exit(1)
	}
}

// event is a line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// test identifies a test, or, with an empty name, a package.
type test struct {
	pkg, name string
}

func (t test) String() string {
	pkg := strings.TrimPrefix(t.pkg, module)
	if t.name == "" {
		return pkg
	}
	return pkg + "." + t.name
}

// contains reports whether other is a subtest of t, or t is the package of other.
func (t test) contains(other test) bool {
	return t.pkg == other.pkg && other.name != t.name && (t.name == "" || strings.HasPrefix(other.name, t.name+"/"))
}

// attempt is one run of a test or package.
type attempt struct {
	of     test
	passed bool
	output []string
}

// report is the judgement of the failed tests.
type report struct {
	flaky []attempt // the first failure of each
	final []string  // failures that no rerun excuses
}

// read reads events and judges the attempts.
func read(events io.Reader) (report, error) {
	var ended []attempt
	running := make(map[test]*attempt)
	decoder := json.NewDecoder(events)
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return judge(ended), nil
		} else if err != nil {
			return report{}, err
		}
		of := test{e.Package, e.Test}
		switch e.Action {
		case "start", "run":
			running[of] = &attempt{of: of}
		case "output":
			if a := running[of]; a != nil && !strings.HasPrefix(e.Output, "=== ") {
				a.output = append(a.output, strings.TrimRight(e.Output, "\n"))
			}
		case "pass", "fail", "skip":
			if a := running[of]; a != nil {
				a.passed = e.Action != "fail"
				ended = append(ended, *a)
				delete(running, of)
			}
		}
	}
}

// judge judges attempts, which must be in the order of their ends: a package's after those of
// its tests.
func judge(ended []attempt) report {
	var r report
	for i, a := range ended {
		if a.passed {
			continue
		}
		j := slices.IndexFunc(a.output, leftover.MatchString)
		if j >= 0 {
			r.final = append(r.final, fmt.Sprintf("%s: %s", a.of, strings.TrimSpace(a.output[j])))
		}
		// A parent test or package of a failed test fails with it.
		since := i
		for since > 0 && ended[since-1].of != a.of {
			since--
		}
		if slices.ContainsFunc(ended[since:i], func(b attempt) bool { return !b.passed && a.of.contains(b.of) }) {
			continue
		}
		if a.of.name == "" {
			if j < 0 {
				r.final = append(r.final, a.of.String()+": failed outside of its tests")
			}
			continue
		}
		again := func(b attempt) bool { return b.of == a.of }
		if !slices.ContainsFunc(ended[:i], again) && slices.ContainsFunc(ended[i+1:], func(b attempt) bool { return again(b) && b.passed }) {
			r.flaky = append(r.flaky, a)
		}
	}
	return r
}

func (r report) print(w io.Writer) {
	for _, a := range r.flaky {
		fmt.Fprintln(w, "FLAKY", a.of)
		for _, line := range a.output[:min(len(a.output), maxLines)] {
			fmt.Fprintln(w, "    "+line)
		}
		if more := len(a.output) - maxLines; more > 0 {
			fmt.Fprintf(w, "    (%d more lines above, where it failed)\n", more)
		}
	}
	for _, reason := range r.final {
		fmt.Fprintln(w, "no rerun excuses", reason)
	}
}
