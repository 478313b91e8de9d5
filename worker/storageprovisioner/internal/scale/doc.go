// Package scale measures the cost of the storage provisioner for a volume with its attachment,
// with a thousand to a million volumes, and compares it with a floor: the same calls made
// without the worker. State and provider are in memory and act at once (package world), so
// that the remaining cost is the worker's.
//
//	go test -run '^$' -bench . -benchtime 1x ./worker/storageprovisioner/internal/scale
//	go test -run '^$' -bench Worker/bulk/n=100000 -cpuprofile cpu.pprof ./worker/storageprovisioner/internal/scale
//
// Compare times only as ratios within one run, and CPU time rather than wall time on a machine
// that does other work. TestBounds checks ratios, if the flag -bounds is set.
package scale
