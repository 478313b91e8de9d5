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
	os.Exit(m.Run())
}

func TestFaultsAreOfKnownCalls(t *testing.T) {
	for _, call := range syscallfault.Calls() {
		if len(faults[call]) == 0 {
			t.Errorf("%s never fails", call)
		}
	}
}

func TestCasesMatchPatterns(t *testing.T) {
	c := faultCase{"raw", "fsync", unix.EIO, 3}
	for pattern, want := range map[string]bool{
		"": true, "fsync": true, "raw": true, "raw:EIO": true, "raw:fsync:EIO:3": true, "fsync:7": true,
		"sync": false, "ext4:fsync": false, "raw:fsync:ENOSPC:3": false,
	} {
		if got := c.matches(pattern); got != want {
			t.Errorf("%q matches %s: %t", pattern, c, got)
		}
	}
}

// TestOneFault has some calls fail, and then finds what does not belong to anything. None
// of the calls is one after which the power fails: a disk that is shut down is in the way
// of other packages' tests.
func TestOneFault(t *testing.T) {
	s := newSettings(t)
	var out strings.Builder
	x, err := newSearch(faultSettings{seed: 1, parent: s.parent}, &out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(out.String())
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
		for _, l := range lives() {
			if l.name != c.life {
				continue
			}
			there, err := x.one(l, c)
			if err != nil || !there {
				t.Fatalf("%s: there %t, %v", c, there, err)
			}
			return
		}
		t.Fatalf("there is no life %s", c.life)
	}
	for _, c := range []faultCase{
		{"raw", "fallocate", unix.ENOSPC, 1},
		{"tmpfs", "fsmount", unix.ENOMEM, 1},
		{"rootfs", "umount2", unix.EBUSY, 1},
		{"import", "flock", unix.EINTR, 1},
		{"given-up", "fallocate", unix.ENOSPC, 1},
		{"start", "flock", unix.EAGAIN, 1},
	} {
		try(c)
	}
	if len(x.findings) > 0 || x.tallies["fallocate:ENOSPC"].cases != 2 || x.tallies["umount2:EBUSY"].cases != 1 {
		t.Fatalf("findings %q, %+v", x.findings, x.tallies)
	}

	stray := filepath.Join(x.machine.boundStorage(), "loop/volumes/volume-0-999.tmp")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	try(faultCase{"tmpfs", "fsmount", unix.ENOMEM, 1})
	if len(x.findings) != 1 || !strings.Contains(x.findings[0], "volume-0-999.tmp is nobody's") {
		t.Errorf("a file that belongs to nothing: %q", x.findings)
	}
	if !strings.Contains(out.String(), "again: -only tmpfs:fsmount:ENOMEM:1") {
		t.Error("it is not said how to repeat it")
	}
	// The next case is not disturbed by what was found.
	try(faultCase{"tmpfs", "fsmount", unix.ENOMEM, 1})
	if len(x.findings) != 1 {
		t.Errorf("after a finding: %q", x.findings)
	}
}
