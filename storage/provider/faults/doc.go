// Package faults is the fault suite. On real devices it injects a fault at every step of the
// providers and checks what is left. docs/explanation/faults.md describes each fault and what
// holds after it; "make faults" runs the suite.
//
// The package consists of tests only. They are built with the tag "faults", which makes the
// providers report their steps through package crash.
package faults
