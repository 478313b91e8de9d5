package clocktest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/juju/clock"

	"github.com/stowage-io/stowage/testing/clocktest"
)

// t stands for the t of a test.
var t testing.TB

// The code under test waits in its own goroutine. Step moves the clock only once the timer is
// set.
func Example() {
	c := clocktest.New()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tea(c)
	}()
	c.Step(t, 3*time.Minute, 1)
	<-done
	fmt.Println("timers left:", len(c.Timers()))
	// Output:
	// the tea is ready
	// timers left: 0
}

// tea is the code under test.
func tea(c clock.Clock) {
	<-c.After(3 * time.Minute)
	fmt.Println("the tea is ready")
}
