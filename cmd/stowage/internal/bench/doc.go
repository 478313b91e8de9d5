// Package bench measures the agent's state: the cost of declaring, recording, reading and
// watching storage, with a thousand to a hundred thousand storage instances on one machine.
// Each is a filesystem on a loop volume, and no devices are made. The state is a real file, in
// the directory that GOTMPDIR or TMPDIR names.
//
//	go test -run '^$' -bench State -benchtime 1x ./cmd/stowage/internal/bench
//	go test -run '^$' -bench 'State/n=10{3,4}$' -count 6 ./cmd/stowage/internal/bench | benchstat -col /n -
//	go test -run '^$' -bench Resync ./cmd/stowage/internal/bench
//
// Figures end in their unit, where /instance is a share of an operation on all instances.
// Timed figures are wall time or, with -cpu-, CPU time. Figures of operations on one instance
// are percentiles, and the mean of the CPU time. Benchstat writes -sec for -ns.
//
// With -cpuprofile cpu.pprof, each figure can be examined alone:
//
//	go tool pprof -top -tagfocus figure=declare cpu.pprof
//
// Compare costs only as ratios within one run, and CPU time rather than wall time on a machine
// that does other work. TestStateGrowth checks ratios, if the flag -bounds is set.
package bench
