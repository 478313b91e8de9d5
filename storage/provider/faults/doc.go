// Package faults is the fault suite: it makes the providers' world fail at every
// step, on real devices, and sees what is left. docs/faults.md tells what each
// fault is and what holds after it; make faults runs it.
//
// It is all tests, built with the tag "faults", with which the providers tell of
// the steps that they come to (package crash).
package faults
