// Package delay slows down the points at which the worker's goroutines, the fakes of its tests
// and the tests themselves interact, one point at a time or all at once. A correct test passes
// whatever is slow; a test that reads something before it is there, but usually late enough,
// fails.
//
// It does so in a build with the tag "delays", at the points that the environment variable
// STOWAGE_DELAY names, separated by commas, or at all points if it is "all":
//
//	STOWAGE_DELAY=clerk-answer go test -tags=delays ./worker/storageprovisioner
//
// "make delays" does this for each point. Without the tag, [At] is empty, is inlined, and
// costs nothing. Do not use it for waiting: nothing may depend on a delay. It has no effect in
// bubbles of testing/synctest: time is simulated there, and passes only when nothing else can
// run.
package delay
