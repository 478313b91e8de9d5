package stowage_test

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const linkedFile = "linked.txt"

// linked.txt lists the third-party packages that the command and each library package link, so
// that reviewers see changes of them.
func TestLinkedPackages(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("linked.txt lists the packages for Linux only")
	}
	graph := readImports(t)
	var b strings.Builder
	fmt.Fprintf(&b, "# Third-party packages that the command and each library package link. Generated: %s\n", updateCommand)
	var ours []string
	for pkg := range graph {
		private := strings.Contains(pkg+"/", "/internal/") || matches(pkg, []string{"./e2e/...", "./examples/...", "./testing/..."})
		if matches(pkg, []string{"./..."}) && !private {
			ours = append(ours, pkg)
		}
	}
	slices.Sort(ours)
	for _, pkg := range ours {
		if linked := graph.others(pkg); len(linked) > 0 {
			fmt.Fprintf(&b, "\n%s\n\t%s\n", strings.TrimPrefix(pkg, module+"/"), strings.Join(linked, "\n\t"))
		}
	}
	if *update {
		if err := os.WriteFile(linkedFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(linkedFile)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), string(kept); got != want {
		t.Errorf("%s is out of date; run %s\n%s", linkedFile, updateCommand, lineDiff(want, got))
	}
}

// others returns, in order, the packages outside this module and the standard library that a
// package depends on.
func (g importGraph) others(pkg string) []string {
	seen := map[string]bool{pkg: true}
	var found []string
	for queue := []string{pkg}; len(queue) > 0; queue = queue[1:] {
		for _, imported := range g[queue[0]] {
			if seen[imported] {
				continue
			}
			seen[imported] = true
			queue = append(queue, imported)
			host, _, _ := strings.Cut(imported, "/")
			if strings.Contains(host, ".") && !matches(imported, []string{"./..."}) {
				found = append(found, imported)
			}
		}
	}
	slices.Sort(found)
	return found
}

// lineDiff returns the lines that only one of two texts contains.
func lineDiff(old, now string) string {
	var b strings.Builder
	before, after := strings.Split(old, "\n"), strings.Split(now, "\n")
	section := ""
	counts := make(map[string]int)
	count := func(lines []string, by int) {
		for _, line := range lines {
			if !strings.HasPrefix(line, "\t") {
				section = line
			}
			counts[section+": "+strings.TrimSpace(line)] += by
		}
	}
	count(before, -1)
	count(after, 1)
	for _, line := range slices.Sorted(maps.Keys(counts)) {
		switch n := counts[line]; {
		case n < 0:
			b.WriteString("- " + line + "\n")
		case n > 0:
			b.WriteString("+ " + line + "\n")
		}
	}
	return b.String()
}
