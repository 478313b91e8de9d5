package delay

// Point is a place in the code, at which others may or may not come first.
type Point string

const (
	// CallBegun is in a fake, between its note that a call begins and the call's effect.
	CallBegun Point = "call-begun"
	// CallDone is in a fake, between a call's effect and the note that the call ends.
	CallDone Point = "call-done"
	// CallEnded is in a fake, between the note that a call ends and its return.
	CallEnded Point = "call-ended"
	// TestWoken is in a test that waits, between its waking and its look at what it
	// waits for.
	TestWoken Point = "test-woken"
	// EventSent is in a fed watcher, before it offers the worker an event.
	EventSent Point = "event-sent"
	// EventTaken is in a fed watcher, between the worker's taking an event and the news
	// of that to the test.
	EventTaken Point = "event-taken"
	// ClerkJob is in the worker's clerk, before it does a job.
	ClerkJob Point = "clerk-job"
	// ClerkAnswer is in the worker's clerk, before it gives the answer.
	ClerkAnswer Point = "clerk-answer"
	// HandTask is in a runner of the worker's, before it carries out a request.
	HandTask Point = "hand-task"
	// HandDone is in a runner of the worker's, before it sends its response.
	HandDone Point = "hand-done"
	// LoopEvent is in the worker's loop, before it takes the next event.
	LoopEvent Point = "loop-event"
	// LoopAdvance is in the worker's loop, between an event and what that leads to.
	LoopAdvance Point = "loop-advance"
)

// Points are all points.
var Points = []Point{
	CallBegun, CallDone, CallEnded, TestWoken, EventSent, EventTaken,
	ClerkJob, ClerkAnswer, HandTask, HandDone, LoopEvent, LoopAdvance,
}
