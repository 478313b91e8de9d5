package run

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// kill kills a program that this process has started, with its process group and all that
// descends from it, in whatever session. Those are stopped first, so that none of them
// starts another that is not seen, or leaves one behind whose parent is not known.
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

// parents returns the parent of each process.
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
		// The name of the program, in parentheses, may have anything in it.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 {
			all[pid], _ = strconv.Atoi(fields[1])
		}
	}
	return all
}
