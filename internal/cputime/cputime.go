// Package cputime measures CPU time.
package cputime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Used returns the CPU time that this process and its children have used, user and system
// time together. A child counts once it has ended and has been waited for. Work that the
// kernel does in its own threads does not count.
func Used() time.Duration {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if err := unix.Getrusage(who, &used); err != nil {
			panic(err) // the kernel knows both
		}
		total += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return total
}
