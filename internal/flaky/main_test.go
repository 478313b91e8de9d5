package main

import (
	"slices"
	"strings"
	"testing"
)

// stream returns events in JSON. Each is "action package[.test] [output]".
func stream(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		fields := strings.SplitN(e, " ", 3)
		pkg, name, _ := strings.Cut(fields[1], ".")
		b.WriteString(`{"Action":"` + fields[0] + `","Package":"` + module + pkg + `","Test":"` + name + `"`)
		if len(fields) > 2 {
			b.WriteString(`,"Output":"` + fields[2] + `\n"`)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		about  string
		events []string
		flaky  []string
		final  []string
	}{{
		about:  "all pass",
		events: []string{"start p", "run p.TestA", "output p.TestA left behind", "pass p.TestA", "skip p.TestB", "pass p"},
	}, {
		about: "passes when it is run again",
		events: []string{
			"start p", "run p.TestA", "output p.TestA === RUN TestA", "output p.TestA    a_test.go:1: too late", "fail p.TestA", "output p FAIL", "fail p",
			"start p", "run p.TestA", "pass p.TestA", "pass p",
		},
		flaky: []string{"p.TestA:   a_test.go:1: too late"},
	}, {
		about: "a subtest passes when it is run again",
		events: []string{
			"start p", "run p.TestA", "run p.TestA/one", "run p.TestA/two", "output p.TestA/two too late",
			"pass p.TestA/one", "fail p.TestA/two", "output p.TestA --- FAIL: TestA", "fail p.TestA", "fail p",
			"start p", "run p.TestA", "run p.TestA/two", "pass p.TestA/two", "pass p.TestA", "pass p",
		},
		flaky: []string{"p.TestA/two:too late"},
	}, {
		about: "fails each time",
		events: []string{
			"start p", "run p.TestA", "fail p.TestA", "fail p",
			"start p", "run p.TestA", "fail p.TestA", "fail p",
		},
	}, {
		about: "leaves something behind",
		events: []string{
			"start p", "run p.TestA", "output p.TestA   a_test.go:9: left behind: loop0", "fail p.TestA", "fail p",
			"start p", "run p.TestA", "pass p.TestA", "pass p",
		},
		flaky: []string{"p.TestA:  a_test.go:9: left behind: loop0"},
		final: []string{"p.TestA: a_test.go:9: left behind: loop0"},
	}, {
		about: "the sandbox finds something after the tests",
		events: []string{
			"start p", "start q", "run p.TestA", "pass p.TestA", "output p left behind by p: loop device /dev/loop0", "run q.TestA", "fail q.TestA",
			"fail q", "fail p", "start p", "pass p", "start q", "run q.TestA", "pass q.TestA", "pass q",
		},
		flaky: []string{"q.TestA:"},
		final: []string{"p: left behind by p: loop device /dev/loop0"},
	}, {
		about:  "the package fails, no test of it",
		events: []string{"start p", "output p exit status 1", "fail p", "start p", "pass p"},
		final:  []string{"p: failed outside of its tests"},
	}, {
		about: "a package that failed because of a test fails without one",
		events: []string{
			"start p", "run p.TestA", "fail p.TestA", "fail p",
			"start p", "run p.TestA", "pass p.TestA", "output p exit status 1", "fail p",
		},
		flaky: []string{"p.TestA:"},
		final: []string{"p: failed outside of its tests"},
	}} {
		r, err := read(strings.NewReader(stream(test.events...)))
		if err != nil {
			t.Errorf("%s: %v", test.about, err)
			continue
		}
		var flaky []string
		for _, a := range r.flaky {
			flaky = append(flaky, a.of.String()+":"+strings.Join(a.output, "|"))
		}
		if !slices.Equal(flaky, test.flaky) {
			t.Errorf("%s: flaky are %q, want %q", test.about, flaky, test.flaky)
		}
		if !slices.Equal(r.final, test.final) {
			t.Errorf("%s: final are %q, want %q", test.about, r.final, test.final)
		}
	}
}

func TestTruncatedEvents(t *testing.T) {
	if _, err := read(strings.NewReader(stream("start p") + `{"Action":`)); err == nil {
		t.Error("a truncated event is not an error")
	}
}

func TestPrint(t *testing.T) {
	var b strings.Builder
	report{
		flaky: []attempt{{of: test{module + "storage/provider", "TestA"}, output: slices.Repeat([]string{"x"}, maxLines+2)}},
		final: []string{"p: failed"},
	}.print(&b)
	want := "FLAKY storage/provider.TestA\n" + strings.Repeat("    x\n", maxLines) +
		"    (2 more lines above, where it failed)\nno rerun excuses p: failed\n"
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &b, want)
	}
}
