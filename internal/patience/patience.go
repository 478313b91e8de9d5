// Package patience bounds the wait for calls that may hang in the kernel, such as a read of a
// device whose disk does not answer. Nothing can end such a call: its goroutine is left alone,
// and later requests do not join it.
package patience

import (
	"slices"
	"sync"
	"time"
)

// NoAnswerError is the error for a call that has not answered in time.
type NoAnswerError struct {
	// Since is when the call began that has not answered yet.
	Since time.Time
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	return "no answer since " + e.Since.UTC().Format(time.RFC3339)
}

// Asker makes calls that may not answer. After a call has exceeded the limit, it makes no more
// calls of the same name until that call has answered: so no more goroutines wait than made
// calls at the same time, and they end when the kernel returns. Asker is safe for concurrent
// use.
type Asker struct {
	limit time.Duration

	mu sync.Mutex
	// late holds the calls that were not answered in time, by name.
	late map[string][]*question
}

// question is a call that has been made.
type question struct {
	asked    time.Time
	answered bool
}

// New returns an asker that waits for each answer up to the limit.
func New(limit time.Duration) *Asker {
	return &Asker{limit: limit, late: make(map[string][]*question)}
}

// Ask returns the result of ask. It returns a [NoAnswerError] if ask does not return in time,
// or if an earlier call of the same name has not answered yet. It discards an answer that
// comes too late.
func Ask[T any](a *Asker, name string, ask func() T) (T, error) {
	var none T
	if err := a.waiting(name); err != nil {
		return none, err
	}
	q := &question{asked: time.Now()}
	answer := make(chan T, 1)
	go func() {
		answer <- ask()
		a.answered(name, q)
	}()
	timer := time.NewTimer(a.limit)
	defer timer.Stop()
	select {
	case got := <-answer:
		return got, nil
	case <-timer.C:
	}
	if a.isLate(name, q) {
		return none, &NoAnswerError{q.asked}
	}
	return <-answer, nil
}

// waiting returns a NoAnswerError if an earlier call of the name has not answered yet.
func (a *Asker) waiting(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if late := a.late[name]; len(late) > 0 {
		return &NoAnswerError{late[0].asked}
	}
	return nil
}

// isLate records a call as late, and reports true, unless it has just been answered.
func (a *Asker) isLate(name string, q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !q.answered {
		a.late[name] = append(a.late[name], q)
	}
	return !q.answered
}

// answered records that a call has been answered.
func (a *Asker) answered(name string, q *question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q.answered = true
	late := slices.DeleteFunc(a.late[name], func(other *question) bool { return other == q })
	if len(late) == 0 {
		delete(a.late, name)
	} else {
		a.late[name] = late
	}
}
