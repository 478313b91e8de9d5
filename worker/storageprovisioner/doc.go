// Package storageprovisioner provides a worker that makes storage match the state: it creates,
// attaches, detaches and destroys volumes and filesystems through pluggable providers.
//
// A host program passes accessors to its state in a [Config] and runs the worker like its
// other workers: a machine agent runs one in the scope of its machine, an environment manager
// one in the scope of the environment. The worker starts its own goroutines and waits for
// them: one owns everything that the worker knows (loop.go), one calls the accessors
// (clerk.go), and each source in use has its own (runner.go), so that a slow source delays no
// other.
//
// Package internal/plan decides what must happen next, internal/schedule when. To follow a
// volume through the code: the loop receives its ID from a watcher (loop.go), the clerk reads
// it (facts.go and volume_facts.go in internal/translate), the plan decides, a runner carries
// out the operation (volume_ops.go in internal/translate), and the clerk records the result
// (publish.go).
package storageprovisioner
