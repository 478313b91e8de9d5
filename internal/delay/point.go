package delay

// Point is a place in the code at which the order of goroutines may vary.
type Point string

const (
	// CallBegun is in a fake, between recording that a call begins and the call's effect.
	CallBegun Point = "call-begun"
	// CallDone is in a fake, between a call's effect and recording that the call ends.
	CallDone Point = "call-done"
	// CallEnded is in a fake, between recording that a call ends and its return.
	CallEnded Point = "call-ended"
	// TestWoken is in a waiting test, between waking up and checking its condition.
	TestWoken Point = "test-woken"
	// EventSent is in a watcher that a test feeds, before it offers the worker an event.
	EventSent Point = "event-sent"
	// EventTaken is in a watcher that a test feeds, between the worker's receiving an event
	// and notifying the test.
	EventTaken Point = "event-taken"
	// ClerkJob is in the worker's clerk, before it does a job.
	ClerkJob Point = "clerk-job"
	// ClerkAnswer is in the worker's clerk, before it sends its answer.
	ClerkAnswer Point = "clerk-answer"
	// RunnerTask is in one of the worker's runners, before it carries out a request.
	RunnerTask Point = "runner-task"
	// RunnerDone is in one of the worker's runners, before it sends its response.
	RunnerDone Point = "runner-done"
	// LoopEvent is in the worker's loop, before it receives the next event.
	LoopEvent Point = "loop-event"
	// LoopAdvance is in the worker's loop, between receiving an event and acting on it.
	LoopAdvance Point = "loop-advance"
)

// Points are all points.
var Points = []Point{
	CallBegun, CallDone, CallEnded, TestWoken, EventSent, EventTaken,
	ClerkJob, ClerkAnswer, RunnerTask, RunnerDone, LoopEvent, LoopAdvance,
}
