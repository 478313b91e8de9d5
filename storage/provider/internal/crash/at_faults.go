//go:build faults

package crash

// Hook, if set, is called at each step, by the goroutine that has reached it. It must be set
// before any step is reached.
var Hook func(step string)

// At reports that the process has reached a step.
func At(step string) {
	if Hook != nil {
		Hook(step)
	}
}
