package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/e2e/internal/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.Main()
	if len(os.Args) > 1 && os.Args[1] == workerArg {
		mainWorker()
		return
	}
	os.Exit(m.Run())
}

func TestEveryCallHasFaults(t *testing.T) {
	for _, call := range syscallfault.Calls() {
		if len(faults[call]) == 0 {
			t.Errorf("no fault makes %s fail", call)
		}
	}
}

func TestCasesMatchPatterns(t *testing.T) {
	c := faultCase{Life: "raw", Call: "fsync", Error: unix.EIO, N: 3}
	for text, want := range map[string]bool{
		"": true, "fsync": true, "raw": true, "raw:EIO": true, "raw:fsync:EIO:3": true, "fsync:7": true,
		"sync": false, "ext4:fsync": false, "raw:fsync:ENOSPC:3": false, "@0123abcd": false,
	} {
		if got := parsePattern(text).matches(c); got != want {
			t.Errorf("%q matches %s: got %t, want %t", text, c, got, want)
		}
	}
	c.Class = "0123abcd"
	for text, want := range map[string]bool{"fsync": true, "@0123abcd": true, "raw:fsync:EIO:@0123abcd/2": true, "@0123": false} {
		if got := parsePattern(text).matches(c); got != want {
			t.Errorf("%q matches %s: got %t, want %t", text, c, got, want)
		}
	}
}

func TestSearchStartsFromCase(t *testing.T) {
	class := func(life, call, id string, n int) faultCase {
		return faultCase{Life: life, Call: call, Error: unix.EIO, Class: id, N: n}
	}
	plan := []faultCase{class("xfs", "fsync", "01", 1), class("raw", "fsync", "03", 2), class("ext4", "openat", "00", 1)}
	for text, want := range map[string]int{
		"": 3, "raw:fsync:EIO:@03/2": 2, "ext4:fsync:EIO:@03/7": 2, "raw:fsync:EIO:@02/1": 2, "raw:read:EIO:@00/1": 0,
	} {
		x := search{faultSettings: faultSettings{from: text}}
		if got, err := x.begin(plan); err != nil || len(got) != want {
			t.Errorf("from %q: got %v, %v; want %d cases", text, got, err, want)
		}
	}
	for _, text := range []string{"fsync", "raw:fsync:ENOTDIR:1", "raw:nothing:EIO:1", "raw:fsync:EIO:x"} {
		x := search{faultSettings: faultSettings{from: text}}
		if _, err := x.begin(plan); err == nil {
			t.Errorf("from %q: no error", text)
		}
	}
}

// A search tries one call of each class, in several workers.
func TestOneFaultOfEachClass(t *testing.T) {
	s := newSettings(t)
	var out strings.Builder
	x, err := newSearch(faultSettings{seed: 1, parent: s.parent, only: "rootfs:setxattr", jobs: 2}, &out)
	if err != nil {
		t.Fatal(err)
	}
	err = x.run(t.Context())
	all := x.tallies["setxattr:ENOMEM"]
	if err != nil || all == nil || all.cases == 0 || all.cases > 4 || x.cases != x.planned || x.cases != 3*all.cases {
		t.Errorf("%v, %d of %d cases, %+v\n%s", err, x.cases, x.planned, all, out.String())
	}
	if err := os.RemoveAll(x.logs); err != nil {
		t.Error(err)
	}
}

// TestOneFault makes some calls fail, and then checks that a stray file is found. No fault
// is a power failure, because a disk that is shut down disturbs the tests of other packages.
func TestOneFault(t *testing.T) {
	s := newSettings(t)
	var out strings.Builder
	x, err := newSearch(faultSettings{seed: 1, parent: s.parent}, &out)
	if err != nil {
		t.Fatal(err)
	}
	w := newTester(1, x.dir, x.binary)
	defer func() {
		if t.Failed() {
			t.Log(out.String())
		}
		if err := w.end(); err != nil {
			t.Error(err)
		}
		if err := x.end(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(x.logs); err != nil {
			t.Error(err)
		}
	}()
	try := func(c faultCase) {
		t.Helper()
		r, err := w.tryCase(c)
		if err == nil {
			err = x.note(r)
		}
		if err != nil || r.Step == "" {
			t.Fatalf("%s: step %q, %v", c, r.Step, err)
		}
	}
	for _, c := range []faultCase{
		{Life: "raw", Call: "fallocate", Error: unix.ENOSPC, N: 1},
		{Life: "tmpfs", Call: "fsmount", Error: unix.ENOMEM, N: 1},
		{Life: "rootfs", Call: "umount2", Error: unix.EBUSY, N: 1},
		{Life: "import", Call: "flock", Error: unix.EINTR, N: 1},
		{Life: "given-up", Call: "fallocate", Error: unix.ENOSPC, N: 1},
		{Life: "given-up", Call: "setxattr", Error: unix.ENOMEM, N: 1},
		{Life: "start", Call: "flock", Error: unix.EAGAIN, N: 1},
	} {
		try(c)
	}
	if len(x.findings) > 0 || x.tallies["fallocate:ENOSPC"].cases != 2 || x.tallies["umount2:EBUSY"].cases != 1 {
		t.Fatalf("findings %q, %+v", x.findings, x.tallies)
	}

	stray := filepath.Join(w.machine.boundStorage(), "loop/volumes/volume-0-999.tmp")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	try(faultCase{Life: "tmpfs", Call: "fsmount", Error: unix.ENOMEM, N: 1})
	if len(x.findings) != 1 || !strings.Contains(x.findings[0], "volume-0-999.tmp is nobody's") {
		t.Errorf("findings %q, want the stray file", x.findings)
	}
	if !strings.Contains(out.String(), "again: -only tmpfs:fsmount:ENOMEM:1") {
		t.Error("the output does not say how to repeat the case")
	}
	// A finding does not affect the next case.
	try(faultCase{Life: "tmpfs", Call: "fsmount", Error: unix.ENOMEM, N: 1})
	if len(x.findings) != 1 {
		t.Errorf("after a finding: %q", x.findings)
	}
}
