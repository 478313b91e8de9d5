// Package syscalltest makes system calls of the code under test fail, or return false results.
// Only tests import it.
//
// It is for failures that cannot be produced with files and devices alone: one call that fails
// and the next that succeeds, or a disk that fails between two calls.
package syscalltest
