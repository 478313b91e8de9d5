// Package leaktest fails tests that leave goroutines behind, like goleak, but with a time
// limit for a busy machine: goleak waits for less than half a second.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end.
const patience = 30 * time.Second

// Find returns an error that names the goroutines that do not end.
func Find(options ...goleak.Option) error {
	for deadline := time.Now().Add(patience); ; {
		// goleak.Find itself waits between its checks.
		if err := goleak.Find(options...); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// VerifyNone fails the test if goroutines do not end.
func VerifyNone(tb testing.TB, options ...goleak.Option) {
	tb.Helper()
	if err := Find(options...); err != nil {
		tb.Error(err)
	}
}

// VerifyTestMain runs the tests of a package, fails if they leave goroutines behind, and ends
// the process. It is for TestMain.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "goleak: Errors on successful test run:", err)
			code = 1
		}
	}
	os.Exit(code)
}
