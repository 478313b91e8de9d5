package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
				for unit, value := range measureAgent(b, n, time.Minute) {
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

// agentFigures are figures by their units.
type agentFigures map[string]float64

// add adds the wall time and the CPU time of an operation, in milliseconds for each of n.
func (f agentFigures) add(operation string, n int, c cost) {
	f[operation+"-ms"] = c.wall.Seconds() * 1e3 / float64(n)
	f[operation+"-cpu-ms"] = c.cpu.Seconds() * 1e3 / float64(n)
}

type cost struct{ wall, cpu time.Duration }

func (c *cost) add(d cost) {
	c.wall += d.wall
	c.cpu += d.cpu
}

// measureAgent measures an agent with n directories, which it watches while they are idle.
func measureAgent(tb testing.TB, n int, idle time.Duration) agentFigures {
	m := newMachine(tb)
	m.start()
	figures := make(agentFigures)
	if n > 0 {
		m.writeDirectories(n, 0)
		figures.add("up", n, m.measure(func() { m.mustTake("apply", "-f", m.spec, "--wait") }))
	}
	const more = 5
	var apply, detach, attach, status cost
	for i := range more {
		m.writeDirectories(n, i+1)
		one := fmt.Sprintf("one-%d", i)
		apply.add(m.measure(func() { m.mustTake("apply", "-f", m.spec, "--wait") }))
		detach.add(m.measure(func() { m.must("detach", one, "--wait") }))
		attach.add(m.measure(func() { m.must("attach", one, "--wait") }))
		status.add(m.measure(func() { m.must("status", one) }))
	}
	figures.add("apply", more, apply)
	figures.add("detach", more, detach)
	figures.add("attach", more, attach)
	figures.add("status", more, status)

	before := m.agentCPU()
	<-time.After(idle)
	figures["idle-cpu-ms/min"] = (m.agentCPU() - before).Seconds() * 1e3 * time.Minute.Seconds() / idle.Seconds()
	figures["MB-rss"] = float64(m.residentBytes()) / 1e6
	info, err := os.Stat(filepath.Join(m.data, "state.db"))
	if err != nil {
		tb.Fatal(err)
	}
	figures["MB-state"] = float64(info.Size()) / 1e6

	m.stop()
	figures.add("restart", 1, m.measure(func() {
		m.start()
		m.mustTake("apply", "-f", m.spec, "--wait")
	}))
	if n > 0 {
		figures.add("away", n, m.measure(func() { m.mustTake("remove", "data", "--wait") }))
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
	const scheduled = 2 // CPUCLOCK_SCHED, in the kernel's posix-timers_types.h
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^m.agent.PID()<<3|scheduled), &used); err != nil {
		m.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// residentBytes returns the memory of the agent.
func (m *machine) residentBytes() int {
	m.Helper()
	var pages, resident int
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.agent.PID()))
	if err == nil {
		_, err = fmt.Sscan(string(data), &pages, &resident)
	}
	if err != nil {
		m.Fatal(err)
	}
	return resident * os.Getpagesize()
}
