//go:build !faults

package crash

// At reports that the process has reached a step.
func At(step string) {}
