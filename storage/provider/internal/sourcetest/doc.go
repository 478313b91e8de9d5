// Package sourcetest has what the tests of several sources need: a storage directory
// with an object of a source, and what is done to it. It is for tests alone.
package sourcetest
