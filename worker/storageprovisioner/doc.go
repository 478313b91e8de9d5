// Package storageprovisioner is a worker that makes storage what the state says
// it should be: it creates, attaches, detaches and destroys volumes and
// filesystems through pluggable providers.
//
// A host program gives it accessors to its state (see [Config]) and runs it as it
// runs its other workers: a machine agent in the scope of its machine, an
// environment manager in the scope of the environment. The worker starts its own
// goroutines and waits for them: one owns all it knows (loop.go), one calls the
// accessors (clerk.go), and one for each source in use calls that source
// (runner.go), so that a slow source delays nobody but itself.
//
// What must happen next is decided in internal/plan, when in internal/schedule.
// To follow a volume through the code: the loop takes its id from a watcher
// (loop.go), the clerk reads it (facts.go, volume_facts.go), the plan decides, a
// runner carries out (volume_ops.go), and the clerk records (publish.go).
package storageprovisioner
