// Package testing is the parent of the packages that an embedder's tests need. One of them,
// stowagetest, puts together what most tests need. The others are its parts: a model in memory
// (modeltest), a scripted provider (providerfake), watchers that the test feeds (watchertest), a
// clock that the test advances (clocktest), and the calls that all fakes record and the failures
// that they can be given (calls).
//
// Import the packages below it, not this one: it is empty. None of them is for use outside
// tests. They work with both testing.T and check.v1's C, and wait for events without sleeping.
package testing
