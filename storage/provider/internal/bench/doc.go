// Package bench measures the data plane: what it costs to make and remove volumes, filesystems
// and mounts. It has only tests and benchmarks. They compare three ways to do the same work:
//
//   - exec runs the classic commands: fallocate, losetup, mkfs.ext4, mount, findmnt and df, and
//     then umount, losetup -d and rm.
//   - floor makes only the system calls, and runs mkfs with the options of the providers. It
//     keeps no records, does not check that a device is blank, and does not sync.
//   - ours calls the sources of the providers, as every user of them does.
//
// A way is serial (one volume per call, one call after another), parallel (as many calls at
// once as there are CPUs) or bulk (all volumes in one call). Each step is done with all volumes
// before the next step begins. Two more commands belong to the step mount of exec: findmnt and
// df check that the mount exists and how large it is.
//
// The benchmarks need root, and a disk for the temporary directory. The sandbox gives them
// mounts of their own, and removes what an interrupted run leaves, except for unused loop
// devices:
//
//	go test -run '^$' -bench . -benchtime 1x -exec "$PWD/scripts/sandbox" ./storage/provider/internal/bench
//	go test -run '^$' -bench Volumes/way=ours -cpuprofile cpu.pprof ./storage/provider/internal/bench -args -volumes 20 -size 16
//	go test -run Ratios -v -exec "$PWD/scripts/sandbox" ./storage/provider/internal/bench -args -bounds
//
// The package benchstat reads the output. The flag -count repeats one benchmark before the next
// one begins, so run the command several times instead: a disturbance of the machine then
// affects all ways.
//
// Times are comparable only as ratios within one run. CPU time is user and system time of the
// process and of the commands that it runs. What the kernel does in its own threads, such as
// the I/O of loop devices, is not part of it.
package bench
