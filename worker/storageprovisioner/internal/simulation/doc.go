// Package simulation has no code but tests: it drives storage provisioners, those of
// an environment and of two machines, with the real state, through histories of
// events, failures, crashes and restarts.
//
// The workers are the real ones, with all their goroutines, in a bubble of
// testing/synctest, where time is simulated. Every call that a worker makes, of an
// accessor or of a provider, waits at a gate, and every event of a watcher at a tap,
// until the history says that it goes on, and how: so one step happens at a time, and
// a history of numbers is the same history each time. Each run without -search proves it: it
// runs every history twice and compares checksums of all that has happened. If they differ,
// the test says that the simulation is at fault, and where the runs part. What the workers work for is the
// real state in memory. What they work on is a model of providers that notices when it
// is asked for what must never be asked.
//
// A history is a list of steps, which are numbers (history_test.go). Numbers choose
// among what is possible at the time, so that any list is a history, and a history that
// has failed is made smaller by leaving steps away.
//
// What has been found is kept in testdata/corpus, as text (corpus_test.go), and run by each
// go test. To add a history, put the lines that the failed test printed last into a new file
// there, and above them, as a comment, what was wrong.
package simulation
