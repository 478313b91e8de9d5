// Package sourcetest contains what the tests of several sources need: a storage directory with
// an object of a source, and operations on it. Only tests use it.
package sourcetest
