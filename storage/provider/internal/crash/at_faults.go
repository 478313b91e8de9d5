//go:build faults

package crash

// Hook, where it is set, is called at each step, by whichever goroutine has come
// to it. It must be set before any step is come to.
var Hook func(step string)

// At says that the process has come to a step.
func At(step string) {
	if Hook != nil {
		Hook(step)
	}
}
