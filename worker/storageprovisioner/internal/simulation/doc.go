// Package simulation contains only tests. They run storage provisioners, one for an
// environment and two for machines, with the real state, through histories of events,
// failures, crashes and restarts.
//
// The workers are the real ones, with all their goroutines, in a bubble of testing/synctest,
// where time is simulated. Every call that a worker makes of an accessor or provider waits at
// a gate, and every event of a watcher at a tap, until the history lets it go on and says how.
// So one step happens at a time, and a history of numbers is the same history each time. Each
// run without -search verifies this: it runs every history twice and compares checksums of
// everything that has happened. If they differ, the test says that the simulation is at fault,
// and where the runs diverge. The state is the real state in memory. The providers are models
// that notice when a worker calls them in a way that no worker ever must.
//
// A history is a list of steps, which are numbers (history_test.go). A number chooses among
// what is possible at the time, so any list is a history, and a failed history can be
// shortened by leaving steps out.
//
// Histories that have found errors are kept as text in testdata/corpus (corpus_test.go), and
// each go test runs them. To add a history, put the lines that the failed test printed last
// into a new file there, and above them, as a comment, what was wrong.
package simulation
