package patience_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stowage-io/stowage/internal/patience"
)

func TestAskReturnsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := patience.New(time.Second)
		for want := range 3 {
			got, err := patience.Ask(a, "disk", func() int { time.Sleep(time.Second - 1); return want })
			if err != nil || got != want {
				t.Errorf("%d, %v", got, err)
			}
		}
	})
}

// A subject that does not answer is waited for once, holds up no other, and is asked again
// once it has answered all earlier questions.
func TestAskSkipsSubjectUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := patience.New(time.Second)
		asked := time.Now()
		var release [2]chan struct{}
		var both sync.WaitGroup
		for i := range release {
			release[i] = make(chan struct{})
			both.Go(func() {
				_, err := patience.Ask(a, "hung", func() bool { <-release[i]; return true })
				var silent *patience.NoAnswerError
				if !errors.As(err, &silent) || !silent.Since.Equal(asked) || !strings.Contains(err.Error(), "no answer since 2000-01-01T00:00:00Z") {
					t.Errorf("a subject that does not answer: %v", err)
				}
			})
		}
		both.Wait()
		if waited := time.Since(asked); waited != time.Second {
			t.Errorf("waited %v", waited)
		}
		refused := func() {
			t.Helper()
			if _, err := patience.Ask(a, "hung", func() bool { t.Error("the silent subject was asked"); return true }); err == nil {
				t.Error("no error although the subject has not answered yet")
			}
		}
		refused()
		if waited := time.Since(asked); waited != time.Second {
			t.Errorf("waited again: %v", waited)
		}
		if ok, err := patience.Ask(a, "well", func() bool { return true }); !ok || err != nil {
			t.Errorf("another subject: %v, %v", ok, err)
		}
		close(release[0])
		synctest.Wait()
		refused()
		close(release[1])
		synctest.Wait()
		if ok, err := patience.Ask(a, "hung", func() bool { return true }); !ok || err != nil {
			t.Errorf("once it has answered: %v, %v", ok, err)
		}
	})
}
