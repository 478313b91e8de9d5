// Package patience bounds how long is waited for what may hang in the kernel, such as a read of a
// device whose disk does not answer. Nothing ends such a call: it is left alone, and nobody joins
// it.
package patience

import (
	"slices"
	"sync"
	"time"
)

// NoAnswerError is the error of what has not answered in time.
type NoAnswerError struct {
	// Since is when what has not answered yet was asked.
	Since time.Time
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	return "no answer since " + e.Since.UTC().Format(time.RFC3339)
}

// Asker asks things that may not answer. It asks a thing that has not answered within the limit
// again only after that answer: so no more goroutines wait for the thing than have asked at once,
// and they end when the kernel returns from their calls. Asker is safe for concurrent use.
type Asker struct {
	limit time.Duration

	mu sync.Mutex
	// late has the questions that were not answered in time, by whom they were put to.
	late map[string][]*question
}

// question is one that has been put.
type question struct {
	asked    time.Time
	answered bool
}

// New returns an asker that waits so long for each answer.
func New(limit time.Duration) *Asker {
	return &Asker{limit: limit, late: make(map[string][]*question)}
}

// Ask returns the answer of the thing of that name, or a [NoAnswerError] where it gives none in
// time, or has not answered an earlier question yet. An answer that comes too late is dropped.
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

// waiting returns the error of something that has not answered yet.
func (a *Asker) waiting(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if late := a.late[name]; len(late) > 0 {
		return &NoAnswerError{late[0].asked}
	}
	return nil
}

// isLate notes that a question has not been answered in time, unless it just has.
func (a *Asker) isLate(name string, q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !q.answered {
		a.late[name] = append(a.late[name], q)
	}
	return !q.answered
}

// answered notes that a question has been answered.
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
