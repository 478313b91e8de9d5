package storage_test

import (
	"math"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

func TestParseDirective(t *testing.T) {
	for _, test := range []struct {
		in   string
		want storage.Directive
	}{
		{"p", storage.Directive{Pool: "p", Count: 1}},
		{"P-0", storage.Directive{Pool: "P-0", Count: 1}},
		{"ebs-ssd", storage.Directive{Pool: "ebs-ssd", Count: 1}},
		{"M", storage.Directive{Pool: "M", Count: 1}},
		{"3", storage.Directive{Count: 3}},
		{"003", storage.Directive{Count: 3}},
		{"18446744073709551615", storage.Directive{Count: math.MaxUint64}},
		{"1M", storage.Directive{Size: 1, Count: 1}},
		{"1MB", storage.Directive{Size: 1, Count: 1}},
		{"1MiB", storage.Directive{Size: 1, Count: 1}},
		{"64Mi", storage.Directive{Size: 64, Count: 1}},
		{"1.5Gi", storage.Directive{Size: 1536, Count: 1}},
		{"1G", storage.Directive{Size: 1 << 10, Count: 1}},
		{"1T", storage.Directive{Size: 1 << 20, Count: 1}},
		{"1P", storage.Directive{Size: 1 << 30, Count: 1}},
		{"1E", storage.Directive{Size: 1 << 40, Count: 1}},
		{"1Z", storage.Directive{Size: 1 << 50, Count: 1}},
		{"1Y", storage.Directive{Size: 1 << 60, Count: 1}},
		{"15Y", storage.Directive{Size: 15 << 60, Count: 1}},
		{"0M", storage.Directive{Count: 1}},
		{"1.5G", storage.Directive{Size: 1536, Count: 1}},
		{"0.3M", storage.Directive{Size: 1, Count: 1}},
		{"1.0M", storage.Directive{Size: 1, Count: 1}},
		{"1.0000000000000000000000000001M", storage.Directive{Size: 2, Count: 1}},
		{"0.1G", storage.Directive{Size: 103, Count: 1}},
		{"18446744073709551615M", storage.Directive{Size: math.MaxUint64, Count: 1}},
		{"18446744073709551614.5M", storage.Directive{Size: math.MaxUint64, Count: 1}},
		{"9007199254740993M", storage.Directive{Size: 9007199254740993, Count: 1}},
		{"0000000000000000000000000000001G", storage.Directive{Size: 1024, Count: 1}},
		{"p,1G,3", storage.Directive{Pool: "p", Size: 1024, Count: 3}},
		{"3,1G,p", storage.Directive{Pool: "p", Size: 1024, Count: 3}},
		{"1G,p", storage.Directive{Pool: "p", Size: 1024, Count: 1}},
		{",,p,,3,", storage.Directive{Pool: "p", Count: 3}},
	} {
		t.Run(test.in, func(t *testing.T) {
			got, err := storage.ParseDirective(test.in)
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestParseDirectiveErrors(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"", `storage directive "" without pool, count or size not valid`},
		{",", `storage directive "," without pool, count or size not valid`},
		{"0", `storage instance count "0" (must be greater than zero) not valid`},
		{"00", `storage instance count "00" (must be greater than zero) not valid`},
		{"-1", `storage instance count "-1" (must be greater than zero) not valid`},
		{"18446744073709551616", `storage instance count "18446744073709551616" (too large) not valid`},
		{"-1G", `storage size "-1G" (must not be negative) not valid`},
		{"-0M", `storage size "-0M" (must not be negative) not valid`},
		{"16Y", `storage size "16Y" (too large) not valid`},
		{"18446744073709551616M", `storage size "18446744073709551616M" (too large) not valid`},
		{"18446744073709551615.1M", `storage size "18446744073709551615.1M" (too large) not valid`},
		{strings.Repeat("9", 400) + "Y", `storage size "` + strings.Repeat("9", 400) + `Y" (too large) not valid`},
		{"p,q", `pool name is already set to "p", new value "q" not valid`},
		{"p,p", `pool name is already set to "p", new value "p" not valid`},
		{"1,2", `storage instance count is already set to 1, new value 2 not valid`},
		{"1G,2M", `storage size is already set to 1024, new value 2 not valid`},
		{"0M,2M", `storage size is already set to 0, new value 2 not valid`},
		{"1K", unrecognized("1K")},
		{"1g", unrecognized("1g")},
		{"1GiBi", unrecognized("1GiBi")},
		{"1GBB", unrecognized("1GBB")},
		{".5G", unrecognized(".5G")},
		{"1.G", unrecognized("1.G")},
		{"1.5", unrecognized("1.5")},
		{"+1", unrecognized("+1")},
		{"1e3M", unrecognized("1e3M")},
		{"0x10M", unrecognized("0x10M")},
		{"p, 1G", unrecognized(" 1G")},
		{"p\n", unrecognized("p\\n")},
		{"-p", unrecognized("-p")},
		{"p_q", unrecognized("p_q")},
		{"pööl", unrecognized("pööl")},
		{"%s", unrecognized("%s")},
	} {
		t.Run(test.in, func(t *testing.T) {
			got, err := storage.ParseDirective(test.in)
			if err == nil {
				t.Fatalf("got %+v, no error", got)
			}
			if err.Error() != test.want {
				t.Errorf("got error %q\nwant      %q", err, test.want)
			}
			if !errors.Is(err, errors.NotValid) {
				t.Errorf("error %q does not satisfy errors.IsNotValid", err)
			}
			if got != (storage.Directive{}) {
				t.Errorf("got %+v along with an error", got)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{"64M": 64, "64Mi": 64, "64MiB": 64, "64MB": 64, "1.5G": 1536, "0.3M": 1} {
		if got, err := storage.ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "64", "64m", "64K", "0M", "-1G", "16Y", "+1G", "loop,1G", "1G,2", "1G,"} {
		got, err := storage.ParseSize(text)
		want := `"` + text + `" is not a size: write one such as 512M, 10G, 10Gi or 10GiB, with a unit of M, G, T, P, E, Z or Y`
		if err == nil || err.Error() != want || !errors.Is(err, errors.NotValid) || got != 0 {
			t.Errorf("%q: got %d, %v; want error %s", text, got, err, want)
		}
	}
}

func unrecognized(quoted string) string {
	return `unrecognized storage directive field "` + quoted + `" (want a pool, a count or a size such as 512M, 10G, 10Gi or 10GiB, with a unit of M, G, T, P, E, Z or Y) not valid`
}

func TestIsValidPoolName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "A": true, "loop": true, "ebs-ssd": true, "p0": true, "a-": true, "a--b": true,
		"": false, "0": false, "0p": false, "-": false, "-p": false, "a_b": false, "a.b": false,
		"a b": false, "a,b": false, "a\n": false, "é": false,
	} {
		if got := storage.IsValidPoolName(name); got != want {
			t.Errorf("IsValidPoolName(%q) = %t, want %t", name, got, want)
		}
	}
}

func TestToString(t *testing.T) {
	for _, test := range []struct {
		in   storage.Directive
		want string
	}{
		{storage.Directive{Pool: "p"}, "p"},
		{storage.Directive{Pool: "p", Count: 1}, "p,1"},
		{storage.Directive{Size: 1024}, "1024M"},
		{storage.Directive{Pool: "p", Size: 1024, Count: 3}, "p,3,1024M"},
	} {
		got, err := storage.ToString(test.in)
		if err != nil || got != test.want {
			t.Errorf("ToString(%+v) = %q, %v; want %q", test.in, got, err, test.want)
		}
	}
	for want, d := range map[string]storage.Directive{
		`storage directive without pool, count or size not valid`: {},
		`pool name "0p" not valid`:                                {Pool: "0p"},
		`pool name "p,9" not valid`:                               {Pool: "p,9", Count: 1},
	} {
		got, err := storage.ToString(d)
		if err == nil || err.Error() != want || !errors.Is(err, errors.NotValid) || got != "" {
			t.Errorf("ToString(%+v) = %q, %v; want error %q", d, got, err, want)
		}
	}
}

func TestParseDirectivesMap(t *testing.T) {
	got, err := storage.ParseDirectivesMap([]string{"data=loop,2G", "logs", "cache=2"}, false)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]storage.Directive{
		"data":  {Pool: "loop", Size: 2048, Count: 1},
		"logs":  {Count: 1},
		"cache": {Count: 2},
	}
	if len(got) != len(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for name, d := range want {
		if got[name] != d {
			t.Errorf("%s: got %+v, want %+v", name, got[name], d)
		}
	}
}

func TestParseDirectivesMapErrors(t *testing.T) {
	for _, test := range []struct {
		args           []string
		mustHave       bool
		wantErrorEqual string
	}{
		{[]string{""}, false, `storage argument "" with an empty name not valid`},
		{[]string{"=1G"}, false, `storage argument "=1G" with an empty name not valid`},
		{[]string{"data=1G", "data=2G"}, false, `storage "data" given more than once not valid`},
		{[]string{"data", "data"}, false, `storage "data" given more than once not valid`},
		{[]string{"data"}, true, `storage "data" without a directive (want data=DIRECTIVE) not valid`},
		{[]string{"data="}, false, `parsing directive of storage "data": storage directive "" without pool, count or size not valid`},
		{[]string{"ok", "data=1G=2G"}, false, `parsing directive of storage "data": ` + unrecognized("1G=2G")},
	} {
		got, err := storage.ParseDirectivesMap(test.args, test.mustHave)
		if err == nil || err.Error() != test.wantErrorEqual || !errors.Is(err, errors.NotValid) || got != nil {
			t.Errorf("%q: got %v, error %v\nwant error %s", test.args, got, err, test.wantErrorEqual)
		}
	}
}

// A directive that can be parsed is equal after it is written and parsed again.
func FuzzParseDirective(f *testing.F) {
	for _, seed := range []string{
		"", ",", "loop", "loop,2G", "3,1.5T,ebs-ssd", "15.999Y", "0M", "-1", "-1G", "1,1",
		"18446744073709551615", "18446744073709551615M", "00.000000001YiB",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := storage.ParseDirective(s)
		if err != nil {
			if !errors.Is(err, errors.NotValid) {
				t.Fatalf("ParseDirective(%q): %v does not satisfy errors.IsNotValid", s, err)
			}
			return
		}
		if d.Count == 0 {
			t.Fatalf("ParseDirective(%q) = %+v: no instance", s, d)
		}
		text, err := storage.ToString(d)
		if err != nil {
			t.Fatalf("ToString(%+v) of %q: %v", d, s, err)
		}
		again, err := storage.ParseDirective(text)
		if err != nil || again != d {
			t.Fatalf("%q is parsed as %+v, written as %q and parsed again as %+v, %v", s, d, text, again, err)
		}
	})
}

// A directive with a valid pool name and at least one instance is equal after it is
// written and parsed.
func FuzzDirectiveRoundTrip(f *testing.F) {
	f.Add("loop", uint64(1024), uint64(1))
	f.Add("", uint64(0), uint64(math.MaxUint64))
	f.Add("M", uint64(math.MaxUint64), uint64(7))
	f.Fuzz(func(t *testing.T, pool string, size, count uint64) {
		if pool != "" && !storage.IsValidPoolName(pool) || count == 0 {
			t.Skip("not a valid directive")
		}
		d := storage.Directive{Pool: pool, Size: size, Count: count}
		text, err := storage.ToString(d)
		if err != nil {
			t.Fatalf("ToString(%+v): %v", d, err)
		}
		got, err := storage.ParseDirective(text)
		if err != nil || got != d {
			t.Fatalf("ParseDirective(%q) = %+v, %v; want %+v", text, got, err, d)
		}
	})
}
