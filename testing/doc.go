// Package testing is the roof over what the tests of an embedder need: a model in
// memory (modeltest), a provider that does as it is told (providerfake), watchers
// fed by hand (watchertest), a clock moved by hand (clocktest), and what all fakes
// record and how they are told to fail (calls).
//
// Import the packages below it, not this one: it is empty. None of them is for use
// outside tests. They work with testing.T and with check.v1's C alike, and wait for
// what must happen without ever sleeping.
package testing
