package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/cputime"
)

// BenchmarkAgent measures an agent that has n directories: what one more costs, and what the
// agent costs by itself. CPU time is that of the agent and of the commands.
func BenchmarkAgent(b *testing.B) {
	// A mount namespace has at most 100,000 mounts (fs.mount-max).
	for _, n := range []int{0, 1000, 10_000, 90_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			all := make(agentFigures)
			for b.Loop() {
				for unit, value := range measureAgent(b, n, 5, time.Minute) {
					all[unit] += value
				}
			}
			for unit, value := range all {
				b.ReportMetric(value/float64(b.N), unit)
			}
			b.ReportMetric(0, "ns/op") // hidden: it includes setup and checks
		})
	}
}

var checkBounds = flag.Bool("bounds", false, "measure agents for two minutes, and fail if one more costs too much among many")

// maxAgentGrowth bounds the CPU time of a command for one more directory, and of what the agent
// does about it, among 3,000 directories: it is a multiple of the same among none.
//
// Each bound is about 1.5 times the largest growth in six runs of TestAgentGrowth, on two
// busy CPUs in November 2026.
var maxAgentGrowth = map[string]float64{
	"apply-cpu-ms":  17,
	"detach-cpu-ms": 13,
	"attach-cpu-ms": 7,
}

// TestAgentGrowth compares one more directory among many with one more among none.
func TestAgentGrowth(t *testing.T) {
	if !*checkBounds {
		t.Skip("it takes two minutes: set -bounds")
	}
	const many, more = 3000, 3
	among0 := measureAgent(t, 0, more, time.Second)
	among := measureAgent(t, many, more, time.Second)
	for _, unit := range slices.Sorted(maps.Keys(maxAgentGrowth)) {
		report := t.Logf
		growth := among[unit] / among0[unit]
		if growth > maxAgentGrowth[unit] {
			report = t.Errorf
		}
		report("%s: %.4g among none, %.4g among %d: grown by %.3g, want at most %g",
			unit, among0[unit], among[unit], many, growth, maxAgentGrowth[unit])
	}
}

// agentFigures are figures by their units.
type agentFigures map[string]float64

// add adds the wall time and the CPU time of an operation, in milliseconds for each of n.
func (f agentFigures) add(operation string, n int, c cost) {
	f[operation+"-ms"] = c.wall.Seconds() * 1e3 / float64(n)
	f[operation+"-cpu-ms"] = c.cpu.Seconds() * 1e3 / float64(n)
}

type cost struct{ wall, cpu time.Duration }

// least returns the least wall time and the least CPU time.
func least(all []cost) cost {
	c := all[0]
	for _, d := range all[1:] {
		c.wall, c.cpu = min(c.wall, d.wall), min(c.cpu, d.cpu)
	}
	return c
}

// measureAgent measures an agent with n directories and more, one by one. Of these, the least
// figures count, since the agent also reacts to devices and mounts of other programs. It then
// watches the agent while it is idle.
func measureAgent(tb testing.TB, n, more int, idle time.Duration) agentFigures {
	m := newMachine(tb)
	m.start()
	figures := make(agentFigures)
	if n > 0 {
		m.writeDirectories(n, 0)
		figures.add("up", n, m.measure(func() { m.mustTake("apply", "-f", m.spec, "--wait", "--timeout", "1h") }))
	}
	var apply, detach, attach, status []cost
	for i := range more {
		m.writeDirectories(n, i+1)
		one := fmt.Sprintf("one-%d", i)
		apply = append(apply, m.measure(func() { m.mustTake("apply", "-f", m.spec, "--wait", "--timeout", "1h") }))
		detach = append(detach, m.measure(func() { m.must("detach", one, "--wait") }))
		attach = append(attach, m.measure(func() { m.must("attach", one, "--wait") }))
		status = append(status, m.measure(func() { m.must("status", one) }))
	}
	figures.add("apply", 1, least(apply))
	figures.add("detach", 1, least(detach))
	figures.add("attach", 1, least(attach))
	figures.add("status", 1, least(status))

	before := m.agentCPU()
	<-time.After(idle)
	figures["idle-cpu-ms/min"] = (m.agentCPU() - before).Seconds() * 1e3 * time.Minute.Seconds() / idle.Seconds()
	figures["MB-rss"] = float64(residentBytes(m, m.agent.PID())) / 1e6
	info, err := os.Stat(filepath.Join(m.data, "state.db"))
	if err != nil {
		tb.Fatal(err)
	}
	figures["MB-state"] = float64(info.Size()) / 1e6

	m.stop()
	figures.add("restart", 1, m.measure(func() {
		m.start()
		m.mustTake("apply", "-f", m.spec, "--wait", "--timeout", "1h")
	}))
	if n > 0 {
		figures.add("away", n, m.measure(func() { m.mustTake("remove", "data", "--wait", "--timeout", "1h") }))
	}
	for i := range more {
		m.must("remove", fmt.Sprintf("one-%d", i), "--wait")
	}
	m.wantNoStorage()
	m.stop()
	return figures
}

// writeDirectories writes a file with n directories in one declaration, and more in one each.
func (m *machine) writeDirectories(n, more int) {
	m.Helper()
	text := "storage:\n"
	if n > 0 {
		text += fmt.Sprintf("- {name: data, directive: 'rootfs,1M,%d', kind: filesystem, mount: MNT/data}\n", n)
	}
	for i := range more {
		text += fmt.Sprintf("- {name: one-%d, directive: 'rootfs,1M', kind: filesystem, mount: MNT/one-%[1]d}\n", i)
	}
	m.writeSpec(text)
}

// mustTake is must for a command that may take long.
func (m *machine) mustTake(args ...string) {
	m.Helper()
	r, err := m.stowage().Run(context.Background(), args...)
	if err != nil {
		m.Fatal(err)
	}
	if r.Code != 0 {
		m.Fatal(r.All())
	}
}

// measure measures do, and the CPU time that the agent uses until it is idle again.
func (m *machine) measure(do func()) cost {
	m.Helper()
	commands, agent, begin := cputime.Used(), m.agentCPU(), time.Now()
	do()
	c := cost{wall: time.Since(begin), cpu: cputime.Used() - commands}
	<-time.After(2500 * time.Millisecond) // it gathers changes of mounts for a second, and checks
	c.cpu += m.agentCPU() - agent
	return c
}

// agentCPU returns the CPU time of the agent, 0 if no agent runs.
func (m *machine) agentCPU() time.Duration {
	m.Helper()
	if m.agent == nil {
		return 0
	}
	return cpuOf(m, m.agent.PID())
}

// cpuOf returns the CPU time of a process.
func cpuOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	const scheduled = 2 // CPUCLOCK_SCHED, in the kernel's posix-timers_types.h
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// residentBytes returns the memory of a process.
func residentBytes(tb testing.TB, pid int) int {
	tb.Helper()
	var pages, resident int
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err == nil {
		_, err = fmt.Sscan(string(data), &pages, &resident)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return resident * os.Getpagesize()
}
