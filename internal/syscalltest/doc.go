// Package syscalltest lets system calls of the code under test fail, or lie, at will. Nothing
// but tests imports it.
//
// It is for what cannot be brought about with files and devices alone: one call that fails
// and the next that succeeds, or a disk that fails between two of them.
package syscalltest
