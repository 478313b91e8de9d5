// Package delay slows down the points at which the worker's goroutines, the fakes of its
// tests and the tests themselves hand over to each other, one point at a time or all at
// once. A test that is right passes whatever is slow; one that reads something before it
// is there, but mostly late enough, fails.
//
// It does so in a build with the tag "delays", at the points that the environment
// variable STOWAGE_DELAY names, separated by commas, or at all of them where it says
// "all":
//
//	STOWAGE_DELAY=clerk-answer go test -tags=delays ./worker/storageprovisioner
//
// "make delays" does this for each point. Without the tag [At] is empty, is inlined, and
// costs nothing. Not for waiting: nothing may depend on a delay. Not for bubbles of
// testing/synctest: the time there is simulated, and passes when nothing else is to be
// done, so that a delay changes nothing.
package delay
