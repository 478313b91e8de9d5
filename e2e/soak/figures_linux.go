package main

import (
	"fmt"
	"io"
	"time"
)

// figures are the counts and durations of a soak.
type figures struct {
	begun, told time.Time

	kills, stateDowns, dataDowns, bothDowns int
	// again counts the kills that hit an agent which was still starting.
	again int
	// driverKills counts the kills of the CSI driver.
	driverKills int

	operations, acknowledged, refused, cutShort, tookEffect int
	made                                                    int // storage instances
	creations                                               int // operations that made some
	snapshots, inUseSnapshots, restored                     int // snapshots, those of what cannot be copied in use, and storage instances made from them
	backups, restores, copiedBack                           int
	adopted, deleted, missing, inUse                        int // storage instances, after a restore
	copies, moves, losses, recovered                        int
	interfered                                              int // times that other programs interfered
	commandKills                                            int // of commands while no agent runs
	written, checked                                        int64
	restarts                                                int
	checks                                                  int
	slowest, waited                                         time.Duration // to converge: the longest, and the total
	mostFDs, mostGoroutines                                 int
}

func (f *figures) crashes() int { return f.kills + f.stateDowns + f.dataDowns + f.bothDowns }

// progress prints the progress now and then.
func (f *figures) progress(out io.Writer, storage int) {
	const pause = 15 * time.Second
	if time.Since(f.told) < pause {
		return
	}
	f.told = time.Now()
	fmt.Fprintf(out, "%s: %d crashes, %d of them of disks; %d operations; %d storage instances of %d made; %d MiB written, %d MiB checked; slowest to converge %s\n",
		time.Since(f.begun).Round(time.Second), f.crashes(), f.crashes()-f.kills, f.operations,
		storage, f.made, f.written>>20, f.checked>>20, f.slowest.Round(time.Millisecond))
}

// write prints all figures, when no problem was found.
func (f *figures) write(out io.Writer, seed uint64) {
	mean := time.Duration(0)
	if f.checks > 0 {
		mean = f.waited / time.Duration(f.checks)
	}
	for _, line := range []string{
		fmt.Sprintf("seed                 %d", seed),
		fmt.Sprintf("duration             %s", time.Since(f.begun).Round(time.Second)),
		fmt.Sprintf("crashes              %d", f.crashes()),
		fmt.Sprintf("  kill -9            %d, %d of them while the agent was still starting", f.kills, f.again),
		fmt.Sprintf("  of the driver      %d", f.driverKills),
		fmt.Sprintf("  state's disk down  %d", f.stateDowns),
		fmt.Sprintf("  storage's disk     %d", f.dataDowns),
		fmt.Sprintf("  both               %d", f.bothDowns),
		fmt.Sprintf("interference         %d", f.interfered),
		fmt.Sprintf("restarts             %d", f.restarts),
		fmt.Sprintf("operations           %d: %d acknowledged, %d refused, %d cut short (%d of them had taken effect)",
			f.operations, f.acknowledged, f.refused, f.cutShort, f.tookEffect),
		fmt.Sprintf("storage made         %d instances", f.made),
		fmt.Sprintf("snapshots requested  %d, %d of them failed since the storage was in use; %d storage instances made from them", f.snapshots, f.inUseSnapshots, f.restored),
		fmt.Sprintf("older states         %d restored, %d of them as a copied file", f.restores, f.copiedBack),
		fmt.Sprintf("  storage            %d adopted, %d deleted as orphans; %d missing; %d in use", f.adopted, f.deleted, f.missing, f.inUse),
		fmt.Sprintf("directories          %d copied, %d moved", f.copies, f.moves),
		fmt.Sprintf("lost states          %d, with %d storage instances", f.losses, f.recovered),
		fmt.Sprintf("commands killed      %d", f.commandKills),
		fmt.Sprintf("written and synced   %d MiB", f.written>>20),
		fmt.Sprintf("read and compared    %d MiB", f.checked>>20),
		fmt.Sprintf("looked at everything %d times", f.checks),
		fmt.Sprintf("time to converge     %s at most, %s in the mean", f.slowest.Round(time.Millisecond), mean.Round(time.Millisecond)),
		fmt.Sprintf("agent at rest        %d descriptors and %d goroutines at most", f.mostFDs, f.mostGoroutines),
		"findings             0",
	} {
		fmt.Fprintln(out, line)
	}
}
