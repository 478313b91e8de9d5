package run

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/stowage-io/stowage/internal/osthread"
)

// runWithCaller runs a command that the kernel kills when this process dies. The kernel takes the
// thread that has started the program for its caller, so the thread does nothing else.
func runWithCaller(cmd *exec.Cmd, run func() error) (err error) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	osthread.Do(func() { err = run() })
	return err
}

// kill kills a program that this process has started, its process group and all its
// descendants in any session. It stops them first, so that none of them can start an unseen
// process or orphan a child whose parent is then unknown.
func kill(pid int) error {
	stopped := map[int]bool{pid: true}
	_ = syscall.Kill(-pid, syscall.SIGSTOP)
	for found := true; found; {
		found = false
		for child, parent := range parents() {
			if stopped[parent] && !stopped[child] {
				found = syscall.Kill(child, syscall.SIGSTOP) == nil || found
				stopped[child] = true
			}
		}
	}
	err := syscall.Kill(-pid, syscall.SIGKILL)
	delete(stopped, pid)
	for child := range stopped {
		if kerr := syscall.Kill(child, syscall.SIGKILL); !errors.Is(kerr, syscall.ESRCH) {
			err = errors.Join(err, kerr)
		}
	}
	return err
}

// parents maps each process to its parent.
func parents() map[int]int {
	all := make(map[int]int)
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The program's name, in parentheses, may contain any character.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 {
			all[pid], _ = strconv.Atoi(fields[1])
		}
	}
	return all
}
